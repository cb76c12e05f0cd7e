"""A state that was forged, or written before the clock was set back, does not stop scaling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.flows import NOW, TOKENIZER, Flow, counts, limits, sample
from triton_pipelines.autoscaling import control_law
from triton_pipelines.autoscaling.backoff import ScalingBackoff
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.state_json import dumps, loads
from triton_pipelines.autoscaling.types import ControlLaw, StepLimits, StepState

QUIET = Flow(rate=20)
BUSY = Flow(rate=190, pending=300, growth=20)
STALLED = Flow(rate=0, pending=5000, growth=60)
AHEAD = NOW + 86400
YEAR_5000 = 95617584000.0
GROWTH = [NOW - 10, 1, 2, 100.0, 0.01, None]


def document(desired: int, top: dict[str, Any], step: dict[str, Any]) -> str:
    own = {"desired": desired, "service": 0.01, **step}
    return json.dumps({"version": 1, "revision": "", "steps": {TOKENIZER: own}, **top})


def reached(text: str, flow: Flow, seconds: int = 240) -> int:
    """Return the count after some minutes; the state passes through its stored form."""
    state = loads(text)
    for age in range(0, seconds, 5):
        count = state.steps[TOKENIZER].desired
        now = NOW + age
        done = decide(limits(), state, sample(flow, now=now), counts(count), ["pod-0"], now)
        state = loads(dumps(done.state))
    return state.steps[TOKENIZER].desired


NUMBERS: list[dict[str, Any]] = [
    {"counts": [1e308, 3, 1e308, 4]},
    {"counts": [NOW * 10, 3, 1e308, 4]},
    {"demands": [1e308, 3, 1e308, 4]},
    {"demands": [YEAR_5000 * 10, 9]},
    {"reversals": [1e308, AHEAD]},
    {"service": 1e308},
    {"growth": [1e308, 1, 2, 1e308, 1e308, 1e308]},
    {"growth_held": [1e308, GROWTH]},
    {"stalled_since": 1e300},
    {"memory_held": [AHEAD, 1, 4e9]},
    *({key: at} for key in ("last_up", "last_change") for at in (-1e308, 1e308, YEAR_5000, AHEAD)),
]


@pytest.mark.parametrize("step", NUMBERS, ids=str)
def test_a_count_still_falls_and_grows(step: dict[str, Any]) -> None:
    assert reached(document(6, {}, step), QUIET) == 1
    assert reached(document(2, {}, step), BUSY, 60) > 2
    reached(document(6, {}, step), STALLED, 60)


@pytest.mark.parametrize("actuation", [1e9, 601.0, 0.0, -1.0, -1e9, 1e308])
def test_an_impossible_duration_of_a_change_is_not_known(actuation: float) -> None:
    text = document(2, {"actuation": actuation}, {"last_up": NOW - 60})
    assert loads(text).actuation is None
    assert reached(text, BUSY, 60) > 2
    assert loads(document(2, {"actuation": 599.0}, {})).actuation == 599.0


@pytest.mark.parametrize("since", [YEAR_5000, AHEAD])
def test_growth_is_not_held_since_a_time_to_come(since: float) -> None:
    assert reached(document(2, {}, {"growth_held": [since, GROWTH]}), BUSY, 60) > 2
    assert reached(document(2, {}, {"growth_held": [NOW - 5, GROWTH]}), BUSY, 60) == 2


def test_no_progress_is_seen_after_the_clock_was_set_back() -> None:
    text = document(2, {}, {"stalled_since": AHEAD, "last_up": AHEAD})
    state = loads(text)
    for age in range(0, 130, 5):
        now, count = NOW + age, state.steps[TOKENIZER].desired
        done = decide(limits(), state, sample(STALLED, now=now), counts(count), ["pod-0"], now)
        state = done.state
    assert done.verdict == "NoProgress"


def test_a_growth_in_the_future_does_not_keep_pods_and_cpu_from_falling() -> None:
    """Their states are decided on apart from those of the steps."""
    ticks = tuple((NOW - age, 1) for age in range(180, 0, -5))
    after = control_law.next_count(
        StepState(desired=3, demands=ticks, last_up=AHEAD),
        StepLimits("pods", "", 1, 9, 1),
        ControlLaw(),
        count=3,
        demand=1,
        now=NOW,
        wait_up=60,
        in_flight=False,
        interval=5,
    )
    assert after.count == 2


def test_a_failure_in_the_future_does_not_delay_the_next_attempt() -> None:
    backoff = ScalingBackoff().failed(NOW, "x")
    assert backoff.wait(8, NOW + 1) == 15
    assert backoff.wait(8, NOW - 3600) == 0
