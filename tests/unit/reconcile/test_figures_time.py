"""Test the time of the figures in the status: it changes with them, and never alone."""

from __future__ import annotations

from typing import Any

from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.autoscaling.types import (
    ScalingDecision,
    ScalingState,
    StepDecision,
    StepFigures,
    Verdict,
)
from triton_pipelines.controllers.handover import ScalingView
from triton_pipelines.controllers.scaling_conditions import is_unchanged, scaling_status

NOON, TIME = 1_767_268_800.0, "2026-01-01T12:00:00Z"


def view(at: float, arrivals: float, verdict: Verdict = Verdict.BALANCED) -> ScalingView:
    step = StepDecision("tokenizer", 2, verdict, "", StepFigures(arrivals=arrivals))
    return ScalingView(ScalingDecision((step,), verdict, ScalingState()), ScalingMode.ACTIVE, at=at)


def status(scaling: dict[str, Any], verdict: Verdict = Verdict.BALANCED) -> dict[str, Any]:
    return {
        "scaling": scaling,
        "steps": [{"name": "tokenizer", "verdict": verdict.value}],
    }


def test_new_figures_have_the_time_of_their_decision() -> None:
    first = scaling_status(view(NOON, 100), {})
    assert first["figuresTime"] == TIME
    assert scaling_status(view(NOON + 60, 200), first)["figuresTime"] == "2026-01-01T12:01:00Z"


def test_the_time_alone_is_no_reason_to_write() -> None:
    written = scaling_status(view(NOON, 100), {})
    later = view(NOON + 600, 105)  # less than a tenth more
    assert scaling_status(later, written) == written
    assert is_unchanged(later, status(written), ())
    assert not is_unchanged(view(NOON + 600, 150), status(written), ())


def test_a_new_topic_is_a_reason_to_write() -> None:
    written = scaling_status(view(NOON, 100), {})
    assert not is_unchanged(view(NOON, 100), status(written), ("a note that no longer applies",))


def test_a_write_for_another_reason_keeps_the_time_of_equal_figures() -> None:
    written = scaling_status(view(NOON, 100), {})
    other = scaling_status(view(NOON + 600, 100, Verdict.IDLE), written)
    assert (other["bottleneck"], other["figuresTime"]) == ("Idle", TIME)


def test_figures_of_an_earlier_release_get_a_time_when_they_change() -> None:
    written = scaling_status(view(NOON, 100), {})
    del written["figuresTime"]
    assert is_unchanged(view(NOON + 60, 100), status(written), ())
    assert "figuresTime" not in scaling_status(view(NOON + 60, 100), written)


def test_without_figures_there_is_no_time() -> None:
    assert "figuresTime" not in scaling_status(view(NOON, 100, Verdict.UNKNOWN), {})
