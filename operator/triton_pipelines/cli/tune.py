"""``tritonpipe tune``: choose batching by measurement."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.tools.loadgen import precise_event_loop
from triton_pipelines.tools.tuner import (
    NotTunableError,
    ProgressCallback,
    TuneError,
    TuningOptions,
    TuningReport,
    TuningTarget,
    slo_and_latency_budget,
)
from triton_pipelines.tools.tuner import tune as run

from .cluster_tuning import check_options, tuning_commands
from .documents import STANDARD_INPUT, load_pipeline, parse_pipeline
from .errors import EXIT_FAILED, EXIT_FINDINGS, EXIT_USAGE, CommandError
from .local_options import Mounts
from .local_pipeline import StoppedBySignal, raise_on_signals, serve_locally
from .options import OperatorConfigFile, SourceMaps, SubstituteRunner, operator_options
from .output import check_writable
from .plot_output import check_plottable
from .shared_options import PipelineFile
from .tune_options import (
    check_finite,
    check_rows,
    check_server_options,
    given_options,
    read_control_key,
    read_texts,
    source_map_of_environment,
    text_lengths,
)
from .tune_report import (
    TuneOutput,
    write_report,
)


def tune(
    context: typer.Context,
    file: PipelineFile,
    in_cluster: Annotated[
        bool,
        typer.Option(
            "--in-cluster",
            help="Print the command that starts a run in the cluster;"
            " FILE is the pipeline's name there.",
        ),
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="With --in-cluster: the pipeline's namespace."
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="gRPC address of a Triton server that serves this pipeline without other "
            "traffic. Default: serve it on this machine.",
        ),
    ] = None,
    control_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --server: file with the key of its control API, if that is restricted.",
        ),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Longer runs, more points, more repeats.")
    ] = False,
    slo: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=1,
            help="Target p99 latency, in milliseconds. Default: spec.slo.p99Milliseconds.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.1,
            help="Request rate (per second) to compare settings at."
            " Default: the highest that the pipeline sustains.",
        ),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts of real traffic, one per line.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="median=N,sigma=X,cap=N",
            help="Lengths of generated texts, in tokens."
            " Default: median=32,sigma=0.6, up to maxLength.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Rows (texts) per request.")] = 1,
    output: Annotated[
        TuneOutput,
        typer.Option("--output", "-o", help="Format of the report; yaml prints only the patch."),
    ] = TuneOutput.TABLE,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the throughput-latency curve as SVG.")
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the report as JSON, in the format of status.tuning."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=1, help="Duration of a measurement. Default: 16, thorough 60."
        ),
    ] = None,
    cores: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.5,
            help="CPU cores that the server can use. Default: all cores of this machine.",
        ),
    ] = None,
    source_map: SourceMaps = None,
    mounts: Mounts = None,
    operator_config: OperatorConfigFile = None,
    substitute_runner: SubstituteRunner = None,
) -> None:
    """Measure a pipeline, choose its batching for the SLO, verify it and print a patch.

    Only the measured server is changed, and only during the run. Without --server, the pipeline is
    served here, on CPU.

    Exit codes: 0 measured, whether or not a better setting was verified; 1 the resource is not
    valid, 2 wrong usage, 3 the server failed.
    """
    if in_cluster:
        check_options(given_options(context))
        typer.echo(tuning_commands(str(file), namespace, thorough, dt.datetime.now(dt.UTC)))
        return
    if namespace is not None:
        raise CommandError(
            "--namespace: only valid with --in-cluster; a pipeline that is served on this "
            "machine has no namespace",
            EXIT_USAGE,
        )
    check_finite({"--slo": slo, "--rate": rate, "--seconds": seconds, "--cores": cores})
    check_server_options(server, control_key_file, mounts, texts, lengths)
    check_plottable(plot, "--plot")
    check_writable(report_file, "--report-file")
    settings = TuningOptions(
        mode=TuningMode.THOROUGH if thorough else TuningMode.QUICK,
        slo_ms=slo,
        rate=rate,
        texts=read_texts(texts),
        lengths=text_lengths(lengths),
        rows=rows,
        cores=cores or float(os.cpu_count() or 1),
        seconds=seconds,
    )
    notices: list[str] = []
    with _exit_codes(server, notices):
        if str(file) != STANDARD_INPUT:
            # Checked before anything is fetched and started.
            pipeline = parse_pipeline(file)
            slo_and_latency_budget(pipeline, settings)
            check_rows(pipeline, rows)
        with raise_on_signals():
            if server is not None:
                options = operator_options(
                    operator_config, source_map=source_map, substitute_runner=substitute_runner
                )
                report = _tune_server(
                    server,
                    read_control_key(control_key_file),
                    file,
                    options,
                    settings,
                    notices.append,
                )
            else:
                report = _tune_locally(
                    file,
                    source_map or source_map_of_environment(),
                    mounts,
                    settings,
                    notices.append,
                )
    write_report(report, output, plot, report_file)


@contextlib.contextmanager
def _exit_codes(server: str | None, notices: Sequence[str]) -> Iterator[None]:
    """Translate errors of a run, and signals that stop it, into exits of the command."""
    try:
        yield
    except TuneError as error:
        raise CommandError(
            str(error), EXIT_FINDINGS if isinstance(error, NotTunableError) else EXIT_FAILED
        ) from error
    except StoppedBySignal as stopped:
        again = isinstance(stopped.__context__, StoppedBySignal)
        typer.echo(f"stopped; {_state_after_stop(server, notices, again=again)}", err=True)
        raise typer.Exit(128 + stopped.number) from None


def _tune_server(
    server: str,
    key: str | None,
    file: Path,
    options: Options,
    settings: TuningOptions,
    notify: Callable[[str], None],
) -> TuningReport:
    """Tune the pipeline on a running server."""
    pipeline, graph = load_pipeline(file, options)
    check_rows(pipeline, settings.rows)
    target = TuningTarget(server, lambda changed: build(changed, options), key)
    return _run(target, pipeline, graph, settings, notify)


def _tune_locally(
    file: Path,
    source_map: list[str],
    mounts: Path | None,
    settings: TuningOptions,
    notify: Callable[[str], None],
) -> TuningReport:
    """Serve the pipeline on this machine and tune it there."""
    # Triton needs a moment to stop; that is not part of a measurement.
    with serve_locally(file, source_map, mounts=mounts) as running:
        check_rows(running.pipeline, settings.rows)
        target = TuningTarget(
            running.server.grpc_address, running.rebuild, url=running.server.http_url, own=True
        )
        return _run(target, running.pipeline, running.graph, settings, notify)


def _state_after_stop(server: str | None, notices: Sequence[str], *, again: bool) -> str:
    """Describe what an interrupted run leaves behind.

    Args:
        server: address of the measured server; ``None``: it was a local one.
        notices: what the run reported about it.
        again: whether it was interrupted again while it was cleaning up.
    """
    if server is None:
        return "nothing was changed"
    if again and not notices:
        return f"{server}: the original setting might not have been restored; restart the server"
    return (
        "; ".join(f"{server}: {notice}" for notice in notices)
        or f"{server}: the original setting is restored"
    )


def _run(
    target: TuningTarget,
    pipeline: InferencePipeline,
    graph: Graph,
    settings: TuningOptions,
    notify: Callable[[str], None],
) -> TuningReport:
    with _progress() as progress, asyncio.Runner(loop_factory=precise_event_loop) as runner:
        return runner.run(run(target, pipeline, graph, settings, progress, notify))


@contextlib.contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """Yield a progress callback: a bar on a terminal, a line for each stage in a log."""
    if not sys.stderr.isatty():
        previous = ""

        def line(done: float, text: str) -> None:
            nonlocal previous
            if text != previous:
                previous = text
                typer.echo(f"{done:4.0%} {text}", err=True)

        yield line
        return
    with Progress(
        TextColumn("{task.percentage:3.0f} %"),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda done, text: bar.update(task, completed=done, description=text)
