"""Run a pipeline on a local Triton, on CPU, for as long as a command needs it."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import typer
from rich.console import Console

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import listed
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.graph import Graph, Implementation, Step
from triton_pipelines.compile.graph.instance_groups import moved_to_cpu
from triton_pipelines.compile.graph.server_settings import feature_arguments
from triton_pipelines.compile.render import render
from triton_pipelines.loader.main import run as load
from triton_pipelines.loader.options import LoadOptions
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.triton.distribution import DistributionError
from triton_pipelines.triton.local_server import LOOPBACK, LocalTriton, LocalTritonError

from .documents import load_pipeline
from .errors import EXIT_FAILED, EXIT_FINDINGS, EXIT_USAGE, CommandError
from .local_options import parse_source_map

CPU_FALLBACK_PLATFORMS = ("onnxruntime_onnx",)
"""Platforms that run on the CPU fallback backend: the local Triton only has the python backend."""
LOCK_FILE = ".lock"
MODELS_FOLDER = "models"
"""The model repository, below the working folder."""
ENGINES_FOLDER = "engines"
_LOADER_INVALID = 2  # exit code of the loader for findings that only another spec fixes


class StoppedBySignal(KeyboardInterrupt):
    """A signal asked the command to end.

    It is no ``Exception``, so that no handler takes it for an error of its own. It is an interrupt,
    because an event loop logs any other exception raised in a callback and continues.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class LocalPipeline:
    """A pipeline that a local Triton serves."""

    pipeline: InferencePipeline
    """The resource."""
    graph: Graph
    """Its graph, with every step on CPU."""
    server: LocalTriton
    """The running Triton."""
    rebuild: Callable[[InferencePipeline], Graph]
    """Build the graph of a changed resource with the same options."""


@contextlib.contextmanager
def serve_locally(
    file: Path,
    source_map: list[str],
    *,
    ports: Mapping[str, int] | None = None,
    mounts: Path | None = None,
    folder: Path | None = None,
    log: Path | None = None,
    deadline: float = 120.0,
) -> Iterator[LocalPipeline]:
    """Serve the pipeline of a file on a local Triton until the context ends.

    Progress is reported on standard error.

    Args:
        file: YAML with one InferencePipeline.
        source_map: rules ``PREFIX=TARGET``.
        ports: HTTP, gRPC and metrics port, in this order, by their option. ``None``: free ports.
        mounts: as the option of ``tritonpipe serve``.
        folder: as the option of ``tritonpipe serve``.
        log: as the option of ``tritonpipe serve``.
        deadline: as the option of ``tritonpipe serve``, in seconds.

    Raises:
        CommandError: as the command.
    """
    rules = parse_source_map(source_map)
    ports = ports or {"--port": 0, "--grpc-port": 0, "--metrics-port": 0}
    options = Options(
        substitute_runner=frozenset(CPU_FALLBACK_PLATFORMS),
        source_map=tuple(f"{prefix}={target}" for prefix, target in rules.rules),
    )
    pipeline, graph = load_pipeline(file, options)
    _check_backends(graph)
    _check_ports(ports)
    with _working_folder(folder) as workspace:
        # Paths in the rendered configs point into this folder.
        options = replace(
            options,
            models_path=str(workspace / MODELS_FOLDER),
            engines_path=str(workspace / ENGINES_FOLDER),
        )
        graph = with_cpu_instances(build(pipeline, options))
        models = prepare_model_repository(
            pipeline, graph, options, workspace, mounts or workspace, rules
        )
        server = _server(pipeline, graph, models, ports, log, deadline)
        typer.echo(f"{pipeline.name}: starting Triton", err=True)
        with contextlib.ExitStack() as stack:
            try:
                # A spinner on a terminal; in a log the line above is enough.
                with Console(stderr=True).status("Triton loads the models"):
                    stack.enter_context(server)
            except (LocalTritonError, DistributionError) as error:
                raise CommandError(str(error)) from error
            yield LocalPipeline(
                pipeline,
                graph,
                server,
                lambda changed: with_cpu_instances(build(changed, options)),
            )


def _server(
    pipeline: InferencePipeline,
    graph: Graph,
    models: Path,
    ports: Mapping[str, int],
    log: Path | None,
    deadline: float,
) -> LocalTriton:
    """Return a Triton for the model repository, not started yet."""
    http_port, grpc_port, metrics_port = ports.values()
    return LocalTriton(
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


@contextlib.contextmanager
def raise_on_signals() -> Iterator[Callable[[], None]]:
    """Raise :class:`StoppedBySignal` on SIGINT and SIGTERM, so that contexts clean up.

    Python drops an exception that is raised while a finalizer runs. So whoever waits calls the
    yielded function from time to time: it raises the exception again.
    """
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise StoppedBySignal(number)

    def check() -> None:
        if received:
            raise StoppedBySignal(received[0])

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_ports(ports: Mapping[str, int]) -> None:
    """Refuse ports that are in use, before anything is downloaded."""
    for option, port in ports.items():
        for other, same in ports.items():
            if port and port == same and option < other:
                raise CommandError(
                    f"{option} and {other} are both {port}; choose different ports", EXIT_USAGE
                )
        with socket.socket() as listener:
            # As servers bind: lingering connections of an earlier server do not block the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((LOOPBACK, port))
            except OSError as error:
                raise CommandError(
                    f"{option}: cannot use {LOOPBACK}:{port}: {error.strerror};"
                    " choose another port, or 0 for a free one"
                ) from error


@contextlib.contextmanager
def _working_folder(chosen: Path | None) -> Iterator[Path]:
    """Yield the folder for models and downloads.

    It is temporary, or the chosen one, which only one server may use at a time.
    """
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="tritonpipe-serve-") as temporary:
            yield Path(temporary)
        return
    folder = chosen.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise CommandError(
            f"--folder: cannot use {folder}: {error.strerror}", EXIT_USAGE
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CommandError(
                f"--folder: {folder} is in use by another `tritonpipe serve`; choose another folder"
            ) from error
        yield folder


def _check_backends(graph: Graph) -> None:
    """Refuse steps that the local Triton cannot run, before anything is downloaded."""
    unsupported = [step for step in graph.models if step.implementation is Implementation.BACKEND]
    if not unsupported:
        return
    steps = listed(
        [
            f"{step.path}.{'platform' if step.platform else 'backend'} "
            f"{step.platform or step.backend}"
            for step in unsupported
        ]
    )
    raise CommandError(
        f"{steps} cannot run on the local Triton server, which supports only platform python, and "
        "platform onnxruntime_onnx with the CPU fallback backend; use a cluster",
        EXIT_USAGE,
    )


def with_cpu_instances(graph: Graph) -> Graph:
    """Return the graph with every step on CPU: a Triton without CUDA refuses KIND_GPU and exits."""

    def on_cpu(step: Step) -> Step:
        return replace(step, instances=moved_to_cpu(step.instances))

    return replace(
        graph, steps=tuple(map(on_cpu, graph.steps)), auxiliary=tuple(map(on_cpu, graph.auxiliary))
    )


def prepare_model_repository(
    pipeline: InferencePipeline,
    graph: Graph,
    options: Options,
    folder: Path,
    mounts: Path,
    rules: SourceMap,
) -> Path:
    """Render and fetch the model repository, as a pod's init container does; return its folder.

    Args:
        pipeline: the resource.
        graph: its graph.
        options: what it is rendered with.
        folder: working folder, which gets the revision, downloads and models.
        mounts: folder with what a pod would mount.
        rules: where sources are read from.

    Raises:
        CommandError: a file is wrong, or a source cannot be read.
    """
    revision = render(pipeline, graph, options)
    config = folder / "revision"
    try:
        config.mkdir(parents=True, exist_ok=True)
        for key, content in revision.data.items():
            (config / key).write_text(content, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"cannot write {error.filename}: {error.strerror}; choose another directory "
            "with --folder"
        ) from error
    typer.echo(
        f"{pipeline.name}: preparing the files of revision {revision.name} in {folder}", err=True
    )
    load_options = LoadOptions(
        revision=config,
        live=folder / "live",
        root=folder,
        credentials=mounts / "credentials",
        ca=mounts / "ca",
        configmaps=mounts / "configmaps",
        claims=mounts / "claims",
        images=mounts / "images",
        termination=None,
        source_map=rules,
    )
    code = load(load_options)
    if code:
        raise CommandError(
            f"{pipeline.name}: could not prepare the model repository; see the errors "
            "above. If the files are on this machine, specify their location: --source-map "
            "PREFIX=file:///DIR/ for sources, --mounts DIR for credentials and volumes",
            EXIT_FINDINGS if code == _LOADER_INVALID else EXIT_FAILED,
        )
    return load_options.models
