"""Plots of the benchmarks: their data as JSON beside the SVG that is drawn from it.

    python -m bench.plots [--write]

A benchmark calls `save`, which writes `bench/results/plots/NAME.json` and `NAME.svg`. Without
`--write` the command fails where an SVG is not what its data gives; with it, all are drawn again.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bench.results import FOLDER, RESULTS
from triton_pipelines.tools.loadgen import plots
from triton_pipelines.tools.loadgen.plots import COLOURS, GREY, Chart, LimitLine, Point, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOTS = RESULTS / "plots"
_VERDICTS = {
    "Balanced": "#c7e9c0",
    "TokenizerBound": "#e69f00",
    "CPUBound": "#d55e00",
    "StepBound": "#cc79a7",
    "CPUContended": "#fcbba1",
    "NoProgress": "#8b0000",
    "BatchingIneffective": "#dadaeb",
    "GPUBound": "#756bb1",
    "Overprovisioned": "#56b4e9",
    "Idle": "#f0f0f0",
    "Unknown": "#bdbdbd",
}
_MOST_P99_SECONDS = 100.0
_LEAST_P99_SECONDS = 1e-3
_LOAD, _COUNTS, _P99, _VERDICT = range(4)


@dataclass(frozen=True)
class Timeline:
    """A run over time; each sequence has one value per second, of every control law."""

    title: str
    load: Sequence[float]
    """Requests/s."""
    counts: Mapping[str, Sequence[float]]
    """Instances."""
    p99: Mapping[str, Sequence[float | None]]
    """Seconds; `None`: nothing was answered in that second."""
    verdicts: Sequence[str]
    """Of the managed run."""
    slo: float
    """Seconds."""
    note: str = ""
    """Below the title: what was simulated, how metrics were read."""


@dataclass(frozen=True)
class Bars:
    """Groups of bars, such as control laws by trace; a single group is drawn as a ranking."""

    title: str
    groups: Mapping[str, Mapping[str, float]]
    """Group, then name of the bar, then value."""
    label: str
    """Of the value axis, with its unit."""
    most: float
    """End of the value axis; longer bars are cut off there and marked."""


Plot = Chart | Timeline | Bars


def save(name: str, plot: Plot) -> None:
    """Write the data of a plot, and the SVG drawn from it."""
    PLOTS.mkdir(parents=True, exist_ok=True)
    (PLOTS / f"{name}.json").write_text(_text(to_json(plot)), encoding="utf-8")
    (PLOTS / f"{name}.svg").write_text(svg(load(name)), encoding="utf-8")


def load(name: str) -> Plot:
    """Return a plot as its data file describes it."""
    return from_json(json.loads((PLOTS / f"{name}.json").read_text(encoding="utf-8")))


def svg(plot: Plot) -> str:
    """Return a plot as an SVG document.

    Raises:
        PlotError: matplotlib is not installed.
    """
    with plots.style():
        return plots.to_svg(draw(plot))


def draw(plot: Plot) -> Figure:
    """Return a plot as a figure; needs `plots.style` around it."""
    if isinstance(plot, Chart):
        return plots.draw(plot)
    if isinstance(plot, Timeline):
        return _timeline(plot)
    return _ranking(plot) if len(plot.groups) == 1 else _bars(plot)


def _timeline(run: Timeline) -> Figure:
    """Return four panels over one time axis: load, instances, p99 latency, verdict."""
    from matplotlib.ticker import (
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        MultipleLocator,
        NullLocator,
    )

    figure = plots.new_figure(9.0, 8.2)
    panels = figure.subplots(4, 1, sharex=True, height_ratios=(3, 3, 4, 0.6))
    seconds = len(run.load)
    panels[_LOAD].plot(range(seconds), run.load, color=GREY, linewidth=0.8)
    panels[_LOAD].set_ylabel("load (requests/s)")
    panels[_LOAD].set_ylim(bottom=0)
    laws = list(dict.fromkeys((*run.p99, *run.counts)))
    colour = {law: COLOURS[number % len(COLOURS)] for number, law in enumerate(laws)}
    for law, counts in run.counts.items():
        dashed = law not in run.p99
        panels[_COUNTS].plot(
            range(len(counts)),
            counts,
            color="black" if dashed else colour[law],
            linestyle="--" if dashed else "-",
            linewidth=1.0,
            label=law,
            drawstyle="steps-post",
            zorder=9 - laws.index(law),
        )
    panels[_COUNTS].set_ylabel("instances")
    panels[_COUNTS].set_ylim(bottom=0)
    panels[_COUNTS].yaxis.set_major_locator(MaxNLocator(integer=True))
    clipped = _p99(panels[_P99], run, colour)
    low, high = panels[_P99].get_ylim()
    steps = (1.0,) if high / low > 200 else (1.0, 2.0, 5.0)
    panels[_P99].yaxis.set_major_locator(LogLocator(subs=steps, numticks=20))
    panels[_P99].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[_P99].yaxis.set_minor_locator(NullLocator())
    for panel in (panels[_COUNTS], panels[_P99]):
        panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    _strip(panels[_VERDICT], run.verdicts)
    step = next(each for each in (10, 20, 30, 60, 120, 300, 600, math.inf) if seconds / each <= 12)
    panels[_VERDICT].xaxis.set_major_locator(MultipleLocator(step))
    panels[_VERDICT].set_xlim(0, seconds)
    panels[_VERDICT].set_xlabel("time since the start of the run (s)")
    notes = [run.note] if run.note else []
    if any(one is None for values in run.p99.values() for one in values):
        notes.append("a gap in a p99 curve: nothing was answered in that second")
    if clipped:
        notes.append(f"p99 above {_MOST_P99_SECONDS:g} s is clipped to the top edge")
    plots.set_titles(figure, run.title, "; ".join(notes))
    return figure


def _p99(panel: Axes, run: Timeline, colour: Mapping[str, str]) -> bool:
    """Draw the latencies; return whether any was clipped."""
    highest = 0.0
    for law, values in run.p99.items():
        shown = [math.nan if one is None else max(one, _LEAST_P99_SECONDS) for one in values]
        highest = max([highest, *(one for one in shown if math.isfinite(one))])
        cut = [min(one, _MOST_P99_SECONDS) for one in shown]
        panel.plot(
            range(len(cut)),
            cut,
            color=colour[law],
            linewidth=0.8,
            label=law,
            zorder=9 - list(colour).index(law),
        )
    slo = {"color": "black", "linestyle": ":", "linewidth": 1.2}
    panel.axhline(run.slo, label=f"SLO: {run.slo * 1e3:g} ms", **slo)  # type: ignore[arg-type]
    panel.set_yscale("log")
    panel.set_ylabel("p99 latency (s, log scale)")
    return highest > _MOST_P99_SECONDS


def _strip(panel: Axes, verdicts: Sequence[str]) -> None:
    """Draw one coloured bar per verdict, one after the other."""
    from matplotlib.patches import Patch

    begin = 0
    for verdict, run in groupby(verdicts):
        length = len(list(run))
        panel.axvspan(begin, begin + length, color=_VERDICTS.get(verdict, "white"), linewidth=0)
        begin += length
    panel.set_yticks([])
    panel.grid(False)
    panel.set_ylabel("verdict of the\nmanaged run", rotation=0, ha="right", va="center")
    shown = [verdict for verdict in _VERDICTS if verdict in set(verdicts)]
    panel.legend(
        handles=[Patch(color=_VERDICTS[verdict], label=verdict) for verdict in shown],
        loc="upper left",
        bbox_to_anchor=(1.03, 1.6),
    )


def _bars(plot: Bars) -> Figure:
    """Return bars side by side in each group, with their values above them."""
    figure = plots.new_figure(9.0, 4.6)
    axes = figure.subplots()
    names = list(dict.fromkeys(name for bars in plot.groups.values() for name in bars))
    width = 0.8 / len(names)
    cut = False
    for number, name in enumerate(names):
        places = [at for at, bars in enumerate(plot.groups.values()) if name in bars]
        values = [bars[name] for bars in plot.groups.values() if name in bars]
        lefts = [place - 0.4 + width * (number + 0.5) for place in places]
        heights = [min(value, plot.most) for value in values]
        axes.bar(lefts, heights, 0.9 * width, color=COLOURS[number % len(COLOURS)], label=name)
        for left, height, value in zip(lefts, heights, values, strict=True):
            beyond = value > plot.most
            text = f"{value:.1f}{' ↑' if beyond else ''}"
            axes.annotate(
                text, (left, height), (0, 2), textcoords="offset points", ha="center", fontsize=7
            )
            cut = cut or beyond
    axes.set_ylim(0, plot.most * 1.05)
    axes.set_ylabel(plot.label)
    axes.set_xticks(range(len(plot.groups)), list(plot.groups))
    axes.grid(False, axis="x")
    figure.legend(loc="outside lower left", ncols=len(names))
    plots.set_titles(
        figure, plot.title, "↑: the bar is cut off at the end of the axis." if cut else ""
    )
    return figure


def _ranking(plot: Bars) -> Figure:
    """Return horizontal bars, the smallest value at the top; names of any length fit."""
    ((group, bars),) = plot.groups.items()
    ranked = sorted(bars.items(), key=lambda bar: bar[1], reverse=True)
    figure = plots.new_figure(9.0, 1.2 + 0.3 * len(ranked))
    axes = figure.subplots()
    for place, (name, value) in enumerate(ranked):
        ours = name.startswith(group)
        axes.barh(place, value, 0.7, color=COLOURS[0] if ours else GREY)
        axes.annotate(
            f"{value:.0f}", (value, place), (3, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(ranked)), [name for name, _ in ranked])
    axes.set_xlim(0, plot.most)
    axes.set_xlabel(plot.label)
    axes.grid(False, axis="y")
    plots.set_titles(figure, plot.title, f"blue: {group}; medians, less is better")
    return figure


# --- Data files -----------------------------------------------------------------------------------


def to_json(plot: Plot) -> dict[str, Any]:
    """Return a plot as JSON values: short runs of equal values for whatever changes seldom."""
    if isinstance(plot, Timeline):
        return {
            "kind": "timeline",
            "title": plot.title,
            "note": plot.note,
            "sloSeconds": plot.slo,
            "requestsPerSecond": [round(value, 1) for value in plot.load],
            "instances": {law: _runs(counts) for law, counts in plot.counts.items()},
            "verdicts": _runs(plot.verdicts),
            "p99Milliseconds": {
                law: [None if one is None else float(f"{one * 1e3:.4g}") for one in values]
                for law, values in plot.p99.items()
            },
        }
    kind = "chart" if isinstance(plot, Chart) else "bars"
    return {"kind": kind, **_changed(plot)}


def from_json(data: Mapping[str, Any]) -> Plot:
    """Return the plot of a data file."""
    values = dict(data)
    kind = values.pop("kind")
    if kind == "timeline":
        return Timeline(
            title=values["title"],
            note=values["note"],
            load=values["requestsPerSecond"],
            counts={law: _seconds(runs) for law, runs in values["instances"].items()},
            p99={
                law: [None if one is None else one / 1e3 for one in each]
                for law, each in values["p99Milliseconds"].items()
            },
            verdicts=_seconds(values["verdicts"]),
            slo=values["sloSeconds"],
        )
    if kind == "bars":
        return Bars(**values)
    values["series"] = [
        Series(**{**one, "points": [_point(point) for point in one["points"]]})
        for one in values["series"]
    ]
    values["limits"] = [LimitLine(**one) for one in values.get("limits", [])]
    return Chart(**values)


def _point(values: Mapping[str, Any]) -> Point:
    latency = values.get("latency_ms")
    return Point(
        **{
            **values,
            "latency_ms": math.nan
            if latency is None
            else math.inf
            if latency == "inf"
            else latency,
        }
    )


def _changed(item: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults.

    JSON has neither NaN nor infinity.
    """
    found = {}
    for field in fields(item):
        value = getattr(item, field.name)
        if isinstance(value, float) and math.isnan(value):
            continue
        if field.default is not MISSING and value == field.default:
            continue
        if isinstance(value, float):
            value = "inf" if math.isinf(value) else float(f"{value:.5g}")
        elif isinstance(value, (list, tuple)):
            value = [_changed(one) for one in value]
        found[field.name] = value
    return found


def _runs(values: Sequence[Any]) -> list[list[Any]]:
    """Return ``[value, number of seconds]`` for each run of equal values."""
    return [[value, len(list(run))] for value, run in groupby(values)]


def _seconds(runs: Sequence[Sequence[Any]]) -> list[Any]:
    """Return one value per second again."""
    return [value for value, count in runs for _ in range(count)]


def _text(data: Mapping[str, Any]) -> str:
    """Return JSON with one line per field, and one per entry of a field that has entries."""

    def value(entry: Any) -> str:
        return json.dumps(entry, allow_nan=False, ensure_ascii=False)

    lines = []
    for key, entry in data.items():
        if isinstance(entry, Mapping):
            inner = ",\n".join(f"  {value(name)}: {value(each)}" for name, each in entry.items())
            lines.append(f" {value(key)}: {{\n{inner}\n }}")
        elif isinstance(entry, list) and entry and isinstance(entry[0], Mapping):
            inner = ",\n".join(f"  {value(each)}" for each in entry)
            lines.append(f" {value(key)}: [\n{inner}\n ]")
        else:
            lines.append(f" {value(key)}: {value(entry)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(arguments: list[str]) -> int:
    """Check the SVG files, or draw them again; exit code 1 on a difference."""
    differing = 0
    for data in sorted(PLOTS.glob("*.json")):
        path = data.with_suffix(".svg")
        drawn = svg(load(data.stem))
        if path.exists() and path.read_text(encoding="utf-8") == drawn:
            continue
        if "--write" in arguments:
            path.write_text(drawn, encoding="utf-8")
            continue
        print(
            (
                f"{path.relative_to(FOLDER.parent)} differs from its data: python -m bench.plots "
                "--write"
            ),
            file=sys.stderr,
        )
        differing += 1
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
