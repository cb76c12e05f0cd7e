"""Test that rendering, importing and rendering again returns the same configs.

The tests use every good resource, the samples, and random resources.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings

from tests import corpus
from tests.support import libyaml
from tests.support.differential.resources import documents
from tests.support.imports import configs_of, graph_of, imported, write_repository
from tests.unit.render.test_properties import resources
from triton_pipelines.api import parse
from triton_pipelines.compile.graph import Options, build, check
from triton_pipelines.compile.graph.server_settings import server_version
from triton_pipelines.compile.render import review
from triton_pipelines.tools.importer.import_notes import NoteSeverity

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
GOOD = [pytest.param(sample.document, id=sample.name) for sample in corpus.good()]
GOOD += [
    pytest.param(libyaml.load(file.read_text(encoding="utf-8")), id=file.name)
    for file in sorted(SAMPLES.glob("*.yaml"))
]
RANDOM = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def same_again(document: dict[str, Any], folder: Path) -> None:
    """The property itself."""
    # Like the server, tracing is not part of a model repository.
    document = copy.deepcopy(document)
    document["spec"].get("observability", {}).pop("tracing", None)
    graph = graph_of(document)
    before = configs_of(graph)
    write_repository(graph, folder)
    # The server is not part of a model repository, and its release decides what is valid.
    server = document["spec"].get("server") or {}
    release = server_version(server.get("version"), server.get("image") or "")
    image = f"tritonserver:{release[0]}.{release[1]:02}-py3" if release is not None else None
    made = imported(folder, graph.model_name, image=image)
    after = configs_of(graph_of(made.document))
    assert {name: str(config) for name, config in after.items()} == {
        name: str(config) for name, config in before.items()
    }
    assert after == before
    assert [str(note) for note in made.notes if note.severity is not NoteSeverity.INFO] == []


@pytest.mark.parametrize("document", GOOD)
def test_good_resources_come_back(document: dict[str, Any], tmp_path: Path) -> None:
    same_again(document, tmp_path)


def examine(document: dict[str, Any]) -> None:
    pipeline, findings = parse(document)
    if pipeline is None or findings:
        event("broken rule")
        return
    graph = build(pipeline, Options())
    if check(pipeline, graph, Options()) or review(pipeline, graph, Options()):
        event("refused")
        return
    event("rendered")
    with tempfile.TemporaryDirectory() as folder:
        same_again(document, Path(folder))


@RANDOM
@given(document=resources("tokenizer", "model", "postprocess"))
def test_anything_at_once(document: dict[str, Any]) -> None:
    examine(document)


@RANDOM
@given(document=resources("tokenizer"))
def test_any_tokenizer(document: dict[str, Any]) -> None:
    examine(document)


@RANDOM
@given(document=resources("model", "postprocess"))
def test_any_model(document: dict[str, Any]) -> None:
    examine(document)


@settings(RANDOM, max_examples=40)
@given(document=documents())
def test_any_graph_of_steps(document: dict[str, Any]) -> None:
    examine(document)
