"""What is said of a run: status small enough to travel, the plot with its wall, calibration and advice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import builders
from tests.unit.tuning.test_predict import LENGTHS, MODEL, PIPE, TOKENIZER
from triton_pipelines.api.status import TuningStatus
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import TuningMode
from triton_pipelines.compile.graph import build
from triton_pipelines.compile.graph.resource_patch import patch_pipeline
from triton_pipelines.tools.loadgen.plots import svg
from triton_pipelines.tools.tuner.bottleneck_advice import Bound, advise
from triton_pipelines.tools.tuner.calibration import (
    Executed,
    calibrated,
    expected,
    mean_longest,
    spread_of,
)
from triton_pipelines.tools.tuner.contract import Curve, Knobs, Outcome, Point, Report
from triton_pipelines.tools.tuner.knobs import knobs_of
from triton_pipelines.tools.tuner.plot import chart, terminal
from triton_pipelines.tools.tuner.prediction import poisson, simulate
from triton_pipelines.tools.tuner.status_summary import patch_yaml, status_of
from triton_pipelines.tools.tuner.step_time_fit import Cost

POINT = Point("current", Knobs(8, 0, 1, 1), 400.0, 399.0, 0.010, 0.031, 0.030, 0, Outcome.WITHIN)
BEST = Point(
    "recommended", Knobs(64, 500, 1, 2), 700.0, 698.0, 0.012, 0.044, 0.041, 0, Outcome.WITHIN
)
BROKEN = Point(
    "current", Knobs(8, 0, 1, 1), 667.0, 640.0, 0.3, float("inf"), 0.2, 12, Outcome.BREAKS
)
REPORT = Report(
    pipeline="sentiment",
    mode=TuningMode.QUICK,
    slo=0.05,
    wall=0.045,
    workload="made-up texts",
    current=Knobs(8, 0, 1, 1),
    recommended=Knobs(64, 500, 1, 2),
    points=(POINT, BROKEN, BEST),
    ends=(Point("latency first", Knobs(8, 1000, 1, 2), 350.0, predicted_p99=0.008),),
    curves=(
        Curve("recommended", Knobs(64, 500, 1, 2), ((100.0, 0.005), (700.0, 0.041), (900.0, 0.3))),
        Curve("current", Knobs(8, 0, 1, 1), ((400.0, 0.031), (640.0, float("inf"))), measured=True),
        Curve("recommended", Knobs(64, 500, 1, 2), ((698.0, 0.044),), measured=True),
    ),
    steps=(),
    patch={
        "spec": {
            "model": {"maxBatchSize": 64, "dynamicBatching": {"maxQueueDelayMicroseconds": 500}},
            "tokenizer": {"instances": {"initial": 2}},
        }
    },
    gain=0.75,
    message="kept the wall",
    bound="Compute",
    advice="Compute-bound: model",
)


def test_the_status_is_one_and_its_patch_applies() -> None:
    document = status_of(REPORT)
    status = TuningStatus.model_validate(document)
    assert status.gain_percent == 75
    assert [point.outcome for point in status.points] == [
        "WithinSLO",
        "BreaksSLO",
        "WithinSLO",
        "Predicted",
    ]
    assert status.points[2].p99_microseconds == 44_000
    assert status.points[2].requests_per_second == 698
    assert "p99Microseconds" not in document["points"][1], (
        "no p99 was seen where more than one in a hundred failed"
    )
    unknown = status_of(replace(REPORT, points=(replace(POINT, predicted_p99=float("inf")),)))
    assert "predictedP99Microseconds" not in unknown["points"][0]
    before = builders.built(model={"maxBatchSize": 8})
    after = patch_pipeline(before.pipeline, yaml.safe_load(status.patch))
    assert knobs_of(build(after, before.options)) == REPORT.recommended


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 32), st.text(max_size=6000), st.text(max_size=6000))
def test_a_status_fits_a_termination_message(points: int, message: str, advice: str) -> None:
    long = replace(REPORT, points=(BROKEN,) * points, message=message, advice=advice)
    document = status_of(long)
    assert len(json.dumps(document, separators=(",", ":")).encode()) <= 3500
    assert document["patch"] == patch_yaml(REPORT)
    TuningStatus.model_validate(document)


def test_without_a_gain_there_is_no_patch() -> None:
    kept = replace(REPORT, recommended=REPORT.current, patch={}, gain=0.0)
    assert patch_yaml(kept) == ""
    assert "patch" not in status_of(kept)
    assert "gainPercent" not in status_of(kept)


def test_the_latency_budget_is_drawn_and_every_point_too() -> None:
    drawn = svg(chart(REPORT))
    assert "latency budget: 45 ms" in drawn
    assert "SLO: 50 ms" in drawn
    assert drawn.count('id="point-') == 3
    lines = [series for series in chart(REPORT).series if series.line_only]
    assert len(lines) == 1
    hollow = [point for series in chart(REPORT).series for point in series.points if point.hollow]
    assert [point.latency_ms > 45 for point in hollow] == [True], (
        "only a point above the latency budget is hollow"
    )
    assert "hollow: measured above the latency budget" in drawn
    text = terminal(REPORT).splitlines()
    wall = next(line for line in text if "wall 45 ms" in line)
    assert wall.count("-") > 50
    assert any("R" in line for line in text[:16])


def test_what_was_simulated_is_named_on_the_plot() -> None:
    assert "simulated: GPU step" in svg(chart(replace(REPORT, stand_ins=("GPU step",))))


# --- calibration ---------------------------------------------------------------------------------------------------------------


def test_the_longest_of_many_is_the_mean_of_their_maxima() -> None:
    drawn = np.random.default_rng(7).choice(LENGTHS, (20_000, 8)).max(axis=1)
    assert mean_longest(LENGTHS, 8) == pytest.approx(drawn.mean(), rel=0.01)
    assert mean_longest(LENGTHS, 1) == pytest.approx(np.mean(LENGTHS))


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_how_rows_are_padded_is_seen_in_a_mixed_run(spread: float) -> None:
    batches = {4: 10, 16: 30}
    seen = Executed(batches, expected(MODEL.cost, Executed(batches, 0.0), LENGTHS, 1, spread))
    assert spread_of(MODEL.cost, seen, LENGTHS, 1) == pytest.approx(spread, abs=0.02)


def test_lengths_that_are_all_alike_do_not_tell_of_padding() -> None:
    assert spread_of(MODEL.cost, Executed({8: 20}, 0.001), (32,), 1) == 1.0


def test_times_under_load_and_the_time_outside_are_learnt() -> None:
    rate = 600.0
    slower = replace(
        PIPE, stages=(TOKENIZER, replace(MODEL, cost=MODEL.cost.stretched(1.4))), overhead=(0.002,)
    )
    real = simulate(slower, poisson(rate, 8000, 0), 0)
    batches = {2: 100, 4: 50}
    seen = {
        "model": Executed(
            batches, 1.4 * expected(MODEL.cost, Executed(batches, 0.0), LENGTHS, 1, 1.0), 0.9
        )
    }
    learnt = calibrated(PIPE, seen, poisson(rate, 8000, 0), real.latencies)
    assert learnt.stages[1].cost.scale == pytest.approx(1.4, rel=0.01)
    assert np.median(learnt.overhead) == pytest.approx(0.002, rel=0.1)
    assert simulate(learnt, poisson(900.0, 8000, 9), 9).p99 == pytest.approx(
        simulate(slower, poisson(900.0, 8000, 9), 9).p99, rel=0.05
    )


def test_too_few_executions_teach_nothing() -> None:
    learnt = calibrated(PIPE, {"model": Executed({2: 5}, 1.0)}, poisson(100.0, 100, 0))
    assert learnt.stages == PIPE.stages


# --- advice ----------------------------------------------------------------------------------------------------------------------


def seen(tokenizer: float, model: float, rows: int = 16) -> dict[str, Executed]:
    """Busy instances of each."""
    return {
        "tokenizer": Executed({2: 100}, 0.001, tokenizer),
        "model": Executed({rows: 100}, 0.004, model),
    }


def test_advice_names_what_limits() -> None:
    fixed_cost = advise(PIPE, seen(0.2, 0.9, rows=2), True, 4, False)
    assert fixed_cost.bound is Bound.COMPUTE
    assert "every execution costs" in fixed_cost.words
    assert advise(PIPE, seen(0.95, 0.4), True, 4, False).bound is Bound.CPU
    assert advise(PIPE, seen(0.2, 0.4), False, 4, False).bound is Bound.QUEUE
    assert (
        advise(replace(PIPE, padding=Padding.FIXED), seen(0.2, 0.9), True, 4, False).bound
        is Bound.PADDING
    )
    even = replace(
        PIPE, lengths=(32,), stages=(TOKENIZER, replace(MODEL, cost=Cost(1e-4, 0.0, 5e-4, 0.0)))
    )
    assert "Larger batches gain little" in advise(even, seen(0.2, 0.9), True, 4, False).words
    stretched = replace(
        even, stages=(TOKENIZER, replace(MODEL, cost=even.stages[1].cost.stretched(1.6)))
    )
    assert advise(stretched, seen(0.2, 0.9), True, 4, True).bound is Bound.CPU
    alone = replace(PIPE, stages=(TOKENIZER, replace(MODEL, equal=True)))
    assert advise(alone, seen(0.2, 0.9, rows=1), True, 4, False).bound is Bound.BATCHING


def test_a_step_that_hardly_computes_is_not_what_limits() -> None:
    """Where only the prediction is at its limit, or nothing of the model was seen."""
    idle = {"tokenizer": Executed({2: 100}, 0.001, 0.08), "model": Executed({16: 100}, 0.004, 0.05)}
    found = advise(PIPE, idle, True, 0.85, False)
    assert found.bound is Bound.QUEUE
    assert "tokenizer computes 8% of the time" in found.words
    assert "More instances of it" not in found.words
    slow = replace(
        PIPE, stages=tuple(replace(stage, cost=stage.cost.stretched(2.0)) for stage in PIPE.stages)
    )
    stretched = advise(slow, idle, False, 0.85, False)
    assert stretched.bound is Bound.CPU
    assert "steps take 2 times as long as alone" in stretched.words
    assert "More instances of it" not in stretched.words
