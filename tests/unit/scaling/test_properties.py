"""What holds of every decision, whatever the samples say (hypothesis)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import fields, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.flows import (
    INTERVAL,
    MODEL,
    NOW,
    QUIET,
    TOKENIZER,
    Flow,
    counts,
    limits,
    names,
    rested,
    sample,
)
from triton_pipelines.autoscaling import state_json
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    ModelCounters,
    PipelineSample,
    PodHistory,
    PodUsage,
    Scrape,
)
from triton_pipelines.autoscaling.types import (
    ControlLaw,
    Fallback,
    PipelineLimits,
    ScalingDecision,
    ScalingState,
    StepState,
    Verdict,
)

rates = st.floats(0, 3000)
ends = st.builds(
    Flow,
    rate=rates,
    service=st.sampled_from([0.0005, 0.004, 0.010, 0.050]),
    pending=st.floats(0, 20_000),
    growth=st.floats(-50, 400),
    batch=st.sampled_from([1.0, 1.5, 8.0, 64.0]),
)
usages = st.one_of(
    st.none(),
    st.builds(
        PodUsage,
        at=st.just(NOW),
        cpu_cores=st.one_of(st.none(), st.floats(0, 20)),
        throttled=st.one_of(st.none(), st.floats(0, 1)),
        memory_bytes=st.none(),
        gpu=st.one_of(st.none(), st.floats(0, 1)),
    ),
)
counted = st.integers(1, 12)
bounds = st.builds(
    lambda a, b, cpu: limits(low=min(a, b), high=max(a, b), cpu_limit=cpu),
    counted,
    counted,
    st.one_of(st.none(), st.floats(1, 20)),
)


def state_of(count: int, **given_fields: object) -> ScalingState:
    return ScalingState(steps={TOKENIZER: StepState(desired=count, service=0.010, **given_fields)})  # type: ignore[arg-type]


def count_of(
    seen: PipelineSample | MetricsFailure,
    count: int,
    given_limits: PipelineLimits | None = None,
    state: ScalingState | None = None,
    pods: int = 1,
) -> int:
    return whole(seen, count, given_limits, state, pods).steps[0].count


def whole(
    seen: PipelineSample | MetricsFailure,
    count: int,
    given_limits: PipelineLimits | None = None,
    state: ScalingState | None = None,
    pods: int = 1,
) -> ScalingDecision:
    chosen = state if state is not None else state_of(count)
    return decide(
        given_limits if given_limits is not None else limits(),
        chosen,
        seen,
        counts(count, pods),
        names(pods),
        NOW,
    )


@given(ends, ends, usages, bounds, counted, st.booleans())
def test_counts_stay_within_bounds_and_growth_within_the_cap(
    flow: Flow,
    gpu: Flow,
    usage: PodUsage | None,
    given_limits: PipelineLimits,
    count: int,
    rest: bool,
) -> None:
    state = rested(state_of(count), 1) if rest else state_of(count)
    step = whole(sample(flow, gpu, usage=usage), count, given_limits, state).steps[0]
    low, high = given_limits.steps[0].low, given_limits.steps[0].high
    assert low <= step.count <= high
    within = min(max(count, low), high)
    assert 1 <= step.count <= max(within, step.figures.cap)


breaks: list[Callable[[PipelineSample], PipelineSample | MetricsFailure]] = [
    lambda seen: MetricsFailure(MetricsProblem.ERROR, "down"),
    lambda seen: MetricsFailure(MetricsProblem.PARTIAL, "warnings"),
    lambda seen: replace(seen, pods={}),
    lambda seen: replace(seen, pods=dict(list(seen.pods.items())[1:])),
    lambda seen: replace(seen, pods={name: PodHistory(()) for name in seen.pods}),
    lambda seen: replace(
        seen, pods={name: PodHistory(one.scrapes[:1]) for name, one in seen.pods.items()}
    ),
    lambda seen: replace(
        seen, pods={name: PodHistory(one.scrapes[:-5]) for name, one in seen.pods.items()}
    ),
    lambda seen: replace(
        seen,
        pods={
            name: PodHistory(tuple(replace(s, at=s.at + 3600) for s in one.scrapes))
            for name, one in seen.pods.items()
        },
    ),
    lambda seen: replace(
        seen,
        pods={
            name: PodHistory(tuple(Scrape(s.at, {}) for s in one.scrapes))
            for name, one in seen.pods.items()
        },
    ),
]


@given(st.sampled_from(breaks), ends, counted, st.sampled_from(list(Fallback)))
def test_missing_stale_or_partial_samples_never_lower_a_count(
    broken: Callable[[PipelineSample], PipelineSample | MetricsFailure],
    flow: Flow,
    count: int,
    fallback: Fallback,
) -> None:
    state = replace(rested(state_of(count), 1), outage_since=NOW - 1000)
    assert (
        count_of(
            broken(sample(flow, pods=2)),
            count,
            limits(law=ControlLaw(fallback=fallback)),
            state,
            pods=2,
        )
        >= count
    )


@given(
    ends,
    counted,
    st.sampled_from([math.nan, math.inf, -math.inf, -1.0]),
    st.integers(0, 15),
    st.sampled_from([item.name for item in fields(ModelCounters)]),
)
def test_impossible_values_never_lower_a_count(
    flow: Flow, count: int, value: float, place: int, name: str
) -> None:
    seen = sample(flow)
    scrapes = list(seen.pods["pod-0"].scrapes)
    wrong = replace(scrapes[place].models[TOKENIZER], **{name: value})
    scrapes[place] = Scrape(scrapes[place].at, {**scrapes[place].models, TOKENIZER: wrong})
    assert (
        count_of(
            replace(seen, pods={"pod-0": PodHistory(tuple(scrapes))}),
            count,
            state=rested(state_of(count), 1),
        )
        >= count
    )


@given(rates, rates, st.floats(0, 5000), counted, st.booleans())
def test_more_load_never_means_fewer(
    one: float, other: float, pending: float, count: int, rest: bool
) -> None:
    # No more can complete than the instances can process; a higher rate would look like quicker
    # requests.
    less, more = sorted(min(rate, count / Flow(0.0).service) for rate in (one, other))
    assume(
        less > 0 or pending == 0
    )  # nothing completes while something waits: a stall, which is not less load
    state = rested(state_of(count), 1) if rest else state_of(count)
    few, many = (
        count_of(sample(Flow(rate=rate, pending=pending)), count, state=state)
        for rate in (less, more)
    )
    assert few <= many


@given(rates, st.floats(0, 20_000), st.floats(0, 20_000), counted, st.booleans())
def test_a_longer_queue_never_means_fewer(
    rate: float, one: float, other: float, count: int, rest: bool
) -> None:
    short, long = sorted((one, other))
    state = rested(state_of(count), 1) if rest else state_of(count)
    few, many = (
        count_of(sample(Flow(rate=rate, pending=pending)), count, state=state)
        for pending in (short, long)
    )
    assert few <= many


@given(ends, ends, usages, counted, st.randoms(use_true_random=False))
def test_the_order_of_pods_and_scrapes_does_not_matter_nor_does_asking_twice(
    flow: Flow, gpu: Flow, usage: PodUsage | None, count: int, shuffler: random.Random
) -> None:
    seen = sample(flow, gpu, usage=usage, pods=3)
    mixed: dict[str, PodHistory] = {}
    for name, one in sorted(seen.pods.items(), reverse=True):
        scrapes = list(one.scrapes)
        shuffler.shuffle(scrapes)
        mixed[name] = PodHistory(tuple(scrapes), one.usage)
    first = whole(seen, count, pods=3)
    assert whole(seen, count, pods=3) == first
    assert whole(replace(seen, pods=mixed), count, pods=3) == first


@given(ends, counted, st.floats(0, 0.99), st.floats(0, 10))
def test_no_growth_before_a_scrape_of_the_last_one(
    flow: Flow, count: int, share: float, age: float
) -> None:
    """A change takes 5 s; the newest scrape is of some share of that after it was decided."""
    seen = sample(flow, now=NOW - age)
    assert (
        count_of(
            seen,
            count,
            state=replace(state_of(count, last_up=NOW - age - 5.0 * share), actuation=5.0),
        )
        <= count
    )


@given(ends, counted, counted, st.floats(0, 119))
def test_nothing_moves_while_a_change_is_on_its_way(
    flow: Flow, desired: int, shown: int, ago: float
) -> None:
    assume(desired != shown)
    state = rested(state_of(desired, last_change=NOW - ago), 1)
    assert count_of(sample(flow), shown, state=state) == desired


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.floats(0, 1500), st.floats(0, 3000)), min_size=50, max_size=200),
    st.integers(2, 6),
)
def test_up_and_down_keep_their_distance_and_changes_of_direction_their_budget(
    noise: list[tuple[float, float]], budget: int
) -> None:
    """Whatever the load does for an hour, in ticks of 15 s."""
    law = ControlLaw(flaps_per_hour=budget, stabilization=60.0)
    given_limits = limits(law=law)
    state, count = ScalingState(), 2
    last_up, turns, direction = -math.inf, [0.0][:0], 0
    for number in range(240):
        now = NOW + 15 * number
        rate, pending = noise[number % len(noise)]
        seen = sample(Flow(rate=rate, pending=pending), now=now, interval=15.0, seconds=150)
        done = decide(given_limits, state, seen, counts(count), names(1), now)
        after = done.steps[0].count
        if after != count:
            if after < count:
                assert now - last_up >= law.stabilization
            sign = 1 if after > count else -1
            if direction and sign != direction:
                turns.append(now)
            direction = sign
            last_up = now if sign > 0 else last_up
        state, count = done.state, after
    assert len(turns) <= budget + 1


@given(st.floats(0, 1500), st.floats(0, 2000), counted, st.integers(2, 5))
def test_k_times_the_pods_with_k_times_the_load_have_the_same_count(
    rate: float, pending: float, count: int, times: int
) -> None:
    flow = Flow(rate=rate, pending=pending)
    assert count_of(sample(flow, pods=times), count, pods=times) == count_of(sample(flow), count)


@given(st.floats(0, 800), counted, st.integers(2, 15))
def test_a_reset_or_a_new_pod_never_lowers_a_count(rate: float, count: int, scrapes: int) -> None:
    state = rested(state_of(count), 1)
    seen = sample(Flow(rate=rate), pods=2)
    young = PodHistory(seen.pods["pod-1"].scrapes[-scrapes:])
    assume(scrapes * INTERVAL < 48)
    assert (
        count_of(replace(seen, pods={**seen.pods, "pod-1": young}), count, state=state, pods=2)
        >= count
    )
    old, new = seen.pods["pod-1"].scrapes[:-scrapes], seen.pods["pod-1"].scrapes[-scrapes:]
    base = new[0].models
    begun = tuple(
        Scrape(s.at, {model: _less(c, base[model]) for model, c in s.models.items()}) for s in new
    )
    assume(rate > 1)
    assert (
        count_of(
            replace(seen, pods={**seen.pods, "pod-1": PodHistory((*old, *begun))}),
            count,
            state=state,
            pods=2,
        )
        >= count
    )


def _less(one: ModelCounters, other: ModelCounters) -> ModelCounters:
    values = {
        item.name: getattr(one, item.name) - getattr(other, item.name)
        for item in fields(ModelCounters)
    }
    return ModelCounters(**{**values, "pending": one.pending})


@given(ends, ends, usages, counted, st.one_of(st.none(), st.floats(1, 20)))
def test_bound_by_the_gpu_or_the_cpu_never_grows(
    flow: Flow, gpu: Flow, usage: PodUsage | None, count: int, cpu: float | None
) -> None:
    done = whole(sample(flow, gpu, usage=usage), count, limits(cpu_limit=cpu))
    if done.verdict in (
        Verdict.GPU_BOUND,
        Verdict.CPU_BOUND,
        Verdict.BATCHING_INEFFECTIVE,
        Verdict.CPU_CONTENDED,
    ):
        assert done.steps[0].count <= count


@settings(max_examples=20)
@given(st.integers(2, 12), st.integers(1, 3))
def test_idle_reaches_the_minimum(count: int, low: int) -> None:
    assume(low <= count)
    state = state_of(count, last_up=NOW)
    for number in range(200):
        now = NOW + 5 * number
        done = decide(limits(low=low), state, sample(QUIET, now=now), counts(count), names(1), now)
        state, count = done.state, done.steps[0].count
    assert count == low


@given(
    st.lists(st.one_of(st.none(), st.tuples(rates, st.floats(0, 5000))), min_size=1, max_size=40),
    st.integers(0, 39),
)
def test_a_replay_is_the_same_to_the_bit_across_a_restart(
    ticks: list[tuple[float, float] | None], restart: int
) -> None:
    def play(*, restarted: bool) -> list[tuple[int, Verdict]]:
        state, count, seen = ScalingState(), 2, []
        for number, tick in enumerate(ticks):
            now = NOW + 5 * number
            given_sample = (
                MetricsFailure(MetricsProblem.ERROR, "down")
                if tick is None
                else sample(Flow(rate=tick[0], pending=tick[1]), now=now)
            )
            done = decide(limits(), state, given_sample, counts(count), names(1), now)
            state, count = done.state, done.steps[0].count
            if restarted and number == restart:
                state = state_json.loads(state_json.dumps(state))
            seen.append((count, done.verdict))
        return seen

    assert play(restarted=True) == play(restarted=False)


def test_the_properties_reach_growth_and_shrinking() -> None:
    """The strategies above are not so tame that nothing ever moves."""
    assert count_of(sample(Flow(rate=200, pending=500)), 2) > 2
    assert count_of(sample(Flow(rate=20)), 9, state=rested(state_of(9), 1)) < 9
    assert MODEL in sample(QUIET).pods["pod-0"].scrapes[0].models
