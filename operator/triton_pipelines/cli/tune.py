"""``tritonpipe tune``: batching chosen by measurement."""

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

from triton_pipelines.api.v1alpha1 import InferencePipeline, TuningMode
from triton_pipelines.compile.graph import build
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

from .cluster_tuning import asking, refuse
from .documents import STANDARD_INPUT, only, resource
from .errors import EXIT_FAILED, EXIT_FINDINGS, EXIT_USAGE, Failure
from .options import OperatorConfigFile, SourceMaps, SubstituteRunner, operator_options
from .output import figures, plottable, writable
from .serve import Mounts, Stopped, local, signals

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s/:@\[\]]+):[0-9]{1,5}")


class Output(StrEnum):
    """How the report is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def tune(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML file with one InferencePipeline; - reads standard input."
        ),
    ],
    in_cluster: Annotated[
        bool,
        typer.Option(
            "--in-cluster",
            help="Print the command that starts a run in the cluster; FILE is the pipeline's name there.",
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
            help="gRPC address of a Triton that runs this pipeline and serves nobody else. Default: it is served here.",
        ),
    ] = None,
    control_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --server: file with the key of its control API, where that is restricted.",
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
            help="p99 to keep, in milliseconds. Default: spec.slo.p99Milliseconds.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.1,
            help="Requests per second that it gets, to compare with. Default: as many as it can carry.",
        ),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts of the real traffic, one a line.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="median=N,sigma=X,cap=N",
            help="Lengths in tokens of made-up texts. Default: median=32,sigma=0.6, up to maxLength.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Rows (texts) of a request.")] = 1,
    output: Annotated[
        Output,
        typer.Option("--output", "-o", help="How the report is printed; yaml is the patch alone."),
    ] = Output.TABLE,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the throughput-latency curve as SVG.")
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the report as JSON, in the shape of status.tuning."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=1, help="Length of a measured point. Default: 16, thorough 60."
        ),
    ] = None,
    cores: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.5,
            help="CPU cores that the server may use. Default: those of this machine.",
        ),
    ] = None,
    source_map: SourceMaps = None,
    mounts: Mounts = None,
    operator_config: OperatorConfigFile = None,
    substitute_runner: SubstituteRunner = None,
) -> None:
    """Measure a pipeline, choose its batching for the SLO and prove it; prints a patch for the resource.

    Nothing is changed but on the server that is measured, and there only for the time of the run. Without --server the pipeline is served
    here, on CPU. Exit code: 0 measured, whether or not anything better is proven; 1 the resource is not valid, 2 wrong use, 3 the server failed.
    """
    if in_cluster:
        refuse(_given(context))
        typer.echo(asking(str(file), namespace, thorough, dt.datetime.now(dt.UTC)))
        return
    if namespace is not None:
        raise Failure(
            "--namespace: goes with --in-cluster; a pipeline served here is in none", EXIT_USAGE
        )
    for option, number in (
        ("--slo", slo),
        ("--rate", rate),
        ("--seconds", seconds),
        ("--cores", cores),
    ):
        if number is not None and not math.isfinite(number):
            raise Failure(f"{option}: {number} is no finite number", EXIT_USAGE)
    if texts is not None and lengths is not None:
        raise Failure(
            "--lengths: is of made-up texts, and --texts gives real ones; leave one out", EXIT_USAGE
        )
    if server is not None and mounts:
        raise Failure(
            "--mounts: goes with a pipeline that is served here; the one at --server has its files",
            EXIT_USAGE,
        )
    if server is not None and not _ADDRESS.fullmatch(server):
        raise Failure(
            f"--server: {server!r} is no HOST:PORT, the address of a server's gRPC API such as 127.0.0.1:8001",
            EXIT_USAGE,
        )
    plottable(plot, "--plot")
    writable(report_file, "--report-file")
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
    if control_key_file is not None and server is None:
        raise Failure(
            "--control-key-file: goes with --server; the pipeline served here has no key",
            EXIT_USAGE,
        )
    left: list[str] = []
    try:
        if str(file) != STANDARD_INPUT:
            # Before anything is fetched and started.
            pipeline = resource(file)
            slo_and_latency_budget(pipeline, settings)
            _rows_fit(pipeline, rows)
        with signals():
            if server is not None:
                options = operator_options(
                    operator_config, source_map=source_map, substitute_runner=substitute_runner
                )
                pipeline, graph = only(file, options)
                _rows_fit(pipeline, rows)
                target = TuningTarget(
                    server, lambda changed: build(changed, options), _key(control_key_file)
                )
                report = _run(target, pipeline, graph, settings, left.append)
            else:
                # Triton needs a moment to end; that is no part of a measurement.
                with local(file, source_map or _from_environment(), mounts=mounts) as running:
                    _rows_fit(running.pipeline, rows)
                    target = TuningTarget(
                        running.server.grpc_address,
                        running.rebuild,
                        url=running.server.http_url,
                        own=True,
                    )
                    report = _run(target, running.pipeline, running.graph, settings, left.append)
    except TuneError as error:
        raise Failure(
            str(error), EXIT_FINDINGS if isinstance(error, NotTunableError) else EXIT_FAILED
        ) from error
    except Stopped as stopped:
        typer.echo(
            f"stopped; {_after_stop(server, left, again=isinstance(stopped.__context__, Stopped))}",
            err=True,
        )
        raise typer.Exit(128 + stopped.number) from None
    if plot is not None:
        _write(plot, svg(chart(report)), "--plot")
    if not report.ended:  # that file is a result, and this is none
        _write(report_file, json.dumps(status_of(report)), "--report-file")
    if output is Output.YAML:
        typer.echo(patch_yaml(report) or "{}\n", nl=False)
    elif output is Output.JSON:
        typer.echo(json.dumps(report_document(report), indent=1, allow_nan=False))
    else:
        _print(report)
    if report.ended:
        raise Failure(
            f"ended after {len(report.points)} points, which are shown: {report.ended}", EXIT_FAILED
        )


def _after_stop(server: str | None, left: Sequence[str], *, again: bool) -> str:
    """What a run that was stopped leaves. ``left``: what it said itself; ``again``: it was stopped once more on its way out."""
    if server is None:
        return "nothing was changed"
    if again and not left:
        return (
            f"{server}: the first setting may not have been put back on the server; start it anew"
        )
    return (
        "; ".join(f"{server}: {said}" for said in left) or f"{server} has the setting that it had"
    )


def _rows_fit(pipeline: InferencePipeline, rows: int) -> None:
    """Refuse requests that the current setting, with which all others are compared, could not take."""
    for field, most in (
        (
            "spec.model.maxBatchSize",
            max_batch_size(pipeline.spec.model) if pipeline.spec.model is not None else None,
        ),
        ("spec.ensemble.maxBatchSize", pipeline.spec.ensemble.max_batch_size),
    ):
        if most and rows > most:
            raise Failure(
                f"--rows {rows}: a request has more rows than {field} {most} lets in; send fewer, or raise that first",
                EXIT_USAGE,
            )


def _given(context: typer.Context) -> dict[str, str]:
    """Parameters on the command line, with the options that they are written as."""
    return {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name
        and (source := context.get_parameter_source(param.name)) is not None
        and source.name == "COMMANDLINE"
    }


def _from_environment() -> list[str]:
    return [rules] if (rules := os.environ.get("TRITONPIPE_SOURCE_MAP")) else []


def _run(
    target: TuningTarget,
    pipeline: InferencePipeline,
    graph: Graph,
    settings: TuningOptions,
    left: Callable[[str], None],
) -> TuningReport:
    with _progress() as tell, asyncio.Runner(loop_factory=precise_event_loop) as runner:
        return runner.run(run(target, pipeline, graph, settings, tell, left))


@contextlib.contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """A bar on a terminal; a line for each stage in a log."""
    if not sys.stderr.isatty():
        said: list[str] = []

        def line(done: float, text: str) -> None:
            if text != (said[-1] if said else ""):
                said.append(text)
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
        raise Failure(
            f"--texts: {file} {error if isinstance(error, TextsError) else f'cannot be read: {error}'}",
            EXIT_USAGE,
        ) from error


def _lengths(text: str | None) -> TextLengths | None:
    try:
        return None if text is None else TextLengths.parse(text)
    except TextsError as error:
        raise Failure(f"--lengths: {error}", EXIT_USAGE) from error


def _key(file: Path | None) -> str | None:
    try:
        return None if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"--control-key-file: {file} cannot be read: {error}", EXIT_USAGE) from error


def _write(file: Path | None, content: str, option: str) -> None:
    if file is None:
        return
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise Failure(
            f"{option}: {file} cannot be written: {error.strerror}", EXIT_USAGE
        ) from error


def _milliseconds(seconds: float) -> str:
    if seconds <= 0:
        return ""
    return f"{seconds * 1e3:.1f}" if seconds < 3600 else "failed"


def _print(report: TuningReport) -> None:
    typer.echo(
        f"{report.pipeline}: SLO {report.slo * 1e3:g} ms, latency budget {report.latency_budget * 1e3:g} ms; {report.workload};"
        f" {report.mode.value.lower()} run of {report.seconds:.0f} s, {report.failed_requests} failed requests"
        + (f", {report.late_requests} timed out or rejected" if report.late_requests else "")
    )
    table = Table()
    tried = any(point.setting.padding.mode for point in report.points)
    for name in (
        "setting",
        *(("padding",) if tried else ()),
        "batch",
        "delay ms",
        "model",
        "tokenizer",
        "offered /s",
        "carried /s",
        "p50 ms",
        "p99 ms",
        "predicted",
        "",
    ):
        table.add_column(name, justify="left" if name in ("setting", "padding", "") else "right")
    for point in (*report.points, *report.ends):
        setting = point.setting
        table.add_row(
            point.name,
            *((str(setting.padding) or "as it is",) if tried else ()),
            str(setting.max_batch_size),
            f"{setting.queue_delay / 1000:g}",
            str(setting.model_instances),
            str(setting.tokenizer_instances or "-"),
            f"{point.rate:.0f}",
            f"{point.carried:.0f}" if point.measured else "",
            _milliseconds(point.p50),
            _milliseconds(point.p99),
            _milliseconds(point.predicted_p99),
            {
                PointOutcome.WITHIN: "within the latency budget",
                PointOutcome.BREAKS: "exceeds the latency budget",
                PointOutcome.PREDICTED: "not measured",
            }[point.outcome],
        )
    figures(table)
    typer.echo(terminal(report))
    steps = Table()
    for name in ("step", "each execution ms", "each row us", "each token us", "fit off by", "busy"):
        steps.add_column(name, justify="left" if name == "step" else "right")
    for step in report.steps:
        law = (
            (f"{step.fixed * 1e3:.2f}", f"{step.per_row * 1e6:.1f}", f"{step.per_token * 1e6:.2f}")
            if step.fitted
            else ("table", "", "")
        )
        steps.add_row(step.step, *law, f"{step.residual:.0%}", f"{step.busy:.0%}")
    figures(steps)
    typer.echo(report.message)
    typer.echo(report.advice)
    for note in report.notes:
        typer.echo(f"note: {note}")
    if report.patch:
        typer.echo(
            "\nto have it, merge into the resource (kubectl patch --type=merge, or by hand):"
        )
        typer.echo(yaml.safe_dump(report.patch, sort_keys=False), nl=False)
