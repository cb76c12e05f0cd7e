"""Plots of the benchmarks: data files, drift, and what a reader sees."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench import plots
from bench.plots import Bars, Timeline
from triton_pipelines.tools.loadgen.plots import Chart, LimitLine, Point, Series

TIMELINE = Timeline(
    title="A run",
    load=[10.0, 10.0, 20.0, 20.0],
    counts={"managed": [1.0, 1.0, 2.0, 2.0], "foresight": [1.0, 1.0, 1.0, 2.0]},
    p99={"managed": [0.01, None, 200.0, 0.05]},
    verdicts=["Balanced", "Balanced", "StepBound", "Balanced"],
    slo=0.1,
    note="simulated",
)
BARS = Bars(
    "Starved <b>",
    {"step": {"managed": 1.0, "other": 99.0}, "ramp": {"managed": 2.0, "other": 3.0}},
    "starved GPU time (%)",
    8.0,
)
RANKING = Bars("Cost", {"ours": {"ours, A": 30.0, "theirs": 7.0}}, "CPU time (µs)", 40.0)
CHART = Chart(
    "A chart",
    [
        Series("one", [Point(100.0, 10.0, "8", 9.0, 12.0), Point(200.0, math.inf, hollow=True)]),
        Series("none", [Point(0.0, math.nan)], marks_only=True),
    ],
    limits=[LimitLine("SLO", 50.0)],
    hollow="hollow: above the SLO",
    most_latency_ms=1000.0,
)


@pytest.mark.parametrize(
    "plot", [TIMELINE, BARS, RANKING, CHART], ids=["timeline", "bars", "ranking", "chart"]
)
def test_a_data_file_gives_the_same_svg_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plot: plots.Plot
) -> None:
    monkeypatch.setattr(plots, "PLOTS", tmp_path)
    plots.save("x", plot)
    drawn = (tmp_path / "x.svg").read_text()
    assert plots.svg(plot) == plots.svg(plots.load("x")) == drawn
    assert "<dc:date>" not in drawn


def test_an_svg_that_differs_from_its_data_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "PLOTS", tmp_path)
    monkeypatch.setattr(plots, "FOLDER", tmp_path / "bench")
    plots.save("x", BARS)
    assert plots.main([]) == 0
    (tmp_path / "x.svg").write_text("<svg/>")
    assert plots.main([]) == 1
    assert plots.main(["--write"]) == 0
    assert plots.main([]) == 0


def test_a_timeline_has_a_time_axis_and_explains_gaps_and_clipping() -> None:
    drawn = plots.svg(TIMELINE)
    assert "time since the start of the run (s)" in drawn
    assert "a gap in a p99 curve: nothing was answered in that second" in " ".join(drawn.split())
    assert "p99 above 100 s is clipped" in drawn
    assert "SLO: 100 ms" in drawn


def test_a_bar_beyond_the_axis_is_cut_off_and_marked() -> None:
    drawn = plots.svg(BARS)
    assert "99.0 ↑" in drawn
    assert "cut off at the end of the axis" in drawn
    assert "<b>" not in drawn


def test_a_single_group_of_bars_is_ranked_and_explains_its_colour() -> None:
    drawn = plots.svg(RANKING)
    assert drawn.index(">ours, A<") < drawn.index(">theirs<"), "from the bottom up"
    assert "blue: ours; medians, less is better" in drawn


def test_a_chart_explains_its_marks() -> None:
    drawn = plots.svg(CHART)
    for text in (
        "whiskers: lowest and highest of the runs",
        "hollow: above the SLO",
        "1000 ms or more, clipped",
        "SLO: 50 ms",
        "none (no point: there was no response)",
        "throughput (requests/s)",
        "p99 latency (ms, log scale)",
    ):
        assert text in drawn
