"""Each rule of the decision on a sample made for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.flows import (
    INTERVAL,
    MODEL,
    NOW,
    QUIET,
    TOKENIZER,
    Flow,
    counts,
    history,
    limits,
    names,
    rested,
    sample,
)
from tests.support.messages import Messages
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
    PodHistory,
    PodUsage,
)
from triton_pipelines.autoscaling.types import (
    ControlLaw,
    Fallback,
    InstanceGrowth,
    PipelineLimits,
    ScalingDecision,
    ScalingState,
    StepDecision,
    StepLimits,
    StepState,
    Verdict,
)

LOADED = Flow(rate=200, pending=300, growth=20)  # two instances at their end


def remembered(count: int, **fields: object) -> ScalingState:
    return ScalingState(steps={TOKENIZER: StepState(desired=count, service=0.010, **fields)})  # type: ignore[arg-type]


def decided(
    seen: PipelineSample | MetricsFailure,
    count: int = 2,
    *,
    bounds: PipelineLimits | None = None,
    state: ScalingState | None = None,
    pods: int = 1,
    now: float = NOW,
) -> ScalingDecision:
    given = bounds if bounds is not None else limits()
    return decide(
        given,
        state if state is not None else remembered(count),
        seen,
        counts(count, pods),
        names(pods),
        now,
    )


def test_load_beyond_the_instances_grows_in_one_step_to_what_it_needs() -> None:
    done = decided(sample(Flow(rate=200, pending=420 * 5, growth=420)), 2)
    step = done.steps[0]
    assert step.verdict is Verdict.TOKENIZER_BOUND
    assert step.figures.arrivals == pytest.approx(620)
    # 6.2 Erlang at 70 %, plus the backlog that will exist when the growth is in force, within
    # instances.max.
    assert step.count == 12
    assert "620 requests/s" in step.reason
    assert "10 ms" in step.reason
    assert "the wait time is 10500 ms" in step.reason  # people read it: no power of ten
    assert done.state.steps[TOKENIZER].desired == 12
    assert done.state.history[0].after == 12


def one_growth(high: int = 20, **fields: Any) -> PipelineLimits:
    """Limits of a step that Triton changes no further while requests wait."""
    given = limits(high=high, **fields)
    return replace(given, steps=(replace(given.steps[0], grows_under_load=False),))


def test_a_step_that_cannot_grow_again_grows_to_its_cap_during_an_overload() -> None:
    usual = decided(sample(LOADED), bounds=limits(high=20)).steps[0]
    done = decided(sample(LOADED), bounds=one_growth())
    assert usual.count < done.steps[0].count == 20
    assert "the maximum at once" in done.steps[0].reason
    assert "at once" not in usual.reason
    # What the load needs is remembered, so the count can fall to it later.
    assert max(need for _, need in done.state.steps[TOKENIZER].demands) == usual.count


def test_the_cap_is_also_that_of_the_cpu() -> None:
    seen = sample(LOADED, usage=PodUsage(at=NOW, cpu_cores=2.2))
    done = decided(seen, bounds=one_growth(cpu_limit=6.0))
    assert done.steps[0].count == 5


EACH = 64.0  # memory and shared memory of an instance


def shared_growth(*grow_under_load: bool, **bounds: Any) -> list[StepDecision]:
    """Return the decisions on two overloaded steps, with two instances each, in one pod."""
    names_of_steps = ("tokenizer", "clean")
    steps = tuple(
        StepLimits(
            name,
            name,
            1,
            20,
            1,
            memory_bytes=EACH,
            shared_memory_bytes=EACH,
            tokenizer=name == "tokenizer",
            grows_under_load=grows,
        )
        for name, grows in zip(names_of_steps, grow_under_load, strict=True)
    )
    usage = PodUsage(NOW, cpu_cores=4.5, memory_bytes=4 * EACH)
    flows = {
        name: Flow(rate=200, pending=pending, growth=20)
        for name, pending in zip(names_of_steps, (110, 100), strict=True)
    }
    state = ScalingState(steps={name: StepState(desired=2, service=0.010) for name in flows})
    seen = PipelineSample({"pod-0": history(flows, usage=usage)}, INTERVAL)
    limited = PipelineLimits(steps=steps, **bounds)
    now = {name: {"pod-0": 2} for name in flows}
    return list(decide(limited, state, seen, now, ["pod-0"], NOW).steps)


@pytest.mark.parametrize(
    ("bounds", "room"),
    [
        ({"memory_limit": 14.5 * EACH / 0.95}, 14),
        ({"shared_memory": 14.5 * EACH}, 14),
        ({"cpu_limit": 11.0}, 9),  # 0.95 * 11 less 0.5 of others
    ],
    ids=["memory", "shared memory", "CPU"],
)
@pytest.mark.parametrize("grow_under_load", [(False, False), (False, True), (True, False)])
def test_growth_to_the_cap_leaves_other_steps_what_they_need(
    grow_under_load: tuple[bool, bool], bounds: dict[str, float], room: int
) -> None:
    usual = shared_growth(True, True, **bounds)
    done = shared_growth(*grow_under_load, **bounds)
    assert sum(step.count for step in done) == room
    for before, after in zip(usual, done, strict=True):
        assert after.count >= before.count > 2
    for grows, before, after in zip(grow_under_load, usual, done, strict=True):
        if grows:
            assert after.count == before.count


@pytest.mark.parametrize("reported", [2, 5])
def test_a_step_with_more_instances_than_it_needs_is_not_bound_by_the_cpu(reported: int) -> None:
    """Pods would otherwise get more CPU, as long as requests that already wait keep it busy."""
    bounds, usage = one_growth(cpu_limit=6.0), PodUsage(at=NOW, cpu_cores=2.2)
    grown = decided(sample(LOADED, usage=usage), bounds=bounds)
    assert grown.steps[0].count == 5
    later = sample(replace(LOADED, pending=100), usage=usage, now=NOW + 5)
    done = decided(later, reported, bounds=bounds, state=grown.state, now=NOW + 5)
    assert done.steps[0].figures.demand < 5
    assert (done.steps[0].count, done.verdict) == (5, Verdict.TOKENIZER_BOUND)
    assert "no room" not in done.steps[0].reason


@pytest.mark.parametrize("flow", [Flow(rate=165), Flow(rate=170, pending=5)])
def test_without_an_overload_a_step_grows_to_what_it_needs(flow: Flow) -> None:
    usual = decided(sample(flow), bounds=limits(high=20)).steps[0]
    assert usual.count > 2
    assert decided(sample(flow), bounds=one_growth()).steps[0] == usual


def test_a_jump_inside_the_last_interval_is_completed() -> None:
    """Extrapolate a jump in load inside the last interval.

    Three instances carry 300/s. The load is 200/s until 2 s before the scrape and 600/s since; the
    interval's mean is 360/s.
    """
    before = history(
        {TOKENIZER: Flow(rate=200), MODEL: Flow(rate=200, service=0.001)}, now=NOW - INTERVAL
    )
    last = before.scrapes[-1].models[TOKENIZER]
    newest = replace(before.scrapes[-1], at=NOW)
    done = 3 * 200 + 2 * 300
    jumped = replace(
        last,
        success=last.success + done,
        execs=last.execs + done,
        compute_infer_us=last.compute_infer_us + done * 1e4,
        pending=600.0,
    )
    seen = PodHistory(
        (*before.scrapes, replace(newest, models={**newest.models, TOKENIZER: jumped}))
    )
    result = decided(PipelineSample({"pod-0": seen}, INTERVAL), 3, bounds=limits(high=40))
    assert result.steps[0].figures.arrivals == pytest.approx(600)


def test_a_busy_step_below_the_threshold_stays() -> None:
    done = decided(sample(Flow(rate=154)), 2)  # 0.77 of 2 instances: 2.2 wanted, below 80 %
    assert (done.steps[0].count, done.verdict) == (2, Verdict.BALANCED)
    assert decided(sample(Flow(rate=165)), 2).steps[0].count == 3


def test_nothing_inside_the_cooldown_and_nothing_while_pods_differ() -> None:
    assert decided(sample(LOADED), state=remembered(2, last_up=NOW - 7)).steps[0].count == 2
    assert decided(sample(LOADED), state=remembered(2, last_up=NOW - 11)).steps[0].count > 2
    quick = replace(
        remembered(2, last_up=NOW - 3), actuation=1.0
    )  # the newest scrape is of now, 2 s after it came in force
    assert decided(sample(LOADED), state=quick).steps[0].count > 2
    assert decided(sample(LOADED, now=NOW - 1), state=quick).steps[0].count > 2
    assert decided(sample(LOADED, now=NOW - 2.5), state=quick).steps[0].count == 2
    assert decided(sample(LOADED), state=replace(quick, actuation=4.0)).steps[0].count == 2
    fresh, known = replace(quick, actuation=None), replace(limits(), actuation=1.0)
    assert decided(sample(LOADED), state=fresh).steps[0].count == 2
    assert decided(sample(LOADED), state=fresh, bounds=known).steps[0].count > 2
    slow = replace(remembered(2, last_up=NOW - 11), actuation=20.0)
    assert decided(sample(LOADED), state=slow).steps[0].count == 2
    moving = remembered(3, last_up=NOW - 30, last_change=NOW - 30)
    assert decided(sample(LOADED), 2, state=moving).steps[0].count == 3
    failed = remembered(3, last_up=NOW - 300, last_change=NOW - 300)
    assert decided(sample(LOADED), 2, state=failed).steps[0].count > 3


def test_shrinks_only_after_the_whole_window_by_a_third_at_most() -> None:
    quiet = sample(Flow(rate=50))
    ready = rested(remembered(9), 1)
    assert decided(quiet, 9).steps[0].count == 9
    assert decided(quiet, 9, state=ready).steps[0].count == 7
    assert decided(quiet, 9, state=ready).verdict is Verdict.OVERPROVISIONED
    once = rested(remembered(9), 1)
    wants = tuple(
        (at, 8 if index == 3 else 1) for index, (at, _) in enumerate(once.steps[TOKENIZER].demands)
    )
    high = ScalingState(steps={TOKENIZER: replace(once.steps[TOKENIZER], demands=wants)})
    assert decided(quiet, 9, state=high).steps[0].count == 8
    late = ScalingState(steps={TOKENIZER: replace(once.steps[TOKENIZER], last_up=NOW - 100)})
    assert decided(quiet, 9, state=late).steps[0].count == 9


def test_a_gap_in_the_samples_is_no_evidence_for_less() -> None:
    ready = rested(remembered(9), 1).steps[TOKENIZER]
    gap = tuple(item for item in ready.demands if not NOW - 150 < item[0] < NOW - 60)
    assert (
        decided(
            sample(Flow(rate=50)),
            9,
            state=ScalingState(steps={TOKENIZER: replace(ready, demands=gap)}),
        )
        .steps[0]
        .count
        == 9
    )


def test_users_bounds_bind_at_once() -> None:
    assert decided(sample(LOADED), 9, bounds=limits(high=4)).steps[0].count == 4
    assert (
        decided(sample(QUIET), 1, bounds=limits(low=3), state=remembered(1, last_up=NOW))
        .steps[0]
        .count
        == 3
    )


def test_idle_is_not_missing() -> None:
    done = decided(sample(QUIET), 4, state=rested(remembered(4), 1))
    assert (done.verdict, done.steps[0].count, done.fresh) == (Verdict.IDLE, 3, True)
    assert decided(sample(QUIET), 1).steps[0].count == 1


def test_the_operators_own_questions_are_no_load() -> None:
    """Each of two pods is asked every 30 s: at most three times in 60 s."""
    asked = replace(limits(), probe_rate=1 / 30)
    seen = sample(Flow(rate=3 / 60), pods=2)
    assert decided(seen, 1, bounds=asked, pods=2).verdict is Verdict.IDLE
    assert decided(seen, 1, pods=2).verdict is Verdict.BALANCED
    assert (
        decided(sample(Flow(rate=4 / 60), pods=2), 1, bounds=asked, pods=2).verdict
        is Verdict.BALANCED
    )


def test_idle_is_said_only_of_a_whole_window() -> None:
    assert decided(sample(QUIET, seconds=20), 1).verdict is not Verdict.IDLE


def test_a_young_pod_or_a_restarted_one_never_lets_counts_fall() -> None:
    assert (
        decided(sample(Flow(rate=50), seconds=20), 9, state=rested(remembered(9), 1)).steps[0].count
        == 9
    )


def test_nothing_known_of_the_cost_of_a_request_holds() -> None:
    state = ScalingState(steps={TOKENIZER: StepState(desired=2)})
    done = decided(sample(Flow(rate=0, pending=30, growth=1)), state=state)
    assert (done.steps[0].count, done.verdict) == (2, Verdict.UNKNOWN)


def test_a_stall_grows_once_and_is_then_named(messages: Messages) -> None:
    stalled = sample(Flow(rate=0, pending=3000, growth=10))
    first = decided(stalled, 2)
    assert first.steps[0].count > 2
    grown = first.steps[0].count
    second = decided(
        stalled,
        grown,
        state=replace(
            first.state, steps={TOKENIZER: replace(first.state.steps[TOKENIZER], last_up=NOW)}
        ),
    )
    assert second.steps[0].count == grown
    later = replace(
        first.state.steps[TOKENIZER], stalled_since=NOW - 121, last_up=NOW - 300, desired=2
    )
    third = decided(stalled, 2, state=ScalingState(steps={TOKENIZER: later}))
    assert (third.steps[0].count, third.verdict) == (2, Verdict.NO_PROGRESS)
    assert "121" in third.message
    messages.check(third.message)
    sleeping = rested(ScalingState(steps={TOKENIZER: replace(later, desired=9)}), 1)
    assert decided(stalled, 9, state=sleeping).steps[0].count == 9


def rejecting(rate: float, now: float) -> PipelineSample:
    """A step that rejects every request, and whose queue is empty."""
    quiet = sample(QUIET, now=now)
    scrapes = tuple(
        replace(
            scrape,
            models={
                name: replace(one, rejected=rate * (scrape.at - NOW + 1e5))
                for name, one in scrape.models.items()
            },
        )
        for scrape in quiet.pods["pod-0"].scrapes
    )
    return PipelineSample({"pod-0": PodHistory(scrapes)}, INTERVAL)


@pytest.mark.parametrize("service", [None, 0.010])
def test_a_step_that_rejects_every_request_is_not_idle(
    service: float | None, messages: Messages
) -> None:
    state = ScalingState(steps={TOKENIZER: StepState(desired=6, service=service)})
    for now in (NOW + age for age in range(0, 400, 5)):
        done = decided(rejecting(50.0, now), 6, state=state, now=now)
        assert done.steps[0].count == 6
        assert done.verdict is not Verdict.IDLE
        state = done.state
    assert done.verdict is Verdict.NO_PROGRESS
    messages.check(done.steps[0].reason)
    assert decided(rejecting(0.0, NOW), 6).verdict is Verdict.IDLE


FULL = Flow(rate=300, service=0.95 / 300, pending=400, batch=64)


def test_a_full_gpu_step_holds_and_says_so(messages: Messages) -> None:
    done = decided(sample(Flow(rate=300, pending=40, growth=2), FULL), 2)
    assert (done.steps[0].count, done.verdict) == (2, Verdict.GPU_BOUND)
    assert "95%" in done.message
    assert "400" in done.message
    messages.check(done.message)
    assert "the count is held at 2 (GPUBound)" in done.limited


def test_a_gpu_step_that_is_busy_because_it_batches_little_is_not_full() -> None:
    relaxed = Flow(rate=300, service=0.97 / 300, pending=4, batch=5)
    assert (
        decided(sample(Flow(rate=300, pending=400, growth=20), relaxed), 2).verdict
        is Verdict.TOKENIZER_BOUND
    )


def test_a_gpu_that_something_else_uses_is_bound_too_and_the_disagreement_is_told(
    messages: Messages,
) -> None:
    usage = PodUsage(NOW, gpu=0.99)
    done = decided(
        sample(Flow(rate=300), Flow(rate=300, service=0.001, pending=200, batch=8), usage=usage), 4
    )
    assert done.verdict is Verdict.GPU_BOUND
    assert "GPU" in done.message
    assert "GPU" in done.message
    messages.check(done.message)


def test_a_busy_step_on_an_idle_gpu_is_told_too(messages: Messages) -> None:
    done = decided(sample(Flow(rate=300), FULL, usage=PodUsage(NOW, gpu=0.2)), 5)
    assert done.verdict is Verdict.GPU_BOUND
    assert "CPU" in done.message
    messages.check(done.message)


def test_without_gpu_figures_the_steps_own_time_decides() -> None:
    done = decided(sample(Flow(rate=300), FULL), 5)
    assert done.verdict is Verdict.GPU_BOUND
    assert "GPUMetricsUnavailable" in done.message


def test_a_full_model_on_the_cpu_is_a_bound_step_and_no_gpu_is_spoken_of(
    messages: Messages,
) -> None:
    bounds = replace(limits(), on_cpu=frozenset({MODEL}))
    done = decided(
        sample(Flow(rate=300, pending=40, growth=2), FULL, usage=PodUsage(NOW, gpu=1.0)),
        2,
        bounds=bounds,
    )
    assert (done.steps[0].count, done.verdict) == (2, Verdict.STEP_BOUND)
    assert "CPU" in done.message
    messages.check(done.message)
    assert "the count is held at 2 (StepBound)" in done.limited
    assert "GPU" not in done.message
    assert done.gpu_busy is None
    quiet = decided(sample(Flow(rate=150)), 3, bounds=bounds)
    assert (quiet.verdict, "GPU" in quiet.message) == (Verdict.BALANCED, False)


def test_a_gpu_says_nothing_of_a_model_on_the_cpu_beside_it() -> None:
    """Ignore a GPU that other processes keep busy.

    The model that requests wait for runs on the CPU and has time to spare.
    """
    bounds = replace(limits(), on_cpu=frozenset({MODEL}))
    waits = Flow(rate=100, service=0.001, pending=400, batch=64)
    assert (
        decided(
            sample(Flow(rate=100), waits, usage=PodUsage(NOW, gpu=1.0)), 2, bounds=bounds
        ).verdict
        is Verdict.BALANCED
    )


def test_a_gpu_step_that_runs_requests_one_by_one_is_told(messages: Messages) -> None:
    alone = Flow(rate=300, service=0.8 / 300, pending=200, batch=1.02)
    done = decided(sample(Flow(rate=300, pending=40, growth=2), alone), 2)
    assert (done.steps[0].count, done.verdict) == (2, Verdict.BATCHING_INEFFECTIVE)
    messages.check(done.message)
    assert (
        decided(
            sample(Flow(rate=300), alone), 5, bounds=replace(limits(), gpu_batches={MODEL: 0})
        ).verdict
        is Verdict.BALANCED
    )


def test_cpu_bounds_growth_from_usage_and_limit() -> None:
    usage = PodUsage(NOW, cpu_cores=2.5, throttled=0.0)
    done = decided(
        sample(Flow(rate=200, pending=2100, growth=420), usage=usage), 2, bounds=limits(cpu_limit=6)
    )
    assert done.steps[0].count == 5  # 0.95 * 6 less 0.5 of others
    assert done.steps[0].figures.cap_reason.startswith("only 3.2 of 6 CPU cores are unused")
    full = decided(
        sample(Flow(rate=500, pending=300, growth=20), usage=PodUsage(NOW, cpu_cores=5.6)),
        5,
        bounds=limits(cpu_limit=6),
    )
    assert (full.steps[0].count, full.verdict) == (5, Verdict.CPU_BOUND)
    assert "the count is limited to 5, because only" in full.limited
    assert "of 6 CPU cores are unused" in full.limited


def test_instances_that_mostly_sleep_are_not_bounded_by_the_cores_they_might_use() -> None:
    done = decided(
        sample(LOADED, usage=PodUsage(NOW, cpu_cores=0.4)), 2, bounds=limits(cpu_limit=2)
    )
    assert done.steps[0].count > 2


def test_throttling_stops_growth_but_takes_nothing_away() -> None:
    usage = PodUsage(NOW, cpu_cores=1.0, throttled=0.4)
    done = decided(sample(LOADED, usage=usage), 2, bounds=limits(cpu_limit=8))
    assert (done.steps[0].count, done.verdict) == (2, Verdict.CPU_BOUND)
    calm = decided(sample(Flow(rate=100), usage=usage), 2, bounds=limits(cpu_limit=8))
    assert (calm.steps[0].count, calm.verdict) == (2, Verdict.CPU_CONTENDED)


def test_others_that_use_the_cpu_are_told(messages: Messages) -> None:
    done = decided(
        sample(Flow(rate=100), usage=PodUsage(NOW, cpu_cores=5.5)), 2, bounds=limits(cpu_limit=6)
    )
    assert done.verdict is Verdict.CPU_CONTENDED
    messages.check(done.message)


def test_a_cap_below_the_count_holds() -> None:
    done = decided(
        sample(Flow(rate=600), usage=PodUsage(NOW, cpu_cores=5.9)), 9, bounds=limits(cpu_limit=6)
    )
    assert done.steps[0].count == 9


def test_memory_and_shared_memory_bound_growth() -> None:
    step = StepLimits(TOKENIZER, TOKENIZER, 1, 12, 2, memory_bytes=400.0, shared_memory_bytes=64.0)
    bounds = replace(limits(), steps=(step,), memory_limit=4000.0)
    done = decided(sample(LOADED, usage=PodUsage(NOW, memory_bytes=3000.0)), 2, bounds=bounds)
    assert done.steps[0].count == 4  # 3800 - 3000 holds two more
    shared = decided(
        sample(LOADED),
        2,
        bounds=replace(bounds, memory_limit=None, shared_memory=64.0 * 4, shared_memory_base=64.0),
    )
    assert shared.steps[0].count == 3


def test_only_memory_takes_an_instance_away_and_one_at_a_time() -> None:
    bounds = replace(limits(), memory_limit=4000.0)
    seen = sample(Flow(rate=350), usage=PodUsage(NOW, memory_bytes=3900.0))
    done = decided(seen, 5, bounds=bounds)
    assert done.steps[0].count == 4
    assert "so one instance is removed" in done.steps[0].reason
    assert (
        decided(seen, 5, bounds=bounds, state=remembered(5, last_change=NOW - 30)).steps[0].count
        == 5
    )


def test_what_the_gpu_step_carries_bounds_growth_where_it_is_known() -> None:
    done = decided(
        sample(Flow(rate=200, pending=2100, growth=420)),
        2,
        bounds=replace(limits(), gpu_capacity=300.0),
    )
    assert done.steps[0].count == 5  # ceil(300 * 0.010 / 0.7)
    assert "GPU step can process at most 300 requests/s" in done.steps[0].figures.cap_reason


def test_growth_that_bought_nothing_is_not_followed_by_more_until_its_reason_is_gone() -> None:
    growth = InstanceGrowth(NOW - 60, 2, 3, 200.0, 0.010)
    closed = sample(
        Flow(rate=200, service=0.015, pending=60)
    )  # 3 busy instances, no faster than 2 were
    state = ScalingState(
        steps={TOKENIZER: StepState(desired=3, service=0.015, growth=growth, last_up=NOW - 60)}
    )
    frozen = decided(closed, 3, state=state)
    assert frozen.steps[0].count == 3
    assert frozen.state.steps[TOKENIZER].growth_held is not None
    assert "did not raise" in frozen.limited
    again = decided(
        sample(Flow(rate=200, service=0.015, pending=60), now=NOW + 5),
        3,
        state=frozen.state,
        now=NOW + 5,
    )
    assert again.steps[0].count == 3
    thawed = decided(
        sample(Flow(rate=200, service=0.015, pending=60), now=NOW + 905),
        3,
        state=frozen.state,
        now=NOW + 905,
    )
    assert thawed.steps[0].count > 3
    helped = ScalingState(
        steps={TOKENIZER: replace(state.steps[TOKENIZER], growth=replace(growth, throughput=150.0))}
    )
    assert decided(closed, 3, state=helped).steps[0].count > 3


def test_two_steps_share_the_cpu_and_the_longer_wait_per_cpu_second_goes_first() -> None:
    steps = (
        StepLimits("tokenizer", "tokenizer", 1, 8, 1),
        StepLimits("clean", "clean", 1, 8, 1, tokenizer=False),
    )
    bounds = PipelineLimits(steps=steps, cpu_limit=6)
    flows = {
        "tokenizer": Flow(rate=200, pending=60, growth=4),
        "clean": Flow(rate=200, pending=600, growth=40),
    }
    seen = PipelineSample({"pod-0": history(flows, usage=PodUsage(NOW, cpu_cores=4.1))}, INTERVAL)
    state = ScalingState(steps={name: StepState(desired=2, service=0.010) for name in flows})
    done = decide(bounds, state, seen, {name: {"pod-0": 2} for name in flows}, ["pod-0"], NOW)
    assert [step.count for step in done.steps] == [
        2,
        3,
    ]  # 5.7 cores hold one more instance: that of the longer queue
    assert [step.verdict for step in done.steps] == [Verdict.CPU_BOUND, Verdict.STEP_BOUND]
    roomy = decide(
        replace(bounds, cpu_limit=40),
        state,
        seen,
        {name: {"pod-0": 2} for name in flows},
        ["pod-0"],
        NOW,
    )
    assert [step.verdict for step in roomy.steps] == [Verdict.TOKENIZER_BOUND, Verdict.STEP_BOUND]


def test_the_flap_budget_stops_shrinking_not_growing() -> None:
    turns = tuple(NOW - 600 * number for number in range(6))
    spent = rested(remembered(9, direction=1, reversals=turns), 1)
    done = decided(sample(Flow(rate=50)), 9, state=spent)
    assert done.steps[0].count == 9
    assert "the direction changed 6 times within an hour" in done.limited
    assert (
        decided(sample(LOADED), 2, state=remembered(2, direction=-1, reversals=turns))
        .steps[0]
        .count
        > 2
    )


GONE = MetricsFailure(MetricsProblem.ERROR, "connection refused")


def test_without_metrics_counts_hold_and_rise_after_a_while_to_what_was_enough() -> None:
    state = remembered(3, counts=((NOW - 700, 7), (NOW - 300, 3)))
    first = decided(GONE, 3, state=state)
    assert (first.steps[0].count, first.verdict, first.fresh) == (3, Verdict.UNKNOWN, False)
    assert decided(GONE, 3, state=first.state, now=NOW + 59).steps[0].count == 3
    late = decided(GONE, 3, state=first.state, now=NOW + 60)
    assert late.steps[0].count == 7
    assert (
        "PrometheusError for 60 s: the count was increased to 7 (RecentMax)" in late.steps[0].reason
    )


@pytest.mark.parametrize(
    ("fallback", "count"), [(Fallback.HOLD, 3), (Fallback.INITIAL, 5), (Fallback.RECENT_MAX, 7)]
)
def test_fallbacks(fallback: Fallback, count: int) -> None:
    bounds = limits(law=ControlLaw(fallback=fallback))
    bounds = replace(bounds, steps=(replace(bounds.steps[0], initial=5),))
    state = replace(remembered(3, counts=((NOW - 300, 7), (NOW - 100, 3))), outage_since=NOW - 100)
    assert decided(GONE, 3, bounds=bounds, state=state).steps[0].count == count


def test_a_partial_sample_may_raise_and_never_lowers(messages: Messages) -> None:
    part = sample(LOADED, pods=1)
    up = decided(part, 2, pods=2)
    assert up.steps[0].count > 2
    assert not up.fresh
    assert "MetricsPartial" in up.message
    messages.check(up.message)
    quiet = sample(Flow(rate=10), pods=1)
    assert decided(quiet, 9, pods=2, state=rested(remembered(9), 1)).steps[0].count == 9


def test_stale_and_missing_samples_are_told_apart_with_what_to_look_at(messages: Messages) -> None:
    old = decided(sample(LOADED, now=NOW - 13), 2)
    assert old.verdict is Verdict.UNKNOWN
    assert old.problem is MetricsProblem.STALE
    none = decided(PipelineSample({}, INTERVAL, 'Prometheus connection "default"'), 2)
    assert none.problem is MetricsProblem.MISSING
    assert "PodMonitor" in none.message
    messages.check(none.message)


def test_no_ready_pod() -> None:
    done = decide(limits(), remembered(3), sample(LOADED), {}, [], NOW)
    assert (done.steps[0].count, done.message) == (3, "no pod is ready")


def test_another_revision_forgets_what_a_request_costs_but_not_the_count() -> None:
    old = replace(remembered(3), revision="a")
    done = decided(GONE, 3, bounds=replace(limits(), revision="b"), state=old)
    assert done.state.revision == "b"
    assert done.state.steps[TOKENIZER].service is None
    assert done.steps[0].count == 3


def test_advisory_recommends_from_what_runs_and_tells_it_once() -> None:
    bounds = replace(limits(), active=False)
    first = decided(sample(LOADED), 2, bounds=bounds)
    assert first.steps[0].count > 2
    assert first.state.steps[TOKENIZER].desired == 2
    later = sample(LOADED, now=NOW + 30)
    second = decided(later, 2, bounds=bounds, state=first.state, now=NOW + 30)
    assert second.steps[0].count == first.steps[0].count
    assert len(second.state.history) == 1


def test_a_recommendation_stands_as_long_as_its_cause() -> None:
    """Nothing was changed, so there is no cooldown and no growth that had no effect."""
    bounds, state = replace(limits(), active=False), remembered(2)
    seen = set()
    for now in (NOW + age for age in range(0, 150, 2)):
        done = decided(sample(LOADED, now=now), 2, bounds=bounds, state=state, now=now)
        state = done.state
        seen.add((done.steps[0].count, done.verdict, done.steps[0].cause))
    assert seen == {(4, Verdict.TOKENIZER_BOUND, None)}


def test_a_pipeline_adopts_the_count_that_runs() -> None:
    done = decided(sample(Flow(rate=300)), 5, state=ScalingState())
    assert (done.steps[0].count, done.state.steps[TOKENIZER].desired) == (5, 5)


def _order(verdicts: Sequence[Verdict]) -> Verdict:
    from triton_pipelines.autoscaling.verdicts import pipeline_verdict

    return pipeline_verdict(verdicts)


def test_the_pipelines_verdict_is_the_most_telling() -> None:
    assert _order([Verdict.BALANCED, Verdict.STEP_BOUND]) is Verdict.STEP_BOUND
    assert _order([Verdict.IDLE, Verdict.BALANCED]) is Verdict.BALANCED
    assert _order([]) is Verdict.UNKNOWN
