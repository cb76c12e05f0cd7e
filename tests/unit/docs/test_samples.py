"""Test the samples.

Each is valid, raises exactly the warnings that it leaves to its reader on purpose, and renders to
configurations that Triton's own proto accepts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.unit.docs import markdown
from triton_pipelines.cli.documents import check_resource, load_pipeline
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.render import render
from triton_pipelines.controllers.pipeline.first_objects import first_objects

SAMPLES = {
    path.stem: path for path in sorted((markdown.ROOT / "manifests" / "samples").glob("*.yaml"))
}
OPTIONS = {
    "GPU nodes": Options(),
    "a server without the ONNX backend": Options(substitute_runner=frozenset({"onnxruntime_onnx"})),
}


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(SAMPLES[name].read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_has_no_warning(name: str) -> None:
    """What a user copies passes ``validate --strict``."""
    checked = check_resource(name, document(name), Options())
    assert (checked.findings, checked.warnings) == ((), ())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.proves_files("manifests/samples", "parsed")
def test_configs_are_what_tritons_proto_takes(name: str, options: Options) -> None:
    """`only` has judged them by the rules of the server already."""
    pipeline, graph = load_pipeline(SAMPLES[name], options)
    revision = render(pipeline, graph, options)
    configs = {
        Path(path).parts[0]: text
        for path, text in revision.files.items()
        if path.endswith("/config.pbtxt")
    }
    wanted = {step.model_name for step in graph.models} | {graph.model_name}
    assert set(configs) == wanted
    for model, text in configs.items():
        assert text_format.Parse(text, model_config_pb2.ModelConfig()).name == model
    assert {"Deployment", "Service", "ConfigMap"} <= {
        item["kind"] for item in first_objects(pipeline, graph, revision, options, "key")
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_says_what_it_is_for(name: str) -> None:
    text = SAMPLES[name].read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert document(name)["metadata"]["name"] == name
    assert len(text.splitlines()) < 140
    assert max(map(len, text.splitlines())) <= 175
