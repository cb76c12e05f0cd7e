"""What the operator makes of a resource, as data to compare between versions of the operator: models, load plan, pod template.

Whatever differs here rolls the pods of unchanged resources when the operator is upgraded. The runtime's own ``model.py`` files are
named, not repeated: a change of them is seen in review, and is wanted wherever it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from tests.corpus import refused
from tests.support import libyaml
from tests.support.builders import LOADER_IMAGE, SERVER_IMAGE
from triton_pipelines.api import names, parse
from triton_pipelines.api.base import Finding
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Options, build, check
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.render import Revision, render
from triton_pipelines.compile.render.errors import RefusedError
from triton_pipelines.compile.render.model_repository import runtime_file

OPTIONS = Options(server_image=SERVER_IMAGE, loader_image=LOADER_IMAGE)


def judged(
    document: Mapping[str, Any],
) -> tuple[InferencePipeline, Graph, Revision | None, list[Finding]]:
    """What the operator makes of a resource that the schema takes, or finds: by its own rules, then by those of Triton.

    Raises :class:`ValueError` where the schema refuses it already.
    """
    pipeline, findings = parse(document)
    if pipeline is None or findings:
        raise ValueError("; ".join(map(str, findings)))
    graph = build(pipeline, OPTIONS)
    if findings := check(pipeline, graph, OPTIONS):
        return pipeline, graph, None, findings
    try:
        return pipeline, graph, render(pipeline, graph, OPTIONS), []
    except RefusedError as error:
        return pipeline, graph, None, error.findings


def rendered(document: Mapping[str, Any]) -> tuple[InferencePipeline, Graph, Revision]:
    """A resource's pipeline, its graph and its revision. Raises :class:`ValueError` with all findings where the resource is refused."""
    pipeline, graph, revision, findings = judged(document)
    if revision is None:
        raise ValueError("; ".join(map(str, findings)))
    return pipeline, graph, revision


def refusals() -> str:
    """The golden list: what the operator says to each resource of the corpus that it refuses."""
    files = (
        "\n".join(
            [sample.file.name, *(f"  {finding}" for finding in judged(sample.document)[3]), ""]
        )
        for sample in refused()
    )
    return "\n".join(files)


def models_of(document: Mapping[str, Any]) -> dict[str, model_config_pb2.ModelConfig]:
    """The model configs that a resource is rendered to, by the model's name."""
    files = rendered(document)[2].files
    configs = [
        text_format.Parse(text, model_config_pb2.ModelConfig())
        for path, text in files.items()
        if path.endswith(".pbtxt")
    ]
    return {config.name: config for config in configs}


def meaning(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a resource is rendered to: ``models`` (file → ModelConfig as JSON, or text), ``plan``, ``template``.

    Raises :class:`ValueError` with all findings where the resource is refused.
    """
    _, graph, revision = rendered(document)
    runtime = {
        runtime_file(step.implementation): step.implementation.value
        for step in graph.steps
        if step.python and step.code is None
    }
    models = {path: _model(path, text, runtime) for path, text in revision.files.items()}
    whole = {
        "models": models,
        "plan": libyaml.load(revision.data[names.KEY_PLAN]),
        "template": revision.template,
    }
    # through YAML, so that what was stored and what is made now are of the same types
    plain: dict[str, Any] = libyaml.load(dump(whole).replace(revision.name, "REVISION"))
    return plain


def _model(path: str, text: str, runtime: Mapping[str, str]) -> Any:
    if not path.endswith(".pbtxt"):
        return f"(runtime file {runtime[text]})" if text in runtime else text
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    return json_format.MessageToDict(config, preserving_proto_field_name=True)


def differences(old: Any, new: Any, path: str) -> Iterator[str]:
    """Paths below which two values differ, as deep as both are mappings."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{path}/{key}")
    elif old != new:
        yield path


def dump(value: Any) -> str:
    """YAML with sorted keys, for files that are compared."""
    text: str = yaml.safe_dump(value, sort_keys=True, allow_unicode=True, width=150)
    return text
