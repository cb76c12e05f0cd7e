"""Throughput against latency, with the wall drawn in: as SVG, and in characters for a terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .report import LatencyCurve, TuningReport

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT = 720, 400, 70, 60, 190
_COLOURS = {"recommended": "#2ca02c", "current": "#1f77b4", "candidate": "#ff7f0e"}
_GLYPHS = {"recommended": "R", "current": "C", "candidate": "o"}


def _axes(
    curves: Sequence[LatencyCurve], latency_budget: float, slo: float
) -> tuple[float, float, float]:
    """Highest rate, lowest and highest latency (seconds) to show."""
    rates = [rate for curve in curves for rate, _ in curve.points]
    times = [p99 for curve in curves for _, p99 in curve.points if 0 < p99 < math.inf]
    low = min([latency_budget / 4, *times])
    high = max(slo * 1.5, min(max([slo, *times]), slo * 20))
    return max([1.0, *rates]) * 1.05, low * 0.8, high


def svg(report: TuningReport) -> str:
    """A page of one plot."""
    most, low, high = _axes(report.curves, report.latency_budget, report.slo)

    def x(rate: float) -> float:
        return _LEFT + _WIDTH * rate / most

    def y(seconds: float) -> float:
        clipped = min(max(seconds, low), high)
        return _TOP + _HEIGHT * (1 - math.log(clipped / low) / math.log(high / low))

    parts = [
        _text(
            _LEFT,
            20,
            f"{report.pipeline}: p99 over requests/s, {report.mode.value.lower()} run",
            14,
        ),
        _text(
            _LEFT,
            38,
            f"{report.workload}{' · stand-in: ' + ', '.join(report.simulated_steps) if report.simulated_steps else ''}",
            11,
        ),
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>',
    ]
    for power in range(-4, 4):
        for step in (1, 2, 5):
            seconds = step * 10.0**power
            if low <= seconds <= high:
                label = f"{seconds * 1e3:g} ms"
                parts.append(
                    f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(seconds):.1f}" y2="{y(seconds):.1f}" stroke="#eee"/>'
                )
                parts.append(_text(8, y(seconds) + 4, label))
    for part in range(5):
        rate = most * part / 4
        parts.append(_text(x(rate) - 10, _TOP + _HEIGHT + 18, f"{rate:.0f}"))
    parts.append(_text(_LEFT + _WIDTH / 2 - 30, _TOP + _HEIGHT + 36, "requests/s"))
    for seconds, name, colour in (
        (report.slo, "SLO", "#999"),
        (report.latency_budget, "wall", "#d62728"),
    ):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(seconds):.1f}" y2="{y(seconds):.1f}" stroke="{colour}" stroke-dasharray="6 3"/>'
        )
        parts.append(
            _text(_LEFT + _WIDTH + 6, y(seconds) + 4, f"{name} {seconds * 1e3:g} ms", 11, colour)
        )
    legend = _TOP + 12.0
    for curve in report.curves:
        colour = _COLOURS.get(curve.name, "#7f7f7f")
        spots = [(x(rate), y(p99), p99) for rate, p99 in curve.points]
        if curve.measured:
            parts += [
                f'<circle cx="{at:.1f}" cy="{up:.1f}" r="4.5" fill="{colour if p99 <= report.latency_budget else "#fff"}" stroke="{colour}" stroke-width="2"/>'
                for at, up, p99 in spots
            ]
            continue
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{" ".join(f"{at:.1f},{up:.1f}" for at, up, _ in spots)}"/>'
        )
        parts.append(_text(_LEFT + 10, legend, f"{curve.name}: {curve.setting}", 11, colour))
        legend += 15
    parts.append(
        _text(
            _LEFT + 10,
            legend,
            "lines: predicted; circles: measured (hollow: beyond the wall)",
            11,
            "#555",
        )
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {_TOP + _HEIGHT + 50}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, size: int = 11, colour: str = "#000") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def terminal(report: TuningReport, width: int = 72, height: int = 16) -> str:
    """The same in characters: R recommended, C current, o candidates (measured), dots for what is predicted."""
    most, low, high = _axes(report.curves, report.latency_budget, report.slo)
    cells = [[" "] * width for _ in range(height)]

    def place(rate: float, seconds: float) -> tuple[int, int]:
        clipped = min(max(seconds, low), high)
        row = round((height - 1) * (1 - math.log(clipped / low) / math.log(high / low)))
        return min(row, height - 1), min(width - 1, round((width - 1) * rate / most))

    latency_budget = place(0.0, report.latency_budget)[0]
    cells[latency_budget] = ["-"] * width
    for curve in sorted(report.curves, key=lambda one: one.measured):
        for rate, p99 in curve.points:
            row, column = place(rate, p99)
            cells[row][column] = _GLYPHS.get(curve.name, "o") if curve.measured else "."
    labels = {
        0: f"{high * 1e3:.0f} ms",
        height - 1: f"{low * 1e3:.0f} ms",
        latency_budget: f"wall {report.latency_budget * 1e3:.0f} ms",
    }
    lines = [
        f"{labels.get(number, ''):>12} |{''.join(row).rstrip()}" for number, row in enumerate(cells)
    ]
    marks = {"recommended": "R", "current": "C", "candidate": "o"}
    shown = [
        f"{marks[name]} {name}"
        for name in marks
        if any(curve.name == name and curve.measured for curve in report.curves)
    ]
    lines += [
        f"{'':>12} +{'-' * width}",
        f"{'':>12}  0{f'{most:.0f} requests/s':>{width - 1}}",
        f"{'':>14}{', '.join(shown)} (measured)   . predicted",
    ]
    return "\n".join(lines)
