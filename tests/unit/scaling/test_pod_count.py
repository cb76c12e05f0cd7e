"""Test the number of pods: first the rules, then properties.

It grows where counts cannot help, shrinks after a long rest, and never changes because of a
failure.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.autoscaling.metrics.samples import MetricsProblem
from triton_pipelines.autoscaling.pod_count import (
    STABILIZATION_SECONDS,
    PodCountDecision,
    adopt_replicas,
    decide_pods,
    is_shrinking,
    pod_pressure,
    pods_demand,
)
from triton_pipelines.autoscaling.types import (
    InstanceGrowth,
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
    steps=(StepLimits("tokenizer", "tokenizer", 1, 4, 1),), gpu_steps=("model",)
)
BOUNDS = StepLimits("pods", "", 1, 8, 1)


def decision(
    verdict: Verdict = Verdict.BALANCED,
    *,
    count: int = 4,
    cap: int = 4,
    offered: float = 2.0,
    gpu: float | None = 0.3,
    **fields: Any,
) -> ScalingDecision:
    """Return a decision for one tokenizer.

    Args:
        verdict: Verdict on the pipeline, and on the step unless ``step_verdict`` is given.
        count: Tokenizer instances of a pod.
        cap: Largest count allowed.
        offered: Offered load in Erlang over all pods.
        gpu: Busy share of the GPU step, 0 to 1.
        **fields: Other values of the decision.
    """
    frozen = fields.pop("growth_held", None)
    figures = StepFigures(
        offered=offered, cap=cap, cap_reason="instances.max 4", arrivals=fields.pop("arrivals", 0.0)
    )
    steps = (StepDecision("tokenizer", count, fields.pop("step_verdict", verdict), "", figures),)
    state = ScalingState(steps={"tokenizer": StepState(desired=count, growth_held=frozen)})
    problem = None if fields.pop("fresh", True) else MetricsProblem.PARTIAL
    return ScalingDecision(steps, verdict, state, gpu_busy=gpu, problem=problem, **fields)


def text_of(found: PodCountDecision) -> str:
    return "" if found.limitation is None else found.limitation.text


def turn(
    state: PodCountState, found: ScalingDecision, now: float = NOW, **fields: Any
) -> PodCountDecision:
    arguments = {
        "ready": state.scale.desired,
        "cpu_may_grow": False,
        "blocked": "",
        "interval": TICK,
    } | fields
    bounds = arguments.pop("bounds", BOUNDS)
    limits = arguments.pop("limits", LIMITS)
    return decide_pods(bounds, limits, state, found, now=now, **arguments)  # type: ignore[arg-type]


def remembered(count: int, **fields: Any) -> PodCountState:
    return PodCountState(StepState(desired=count, **fields))


def run(
    state: PodCountState, found: ScalingDecision, seconds: float, start: float = NOW, **fields: Any
) -> PodCountDecision:
    """The same decision, tick after tick, each number at once there."""
    result = turn(state, found, start, **fields)
    for number in range(1, int(seconds / TICK) + 1):
        result = turn(result.state, found, start + number * TICK, **fields)
    return result


FULL = decision(
    Verdict.TOKENIZER_BOUND, offered=6.0
)  # 4 instances of one pod carry 2.8 at 70 %: 3 pods


def test_a_pod_is_added_once_counts_have_been_of_no_help_for_a_minute() -> None:
    """6 Erlang at 70 % need 8.6 instances, four fit a pod: three pods."""
    assert run(remembered(1), FULL, 55).count == 1
    grown = run(remembered(1), FULL, 60)
    assert grown.count == 3
    assert (
        "TokenizerBound: every pod has 4 tokenizer instances, and instances.max 4" in grown.reason
    )
    assert grown.state.pressed_since is None, "the next addition waits a minute, too"
    assert (
        run(
            grown.state, decision(Verdict.TOKENIZER_BOUND, offered=20.0), 55, NOW + 65, ready=3
        ).count
        == 3
    )


def test_a_full_gpu_asks_for_pods_by_its_busy_share() -> None:
    """0.96 busy in three pods, 0.75 aimed at: 3.84."""
    grown = run(remembered(3), decision(Verdict.GPU_BOUND, count=1, gpu=0.96), 60, ready=3)
    assert (grown.count, grown.reason) == (
        4,
        "GPUBound: the GPU step is fully utilized in every pod; the load needs 4 pods",
    )


def test_known_gpu_capacity_asks_for_pods_by_arrivals() -> None:
    limits = replace(LIMITS, gpu_capacity=100.0)
    assert pods_demand(decision(arrivals=450.0, gpu=0.5), limits, 3) == pytest.approx(1.5)


def test_pressure_that_pauses_starts_over() -> None:
    after = run(remembered(1), FULL, 50).state
    after = turn(after, decision(Verdict.BALANCED), NOW + 55).state
    assert after.pressed_since is None
    assert run(after, FULL, 55, NOW + 60).count == 1


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (decision(Verdict.TOKENIZER_BOUND, count=3, offered=6.0), "one more instance fits"),
        (decision(Verdict.BALANCED, offered=2.7), "nothing waits"),
        (decision(Verdict.CPU_CONTENDED, offered=2.7), "others use the CPU"),
        (decision(Verdict.NO_PROGRESS, offered=9.0, gpu=0.99), "nothing completes"),
        (
            decision(Verdict.BATCHING_INEFFECTIVE, offered=9.0, gpu=0.99),
            "the GPU runs them one by one",
        ),
        (decision(Verdict.UNKNOWN, offered=9.0), "nothing is known"),
    ],
)
def test_pods_do_not_grow_where_they_are_not_what_helps(found: ScalingDecision, why: str) -> None:
    assert run(remembered(2), found, 120, ready=2).count == 2, why


def test_a_frozen_step_is_at_its_cap() -> None:
    growth = InstanceGrowth(NOW - 60, 1, 2, 100.0, 0.01)
    found = decision(Verdict.TOKENIZER_BOUND, count=2, offered=4.0, growth_held=(NOW - 30, growth))
    assert "last increase did not raise throughput" in pod_pressure(
        found, LIMITS, cpu_may_grow=False
    )
    assert run(remembered(1), found, 60).count == 3  # 4 Erlang at 70 %, two in a pod


def test_cpu_in_place_comes_before_pods() -> None:
    bound = decision(Verdict.CPU_BOUND, count=2, cap=2, offered=4.0)
    assert run(remembered(1), bound, 120, cpu_may_grow=True).count == 1
    assert run(remembered(1), bound, 60).count == 3
    assert (
        run(
            remembered(2), decision(Verdict.GPU_BOUND, gpu=0.99), 60, ready=2, cpu_may_grow=True
        ).count
        == 3
    )


def test_a_tenth_more_or_less_is_nothing() -> None:
    assert run(remembered(4), decision(Verdict.GPU_BOUND, gpu=0.82), 120, ready=4).count == 4
    assert run(remembered(4), decision(gpu=0.69), 400, ready=4).count == 4


def test_what_is_under_way_comes_first() -> None:
    held = run(remembered(1), FULL, 120, blocked="instance counts are being changed")
    assert (held.count, text_of(held)) == (
        1,
        "the load needs 3 pods; instance counts are being changed",
    )
    waits = run(remembered(2), FULL, 120, ready=1)
    assert (waits.count, "waiting for the pods" in text_of(waits)) == (2, True)


def test_bounds_bind_at_once_and_say_so() -> None:
    assert turn(remembered(1), decision(), bounds=replace(BOUNDS, low=3)).count == 3
    less = turn(remembered(9), decision(fresh=False), ready=9, blocked="a rollout is in progress")
    assert (less.count, less.reason) == (8, "spec.scaling.pods allows 1 to 8")
    capped = run(remembered(8), decision(Verdict.GPU_BOUND, gpu=1.0), 120, ready=8)
    assert text_of(capped).startswith(
        "the load needs 11 pods, but spec.scaling.pods.max limits the number of pods to 8"
    )


def rested(count: int, wanted: int, **fields: Any) -> PodCountState:
    wants = tuple((NOW - age, wanted) for age in range(int(STABILIZATION_SECONDS), 0, -5))
    return PodCountState(StepState(desired=count, demands=wants, **fields), wanted)


def test_pods_go_after_five_minutes_in_steps() -> None:
    quiet = decision(Verdict.OVERPROVISIONED, count=4, offered=1.0, gpu=0.1)  # one pod would do
    assert run(remembered(6), quiet, 260, ready=6).count == 6
    less = turn(rested(6, 1), quiet, ready=6)
    assert (less.count, less.reason) == (5, "at most 5 pods were needed in the last 300 s")
    assert turn(rested(6, 1, last_up=NOW - 200), quiet, ready=6).count == 6
    assert turn(rested(6, 1), decision(Verdict.IDLE, offered=0.0, gpu=0.0), ready=6).count == 5


def test_a_minute_lies_between_two_steps_down() -> None:
    """What the load does to the pods that are left has to show before more go."""
    quiet, state, steps = (
        decision(Verdict.OVERPROVISIONED, count=4, offered=1.0, gpu=0.1),
        rested(6, 1),
        [],
    )
    for number in range(40):
        at = NOW + number * TICK
        made = turn(state, quiet, at, ready=state.scale.desired)
        if made.count != state.scale.desired:
            steps.append((at - NOW, made.count))
        state = made.state
    assert steps == [(0.0, 5), (60.0, 4), (120.0, 3), (180.0, 2)]
    bounds = replace(BOUNDS, high=1)
    assert turn(state, quiet, NOW + 40 * TICK, bounds=bounds).count == 1, (
        "but what the user allows holds at once"
    )


def test_one_busy_moment_keeps_the_pods() -> None:
    state = rested(6, 1)
    wants = tuple(
        (at, 6 if index == 7 else want) for index, (at, want) in enumerate(state.scale.demands)
    )
    assert (
        turn(
            replace(state, scale=replace(state.scale, demands=wants)),
            decision(Verdict.IDLE, offered=0.0, gpu=0.0),
            ready=6,
        ).count
        == 6
    )


@pytest.mark.parametrize(
    "found",
    [
        decision(Verdict.IDLE, offered=0.0, gpu=0.0, fresh=False),
        decision(Verdict.UNKNOWN, offered=0.0, gpu=0.0),
        decision(Verdict.IDLE, offered=0.0, gpu=None),
        decision(Verdict.IDLE, offered=0.0, gpu=0.0, step_verdict=Verdict.UNKNOWN),
    ],
)
def test_without_usable_figures_no_pod_goes(found: ScalingDecision) -> None:
    assert turn(rested(6, 1), found, ready=6).count == 6


def test_counts_wait_for_pods_that_are_to_go() -> None:
    assert is_shrinking(run(remembered(3), decision(offered=1.0, gpu=0.1), 5, ready=3).state)
    assert not is_shrinking(run(remembered(3), decision(offered=8.0, gpu=0.7), 5, ready=3).state)
    assert not is_shrinking(None)


def test_what_is_recorded_holds_after_a_restart() -> None:
    state = rested(3, 2, last_up=NOW - 10)
    assert adopt_replicas(state, 5).scale == replace(state.scale, desired=5)
    assert adopt_replicas(None, 5).scale.desired == 5


# --- properties -----------------------------------------------------------------------------------

verdicts = st.sampled_from([*Verdict])
shares = st.one_of(st.none(), st.floats(0.0, 1.0))
moments = st.lists(
    st.tuples(
        verdicts,
        st.integers(1, 4),
        st.integers(1, 6),
        st.floats(0.0, 60.0),
        shares,
        st.booleans(),
        st.booleans(),
        st.sampled_from([-1, 0, 0, 0]),
    ),
    min_size=1,
    max_size=60,
)


@given(moments, st.integers(1, 4), st.integers(0, 8), st.integers(1, 12))
def test_any_history_stays_within_bounds_and_moves_for_a_reason(
    history: list[Any], low: int, more: int, start: int
) -> None:
    bounds = StepLimits("pods", "", low, low + more, low)
    state, now, last_up = remembered(start), NOW, -1e9
    for verdict, count, cap, offered, gpu, fresh, blocked, late in history:
        found = decision(verdict, count=count, cap=cap, offered=offered, gpu=gpu, fresh=fresh)
        before = state.scale.desired
        done = turn(
            state,
            found,
            now,
            bounds=bounds,
            ready=max(0, before + late),
            blocked="a rollout is in progress" if blocked else "",
        )
        assert bounds.low <= done.count <= bounds.high
        if bounds.low <= before <= bounds.high:
            if not fresh or blocked:
                assert done.count == before
            if done.count > before:
                assert state.pressed_since is not None
                assert now - state.pressed_since >= 60
            if done.count < before:
                assert now - NOW >= 0.9 * STABILIZATION_SECONDS
                assert now - last_up >= STABILIZATION_SECONDS
                assert before - done.count <= max(1, before // 3)
        if done.count > before:
            last_up = now
        state, now = done.state, now + 30.0


@given(st.floats(0.0, 40.0), st.floats(0.0, 40.0), shares, st.integers(1, 12))
def test_more_load_never_asks_for_fewer_pods(
    one: float, other: float, gpu: float | None, ready: int
) -> None:
    less, more = (
        pods_demand(decision(offered=offered, gpu=gpu), LIMITS, ready)
        for offered in sorted((one, other))
    )
    assert (less is None) == (more is None) == (gpu is None)
    if less is not None and more is not None:
        assert less <= more


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6), st.floats(0.0, 10.0))
def test_a_busier_gpu_never_asks_for_fewer_pods(busy: list[float], offered: float) -> None:
    found = [
        pods_demand(decision(offered=offered, gpu=share), LIMITS, 3) or 0.0
        for share in sorted(busy)
    ]
    assert all(less <= more for less, more in pairwise(found))


@given(st.floats(0.1, 30.0), st.integers(1, 8))
def test_a_steady_load_comes_to_rest(offered: float, start: int) -> None:
    """Under one load for an hour the number moves in one direction, and stands in the end."""
    state, now, counts = remembered(start), NOW, [start]
    for _ in range(360):
        pods = state.scale.desired
        full = offered / (4 * pods) >= 0.8
        verdict = Verdict.TOKENIZER_BOUND if full else Verdict.BALANCED
        done = turn(
            state,
            decision(verdict, offered=offered, gpu=min(1.0, offered / 12 / pods)),
            now,
            ready=pods,
        )
        state, now = done.state, now + 10.0
        counts.append(done.count)
    assert len(set(counts[-60:])) == 1
    turns = {after > before for before, after in pairwise(counts) if after != before}
    assert len(turns) <= 1
