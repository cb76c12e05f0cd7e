"""``tritonpipe serve``: serve a pipeline on a local Triton, without a cluster and without a GPU."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from typing import Annotated, Any

import httpx
import typer

from triton_pipelines.api.names import PORT_GRPC, PORT_HTTP, PORT_METRICS
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.advisories import describe_advisories, release_of_version
from triton_pipelines.compile.graph.example_request import public_shape, wire_type
from triton_pipelines.compile.graph.graph import Graph, Tensor
from triton_pipelines.triton.local_server import LOOPBACK, LocalTriton

from .errors import CommandError
from .local_options import LocalServerOptions
from .local_pipeline import LocalPipeline, StoppedBySignal, raise_on_signals, serve_locally
from .model_metadata import TensorMetadata
from .option_groups import expand_options
from .shared_options import PipelineFile
from .trial_inference import trial_inference_error

LOG_LINES = 15
"""Last lines of Triton's log that are shown when it exits."""
_REQUEST_SECONDS = 5.0


def _port(name: str) -> Any:
    return typer.Option(
        min=0, max=65535, metavar="PORT", help=f"{name} port. 0 selects a free port."
    )


@expand_options
def serve(
    file: PipelineFile,
    local: LocalServerOptions,
    port: Annotated[int, _port("HTTP")] = PORT_HTTP,
    grpc_port: Annotated[int, _port("gRPC")] = PORT_GRPC,
    metrics_port: Annotated[int, _port("Metrics")] = PORT_METRICS,
) -> None:
    """Serve a pipeline on this machine with a real Triton, on CPU, without a cluster.

    ONNX steps run on a CPU fallback backend. The command fetches the sources, starts Triton,
    prints the addresses and serves until Ctrl-C or SIGTERM.

    Exit codes: 1 the resource or a source file is invalid, 2 wrong usage,
    3 a source, a port or Triton failed.
    """
    ports = {"--port": port, "--grpc-port": grpc_port, "--metrics-port": metrics_port}
    serving = False
    try:
        with (
            raise_on_signals() as check_stopped,
            serve_locally(
                file, local.source_map or [], ports=ports, **local.of_the_server()
            ) as running,
        ):
            serving = True
            _warn_of_advisories(running)
            _print_addresses(running)
            _warn_of_failed_inference(running)
            _wait_until_exit(running.server, check_stopped)
    except StoppedBySignal as stopped:
        typer.echo("stopped", err=True)
        # Stopping a running server is success; an interrupted start is not.
        raise typer.Exit(0 if serving else 128 + stopped.number) from None


def _warn_of_advisories(running: LocalPipeline) -> None:
    """Print a warning if security bulletins name the release of the local server."""
    affected = describe_advisories(release_of_version(_reported_version(running.server)))
    if affected:
        typer.echo(
            f"{running.pipeline.name}: warning: the local server: {affected}; it listens on"
            f" {LOOPBACK} only, so do not forward its ports",
            err=True,
        )


def _reported_version(server: LocalTriton) -> str:
    """Return the version that the server reports, such as 2.51.0; empty if it reports none."""
    try:
        with httpx.Client(timeout=_REQUEST_SECONDS, trust_env=False) as client:
            answer = client.get(f"{server.http_url}/v2").raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return ""
    return str(answer.get("version", ""))


def _warn_of_failed_inference(running: LocalPipeline) -> None:
    """Print a warning if the operator's test inference would fail."""
    fault = trial_inference_error(running.pipeline, running.graph, running.server.grpc_address)
    if fault:
        typer.echo(
            f"{running.pipeline.name}: warning: the test inference failed: "
            f"{fault.strip()}\nIn a cluster, the pipeline would not become Ready (reason "
            "InferenceFailed). If the generated request is not suitable for the pipeline, "
            "set a request in spec.health",
            err=True,
        )


def _wait_until_exit(server: LocalTriton, check_stopped: Callable[[], None]) -> None:
    """Wait until Triton exits.

    Raises:
        StoppedBySignal: the command was asked to end.
        CommandError: Triton exited.
    """
    pause = threading.Event()
    while server.running():
        check_stopped()
        pause.wait(1.0)
    tail = "\n".join(f"  {line}" for line in server.log().splitlines()[-LOG_LINES:])
    raise CommandError(f"Triton exited unexpectedly; the last lines of its log:\n{tail}")


def _print_addresses(running: LocalPipeline) -> None:
    """Print where the pipeline is served, its tensors, and a command to try it."""
    graph, server = running.graph, running.server
    inputs = ", ".join(
        f"{_public(tensor, graph)} (optional)"
        if tensor.name in graph.optional_inputs
        else _public(tensor, graph)
        for tensor in graph.inputs
    )
    outputs = ", ".join(_public(output.tensor, graph) for output in graph.outputs)
    address = f"{server.http_url}/v2/models/{graph.model_name}"
    padding = f"  padding {graph.padding}\n" if graph.padding else ""
    typer.echo(
        f"{running.pipeline.name} is served by a real Triton on CPU\n  HTTP    "
        f"{address}/infer\n  gRPC    {server.grpc_address}\n  metrics {server.metrics_url}\n  "
        f"inputs  {inputs}\n  outputs {outputs}\n{padding}to send a request: tritonpipe infer "
        f"{address} {_example_arguments(graph)}\nCtrl-C to stop"
    )


def _public(tensor: Tensor, graph: Graph) -> str:
    """Return a tensor as clients see it, in the notation of all commands."""
    shape = public_shape(tensor, graph)
    return str(TensorMetadata(tensor.name, wire_type(tensor.data_type), shape))


def _example_arguments(graph: Graph) -> str:
    """Return arguments of ``tritonpipe infer`` for this pipeline."""
    texts = [tensor for tensor in graph.required_inputs if tensor.data_type is DataType.STRING]
    words = ['"some text"', '--pair "another"'][: len(texts)]
    others = [tensor for tensor in graph.required_inputs if tensor not in texts[:2]]
    return " ".join([*words, *(f"--input {shlex.quote(tensor.name)}=…" for tensor in others)])
