"""Print the report of ``tritonpipe tune`` and write its files."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

import typer
import yaml
from rich.table import Table

from triton_pipelines.api.wording import counted
from triton_pipelines.tools.loadgen.plots import svg
from triton_pipelines.tools.tuner import (
    PointOutcome,
    TuningReport,
    chart,
    patch_yaml,
    report_document,
    status_of,
    terminal,
)

from .errors import EXIT_FAILED, CommandError
from .output import print_wide, write_file
from .result_output import print_document
from .shared_options import OutputFormat


class TuneOutput(StrEnum):
    """Format of the printed report: kubectl's, and the recommended patch alone."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    PATCH = "patch"


def write_report(
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
    if output is TuneOutput.PATCH:
        if report.inconclusive:
            typer.echo(report.message, err=True)
        typer.echo(patch_yaml(report) or "{}\n", nl=False)
    elif output in (TuneOutput.TABLE, TuneOutput.WIDE):
        _print(report)
    else:
        print_document(report_document(report), OutputFormat(output))
    if report.ended:
        raise CommandError(
            f"ended after {len(report.points)} points, shown above: {report.ended}", EXIT_FAILED
        )


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
    if report.inconclusive:
        typer.echo(report.message)
    late = f", {report.late_requests} timed out or rejected" if report.late_requests else ""
    typer.echo(
        f"{report.pipeline}: SLO {report.slo * 1e3:g} ms,"
        f" latency budget {report.latency_budget * 1e3:g} ms; {report.workload};"
        f" {report.mode.value.lower()} run of {report.seconds:.0f} s,"
        f" {counted(report.failed_requests, 'failed request')}{late}"
    )
    print_wide(_points_table(report))
    typer.echo(terminal(report))
    if not report.inconclusive:
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
