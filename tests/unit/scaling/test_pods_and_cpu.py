"""Each pod's CPU limit, the order of counts, CPU and pods, and what is remembered of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.autoscaling.cpu_limit import CpuBounds
from triton_pipelines.autoscaling.metrics.samples import MetricsProblem
from triton_pipelines.autoscaling.pods_and_cpu import (
    CPU,
    PODS,
    PodAndCpuBounds,
    PodsObservation,
    adopt_recorded,
    change_in_progress,
    decide_pods_and_cpu,
)
from triton_pipelines.autoscaling.state_json import LIMIT_BYTES, dumps, loads
from triton_pipelines.autoscaling.types import (
    CpuLimitState,
    InfeasibleResize,
    PipelineLimits,
    PodCountState,
    ScalingDecision,
    ScalingState,
    StepDecision,
    StepFigures,
    StepLimits,
    StepState,
    Verdict,
)

NOW = 1_700_000_000.0
TICK = 5.0
LIMITS = PipelineLimits(
    steps=(StepLimits("tokenizer", "tokenizer", 1, 6, 2, cores=1.0),), gpu_steps=("model",)
)
# 250 m for the server, a core for each of 2 to 6 tokenizers.
BOUNDS = PodAndCpuBounds(pods=StepLimits(PODS, "", 1, 5, 1), cpu=CpuBounds(2250, 6250, 250))
EVEN = PodsObservation(frozenset({"a"}), there=1, ready=1)


def decision(
    verdict: Verdict = Verdict.BALANCED,
    count: int = 2,
    wanted: int = 2,
    *,
    state: ScalingState | None = None,
    **fields: Any,
) -> ScalingDecision:
    """A decision for one tokenizer whose cap is its count."""
    figures = StepFigures(
        offered=fields.pop("offered", 1.0),
        demand=wanted,
        cap=count,
        cap_reason="CPU: limit 2.25 cores",
    )
    given = state if state is not None else remembered()
    problem = None if fields.pop("fresh", True) else MetricsProblem.PARTIAL
    return ScalingDecision(
        (StepDecision("tokenizer", count, verdict, "", figures),),
        verdict,
        given,
        gpu_busy=0.1,
        problem=problem,
        **fields,
    )


def remembered(millis: int = 2250, pods: int = 1, **fields: Any) -> ScalingState:
    infeasible = fields.pop("infeasible", ())
    return ScalingState(
        steps={"tokenizer": StepState(desired=2)},
        cpu=CpuLimitState(StepState(desired=millis, **fields), infeasible),
        pods=PodCountState(StepState(desired=pods)),
    )


def decided(
    found: ScalingDecision,
    seen: PodsObservation = EVEN,
    now: float = NOW,
    bounds: PodAndCpuBounds = BOUNDS,
    limits: PipelineLimits = LIMITS,
) -> ScalingDecision:
    return decide_pods_and_cpu(bounds, limits, found, seen, interval=TICK, now=now)


def millis(found: ScalingDecision) -> int:
    assert found.state.cpu is not None
    return found.state.cpu.scale.desired


def pods(found: ScalingDecision) -> int:
    assert found.state.pods is not None
    return found.state.pods.scale.desired


BOUND: dict[str, Any] = {"verdict": Verdict.CPU_BOUND, "count": 2, "wanted": 4, "offered": 3.0}


# --- CPU ------------------------------------------------------------------------------------------


def test_cpu_grows_to_what_the_wanted_instances_need() -> None:
    done = decided(decision(**BOUND))
    assert millis(done) == 250 + 4 * 1000
    (action,) = done.state.history
    assert (action.step, action.before, action.after) == (CPU, 2250, 4250)
    assert action.reason == "CPUBound: the instances in each pod need 4250m of CPU"


def test_cpu_grows_by_one_instance_at_least_and_to_the_most_at_most() -> None:
    tight = decision(Verdict.CPU_BOUND, 4, 4, state=remembered(4250))
    assert millis(decided(tight)) == 5250
    assert millis(decided(decision(Verdict.CPU_BOUND, 6, 40, state=remembered(5250)))) == 6250
    assert millis(decided(decision(Verdict.CPU_BOUND, 6, 40, state=remembered(6250)))) == 6250


@pytest.mark.parametrize("verdict", [one for one in Verdict if one is not Verdict.CPU_BOUND])
def test_nothing_but_want_of_cpu_raises_it(verdict: Verdict) -> None:
    assert millis(decided(decision(verdict, 4, 6))) == 2250


def test_cpu_waits_for_what_is_under_way_and_for_what_was_asked_before() -> None:
    bound = decision(**BOUND)
    assert millis(decided(bound, replace(EVEN, counting=True))) == 2250
    assert millis(decided(bound, replace(EVEN, rolling=True))) == 2250
    late = decided(bound, replace(EVEN, resize_pending={"pod-a": "is Deferred on node n1"}))
    assert millis(late) == 2250
    assert late.limited == "cpu: pod pod-a is Deferred on node n1"


def test_a_limit_that_a_node_cannot_give_is_taken_back_and_bounds_all() -> None:
    asked = remembered(4250, last_up=NOW - 5, last_change=NOW - 5)
    seen = replace(
        EVEN,
        infeasible={"a": InfeasibleResize("a", "n1", 4250, 2250)},
        resize_pending={"pod-a": "is Infeasible on node n1"},
    )
    back = decided(decision(**{**BOUND, "state": asked}), seen)
    assert millis(back) == 2250
    assert back.state.history[0].reason == "4250m of CPU is infeasible on node n1"
    again = decided(decision(**{**BOUND, "state": back.state}), EVEN, NOW + 60)
    assert millis(again) == 2250
    assert (
        again.limited
        == "cpu: a pod on node n1 can have at most 2250m of CPU (4250m is infeasible there)"
    )
    gone = decided(
        decision(**{**BOUND, "state": again.state}),
        replace(EVEN, uids=frozenset({"b"})),
        NOW + 120,
    )
    assert millis(gone) == 4250, "another pod may stand on a larger node"


def test_cpu_falls_with_the_count_after_five_minutes() -> None:
    state, counts = remembered(6250), []
    for number in range(70):
        done = decided(decision(count=3, wanted=3, state=state), now=NOW + number * TICK)
        state, counts = done.state, [*counts, millis(done)]
    assert counts[50] == 6250
    assert counts[-1] == 3250


def test_cpu_is_not_raised_for_instances_that_need_less_than_they_are_granted() -> None:
    assert millis(decided(decision(Verdict.BALANCED, 5, 5))) == 2250


@pytest.mark.parametrize("fields", [{"fresh": False}, {"verdict": Verdict.UNKNOWN}])
def test_cpu_stays_without_usable_figures(fields: dict[str, Any]) -> None:
    wants = tuple((NOW - age, 2250) for age in range(300, 0, -5))
    found = decision(count=1, state=remembered(6250, demands=wants), **fields)
    assert millis(decided(found)) == 6250
    assert millis(decided(decision(count=1, state=remembered(6250, demands=wants)))) == 2250, (
        "else it would have fallen"
    )


# --- order ----------------------------------------------------------------------------------------


def run(
    state: ScalingState, seconds: float, seen: PodsObservation = EVEN, **fields: Any
) -> list[ScalingDecision]:
    result = []
    for number in range(int(seconds / TICK) + 1):
        done = decided(decision(**{**BOUND, "state": state} | fields), seen, NOW + number * TICK)
        state = done.state
        result.append(done)
    return result


def test_pods_come_only_when_cpu_can_give_no_more() -> None:
    """Add pods only when CPU can be raised no further.

    At 6 Erlang the limit stays short at 6.25 cores, and only from then on is the minute counted.
    """
    steps = run(remembered(), 180, offered=6.0, wanted=9)
    first = next(index for index, done in enumerate(steps) if millis(done) == 6250)
    pod = next(index for index, done in enumerate(steps) if pods(done) > 1)
    assert (pod - first) * TICK >= 60
    assert {item.step for item in steps[-1].state.history} == {CPU, PODS}


def test_pods_are_the_way_where_a_node_keeps_cpu_waiting() -> None:
    waiting = replace(EVEN, resize_pending={"pod-a": "is Deferred on node n1"})
    state = remembered(4250, last_change=NOW - 1, last_up=NOW - 1)
    steps = run(state, 130, waiting, offered=6.0)
    assert pods(steps[10]) == 1, "for a minute the kubelet may still find room"
    assert pods(steps[-1]) > 1
    assert millis(steps[-1]) == 4250


def test_one_thing_at_a_time() -> None:
    """Change CPU or pods, never both at once, and neither while counts or pods are changing."""
    for seen in (EVEN, replace(EVEN, counting=True), replace(EVEN, rolling=True)):
        steps = [
            ScalingDecision((), Verdict.UNKNOWN, remembered()),
            *run(remembered(), 300, seen, offered=9.0, wanted=9),
        ]
        for before, after in pairwise(steps):
            changes = (millis(before) != millis(after)) + (pods(before) != pods(after))
            assert changes <= (1 if seen is EVEN else 0)


def test_counts_wait_for_pods_and_cpu_but_not_for_ever() -> None:
    growing = replace(remembered(), pods=PodCountState(StepState(desired=2, last_change=NOW)))
    assert change_in_progress(growing, EVEN, NOW + 119) == "the number of pods is being changed"
    assert change_in_progress(growing, EVEN, NOW + 121) == ""
    assert change_in_progress(growing, replace(EVEN, there=2, ready=2), NOW + 5) == ""
    resizing = remembered(4250, last_change=NOW)
    uneven = replace(EVEN, resize_pending={"pod-a": "does not have 4250m yet"})
    assert (
        change_in_progress(resizing, uneven, NOW + 59)
        == "the CPU limit of the pods is being changed"
    )
    assert change_in_progress(resizing, uneven, NOW + 61) == ""
    assert change_in_progress(resizing, EVEN, NOW + 5) == ""


def test_advice_changes_nothing_and_is_given_once() -> None:
    advisory = replace(LIMITS, active=False)
    first = decided(decision(**BOUND), limits=advisory)
    assert (millis(first), len(first.state.history)) == (2250, 1)
    assert first.state.cpu is not None
    assert first.state.cpu.scale.last_up is None
    again = decided(decision(**{**BOUND, "state": first.state}), limits=advisory, now=NOW + 60)
    assert (millis(again), again.state.history) == (2250, first.state.history)


def test_what_is_no_longer_owned_is_forgotten() -> None:
    assert adopt_recorded(remembered(), PodAndCpuBounds(), None, None) == replace(
        remembered(), pods=None, cpu=None
    )
    taken = adopt_recorded(ScalingState(), BOUNDS, 3, 4250)
    assert taken.pods is not None
    assert taken.cpu is not None
    assert (taken.pods.scale.desired, taken.cpu.scale.desired) == (3, 4250)
    assert adopt_recorded(ScalingState(), BOUNDS, None, None) == ScalingState()


# --- state ----------------------------------------------------------------------------------------

times = st.integers(0, 20_000_000_000).map(lambda tenths: tenths / 10)
optional = st.one_of(st.none(), times)
counts = st.integers(1, 2**31 - 1)


@given(
    counts,
    st.integers(0, 100),
    optional,
    counts,
    st.lists(st.tuples(st.text(max_size=36), st.text(max_size=60), counts, counts), max_size=16),
)
def test_state_survives_a_restart(
    pods_: int,
    wanted: int,
    pressed: float | None,
    cores: int,
    lost: list[tuple[str, str, int, int]],
) -> None:
    state = ScalingState(
        pods=PodCountState(StepState(desired=pods_, last_up=pressed), wanted, pressed),
        cpu=CpuLimitState(
            StepState(desired=cores), tuple(InfeasibleResize(*item) for item in lost)
        ),
    )
    text = dumps(state)
    if len(text.encode()) <= LIMIT_BYTES:
        assert loads(text) == state


@pytest.mark.parametrize(
    "broken",
    [
        "[]",
        '"x"',
        "7",
        '{"desired": 0}',
        '{"desired": true}',
        '{"desired": 2, "infeasible": [[1, 2], "x"]}',
    ],
)
def test_broken_state_is_left_out(broken: str) -> None:
    found = loads(
        f'{{"version": 1, "steps": {{}}, "history": [], "pods": {broken}, "cpu": {broken}}}'
    )
    assert found.pods in (None, PodCountState(StepState(desired=2)))
    assert found.cpu in (None, CpuLimitState(StepState(desired=2)))


def test_a_long_state_stays_small_and_keeps_the_numbers() -> None:
    wants = tuple((NOW + number * 5, number % 900 + 1) for number in range(60))
    steps = {
        f"step-{number}": StepState(
            desired=3, demands=wants, counts=wants, reversals=tuple(at for at, _ in wants)
        )
        for number in range(12)
    }
    scale = StepState(desired=4, demands=wants)
    text = dumps(
        ScalingState(
            steps=steps,
            pods=PodCountState(scale, 4, NOW),
            cpu=CpuLimitState(replace(scale, desired=4250)),
        )
    )
    assert len(text.encode()) <= LIMIT_BYTES
    found = loads(text)
    assert found.pods is not None
    assert found.cpu is not None
    assert (found.pods.scale.desired, found.pods.pressed_since, found.cpu.scale.desired) == (
        4,
        NOW,
        4250,
    )
