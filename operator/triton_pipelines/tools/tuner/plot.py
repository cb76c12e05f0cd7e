"""Throughput against latency, with the latency budget: a chart, and text for a terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from triton_pipelines.tools.loadgen.plots import Chart, LimitLine, Point, Series

from .report import LatencyCurve, TuningReport

_SLOS_SHOWN = 20
"""Latencies above this many times the SLO are clipped, so that one slow point does not flatten the
rest.
"""
# Size of the chart on a terminal, in characters.
_WIDTH, _HEIGHT = 72, 16
_GLYPHS = {"recommended": "R", "current": "C", "candidate": "o"}


def _axes(
    curves: Sequence[LatencyCurve], latency_budget: float, slo: float
) -> tuple[float, float, float]:
    """Return the highest rate, and the lowest and highest latency (seconds), to show."""
    rates = [rate for curve in curves for rate, _ in curve.points]
    times = [p99 for curve in curves for _, p99 in curve.points if 0 < p99 < math.inf]
    low = min([latency_budget / 4, *times])
    high = max(slo * 1.5, min(max([slo, *times]), slo * _SLOS_SHOWN))
    return max([1.0, *rates]) * 1.05, low * 0.8, high


def chart(report: TuningReport) -> Chart:
    """Return the report as a chart: lines are predicted, marks are measured."""
    budget = report.latency_budget * 1e3
    series = []
    for one in report.curves:
        points = [
            Point(rate, p99 * 1e3, hollow=one.measured and p99 > report.latency_budget)
            for rate, p99 in one.points
        ]
        setting = f"{one.name} ({one.setting})"
        name = f"{setting}, {'measured' if one.measured else 'predicted'}"
        series.append(
            Series(name, points, marks_only=one.measured, line_only=not one.measured, group=setting)
        )
    simulated = (
        f"; simulated: {', '.join(report.simulated_steps)}" if report.simulated_steps else ""
    )
    caveat = f"INCONCLUSIVE: {report.inconclusive}; " if report.inconclusive else ""
    return Chart(
        f"{report.pipeline}: p99 latency over throughput, {report.mode.value.lower()} tuning run",
        series,
        note=f"{caveat}{report.workload}{simulated}",
        limits=(LimitLine("SLO", report.slo * 1e3), LimitLine("latency budget", budget)),
        hollow="hollow: measured above the latency budget",
        most_latency_ms=report.slo * _SLOS_SHOWN * 1e3,
    )


def terminal(report: TuningReport) -> str:
    """Return the report as a chart of characters.

    R: recommended, C: current, o: candidates (all measured); dots: predictions.
    """
    most, low, high = _axes(report.curves, report.latency_budget, report.slo)
    cells = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def place(rate: float, seconds: float) -> tuple[int, int]:
        clipped = min(max(seconds, low), high)
        row = round((_HEIGHT - 1) * (1 - math.log(clipped / low) / math.log(high / low)))
        return min(row, _HEIGHT - 1), min(_WIDTH - 1, round((_WIDTH - 1) * rate / most))

    latency_budget = place(0.0, report.latency_budget)[0]
    cells[latency_budget] = ["-"] * _WIDTH
    for curve in sorted(report.curves, key=lambda one: one.measured):
        for rate, p99 in curve.points:
            row, column = place(rate, p99)
            cells[row][column] = _GLYPHS.get(curve.name, "o") if curve.measured else "."
    labels = {
        0: f"{high * 1e3:.0f} ms",
        _HEIGHT - 1: f"{low * 1e3:.0f} ms",
        latency_budget: f"budget {report.latency_budget * 1e3:.0f} ms",
    }
    lines = [
        f"{labels.get(number, ''):>14} |{''.join(row).rstrip()}" for number, row in enumerate(cells)
    ]
    marks = {"recommended": "R", "current": "C", "candidate": "o"}
    shown = [
        f"{marks[name]} {name}"
        for name in marks
        if any(curve.name == name and curve.measured for curve in report.curves)
    ]
    lines += [
        f"{'':>14} +{'-' * _WIDTH}",
        f"{'':>14}  0{f'{most:.0f} requests/s':>{_WIDTH - 1}}",
        f"{'':>16}{', '.join(shown)} (measured)   . predicted",
    ]
    return "\n".join(lines)
