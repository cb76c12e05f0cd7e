"""Reports of ``tritonpipe bench``: tables and a plot, CSV and JSON. Pure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from triton_pipelines.api.wording import counted
from triton_pipelines.tools.loadgen import LoadSummary, SweepResult, summary_document
from triton_pipelines.tools.loadgen.plots import Chart, Point, Series

VERSION: Final = 1
"""Version of the JSON document: raised when a field is removed or changes its meaning."""
BASELINE: Final = "one by one"
_PERCENTILES: Final = ("p50", "p90", "p95", "p99", "max")
_PLOT_COLUMNS, _PLOT_LINES = 72, 14
_BUSY_CORES: Final = 0.8
_LATE_SHARE: Final = 0.1
_KEPT_UP: Final = 0.95
_COLUMNS: Final = (
    "load,requests_per_second,requests_per_second_min,requests_per_second_max,rows_per_second,"
    "p50_ms,p90_ms,p95_ms,p99_ms,max_ms,"
    "requests,failed,stable,runs"
)
COLUMNS: Final = tuple(_COLUMNS.split(","))
"""Columns of the CSV."""


@dataclass(frozen=True)
class BenchReport:
    """The results of a bench."""

    model: str
    """Name of the measured model."""
    address: str
    """Address of its server."""
    protocol: str
    """Protocol of the requests."""
    source: str
    """Description of the origin of texts or tensors."""
    rows: int
    """Rows per request."""
    seconds: float
    """Measured time of each run."""
    warmup_seconds: float
    """Time under load before each run."""
    points: Sequence[SweepResult]
    """The loads."""
    baseline: Mapping[str, SweepResult]
    """One client that waits for each answer: all rows in a request, then one row; may be empty."""
    names: Sequence[str] = ()
    """Models whose steps are shown, in the order of the pipeline; empty: all."""

    @property
    def naive_rows(self) -> float:
        """Return the rows/s of one row at a time; NaN if it was not measured."""
        return (
            self.baseline[BASELINE].median("rows_per_s") if BASELINE in self.baseline else math.nan
        )


def all_loads(report: BenchReport) -> list[tuple[str, SweepResult]]:
    """Return the baselines, then the loads, each once."""
    return [
        *report.baseline.items(),
        *((item.spec.name, item) for item in report.points if item not in report.baseline.values()),
    ]


def bench_document(report: BenchReport) -> dict[str, Any]:
    """Return the report for programs, with every run."""
    return {
        "version": VERSION,
        "model": report.model,
        "address": report.address,
        "protocol": report.protocol,
        "requests": {"source": report.source, "rows": report.rows},
        "secondsMeasured": report.seconds,
        "secondsWarmUp": report.warmup_seconds,
        "baseline": [{"name": name, **_point(item)} for name, item in report.baseline.items()],
        "points": [_point(item) for item in report.points],
    }


def _point(item: SweepResult) -> dict[str, Any]:
    spec = item.spec
    load: dict[str, Any] = (
        {"concurrency": spec.concurrency}
        if spec.concurrency
        else {"rate": spec.rate, "arrivals": str(spec.arrivals)}
    )
    typical = summary_document(item.typical)
    typical.pop("steps")
    return {"load": load, "median": typical, "runs": [summary_document(run) for run in item.runs]}


def as_csv(report: BenchReport) -> str:
    """Return the report as CSV: a line per load with medians over its runs and sums of counts."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, item in all_loads(report):
        low, high = item.spread("requests_per_s")
        writer.writerow(
            [
                name,
                *map(_plain, (item.median("requests_per_s"), low, high, item.median("rows_per_s"))),
            ]
            + [_plain(item.median(f"{percentile}_s") * 1000) for percentile in _PERCENTILES]
            + [
                sum(run.requests for run in item.runs),
                sum(run.failed for run in item.runs),
                "yes" if item.stable else "no",
                len(item.runs),
            ]
        )
    return out.getvalue()


def chart(report: BenchReport) -> Chart:
    """Return the throughput-latency curve as a chart."""
    series = []
    for kind, items in _kinds(report.points).items():
        for percentile, dashed in (("p99", False), ("p50", True)):
            points = [
                Point(
                    item.median("rows_per_s"),
                    item.median(f"{percentile}_s") * 1000,
                    "" if dashed else _short(item),
                    *_spread_ms(item, percentile),
                )
                for item in items
            ]
            series.append(Series(f"{percentile}, {kind}", points, dashed=dashed, group=kind))
    for name, item in report.baseline.items():
        series.append(
            Series(
                f"p99, {name}",
                [Point(item.median("rows_per_s"), item.median("p99_s") * 1000)],
                marks_only=True,
            )
        )
    count = len(report.points[0].runs)
    return Chart(
        f"{report.model}: latency over throughput",
        series,
        unit="rows/s",
        latency="latency",
        note=f"{report.protocol}, {counted(report.rows, 'row')} per request, {report.source};"
        f" median of {counted(count, 'run')} of {report.seconds:g} s each;"
        " labels: concurrency or rate",
        whiskers=f"whiskers: lowest and highest of {count} runs",
    )


def tables(report: BenchReport) -> list[Table | Text]:
    """Return the tables, the plot and the warnings."""
    best = max(report.points, key=lambda item: item.median("rows_per_s"))
    parts: list[Table | Text] = [
        Text(
            f"{report.model} at {report.address}: {counted(report.rows, 'row')} per request, "
            f"{report.source}"
        ),
        Text(
            f"{counted(len(best.runs), 'run')} of {report.seconds:g} s after"
            f" {report.warmup_seconds:g} s of warm-up; latency in ms;"
            " ± is half the spread over the runs"
        ),
        _loads(report),
    ]
    if len(report.points) > 1:
        parts.append(Text(plot(report.points)))
    if table := _steps(best.typical, report.names):
        parts += [
            Text(
                f"time per request at {best.spec.name} (Triton statistics; mean, in ms;"
                " busy: instances)"
            ),
            table,
        ]
    return [*parts, *map(Text, warnings_of(report))]


def warnings_of(report: BenchReport) -> list[str]:
    """Return warnings about errors, instability and overload."""
    result = []
    for name, item in all_loads(report):
        for message, count in sorted(item.errors.items(), key=lambda pair: -pair[1])[:3]:
            result.append(f"{name}: {counted(count, 'request')} failed: {message}")
    behind = [
        item
        for item in report.points
        if item.spec.rate and item.median("requests_per_s") < _KEPT_UP * item.spec.rate
    ]
    # While a queue grows, nothing is stable, however long it is measured.
    if unstable := [
        f"{name} ({reason})"
        for name, item in all_loads(report)
        if item not in behind and (reason := _unstable(item))
    ]:
        result.append(
            f"results are not stable: {'; '.join(unstable)}; use a longer --duration or a less "
            "busy machine"
        )
    if busy := [
        item.spec.name
        for item in report.points
        if max(run.cpu_share for run in item.runs) > _BUSY_CORES
    ]:
        result.append(
            f"the load generator used a full core at {', '.join(busy)}, so the server might "
            "sustain a higher rate"
        )
    late = [
        item.spec.name
        for item in report.points
        if item.spec.open_loop and item.median("lag_p99_s") > _LATE_SHARE * item.median("p99_s")
    ]
    if late:
        result.append(
            f"requests were sent late at {', '.join(late)} (by more than a tenth of p99): "
            "there are too few CPUs for the load generator and the server; latency is "
            "measured from the scheduled time"
        )
    for item in behind:
        lost = "; percentiles exclude the failed requests" if item.errors else ""
        completed = _short_number(item.median("requests_per_s"))
        result.append(
            f"the server is overloaded at {item.spec.name}: only {completed} requests/s "
            f"complete, and latency grows with the duration{lost}"
        )
    return result


def _unstable(item: SweepResult) -> str:
    return next((run.stability.reason for run in item.runs if not run.stability.stable), "")


def _loads(report: BenchReport) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("load", "requests/s", "±", "rows/s"):
        table.add_column(name, justify="left" if name == "load" else "right")
    if report.baseline:
        table.add_column(f"× {BASELINE}", justify="right")
    for name in (*_PERCENTILES, "failed"):
        table.add_column(name, justify="right")
    table.add_column("stable")
    for name, item in all_loads(report):
        low, high = item.spread("requests_per_s")
        rows = item.median("rows_per_s")
        cells = [
            name,
            _short_number(item.median("requests_per_s")),
            _short_number((high - low) / 2),
            _short_number(rows),
        ]
        cells += (
            [f"{rows / report.naive_rows:.2f}" if report.naive_rows > 0 else "–"]
            if report.baseline
            else []
        )
        cells += [
            _short_number(item.median(f"{percentile}_s") * 1000) for percentile in _PERCENTILES
        ]
        table.add_row(
            *cells, str(sum(run.failed for run in item.runs)), "yes" if item.stable else "no"
        )
    return table


def _steps(summary: LoadSummary, names: Sequence[str]) -> Table | None:
    chosen = [name for name in names if name in summary.steps] if names else sorted(summary.steps)
    # An ensemble has no executions itself; its requests are the whole.
    inner = [name for name in chosen if summary.steps[name].executions] or chosen
    if not inner:
        return None
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in (
        "step",
        "requests",
        "runs",
        "rows/run",
        "queue",
        "input",
        "compute",
        "output",
        "run",
        "busy",
        "failed",
    ):
        table.add_column(name, justify="left" if name == "step" else "right")
    for name in inner:
        step = summary.steps[name]
        times = (step.queue_s, step.input_s, step.infer_s, step.output_s, step.execution_s)
        cells = [name, str(step.requests), str(step.executions), f"{step.rows_per_execution:.1f}"]
        table.add_row(
            *cells,
            *(_short_number(seconds * 1000) for seconds in times),
            f"{step.busy:.2f}",
            str(step.failures),
        )
    return table


def plot(points: Sequence[SweepResult]) -> str:
    """Plot p99 (logarithmic) over rows/s in characters: c closed loop, o open loop."""
    points_shown = [
        (
            item.median("rows_per_s"),
            item.median("p99_s") * 1000,
            "o" if item.spec.open_loop else "c",
        )
        for item in points
    ]
    points_shown = [
        point for point in points_shown if math.isfinite(point[1]) and point[1] > 0 and point[0] > 0
    ]
    if not points_shown:
        return ""
    most = max(point[0] for point in points_shown)
    low, high = (
        math.log10(min(point[1] for point in points_shown)),
        math.log10(max(point[1] for point in points_shown)),
    )
    grid = [[" "] * _PLOT_COLUMNS for _ in range(_PLOT_LINES)]
    for rate, latency, mark in points_shown:
        line = (
            round((_PLOT_LINES - 1) * (1 - (math.log10(latency) - low) / (high - low)))
            if high > low
            else _PLOT_LINES // 2
        )
        grid[line][min(_PLOT_COLUMNS - 1, int((_PLOT_COLUMNS - 1) * rate / most))] = mark
    labels = {0: f"{10**high:.3g}", _PLOT_LINES - 1: f"{10**low:.3g}"}
    lines = [
        f"{labels.get(number, ''):>8} │{''.join(row).rstrip()}" for number, row in enumerate(grid)
    ]
    foot = f"{'':>8} └{'─' * _PLOT_COLUMNS}\n{'':>9} 0{f'{most:.0f} rows/s':>{_PLOT_COLUMNS - 1}}"
    return "\n".join(["  p99 ms (log); c closed loop, o open loop", *lines, foot])


def _kinds(points: Sequence[SweepResult]) -> dict[str, list[SweepResult]]:
    kinds: dict[str, list[SweepResult]] = {}
    for item in points:
        kinds.setdefault(
            f"open loop, {item.spec.arrivals}" if item.spec.open_loop else "closed loop", []
        ).append(item)
    return kinds


def _spread_ms(item: SweepResult, percentile: str) -> tuple[float, float]:
    low, high = item.spread(f"{percentile}_s")
    return low * 1000, high * 1000


def _short(item: SweepResult) -> str:
    return str(item.spec.concurrency) if item.spec.concurrency else f"{item.spec.rate:g}/s"


def _short_number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return (
        f"{value:.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
    )


def _plain(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else ""
