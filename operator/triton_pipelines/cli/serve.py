"""``tritonpipe serve``: a pipeline on a local real Triton, without a cluster and without a GPU."""

from __future__ import annotations

import signal
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.api.names import PORT_GRPC, PORT_HTTP, PORT_METRICS
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.loader.main import LoadOptions
from triton_pipelines.loader.main import run as load
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.pipeline.graph import Graph, Implementation
from triton_pipelines.render import render
from triton_pipelines.triton.distribution import DistributionError
from triton_pipelines.triton.local import LocalTriton, LocalTritonError

from .documents import only, options_from
from .failure import EXIT_FAILED, EXIT_FINDINGS, EXIT_USAGE, Failure

SUBSTITUTED = ("onnxruntime_onnx",)


def serve(
    file: Annotated[Path, typer.Argument(help="File with one InferencePipeline.")],
    port: Annotated[int, typer.Option(help="HTTP port; 0 takes a free one.")] = PORT_HTTP,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.")] = PORT_GRPC,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics; 0 takes a free one.")] = PORT_METRICS,
    source_map: Annotated[
        list[str] | None, typer.Option(help="PREFIX=TARGET: where a source's files really lie.", envvar="TRITONPIPE_SOURCE_MAP")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Keep the files here; downloads are reused at the next start.")] = None,
    log: Annotated[Path | None, typer.Option(help="Triton's own log.")] = None,
) -> None:
    """Serve a pipeline here, with a real Triton on CPU: ONNX steps run on the project's runner. Ctrl-C ends it."""
    rules = [rule for item in source_map or [] for rule in item.split(",") if rule]
    try:
        mapped = SourceMap.parse(rules)
    except ValueError as error:
        raise Failure(f"--source-map: {error}", EXIT_USAGE) from error
    pipeline, graph = only(file, options_from(None, rules, SUBSTITUTED, "allow"))
    graph = _on_cpu(graph)
    if folder is not None:
        _serve(pipeline, graph, folder, mapped, (port, grpc_port, metrics_port), log)
        return
    with tempfile.TemporaryDirectory(prefix="tritonpipe-") as temporary:
        _serve(pipeline, graph, Path(temporary), mapped, (port, grpc_port, metrics_port), log)


def _on_cpu(graph: Graph) -> Graph:
    """The same graph with every step on CPU: a Triton without CUDA refuses KIND_GPU and ends."""
    for step in graph.steps:
        if step.implementation is Implementation.BACKEND:
            raise Failure(
                f"{step.path}.platform: {step.platform} needs a Triton with that backend; the local one runs python and ONNX steps only."
                " Use a cluster, or platform python",
                EXIT_USAGE,
            )
    return replace(graph, steps=tuple(replace(step, instances=replace(step.instances, kind="KIND_CPU")) for step in graph.steps))


def _serve(pipeline: InferencePipeline, graph: Graph, folder: Path, mapped: SourceMap, ports: tuple[int, int, int], log: Path | None) -> None:
    revision = render(pipeline, graph, options_from(None, (), SUBSTITUTED, "allow"))
    config = folder / "revision"
    config.mkdir(parents=True, exist_ok=True)
    for key, content in revision.data.items():
        (config / key).write_text(content, encoding="utf-8")
    typer.echo(f"{pipeline.name}: laying out revision {revision.name}", err=True)
    options = LoadOptions(
        revision=config,
        live=folder / "live",
        root=folder,
        credentials=folder / "credentials",
        ca=folder / "ca",
        configmaps=folder / "configmaps",
        claims=folder / "claims",
        termination=None,
        source_map=mapped,
    )
    code = load(options)
    if code:
        raise Failure(f"{pipeline.name}: its files could not be laid out; the reasons stand above", EXIT_FINDINGS if code == 2 else EXIT_FAILED)
    typer.echo(f"{pipeline.name}: starting Triton", err=True)
    http, grpc, metrics = ports
    try:
        server = LocalTriton(options.models, [graph.model_name], http_port=http, grpc_port=grpc, metrics_port=metrics, log_file=log)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        with server:
            _announce(pipeline, graph, server)
            while not ended.wait(1.0):
                if not server.running():
                    raise Failure(f"Triton ended by itself; the end of its log:\n{server.log()[-2000:]}")
    except (LocalTritonError, DistributionError) as error:
        raise Failure(str(error)) from error
    typer.echo(f"{pipeline.name}: stopped", err=True)


def _announce(pipeline: InferencePipeline, graph: Graph, server: LocalTriton) -> None:
    inputs = ", ".join(str(tensor) for tensor in graph.inputs)
    outputs = ", ".join(str(output.tensor) for output in graph.outputs)
    typer.echo(
        f"{pipeline.name} is served by a real Triton on CPU\n"
        f"  HTTP    {server.http_url}/v2/models/{graph.model_name}/infer\n"
        f"  gRPC    {server.grpc_address}\n"
        f"  metrics {server.metrics_url}\n"
        f"  inputs  {inputs}\n"
        f"  outputs {outputs}\n"
        f"  padding {graph.padding.chosen.value} ({graph.padding.reason})\n"
        f'try: tritonpipe infer {server.http_url}/v2/models/{graph.model_name} "some text"'
    )
