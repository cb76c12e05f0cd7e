"""Serve a resource on a Triton with stub backends that answer with zeros.

The core, the python backend and the loader are real.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tritonclient.http import InferenceServerClient

from e2e.local import native
from tests.support.triton import triton_server
from triton_pipelines.cli.documents import load_pipeline
from triton_pipelines.cli.local_pipeline import prepare_model_repository
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.graph.graph import Graph, Step
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.triton.distribution import Distribution
from triton_pipelines.triton.local_server import LocalTriton


@contextlib.contextmanager
def on_simulated_backends(
    file: Path, distribution: Distribution, sources: SourceMap, folder: Path
) -> Iterator[tuple[LocalTriton, InferenceServerClient]]:
    """Serve the resource of a file on that server.

    The loader lays it out below ``folder`` as in a pod. KIND_GPU becomes KIND_CPU,
    also in models that only custom code calls.
    """
    native.install()
    options = Options(models_path=str(folder / "models"), engines_path=str(folder / "engines"))
    pipeline, graph = load_pipeline(file, options)
    models = prepare_model_repository(pipeline, _on_cpu(graph), options, folder, folder, sources)
    with (
        triton_server(models, list(graph.load), distribution=distribution) as server,
        InferenceServerClient(server.http_url.removeprefix("http://")) as client,
    ):
        yield server, client


def _on_cpu(graph: Graph) -> Graph:
    def moved(step: Step) -> Step:
        groups = tuple(
            replace(group, kind="KIND_CPU" if group.kind == "KIND_GPU" else group.kind, gpus=())
            for group in step.instances.groups
        )
        return replace(step, instances=replace(step.instances, groups=groups))

    return replace(
        graph,
        steps=tuple(map(moved, graph.steps)),
        auxiliary=tuple(map(moved, graph.auxiliary)),
    )
