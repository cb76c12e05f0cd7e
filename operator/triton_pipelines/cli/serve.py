"""``tritonpipe serve``: a pipeline on a local real Triton, without a cluster and without a GPU."""

from __future__ import annotations

import contextlib
import fcntl
import shlex
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from triton_pipelines.api.names import PORT_GRPC, PORT_HTTP, PORT_METRICS
from triton_pipelines.api.tensors import DataType
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.graph import Graph, Implementation, Step
from triton_pipelines.compile.graph.server_settings import feature_arguments
from triton_pipelines.compile.render import render
from triton_pipelines.loader.main import LoadOptions
from triton_pipelines.loader.main import run as load
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.triton.distribution import DistributionError
from triton_pipelines.triton.local_server import LOOPBACK, LocalTriton, LocalTritonError

from .documents import only
from .errors import EXIT_FAILED, EXIT_FINDINGS, EXIT_USAGE, Failure
from .trial_inference import fault_of

# The local Triton has the python backend alone: ONNX steps run on the project's runner.
SUBSTITUTED = ("onnxruntime_onnx",)
LOCK = ".lock"
# Below the working folder: the model repository, as the loader lays it out.
MODELS = "models"
ENGINES = "engines"
LOG_LINES = 15


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end; no Exception, so that nobody on the way takes it for a fault of his own, and an interrupt, since an
    event loop logs any other one that comes up in a callback, and goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


SourceMapRules = Annotated[
    list[str] | None,
    typer.Option(
        "--source-map",
        metavar="PREFIX=TARGET",
        help="Where sources really lie, such as s3://models/=file:///home/me/models/; repeatable.",
        envvar="TRITONPIPE_SOURCE_MAP",
    ),
]
Mounts = Annotated[
    Path | None,
    typer.Option(
        "--mounts",
        metavar="FOLDER",
        help="What a pod would have mounted: credentials/STEP/KEY, ca/STEP/ca.crt, configmaps/STEP/KEY (STEP.code/KEY for own Python), claims/CLAIM/…",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="Keep the files here, so that the next start downloads nothing. Default: a temporary one.",
    ),
]
Log = Annotated[
    Path | None, typer.Option("--log", metavar="FILE", help="Where Triton's own log goes.")
]
Deadline = Annotated[
    float,
    typer.Option(
        "--deadline", min=1, metavar="SECONDS", help="How long the models may take to load."
    ),
]


@dataclass(frozen=True)
class Local:
    """A pipeline that a local Triton serves.

    Attributes:
        pipeline, graph: what is served; of the graph every step is on CPU.
        server: the running Triton.
        folder: working folder; the model repository is ``folder / MODELS``.
        rebuild: the graph of a changed resource, as this one was made.
    """

    pipeline: InferencePipeline
    graph: Graph
    server: LocalTriton
    folder: Path
    rebuild: Callable[[InferencePipeline], Graph]


def serve(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML file with one InferencePipeline; - reads standard input."
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="HTTP port; 0 takes a free one.")
    ] = PORT_HTTP,
    grpc_port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="gRPC port; 0 takes a free one.")
    ] = PORT_GRPC,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, metavar="PORT", help="Port of the metrics; 0 takes a free one."
        ),
    ] = PORT_METRICS,
    source_map: SourceMapRules = None,
    mounts: Mounts = None,
    folder: Folder = None,
    log: Log = None,
    deadline: Deadline = 120.0,
) -> None:
    """Run a pipeline here on a real Triton, on CPU, without a cluster; ONNX steps run on the project's runner.

    Fetches the sources, starts Triton, prints the addresses and serves until Ctrl-C or SIGTERM.
    Exit code: 1 the resource or a source's file is wrong, 2 wrong use, 3 a source, port or Triton itself failed.
    """
    ports = {"--port": port, "--grpc-port": grpc_port, "--metrics-port": metrics_port}
    serving = False
    try:
        with (
            signals(),
            local(
                file,
                source_map or [],
                ports=ports,
                mounts=mounts,
                folder=folder,
                log=log,
                deadline=deadline,
            ) as running,
        ):
            serving = True
            _announce(running.pipeline, running.graph, running.server)
            if fault := fault_of(running.pipeline, running.graph, running.server.grpc_address):
                typer.echo(
                    f"{running.pipeline.name}: warning: a test inference failed: {fault.strip()}\nIn a cluster it would not become Ready"
                    " (InferenceFailed); where the request does not suit the pipeline, give it one of its own in spec.health",
                    err=True,
                )
            _watch(running.server)
    except Stopped as stopped:
        typer.echo("stopped", err=True)
        # Ending is what a server that serves was asked for; a start that was broken off is not done.
        raise typer.Exit(0 if serving else 128 + stopped.number) from None


@contextlib.contextmanager
def local(
    file: Path,
    source_map: list[str],
    *,
    ports: Mapping[str, int] | None = None,
    mounts: Path | None = None,
    folder: Path | None = None,
    log: Path | None = None,
    deadline: float = 120.0,
) -> Iterator[Local]:
    """A pipeline's file served here on a real Triton for the time of the context; what it takes is told on standard error.

    Args:
        file: YAML with one InferencePipeline.
        source_map: rules ``PREFIX=TARGET``.
        ports: of HTTP, gRPC and metrics, in this order, by the options that gave them; None: free ones.
        mounts, folder, log, deadline: as the options of ``tritonpipe serve``.

    Raises:
        Failure: as the command.
    """
    mapped = _source_map(source_map)
    ports = ports or {"--port": 0, "--grpc-port": 0, "--metrics-port": 0}
    options = Options(
        substitute_runner=frozenset(SUBSTITUTED),
        source_map=tuple(f"{prefix}={target}" for prefix, target in mapped.rules),
    )
    pipeline, graph = only(file, options)
    _refuse_backends(graph)
    _refuse_taken(ports)
    http_port, grpc_port, metrics_port = ports.values()
    with _working_folder(folder) as place:
        # What steps are told of files in their own repository is true of this folder.
        options = replace(
            options, models_path=str(place / MODELS), engines_path=str(place / ENGINES)
        )
        graph = _on_cpu(build(pipeline, options))
        models = _lay_out(pipeline, graph, options, place, mounts or place, mapped)
        server = LocalTriton(
            models,
            list(graph.load),
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            log_file=log,
            deadline_s=deadline,
            auto_complete=graph.auto_complete,
            extra_args=feature_arguments(pipeline, graph),
        )
        typer.echo(f"{pipeline.name}: starting Triton", err=True)
        with contextlib.ExitStack() as stack:
            try:
                # On a terminal a moving sign; in a log the line above is enough.
                with Console(stderr=True).status("Triton loads the models"):
                    stack.enter_context(server)
            except (LocalTritonError, DistributionError) as error:
                raise Failure(str(error)) from error
            yield Local(
                pipeline, graph, server, place, lambda changed: _on_cpu(build(changed, options))
            )


def _source_map(rules: list[str]) -> SourceMap:
    try:
        return SourceMap.parse(part for rule in rules for part in rule.split(","))
    except ValueError as error:
        raise Failure(f"--source-map: {error}", EXIT_USAGE) from error


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """SIGINT and SIGTERM as :class:`Stopped`, so that whatever was begun is cleaned up."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_taken(ports: Mapping[str, int]) -> None:
    """Say which port is taken before anything is downloaded."""
    for option, port in ports.items():
        for other, same in ports.items():
            if port and port == same and option < other:
                raise Failure(
                    f"{option} and {other} are both {port}; each needs a port of its own",
                    EXIT_USAGE,
                )
        with socket.socket() as listener:
            # As servers bind: connections of an earlier server that linger are no hindrance.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((LOOPBACK, port))
            except OSError as error:
                raise Failure(
                    f"{option}: {LOOPBACK}:{port} cannot be used: {error.strerror}; choose another, or 0 for a free one"
                ) from error


@contextlib.contextmanager
def _working_folder(chosen: Path | None) -> Iterator[Path]:
    """The folder for models and downloads: a temporary one, or the chosen one, which only one server may use at a time."""
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="tritonpipe-serve-") as temporary:
            yield Path(temporary)
        return
    folder = chosen.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise Failure(f"--folder: {folder} cannot be used: {error.strerror}", EXIT_USAGE) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Failure(
                f"--folder: {folder} is used by another `tritonpipe serve`; choose another folder"
            ) from error
        yield folder


def _refuse_backends(graph: Graph) -> None:
    """Say at once which steps the local Triton cannot run."""
    if lacking := [step for step in graph.models if step.implementation is Implementation.BACKEND]:
        steps = "; ".join(
            f"{step.path}.{'platform' if step.platform else 'backend'}: {step.platform or step.backend}"
            for step in lacking
        )
        raise Failure(
            f"{steps}: needs a Triton with that backend, and the local one has the python backend alone. Steps of platform python are served here,"
            " and onnxruntime_onnx on the project's runner; use a cluster for others (tensorrt_plan, pytorch_libtorch, vllm, any other backend)",
            EXIT_USAGE,
        )


def _on_cpu(graph: Graph) -> Graph:
    """The same graph with every step on CPU: a Triton without CUDA refuses KIND_GPU and ends."""

    def on_cpu(step: Step) -> Step:
        return replace(
            step, instances=replace(step.instances, kind="KIND_CPU", gpus=(), profiles=())
        )

    return replace(
        graph, steps=tuple(map(on_cpu, graph.steps)), auxiliary=tuple(map(on_cpu, graph.auxiliary))
    )


def _lay_out(
    pipeline: InferencePipeline,
    graph: Graph,
    options: Options,
    folder: Path,
    mounts: Path,
    mapped: SourceMap,
) -> Path:
    """Fetch and write what a pod's init container would; the model repository."""
    revision = render(pipeline, graph, options)
    config = folder / "revision"
    try:
        config.mkdir(parents=True, exist_ok=True)
        for key, content in revision.data.items():
            (config / key).write_text(content, encoding="utf-8")
    except OSError as error:
        raise Failure(
            f"{error.filename} cannot be written: {error.strerror}; --folder chooses another place"
        ) from error
    typer.echo(f"{pipeline.name}: laying out revision {revision.name} in {folder}", err=True)
    load_options = LoadOptions(
        revision=config,
        live=folder / "live",
        root=folder,
        credentials=mounts / "credentials",
        ca=mounts / "ca",
        configmaps=mounts / "configmaps",
        claims=mounts / "claims",
        termination=None,
        source_map=mapped,
    )
    code = load(load_options)
    if code:
        raise Failure(
            f"{pipeline.name}: its files could not be laid out; the reasons stand above (--source-map and --mounts say where files lie)",
            EXIT_FINDINGS if code == 2 else EXIT_FAILED,
        )
    return load_options.models


def _watch(server: LocalTriton) -> None:
    """Until a signal raises :class:`Stopped`; raises :class:`Failure` when Triton ends."""
    pause = threading.Event()
    while server.running():
        pause.wait(1.0)
    tail = "\n".join(f"  {line}" for line in server.log().splitlines()[-LOG_LINES:])
    raise Failure(f"Triton ended by itself; the end of its log:\n{tail}")


def _announce(pipeline: InferencePipeline, graph: Graph, server: LocalTriton) -> None:
    inputs = ", ".join(str(tensor) for tensor in graph.inputs)
    outputs = ", ".join(str(output.tensor) for output in graph.outputs)
    address = f"{server.http_url}/v2/models/{graph.model_name}"
    padding = f"  padding {graph.padding}\n" if graph.padding else ""
    typer.echo(
        f"{pipeline.name} is served by a real Triton on CPU\n"
        f"  HTTP    {address}/infer\n"
        f"  gRPC    {server.grpc_address}\n"
        f"  metrics {server.metrics_url}\n"
        f"  inputs  {inputs}\n"
        f"  outputs {outputs}\n"
        f"{padding}"
        f"try: tritonpipe infer {address} {_example(graph)}\n"
        "Ctrl-C ends it"
    )


def _example(graph: Graph) -> str:
    """Arguments of ``tritonpipe infer`` for this pipeline."""
    texts = [tensor for tensor in graph.inputs if tensor.data_type is DataType.STRING]
    words = ['"some text"', '--pair "another"'][: len(texts)]
    others = [tensor for tensor in graph.inputs if tensor not in texts[:2]]
    return " ".join([*words, *(f"--input {shlex.quote(tensor.name)}=…" for tensor in others)])
