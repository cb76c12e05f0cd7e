"""``tritonpipe tune``: choose batching by measurement."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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
from .errors import EXIT_FAILED, EXIT_FINDINGS, CommandError
from .local_pipeline import StoppedBySignal, raise_on_signals, serve_locally
from .option_groups import expand_options
from .options import operator_options
from .output import check_writable
from .plot_output import check_plottable
from .shared_options import PipelineFile
from .tune_options import (
    ClusterRunOptions,
    MeasurementOptions,
    TunedServerOptions,
    check_finite,
    check_rows,
    check_server_options,
    given_options,
    read_control_key,
    source_map_of_environment,
)
from .tune_report import (
    TuneOutput,
    write_report,
)


@expand_options
def tune(
    context: typer.Context,
    file: PipelineFile,
    in_cluster: ClusterRunOptions,
    measurement: MeasurementOptions,
    server: TunedServerOptions,
    output: Annotated[
        TuneOutput,
        typer.Option("--output", "-o", help="Format of the report; patch prints only the patch."),
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
) -> None:
    """Measure a pipeline, choose its batching for the SLO, verify it and print a patch.

    Only the measured server is changed, and only during the run. Without --server, the pipeline is
    served here, on CPU.

    Exit codes: 0 measured, whether or not a better setting was verified; 1 the resource is not
    valid, 2 wrong usage, 3 the server failed.
    """
    if in_cluster.in_cluster:
        check_options(given_options(context))
        typer.echo(
            tuning_commands(str(file), in_cluster, measurement.thorough, dt.datetime.now(dt.UTC))
        )
        return
    in_cluster.check_unused()
    check_finite(measurement)
    check_server_options(server, measurement)
    check_plottable(plot)
    check_writable(report_file, "--report-file")
    report = _measure(file, measurement.settings(), server)
    write_report(report, output, plot, report_file)


def _measure(file: Path, settings: TuningOptions, server: TunedServerOptions) -> TuningReport:
    """Tune the pipeline on the server of the options, or on one of this machine."""
    notices: list[str] = []
    with _exit_codes(server.server, notices):
        if str(file) != STANDARD_INPUT:
            # Checked before anything is fetched and started.
            pipeline = parse_pipeline(file)
            slo_and_latency_budget(pipeline, settings)
            check_rows(pipeline, settings.rows)
        with raise_on_signals():
            if server.server is None:
                source_map = server.source_map or source_map_of_environment()
                return _tune_locally(file, source_map, server.mounts, settings, notices.append)
            options = operator_options(
                server.operator_config,
                source_map=server.source_map,
                substitute_runner=server.substitute_runner,
            )
            key = read_control_key(server.control_key_file)
            return _tune_server(server.server, key, file, options, settings, notices.append)


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
        or f"{server}: the original setting was restored"
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
