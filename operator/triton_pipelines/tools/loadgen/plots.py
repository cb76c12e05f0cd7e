"""Throughput-latency charts as SVG, drawn with matplotlib. Pure.

matplotlib is imported only when a chart is drawn: it is an optional dependency (the extra `plots`),
and importing it takes longer than most commands of the CLI.
"""

from __future__ import annotations

import importlib.util
import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#8c564b",
    "#7f7f7f",
    "#882255",
)
"""Eight colors that readers with impaired color vision can distinguish, then gray and wine red.

Sources: Okabe and Ito, with brown instead of yellow; Paul Tol's muted colors (wine red).
"""
GREY: Final = "#666666"
_MARKERS: Final = "osD^vPXph*"
_WIDTH_INCHES: Final = 9.0
_HEIGHT_INCHES: Final = 4.6
_LEGEND_ROW_INCHES: Final = 0.2
_TITLE_COLUMNS: Final = 85
_NOTE_COLUMNS: Final = 120
_STYLE: Final[dict[str, Any]] = {
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    # The same chart gives the same bytes on every run, so that checked-in plots can be compared.
    "svg.hashsalt": "triton-pipelines",
    "svg.fonttype": "none",
}


class PlotError(Exception):
    """A plot cannot be drawn here; the message says what to install."""


@dataclass(frozen=True)
class Point:
    """Throughput and latency under one load."""

    throughput: float
    """Per second, in the unit of the chart."""
    latency_ms: float
    """NaN: not drawn. Infinite: drawn at the top edge, as clipped."""
    label: str = ""
    low: float = math.nan
    """Lower end of the whisker, in milliseconds."""
    high: float = math.nan
    """Upper end of the whisker, in milliseconds."""
    hollow: bool = False
    """Drawn as an outline; `Chart.hollow` says what that means."""


@dataclass(frozen=True)
class Series:
    """A named curve; points in the order of the load."""

    name: str
    points: Sequence[Point]
    marks_only: bool = False
    """Whether no line connects the points."""
    line_only: bool = False
    """Whether the points have no markers."""
    dashed: bool = False
    group: str = ""
    """Series of one group share a color; by default each has its own."""


@dataclass(frozen=True)
class LimitLine:
    """A horizontal line, such as an SLO."""

    name: str
    latency_ms: float


@dataclass(frozen=True)
class Chart:
    """Latency (logarithmic) over throughput."""

    title: str
    series: Sequence[Series]
    unit: str = "requests/s"
    """Of the throughput."""
    throughput: str = "throughput"
    latency: str = "p99 latency"
    note: str = ""
    """Below the title: workload, machine, what was simulated."""
    limits: Sequence[LimitLine] = ()
    whiskers: str = "whiskers: lowest and highest of the runs"
    """Legend of the whiskers, shown where a point has them."""
    hollow: str = ""
    """Legend of hollow points, shown where there are any."""
    most_latency_ms: float = math.inf
    """Points above are clipped to the top edge, and the legend says so."""


def check_available() -> None:
    """Check that matplotlib is installed, without importing it.

    Raises:
        PlotError: It is not.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError(
            "matplotlib is not installed; run `pip install matplotlib`, or install "
            "triton-pipelines with the `plots` extra"
        )


@contextmanager
def style() -> Iterator[None]:
    """Set matplotlib's parameters for a plot, whatever the user's matplotlibrc says.

    Raises:
        PlotError: matplotlib is not installed.
    """
    check_available()
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams
        parameters.update(_STYLE)
        yield


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure. It belongs to no window system: no display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def set_titles(figure: Figure, title: str, note: str = "") -> None:
    """Write a wrapped title over a figure, and a smaller wrapped note below it."""
    lines = textwrap.wrap(title, _TITLE_COLUMNS)
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11, fontweight="bold")
    if note:
        wrapped = "\n".join(textwrap.wrap(note, _NOTE_COLUMNS))
        figure.axes[0].set_title(wrapped, loc="left", fontsize=8, color=GREY)


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG document, without a date and without a prolog."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    document = out.getvalue().decode()
    lines = document[document.index("<svg") :].splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def svg(chart: Chart) -> str:
    """Return a chart as an SVG document.

    Raises:
        PlotError: matplotlib is not installed.
    """
    with style():
        return to_svg(draw(chart))


def draw(chart: Chart) -> Figure:
    """Return a chart as a figure; needs :func:`style` around it."""
    from matplotlib.lines import Line2D

    rows = len(chart.series) + len(chart.limits) + 3
    figure = new_figure(_WIDTH_INCHES, _HEIGHT_INCHES + _LEGEND_ROW_INCHES * rows)
    axes = figure.subplots()
    _axes(axes, chart)
    top = axes.get_ylim()[1]
    groups = list(dict.fromkeys(series.group or series.name for series in chart.series))
    handles: list[Any] = []
    labels: list[tuple[float, float]] = []
    for number, series in enumerate(chart.series):
        place = groups.index(series.group or series.name)
        colour, marker = COLOURS[place % len(COLOURS)], _MARKERS[place % len(_MARKERS)]
        handles.append(_draw_series(axes, series, number, colour, marker, labels))
    for limit, dashes in zip(chart.limits, ("--", ":", "-."), strict=False):
        drawn = {"color": "black", "linestyle": dashes, "linewidth": 1.2}
        axes.axhline(limit.latency_ms, **drawn)  # type: ignore[arg-type]
        label = f"{limit.name}: {limit.latency_ms:g} ms"
        handles.append(Line2D([], [], label=label, **drawn))  # type: ignore[arg-type]
    handles += _mark_handles(chart, top)
    set_titles(figure, chart.title, chart.note)
    columns = 1 if max(len(str(handle.get_label())) for handle in handles) > 45 else 2
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)
    return figure


def _draw_series(
    axes: Axes,
    series: Series,
    number: int,
    colour: str,
    marker: str,
    labels: list[tuple[float, float]],
) -> Any:
    """Draw a series.

    Args:
        axes: The axes, with their limits set.
        series: The series.
        number: Its index in the chart.
        colour: Of its line and points.
        marker: Of its points.
        labels: Places of the labels so far; those of its points are added.

    Returns:
        Its entry of the legend.
    """
    from matplotlib.lines import Line2D

    top = axes.get_ylim()[1]
    points = _shown_points(series)
    line: dict[str, Any] = {
        "color": colour,
        "linestyle": "none" if series.marks_only else "--" if series.dashed else "-",
        "linewidth": 1.4,
        "marker": "none" if series.line_only else marker,
        "markersize": 5.5,
    }
    name = series.name if points else f"{series.name} (no point: there was no response)"
    handle = Line2D([], [], label=name, **line)
    x = [point.throughput for point in points]
    y = [min(point.latency_ms, top) for point in points]
    axes.plot(x, y, **(line | {"marker": "none"}))
    for point, height in zip(points, y, strict=True):
        if _has_whiskers(point):
            ends = [point.low, min(point.high, top)]
            at = [point.throughput, point.throughput]
            axes.plot(at, ends, color=colour, marker="_", markersize=6, linewidth=1)
        if point.label:
            place = (point.throughput, height)
            _label(axes, point.label, place, colour, labels, left=not series.marks_only)
        if series.line_only:
            continue
        beyond = point.latency_ms >= top
        axes.plot(
            [point.throughput],
            [height],
            color=colour,
            marker="^" if beyond else marker,
            markersize=8 if beyond else 5.5,
            markerfacecolor="white" if point.hollow else colour,
            clip_on=False,
            gid=f"point-{number}",
        )
    return handle


def _shown_points(series: Series) -> list[Point]:
    """Return the points that a logarithmic axis can show."""
    return [point for point in series.points if point.latency_ms > 0]


def _has_whiskers(point: Point) -> bool:
    return math.isfinite(point.low) and math.isfinite(point.high) and point.low > 0


def _mark_handles(chart: Chart, top: float) -> list[Any]:
    """Return the legend's entries for whiskers, hollow and clipped points, if there are any."""
    shown = [point for series in chart.series for point in _shown_points(series)]
    marked = [
        point for series in chart.series if not series.line_only for point in _shown_points(series)
    ]
    handles = []
    if any(_has_whiskers(point) for point in shown):
        handles.append(_mark("|", chart.whiskers, size=10))
    if chart.hollow and any(point.hollow for point in marked):
        handles.append(_mark("o", chart.hollow, filled=False))
    if any(point.latency_ms >= top for point in marked):
        handles.append(_mark("^", f"triangle at the top edge: {top:g} ms or more, clipped"))
    return handles


def _label(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    colour: str,
    taken: list[tuple[float, float]],
    *,
    left: bool,
) -> None:
    """Write a label next to a point: above it, or below if another label is there.

    Args:
        axes: The axes, with their limits set.
        text: The label.
        at: The point.
        colour: Of the label.
        taken: Places of the labels so far, in shares of the axes; this one is added.
        left: On the left side, where a rising curve leaves room.
    """
    x, y = axes.transLimits.transform(axes.transScale.transform(at))
    places = {offset: (float(x), float(y) + offset / 290) for offset in (4, -11)}
    free = [
        offset
        for offset, (right, up) in places.items()
        if not any(abs(right - other) < 0.06 and abs(up - height) < 0.03 for other, height in taken)
    ]
    offset = free[0] if free else -11
    taken.append(places[offset])
    axes.annotate(
        text,
        at,
        xytext=(-6 if left else 7, offset),
        textcoords="offset points",
        ha="right" if left else "left",
        fontsize=7.5,
        color=colour,
    )


def _axes(axes: Axes, chart: Chart) -> None:
    """Scale and label the axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    points = [point for series in chart.series for point in series.points]
    values = [value for one in points for value in (one.latency_ms, one.low, one.high)]
    values += [limit.latency_ms for limit in chart.limits]
    shown = [value for value in values if 0 < value < math.inf] or [1.0]
    axes.set_yscale("log")
    beyond = any(value >= chart.most_latency_ms for value in values)
    highest = chart.most_latency_ms if beyond else round_up(max(shown) * 1.15)
    axes.set_ylim(min(shown) * 0.8, highest)
    low, high = axes.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axes.yaxis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0, 1.08 * max([point.throughput for point in points], default=1.0) or 1.0)
    axes.set_xlabel(f"{chart.throughput} ({chart.unit})")
    axes.set_ylabel(f"{chart.latency} (ms, log scale)")


def round_up(value: float) -> float:
    """Return the next number of at most two digits, for the end of an axis."""
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / power - 1e-9) * power


def _mark(marker: str, label: str, *, size: float = 5.5, filled: bool = True) -> Any:
    """Return a gray entry of the legend that explains a mark."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        label=label,
        color=GREY,
        linestyle="none",
        marker=marker,
        markersize=size,
        markerfacecolor=GREY if filled else "white",
    )
