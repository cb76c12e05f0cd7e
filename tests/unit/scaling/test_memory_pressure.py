"""Memory pressure: what is removed, what is promised, and how long growth is held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.flows import INTERVAL, NOW, Flow, counts, history
from tests.support.messages import Messages
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
    PodUsage,
)
from triton_pipelines.autoscaling.state_json import dumps, loads
from triton_pipelines.autoscaling.types import (
    PipelineLimits,
    ScalingDecision,
    ScalingState,
    StepLimits,
    StepState,
)

MIB, GIB = 2**20, 2**30
STEP = StepLimits("a", "a", 1, 12, 1, cores=0.1, memory_bytes=256 * MIB, tokenizer=False)
LIMITS = PipelineLimits(steps=(STEP,), cpu_limit=64.0, memory_limit=4.0 * GIB)
HEAVY = Flow(rate=36, service=0.1, pending=8)  # four instances are 90% busy


def remembered(count: int, **fields: object) -> ScalingState:
    return ScalingState(
        actuation=1.0,
        steps={"a": StepState(desired=count, service=0.1, **fields)},  # type: ignore[arg-type]
    )


def decided(
    usage: PodUsage | None,
    state: ScalingState,
    *,
    flow: Flow = HEAVY,
    bounds: PipelineLimits = LIMITS,
    now: float = NOW,
) -> ScalingDecision:
    seen = PipelineSample({"pod-0": history({"a": flow}, now=now, usage=usage)}, INTERVAL)
    present = counts(state.steps["a"].desired, step="a")
    return decide(bounds, state, seen, present, ["pod-0"], now)


def changes(
    seconds: int, state: ScalingState, step: Callable[[float, ScalingState], ScalingDecision]
) -> list[tuple[int, int]]:
    """Return when the count changed and to what; the state passes through its stored form."""
    found = []
    for age in range(0, seconds, 5):
        before = state.steps["a"].desired
        state = loads(dumps(step(NOW + age, state).state))
        if state.steps["a"].desired != before:
            found.append((age, state.steps["a"].desired))
    return found


@pytest.mark.parametrize("grows_under_load", [True, False])
def test_growth_is_held_after_memory_ran_short(grows_under_load: bool) -> None:
    """An instance really uses 0.6 GiB; cAdvisor shows a change 20 s later."""
    bounds = replace(LIMITS, steps=(replace(STEP, grows_under_load=grows_under_load),))

    def step(now: float, state: ScalingState) -> ScalingDecision:
        known = [count for at, count in state.steps["a"].counts if at <= now - 20] or [4]
        usage = PodUsage(now - 60, cpu_cores=4, memory_bytes=(1 + 0.6 * known[-1]) * GIB)
        enough = state.steps["a"].desired > 4
        flow = replace(HEAVY, pending=0) if enough else HEAVY
        return decided(usage, state, flow=flow, bounds=bounds, now=now)

    found = changes(1800, remembered(4), step)
    assert [count for _, count in found] == [5, 4, 5, 4]
    (_, removed), (again, _) = found[1], found[2]
    assert removed == 4
    assert again - found[1][0] >= 900


def held(**fields: object) -> ScalingState:
    return remembered(4, memory_held=(NOW - 100, 4, 4.0 * GIB), **fields)


def test_the_limitation_is_reported_as_memory(messages: Messages) -> None:
    roomy = PodUsage(NOW - 60, cpu_cores=4, memory_bytes=2.0 * GIB)
    done = decided(roomy, held())
    assert done.steps[0].count == 4
    assert "because memory ran short with 5 instances" in done.limited
    messages.check(done.limited)
    assert decided(roomy, remembered(4)).steps[0].count > 4


def test_the_hold_ends_with_the_memory_limit_and_with_the_revision() -> None:
    roomy = PodUsage(NOW - 60, cpu_cores=4, memory_bytes=2.0 * GIB)
    for bounds in (replace(LIMITS, memory_limit=8.0 * GIB), replace(LIMITS, revision="other")):
        assert decided(roomy, held(), bounds=bounds).steps[0].count > 4


def test_an_outage_does_not_undo_the_removal() -> None:
    before = remembered(5, counts=((NOW - 300, 5),))
    full = PodUsage(NOW - 60, cpu_cores=4, memory_bytes=3.9 * GIB)
    done = decided(full, before, flow=replace(HEAVY, pending=0))
    assert done.steps[0].count == 4
    later, gone = NOW + 120, MetricsFailure(MetricsProblem.ERROR, "down")
    state = replace(done.state, outage_since=NOW + 5)
    assert decide(LIMITS, state, gone, counts(4, step="a"), ["pod-0"], later).steps[0].count == 4


def test_a_recommended_removal_holds_nothing() -> None:
    full = PodUsage(NOW - 60, cpu_cores=4, memory_bytes=3.9 * GIB)
    done = decided(full, remembered(5), bounds=replace(LIMITS, active=False))
    assert done.steps[0].count == 4
    assert done.state.steps["a"].memory_held is None


def test_a_reading_removes_one_instance() -> None:
    """The load needs all eight; memory was read once."""
    usage = PodUsage(NOW - 60, cpu_cores=4, memory_bytes=3.85 * GIB)
    flow = Flow(rate=56, service=0.1)
    found = changes(
        240, remembered(8), lambda now, state: decided(usage, state, flow=flow, now=now)
    )
    assert found == [(0, 7)]


def test_newer_readings_remove_more() -> None:
    flow = Flow(rate=56, service=0.1)

    def step(now: float, state: ScalingState) -> ScalingDecision:
        usage = PodUsage(now - 60, cpu_cores=4, memory_bytes=3.85 * GIB)
        return decided(usage, state, flow=flow, now=now)

    assert changes(150, remembered(8), step) == [(0, 7), (65, 6), (130, 5)]


def shared(
    state: ScalingState, present: dict[str, int], flows: dict[str, Flow], at: float, now: float
) -> ScalingDecision:
    """Decide on two steps with instances of 1 GiB in a pod that had 6 GiB left at ``at``."""
    both = tuple(
        StepLimits(name, name, 1, 20, 1, cores=0.1, memory_bytes=GIB, tokenizer=False)
        for name in ("a", "b")
    )
    bounds = PipelineLimits(
        steps=(replace(both[0], grows_under_load=False), both[1]),
        cpu_limit=64.0,
        memory_limit=8 * GIB / 0.95,
    )
    usage = PodUsage(at, cpu_cores=2, memory_bytes=2 * GIB)
    seen = PipelineSample({"pod-0": history(flows, now=now, usage=usage)}, INTERVAL)
    reported = {name: {"pod-0": count} for name, count in present.items()}
    return decide(bounds, state, seen, reported, ["pod-0"], now)


HOT = Flow(rate=9.5, service=0.1, pending=60, growth=5)


@pytest.mark.parametrize("reported", [7, 1], ids=["completed", "not completed"])
def test_memory_that_growth_takes_is_not_promised_again(reported: int) -> None:
    """The pods may not show a growth for minutes, and readings then show no more memory."""
    state = ScalingState(
        actuation=2.0, steps={name: StepState(desired=1, service=0.1) for name in ("a", "b")}
    )
    calm = Flow(rate=3, service=0.1)
    first = shared(state, {"a": 1, "b": 1}, {"a": HOT, "b": calm}, NOW - 60, NOW)
    assert [step.count for step in first.steps] == [7, 1]
    present = {"a": reported, "b": 1}
    for age, read in ((10, -60), (150, 60)):
        later = shared(first.state, present, {"a": HOT, "b": HOT}, NOW + read, NOW + age)
        assert (later.steps[1].count > 1) is (reported == 7 and read > 0)


def test_a_pod_that_stays_behind_does_not_limit_the_others() -> None:
    """Its missing instances are no part of the memory that the fullest pod uses."""
    flow = replace(HEAVY, rate=38)
    pods = {
        name: history({"a": flow}, usage=PodUsage(NOW - 60, cpu_cores=4, memory_bytes=size * GIB))
        for name, size in (("pod-0", 3.0), ("pod-1", 1.0))
    }
    seen, reported = PipelineSample(pods, INTERVAL), {"a": {"pod-0": 4, "pod-1": 1}}
    done = decide(LIMITS, remembered(4), seen, reported, list(pods), NOW)
    assert done.steps[0].figures.cap == 7  # 0.8 GiB hold three more
