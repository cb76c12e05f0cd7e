"""Plots of runs as SVG: load, instances, p99 and verdict over time. A writer of our own of one page: no plotting library is needed for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _GAP = 960, 150, 60, 34
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#7f7f7f", "#9467bd")
_VERDICTS = {
    "Balanced": "#c7e9c0",
    "TokenizerBound": "#fdae6b",
    "CPUBound": "#fb6a4a",
    "StepBound": "#fdae6b",
    "CPUContended": "#fcbba1",
    "NoProgress": "#cb181d",
    "BatchingIneffective": "#dadaeb",
    "GPUBound": "#9e9ac8",
    "Overprovisioned": "#9ecae1",
    "Idle": "#f0f0f0",
    "Unknown": "#bdbdbd",
}


@dataclass(frozen=True)
class Curves:
    """One value per second in each: requests/s, instances and p99 (seconds) by law, verdicts of the managed run."""

    title: str
    load: Sequence[float]
    counts: Mapping[str, Sequence[float]]
    p99: Mapping[str, Sequence[float | None]]
    verdicts: Sequence[str]
    slo: float


def write_plot(path: Path, curves: Curves) -> None:
    """Write one SVG of four panels."""
    seconds = len(curves.load)
    parts = [_text(_LEFT, 16, curves.title, size=13)]
    top = 40
    top = _panel(
        parts, top, "requests/s", {"load": curves.load}, seconds, 0.0, max(curves.load) * 1.05
    )
    most = max(max(values) for values in curves.counts.values())
    top = _panel(parts, top, "instances", curves.counts, seconds, 0.0, most + 1)
    logs = {
        law: [None if v is None else math.log10(max(v, 1e-3)) for v in values]
        for law, values in curves.p99.items()
    }
    y = top + _HEIGHT * (1 - (math.log10(curves.slo) + 3) / 5)
    parts.append(
        f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#000" stroke-dasharray="4 3"/>'
    )
    top = _panel(
        parts,
        top,
        "p99, s (log)",
        logs,
        seconds,
        -3.0,
        2.0,
        ticks={-2: "0.01", -1: "0.1", 0: "1", 1: "10"},
    )
    _strip(parts, top, curves.verdicts, seconds)
    _write(path, parts, top + 70)


def write_bars(
    path: Path, title: str, groups: Mapping[str, Mapping[str, float]], unit: str, most: float
) -> None:
    """Write one SVG of groups of bars, such as laws by trace; a value beyond ``most`` is cut off there and told."""
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    parts = [_text(_LEFT, 16, title, size=13)]
    for number, name in enumerate(names):
        parts.append(
            f'<rect x="{_LEFT + 150 * number}" y="28" width="12" height="12" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
        )
        parts.append(_text(_LEFT + 150 * number + 16, 38, name))
    top, height, each = 56, 2 * _HEIGHT, _WIDTH / len(groups)
    for part in range(5):
        y = top + height * (1 - part / 4)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(8, y + 4, f"{most * part / 4:.1f} {unit}"))
    width = 0.8 * each / len(names)
    for group, (label, bars) in enumerate(groups.items()):
        parts.append(_text(_LEFT + each * group + 0.1 * each, top + height + 16, label))
        for number, name in enumerate(names):
            if name not in bars:
                continue
            x, long = (
                _LEFT + each * group + 0.1 * each + width * number,
                height * min(1.0, bars[name] / most),
            )
            colour = _COLOURS[number % len(_COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{top + height - long:.1f}" width="{0.9 * width:.1f}" height="{long:.1f}" fill="{colour}"/>'
            )
            parts.append(_text(x, top + height - long - 3, f"{bars[name]:.1f}", size=8))
    _write(path, parts, top + height + 30)


def _write(path: Path, parts: Sequence[str], height: float) -> None:
    body = "\n".join(parts)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")


def _panel(
    parts: list[str],
    top: int,
    label: str,
    lines: Mapping[str, Sequence[float | None]],
    seconds: int,
    low: float,
    high: float,
    ticks: Mapping[float, str] | None = None,
) -> int:
    """One panel; returns where the next begins."""
    parts.append(
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>'
    )
    parts.append(_text(_LEFT, top - 4, label))
    marks = (
        ticks
        if ticks is not None
        else {high * part / 4: f"{high * part / 4:.0f}" for part in range(5)}
    )
    for value, name in marks.items():
        y = top + _HEIGHT * (1 - (value - low) / (high - low))
        parts.append(_text(8, y + 4, name))
    for number, (name, values) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(_text(_LEFT + 130 + 150 * number, top - 4, name, colour=colour))
        points = [
            f"{_LEFT + _WIDTH * second / seconds:.1f},{top + _HEIGHT * (1 - (min(max(value, low), high) - low) / (high - low)):.1f}"
            for second, value in enumerate(values)
            if value is not None
        ]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.2" points="{" ".join(points)}"/>'
        )
    return top + _HEIGHT + _GAP


def _strip(parts: list[str], top: int, verdicts: Sequence[str], seconds: int) -> None:
    parts.append(_text(_LEFT, top - 4, "verdict of the managed run"))
    begin = 0
    for name, run in groupby(verdicts):
        length = len(list(run))
        x, width = _LEFT + _WIDTH * begin / seconds, _WIDTH * length / seconds
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="18" fill="{_VERDICTS.get(name, "#fff")}"/>'
        )
        begin += length
    for number, name in enumerate(name for name in _VERDICTS if name in set(verdicts)):
        x = _LEFT + 140 * number
        parts.append(
            f'<rect x="{x}" y="{top + 26}" width="12" height="12" fill="{_VERDICTS[name]}"/>'
        )
        parts.append(_text(x + 16, top + 36, name))


def _text(x: float, y: float, text: str, *, size: int = 11, colour: str = "#000") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
