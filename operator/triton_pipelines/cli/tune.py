"""``tritonpipe tune``: choose batching by measurement."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.model_step import max_batch_size
from triton_pipelines.tools.loadgen import TextLengths, TextsError, precise_event_loop, read_lines
from triton_pipelines.tools.loadgen.plots import svg
from triton_pipelines.tools.tuner import (
    NotTunableError,
    PointOutcome,
    ProgressCallback,
    TuneError,
    TuningOptions,
    TuningReport,
    TuningTarget,
    chart,
    patch_yaml,
    report_document,
    slo_and_latency_budget,
    status_of,
    terminal,
)
from triton_pipelines.tools.tuner import tune as run

from .cluster_tuning import check_options, tuning_commands
from .documents import STANDARD_INPUT, load_pipeline, parse_pipeline
from .errors import EXIT_FAILED, EXIT_FINDINGS, EXIT_USAGE, CommandError
from .local_options import Mounts
from .local_pipeline import StoppedBySignal, raise_on_signals, serve_locally
from .options import OperatorConfigFile, SourceMaps, SubstituteRunner, operator_options
from .output import check_plottable, check_writable, print_wide, write_file
from .shared_options import PipelineFile

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s/:@\[\]]+):[0-9]{1,5}")


class TuneOutput(StrEnum):
    """Format of the printed report."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


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
            help="gRPC address of a Triton that serves this pipeline without other traffic."
            " Default: serve it here.",
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
            help="p99 latency to keep, in milliseconds. Default: spec.slo.p99Milliseconds.",
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
            help="CPU cores that the server may use. Default: all of this machine.",
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
        check_options(_given_options(context))
        typer.echo(tuning_commands(str(file), namespace, thorough, dt.datetime.now(dt.UTC)))
        return
    if namespace is not None:
        raise CommandError(
            "--namespace: only valid with --in-cluster; a pipeline served here has none",
            EXIT_USAGE,
        )
    _check_finite({"--slo": slo, "--rate": rate, "--seconds": seconds, "--cores": cores})
    _check_server_options(server, control_key_file, mounts, texts, lengths)
    check_plottable(plot, "--plot")
    check_writable(report_file, "--report-file")
    settings = TuningOptions(
        mode=TuningMode.THOROUGH if thorough else TuningMode.QUICK,
        slo_ms=slo,
        rate=rate,
        texts=_texts(texts),
        lengths=_lengths(lengths),
        rows=rows,
        cores=cores or float(os.cpu_count() or 1),
        seconds=seconds,
    )
    notices: list[str] = []
    try:
        if str(file) != STANDARD_INPUT:
            # Checked before anything is fetched and started.
            pipeline = parse_pipeline(file)
            slo_and_latency_budget(pipeline, settings)
            _check_rows(pipeline, rows)
        with raise_on_signals():
            if server is not None:
                options = operator_options(
                    operator_config, source_map=source_map, substitute_runner=substitute_runner
                )
                report = _tune_server(
                    server, _key(control_key_file), file, options, settings, notices.append
                )
            else:
                report = _tune_locally(
                    file,
                    source_map or _source_map_of_environment(),
                    mounts,
                    settings,
                    notices.append,
                )
    except TuneError as error:
        raise CommandError(
            str(error), EXIT_FINDINGS if isinstance(error, NotTunableError) else EXIT_FAILED
        ) from error
    except StoppedBySignal as stopped:
        again = isinstance(stopped.__context__, StoppedBySignal)
        typer.echo(f"stopped; {_state_after_stop(server, notices, again=again)}", err=True)
        raise typer.Exit(128 + stopped.number) from None
    _write_report(report, output, plot, report_file)


def _check_finite(numbers: dict[str, float | None]) -> None:
    """Refuse infinities and NaN. ``numbers``: values by option."""
    for option, number in numbers.items():
        if number is not None and not math.isfinite(number):
            raise CommandError(f"{option}: {number} is not a finite number", EXIT_USAGE)


def _check_server_options(
    server: str | None,
    control_key_file: Path | None,
    mounts: Path | None,
    texts: Path | None,
    lengths: str | None,
) -> None:
    """Refuse options that contradict each other."""
    if texts is not None and lengths is not None:
        raise CommandError(
            "--lengths: sets the lengths of generated texts, but --texts gives real ones;"
            " leave one out",
            EXIT_USAGE,
        )
    if server is not None and mounts:
        raise CommandError(
            "--mounts: only valid for a pipeline that is served here;"
            " the server at --server has its files",
            EXIT_USAGE,
        )
    if server is not None and not _ADDRESS.fullmatch(server):
        raise CommandError(
            f"--server: {server!r} is not HOST:PORT, the address of a server's gRPC API"
            " such as 127.0.0.1:8001",
            EXIT_USAGE,
        )
    if control_key_file is not None and server is None:
        raise CommandError(
            "--control-key-file: only valid with --server; the pipeline served here has no key",
            EXIT_USAGE,
        )


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
    _check_rows(pipeline, settings.rows)
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
        _check_rows(running.pipeline, settings.rows)
        target = TuningTarget(
            running.server.grpc_address, running.rebuild, url=running.server.http_url, own=True
        )
        return _run(target, running.pipeline, running.graph, settings, notify)


def _write_report(
    report: TuningReport, output: TuneOutput, plot: Path | None, report_file: Path | None
) -> None:
    """Print the report and write its files.

    Raises:
        CommandError: the run ended early, or a file cannot be written.
    """
    if plot is not None:
        write_file(plot, svg(chart(report)), "--plot")
    if not report.ended:  # that file is a result; an interrupted run has none
        write_file(report_file, json.dumps(status_of(report)), "--report-file")
    if output is TuneOutput.YAML:
        typer.echo(patch_yaml(report) or "{}\n", nl=False)
    elif output is TuneOutput.JSON:
        typer.echo(json.dumps(report_document(report), indent=1, allow_nan=False))
    else:
        _print(report)
    if report.ended:
        raise CommandError(
            f"ended after {len(report.points)} points, shown above: {report.ended}", EXIT_FAILED
        )


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
        return f"{server}: the original setting may not have been restored; restart the server"
    return (
        "; ".join(f"{server}: {notice}" for notice in notices)
        or f"{server}: the original setting is restored"
    )


def _check_rows(pipeline: InferencePipeline, rows: int) -> None:
    """Refuse requests that are too large for the current setting, the baseline of all others."""
    for field, most in (
        (
            "spec.model.maxBatchSize",
            max_batch_size(pipeline.spec.model) if pipeline.spec.model is not None else None,
        ),
        ("spec.ensemble.maxBatchSize", pipeline.spec.ensemble.max_batch_size),
    ):
        if most and rows > most:
            raise CommandError(
                f"--rows {rows}: a request exceeds {field} ({most});"
                " send fewer rows, or raise the field first",
                EXIT_USAGE,
            )


def _given_options(context: typer.Context) -> dict[str, str]:
    """Return the parameters on the command line with the options they are written as."""
    return {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name
        and (source := context.get_parameter_source(param.name)) is not None
        and source.name == "COMMANDLINE"
    }


def _source_map_of_environment() -> list[str]:
    return [rules] if (rules := os.environ.get("TRITONPIPE_SOURCE_MAP")) else []


def _run(
    target: TuningTarget,
    pipeline: InferencePipeline,
    graph: Graph,
    settings: TuningOptions,
    notify: Callable[[str], None],
) -> TuningReport:
    with _progress() as tell, asyncio.Runner(loop_factory=precise_event_loop) as runner:
        return runner.run(run(target, pipeline, graph, settings, tell, notify))


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


def _texts(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        return tuple(read_lines(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, TextsError) as error:
        raise CommandError(
            f"--texts: {file} {error}"
            if isinstance(error, TextsError)
            else f"--texts: cannot read {file}: {error}",
            EXIT_USAGE,
        ) from error


def _lengths(text: str | None) -> TextLengths | None:
    try:
        return None if text is None else TextLengths.parse(text)
    except TextsError as error:
        raise CommandError(f"--lengths: {error}", EXIT_USAGE) from error


def _key(file: Path | None) -> str | None:
    try:
        return None if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--control-key-file: cannot read {file}: {error}", EXIT_USAGE
        ) from error


def _milliseconds(seconds: float) -> str:
    if seconds <= 0:
        return ""
    return f"{seconds * 1e3:.1f}" if seconds < 3600 else "failed"


_OUTCOMES = {
    PointOutcome.WITHIN: "met",
    PointOutcome.BREAKS: "exceeded",
    PointOutcome.PREDICTED: "not measured",
}


def _print(report: TuningReport) -> None:
    late = f", {report.late_requests} timed out or rejected" if report.late_requests else ""
    typer.echo(
        f"{report.pipeline}: SLO {report.slo * 1e3:g} ms,"
        f" latency budget {report.latency_budget * 1e3:g} ms; {report.workload};"
        f" {report.mode.value.lower()} run of {report.seconds:.0f} s,"
        f" {report.failed_requests} failed requests{late}"
    )
    print_wide(_points_table(report))
    typer.echo(terminal(report))
    print_wide(_steps_table(report))
    typer.echo(report.message)
    typer.echo(report.advice)
    for note in report.notes:
        typer.echo(f"note: {note}")
    if report.patch:
        typer.echo("\nto apply it, merge into the resource (kubectl patch --type=merge, or edit):")
        typer.echo(yaml.safe_dump(report.patch, sort_keys=False), nl=False)


def _points_table(report: TuningReport) -> Table:
    """Return a table of the measured and predicted settings."""
    table = Table()
    padding_tried = any(point.setting.padding.mode for point in report.points)
    for name in (
        "setting",
        *(("padding",) if padding_tried else ()),
        "batch",
        "delay ms",
        "model",
        "tokenizer",
        "offered /s",
        "completed /s",
        "p50 ms",
        "p99 ms",
        "predicted",
        "latency budget",
    ):
        left = name in ("setting", "padding", "latency budget")
        table.add_column(name, justify="left" if left else "right")
    for point in (*report.points, *report.ends):
        setting = point.setting
        table.add_row(
            point.name,
            *((str(setting.padding) or "unchanged",) if padding_tried else ()),
            str(setting.max_batch_size),
            f"{setting.queue_delay / 1000:g}",
            str(setting.model_instances),
            str(setting.tokenizer_instances or "-"),
            f"{point.rate:.0f}",
            f"{point.carried:.0f}" if point.measured else "",
            _milliseconds(point.p50),
            _milliseconds(point.p99),
            _milliseconds(point.predicted_p99),
            _OUTCOMES[point.outcome],
        )
    return table


def _steps_table(report: TuningReport) -> Table:
    """Return a table of the service times fitted for each step."""
    table = Table()
    for name in (
        "step",
        "per execution ms",
        "per row us",
        "per token us",
        "fit error",
        "busy",
    ):
        table.add_column(name, justify="left" if name == "step" else "right")
    for step in report.steps:
        law = (
            (f"{step.fixed * 1e3:.2f}", f"{step.per_row * 1e6:.1f}", f"{step.per_token * 1e6:.2f}")
            if step.fitted
            else ("measured", "", "")
        )
        table.add_row(step.step, *law, f"{step.residual:.0%}", f"{step.busy:.0%}")
    return table
