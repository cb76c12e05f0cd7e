"""Throughput-latency curves as SVG, written by hand: no plotting library is needed for two axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 760
_HEIGHT: Final = 420
_LEFT: Final = 70
_TOP: Final = 60
_COLOURS: Final = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#ff7f0e",
    "#9467bd",
    "#8c564b",
    "#17becf",
    "#7f7f7f",
)
_ROW: Final = 16


@dataclass(frozen=True)
class Point:
    """One load's throughput (per second), latency (milliseconds) and label; ``low`` and ``high``: spread of the latency over runs."""

    throughput: float
    latency_ms: float
    label: str = ""
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Series:
    """A named curve; points in the order of the load. ``marks_only``: no line between them. ``dashed`` tells medians from tails."""

    name: str
    points: Sequence[Point]
    marks_only: bool = False
    dashed: bool = False


def curve(
    title: str,
    series: Sequence[Series],
    *,
    unit: str = "requests/s",
    note: str = "",
    wall_ms: float | None = None,
) -> str:
    """A page with latency (logarithmic) over throughput.

    Args:
        title: heading.
        series: the curves; points without a finite latency are left out.
        unit: of the throughput.
        note: stands below the heading: workload, machine, stand-ins.
        wall_ms: the latency goal, drawn as a line.
    """
    shown = [
        (
            item,
            [
                point
                for point in item.points
                if math.isfinite(point.latency_ms) and point.latency_ms > 0
            ],
        )
        for item in series
    ]
    found = [point for _, points in shown for point in points]
    most = _nice(max((point.throughput for point in found), default=1.0) * 1.08)
    values = [
        value
        for point in found
        for value in (point.latency_ms, point.low, point.high)
        if math.isfinite(value) and value > 0
    ]
    values += [wall_ms] if wall_ms else []
    low, high = (
        math.floor(math.log10(min(values, default=1.0) * 0.9)),
        math.ceil(math.log10(max(values, default=10.0) * 1.1)),
    )

    def x(throughput: float) -> float:
        return _LEFT + _WIDTH * throughput / most

    def y(latency: float) -> float:
        return _TOP + _HEIGHT * (1 - (math.log10(latency) - low) / max(high - low, 1))

    parts = [text(_LEFT, 20, title, size=15), text(_LEFT, 38, note, size=11, colour="#555")]
    parts.append(
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>'
    )
    for decade in range(low, high + 1):
        for step in (1, 2, 5) if decade < high else (1,):
            value = step * 10.0**decade
            parts.append(
                f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#eee"/>'
            )
            parts.append(text(_LEFT - 6, y(value) + 4, f"{value:g}", anchor="end"))
    for part in range(5):
        parts.append(
            text(x(most * part / 4), _TOP + _HEIGHT + 16, f"{most * part / 4:g}", anchor="middle")
        )
    parts.append(text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 34, unit, anchor="middle"))
    parts.append(text(_LEFT - 60, _TOP - 6, "latency, ms (log)"))
    if wall_ms:
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(wall_ms):.1f}" y2="{y(wall_ms):.1f}" stroke="#000" stroke-dasharray="6 4"/>'
        )
        parts.append(text(_LEFT + _WIDTH - 4, y(wall_ms) - 4, f"goal {wall_ms:g} ms", anchor="end"))
    top = _TOP + _HEIGHT + 56
    for number, (item, points) in enumerate(shown):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(x(point.throughput), y(point.latency_ms)) for point in points]
        if not item.marks_only:
            joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
            dash = ' stroke-dasharray="5 4"' if item.dashed else ""
            parts.append(
                f'<polyline fill="none" stroke="{colour}" stroke-width="1.6"{dash} points="{joined}"/>'
            )
        for point, (a, b) in zip(points, places, strict=True):
            if math.isfinite(point.low) and math.isfinite(point.high) and point.low > 0:
                parts.append(
                    f'<line x1="{a:.1f}" x2="{a:.1f}" y1="{y(point.low):.1f}" y2="{y(point.high):.1f}" stroke="{colour}"/>'
                )
            hint = f"{item.name} {point.label}: {point.throughput:.5g} {unit}, {point.latency_ms:.4g} ms"
            parts.append(
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2" fill="{colour}"><title>{escape(hint)}</title></circle>'
            )
            if point.label:
                parts.append(text(a + 5, b - 5, point.label, size=9, colour=colour))
        parts.append(
            f'<circle cx="{_LEFT + 6}" cy="{top + _ROW * number - 4}" r="4" fill="{colour}"/>'
        )
        parts.append(text(_LEFT + 16, top + _ROW * number, item.name))
    return page("\n".join(parts), _LEFT + _WIDTH + 20, top + _ROW * len(shown) + 8)


def page(body: str, width: float, height: float) -> str:
    """A whole SVG document of elements."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def text(
    x: float, y: float, content: str, *, size: int = 11, colour: str = "#000", anchor: str = "start"
) -> str:
    """A text element; the content is escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{escape(content)}</text>'


def _nice(value: float) -> float:
    """The next number of two digits (of 1, 1.2, 1.5, 2, … times a power of ten) for the end of an axis."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(
        step * power for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if step * power >= value
    )
