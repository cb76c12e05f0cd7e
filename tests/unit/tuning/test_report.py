"""Test the text of a run.

Covered are a status small enough to send, the plot with its latency budget, calibration and advice.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import builders
from tests.support.messages import Messages
from tests.unit.tuning.test_prediction import LENGTHS, MODEL, PIPE, TOKENIZER
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.tuning_status import TuningStatus
from triton_pipelines.compile.graph import build
from triton_pipelines.compile.graph.resource_patch import patch_pipeline
from triton_pipelines.tools.loadgen.plots import svg
from triton_pipelines.tools.tuner import (
    BatchingSetting,
    PointOutcome,
    ReportPoint,
    TuningReport,
    patch_yaml,
    report_document,
    status_of,
)
from triton_pipelines.tools.tuner.bottleneck_advice import Bottleneck, advise
from triton_pipelines.tools.tuner.calibration import (
    StepExecutions,
    calibrate,
    estimate_spread,
    expected_seconds,
    mean_longest,
)
from triton_pipelines.tools.tuner.plot import chart, terminal
from triton_pipelines.tools.tuner.prediction import poisson, simulate
from triton_pipelines.tools.tuner.report import LatencyCurve
from triton_pipelines.tools.tuner.settings import setting_of
from triton_pipelines.tools.tuner.step_time_fit import StepCost

POINT = ReportPoint(
    "current",
    BatchingSetting(8, 0, 1, 1),
    400.0,
    399.0,
    0.010,
    0.031,
    0.030,
    0,
    PointOutcome.WITHIN,
)
BEST = ReportPoint(
    "recommended",
    BatchingSetting(64, 500, 1, 2),
    700.0,
    698.0,
    0.012,
    0.044,
    0.041,
    0,
    PointOutcome.WITHIN,
)
BROKEN = ReportPoint(
    "current",
    BatchingSetting(8, 0, 1, 1),
    667.0,
    640.0,
    0.3,
    float("inf"),
    0.2,
    12,
    PointOutcome.BREAKS,
)
REPORT = TuningReport(
    pipeline="sentiment",
    mode=TuningMode.QUICK,
    slo=0.05,
    latency_budget=0.045,
    workload="generated texts",
    current=BatchingSetting(8, 0, 1, 1),
    recommended=BatchingSetting(64, 500, 1, 2),
    points=(POINT, BROKEN, BEST),
    ends=(
        ReportPoint("latency first", BatchingSetting(8, 1000, 1, 2), 350.0, predicted_p99=0.008),
    ),
    curves=(
        LatencyCurve(
            "recommended",
            BatchingSetting(64, 500, 1, 2),
            ((100.0, 0.005), (700.0, 0.041), (900.0, 0.3)),
        ),
        LatencyCurve(
            "current",
            BatchingSetting(8, 0, 1, 1),
            ((400.0, 0.031), (640.0, float("inf"))),
            measured=True,
        ),
        LatencyCurve(
            "recommended", BatchingSetting(64, 500, 1, 2), ((698.0, 0.044),), measured=True
        ),
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
    assert setting_of(build(after, before.options)) == REPORT.recommended


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
    latency_budget = next(line for line in text if "budget 45 ms" in line)
    assert latency_budget.count("-") > 50
    assert any("R" in line for line in text[:16])


def test_a_simulated_step_is_named_on_the_plot() -> None:
    assert "simulated: GPU step" in svg(chart(replace(REPORT, simulated_steps=("GPU step",))))


# --- calibration ----------------------------------------------------------------------------------


def test_the_longest_of_many_is_the_mean_of_their_maxima() -> None:
    drawn = np.random.default_rng(7).choice(LENGTHS, (20_000, 8)).max(axis=1)
    assert mean_longest(LENGTHS, 8) == pytest.approx(drawn.mean(), rel=0.01)
    assert mean_longest(LENGTHS, 1) == pytest.approx(np.mean(LENGTHS))


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_how_rows_are_padded_is_seen_in_a_mixed_run(spread: float) -> None:
    batches = {4: 10, 16: 30}
    seen = StepExecutions(
        batches, expected_seconds(MODEL.cost, StepExecutions(batches, 0.0), LENGTHS, 1, spread)
    )
    assert estimate_spread(MODEL.cost, seen, LENGTHS, 1) == pytest.approx(spread, abs=0.02)


def test_lengths_that_are_all_alike_do_not_tell_of_padding() -> None:
    assert estimate_spread(MODEL.cost, StepExecutions({8: 20}, 0.001), (32,), 1) == 1.0


def test_times_under_load_and_the_time_outside_are_learnt() -> None:
    rate = 600.0
    slower = replace(
        PIPE, stages=(TOKENIZER, replace(MODEL, cost=MODEL.cost.stretched(1.4))), overhead=(0.002,)
    )
    real = simulate(slower, poisson(rate, 8000, 0), 0)
    batches = {2: 100, 4: 50}
    seen = {
        "model": StepExecutions(
            batches,
            1.4 * expected_seconds(MODEL.cost, StepExecutions(batches, 0.0), LENGTHS, 1, 1.0),
            0.9,
        )
    }
    learnt = calibrate(PIPE, seen, poisson(rate, 8000, 0), real.latencies)
    assert learnt.stages[1].cost.scale == pytest.approx(1.4, rel=0.01)
    assert np.median(learnt.overhead) == pytest.approx(0.002, rel=0.1)
    assert simulate(learnt, poisson(900.0, 8000, 9), 9).p99 == pytest.approx(
        simulate(slower, poisson(900.0, 8000, 9), 9).p99, rel=0.05
    )


def test_too_few_executions_teach_nothing() -> None:
    learnt = calibrate(PIPE, {"model": StepExecutions({2: 5}, 1.0)}, poisson(100.0, 100, 0))
    assert learnt.stages == PIPE.stages


# --- advice ---------------------------------------------------------------------------------------


def seen(tokenizer: float, model: float, rows: int = 16) -> dict[str, StepExecutions]:
    """Busy instances of each."""
    return {
        "tokenizer": StepExecutions({2: 100}, 0.001, tokenizer),
        "model": StepExecutions({rows: 100}, 0.004, model),
    }


def test_advice_names_what_limits(messages: Messages) -> None:
    fixed_cost = advise(PIPE, seen(0.2, 0.9, rows=2), True, 4, False)
    assert fixed_cost.bound is Bottleneck.COMPUTE
    messages.check(fixed_cost.text)
    assert advise(PIPE, seen(0.95, 0.4), True, 4, False).bound is Bottleneck.CPU
    assert advise(PIPE, seen(0.2, 0.4), False, 4, False).bound is Bottleneck.QUEUE
    assert (
        advise(replace(PIPE, padding=Padding.FIXED), seen(0.2, 0.9), True, 4, False).bound
        is Bottleneck.PADDING
    )
    even = replace(
        PIPE, lengths=(32,), stages=(TOKENIZER, replace(MODEL, cost=StepCost(1e-4, 0.0, 5e-4, 0.0)))
    )
    messages.check(advise(even, seen(0.2, 0.9), True, 4, False).text)
    stretched = replace(
        even, stages=(TOKENIZER, replace(MODEL, cost=even.stages[1].cost.stretched(1.6)))
    )
    assert advise(stretched, seen(0.2, 0.9), True, 4, True).bound is Bottleneck.CPU
    alone = replace(PIPE, stages=(TOKENIZER, replace(MODEL, equal_lengths=True)))
    assert advise(alone, seen(0.2, 0.9, rows=1), True, 4, False).bound is Bottleneck.BATCHING


def test_a_step_that_hardly_computes_is_not_what_limits(messages: Messages) -> None:
    """Where only the prediction is at its limit, or nothing of the model was seen."""
    idle = {
        "tokenizer": StepExecutions({2: 100}, 0.001, 0.08),
        "model": StepExecutions({16: 100}, 0.004, 0.05),
    }
    found = advise(PIPE, idle, True, 0.85, False)
    assert found.bound is Bottleneck.QUEUE
    messages.check(found.text)
    assert "Add instances of this step" not in found.text
    slow = replace(
        PIPE, stages=tuple(replace(stage, cost=stage.cost.stretched(2.0)) for stage in PIPE.stages)
    )
    stretched = advise(slow, idle, False, 0.85, False)
    assert stretched.bound is Bottleneck.CPU
    messages.check(stretched.text)
    assert "Add instances of this step" not in stretched.text


# --- JSON ----------------------------------------------------------------------------------------


def test_the_json_document_keeps_its_keys() -> None:
    document = report_document(replace(REPORT, simulated_steps=("GPU step",)))
    assert {"wall", "stand_ins", "slo", "points", "ends", "curves", "steps"} < document.keys()
    assert document["wall"] == 0.045
    assert document["stand_ins"] == ["GPU step"]
    assert document["recommended"]["max_batch_size"] == 64
    assert document["points"][0]["knobs"]["queue_delay"] == 0
    assert document["curves"][0]["knobs"] == document["recommended"]
    assert not {"latency_budget", "setting", "simulated_steps"} & document.keys()


def test_infinity_is_null_in_json() -> None:
    document = report_document(REPORT)
    assert document["points"][1]["p99"] is None
    assert document["curves"][1]["points"] == [[400.0, 0.031], [640.0, None]]
    json.dumps(document, allow_nan=False)
