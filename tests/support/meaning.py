"""Compile resources of the tests: findings, graph, revision and rendered model configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.corpus import refused
from tests.support.builders import LOADER_IMAGE, SERVER_IMAGE
from triton_pipelines.api import parse
from triton_pipelines.api.base import Finding
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Options, build, check
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.compile.render import Revision, render
from triton_pipelines.compile.render.errors import RefusedError

# What an operator restricts by default is not what resources mean; it has tests of its own.
OPTIONS = Options(
    server_image=SERVER_IMAGE, loader_image=LOADER_IMAGE, pod_template=PodTemplateMode.ALLOW
)


def judged(
    document: Mapping[str, Any],
) -> tuple[InferencePipeline, Graph, Revision | None, list[Finding]]:
    """Return what the operator makes of, or finds in, a resource that the schema accepts.

    The operator applies its own rules, then those of Triton.

    Raises:
        ValueError: the schema already refuses the resource.
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
    """Return a resource's pipeline, its graph and its revision.

    Raises:
        ValueError: the resource is refused; the error has all findings.
    """
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
