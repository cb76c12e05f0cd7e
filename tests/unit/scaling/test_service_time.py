"""Test the service time of a request (E) and the arrival rate.

Both stay within what the instances can have processed, whatever batches, long executions and growth
do to the counters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest

from tests.support.flows import (
    INTERVAL,
    MODEL,
    NOW,
    TOKENIZER,
    Flow,
    counts,
    history,
    limits,
    names,
    sample,
)
from triton_pipelines.autoscaling import control_law
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.rates import InstanceRange, rates
from triton_pipelines.autoscaling.metrics.samples import (
    ModelCounters,
    PipelineSample,
    PodHistory,
    PodUsage,
    Scrape,
)
from triton_pipelines.autoscaling.types import (
    PipelineLimits,
    ScalingDecision,
    ScalingState,
    StepState,
)

Noted = Sequence[tuple[float, int]]


def decided(
    seen: PipelineSample, count: int, noted: Noted = (), bounds: PipelineLimits | None = None
) -> ScalingDecision:
    state = ScalingState(
        steps={TOKENIZER: StepState(desired=count, service=0.010, counts=tuple(noted))}
    )
    return decide(
        bounds if bounds is not None else limits(), state, seen, counts(count, 1), names(1), NOW
    )


def service(
    seen: PipelineSample, count: int, noted: Noted = (), bounds: PipelineLimits | None = None
) -> float:
    """Seconds of an instance for a request, as the decision takes them."""
    found = decided(seen, count, noted, bounds).steps[0].figures.service
    assert found is not None
    return found


def test_service_time_under_contention_is_the_smaller() -> None:
    stretched = Flow(rate=200, service=0.020, pending=100)
    assert service(
        sample(stretched, usage=PodUsage(NOW, cpu_cores=4.7)), 4, bounds=limits(cpu_limit=5)
    ) == pytest.approx(0.010)
    assert service(
        sample(stretched, usage=PodUsage(NOW, cpu_cores=4.7)), 4, bounds=limits(cpu_limit=50)
    ) == pytest.approx(0.020)


def test_instances_are_never_busier_than_all_the_time() -> None:
    """Cap the corrected busy time, which batches of mixed sizes inflate.

    Here it is four times what one instance has.
    """
    impossible = sample(Flow(rate=100, service=0.040, batch=2))
    assert service(impossible, 1) == pytest.approx(0.010, rel=0.02)  # and the execution under way
    was_four = service(impossible, 1, ((NOW - 300, 4), (NOW - 10, 1)))
    assert was_four == pytest.approx(
        (50 * 0.040 + 10 * 0.010) / 60, rel=0.02
    )  # as long as there were four
    grew = service(impossible, 4, ((NOW - 300, 1), (NOW - 8, 4)))
    assert grew == pytest.approx(
        (50 * 0.010 + 10 * 0.040) / 60, rel=0.02
    )  # from the interval in which they came


def test_requests_longer_than_a_scrape_interval_cost_what_they_take() -> None:
    """Charge requests longer than a scrape interval with the time that they take.

    Two instances take 4 s and 14 s in turn for batches of 4. The cost is not less because both
    kinds end in one interval.
    """
    seconds = [4.0, 14.0] * 4
    ends = list(accumulate(seconds))
    scrapes = []
    for ago in range(75, -1, -5):
        done = bisect_right(ends, 75 - ago)
        counters = ModelCounters(
            success=8 * done,
            execs=2 * done,
            compute_infer_us=8e6 * sum(seconds[:done]),
            pending=40.0,
        )
        scrapes.append(Scrape(NOW - ago, {TOKENIZER: counters, MODEL: counters}))
    whole = PodHistory(tuple(scrapes))
    window = rates(whole, TOKENIZER, 60)
    assert window is not None
    assert service(
        PipelineSample({"pod-0": whole}, INTERVAL), 2, ((NOW - 300, 2),)
    ) == pytest.approx(window.service)


@pytest.mark.parametrize(
    ("begin", "end", "least", "most"),
    [
        (-40, -35, 2, 2),
        (-25, -20, 2, 5),
        (-15, -10, 2, 5),
        (10, 15, 5, 5),
        (25, 30, 3, 5),
        (41, 45, 3, 4),
    ],
)
def test_which_instances_ran(begin: float, end: float, least: int, most: int) -> None:
    """Return the range of instances that may have run.

    There are 2, then 5 from -22 s on, then 3 from 28 s on; 4 run in the end, whoever set that. A
    growth may take half a minute.
    """
    known = control_law.instances_between(
        StepState(desired=3, counts=((NOW - 300, 2), (NOW - 22, 5), (NOW + 28, 3))), 4
    )
    assert known(NOW + begin, NOW + end) == InstanceRange(least, most)


def test_a_growth_is_noted_when_it_is_decided() -> None:
    """From then on more instances may be busy; in mode Advisory there are none to be."""
    loaded = sample(Flow(rate=200, pending=300, growth=20))
    grown = decided(loaded, 2, ((NOW - 300, 2),))
    assert grown.state.steps[TOKENIZER].counts == ((NOW - 300, 2), (NOW, grown.steps[0].count))
    advised = decided(loaded, 2, ((NOW - 300, 2),), replace(limits(), active=False))
    assert advised.steps[0].count > 2
    assert advised.state.steps[TOKENIZER].counts == ((NOW - 300, 2),)


def test_a_jump_is_not_completed_from_what_more_instances_did_than_there_were() -> None:
    """Do not extrapolate a jump from completions of instances that came later.

    One instance carried 100/s until four were in force within the interval, so its completions do
    not show when the load jumped.
    """
    before = history(
        {TOKENIZER: Flow(rate=50), MODEL: Flow(rate=50, service=0.001)}, now=NOW - INTERVAL
    )
    last = before.scrapes[-1].models[TOKENIZER]
    jumped = replace(
        last,
        success=last.success + 800,
        execs=last.execs + 800,
        compute_infer_us=last.compute_infer_us + 800 * 1e4,
        pending=450.0,
    )
    newest = replace(
        before.scrapes[-1], at=NOW, models={**before.scrapes[-1].models, TOKENIZER: jumped}
    )
    seen = PipelineSample({"pod-0": PodHistory((*before.scrapes, newest))}, INTERVAL)
    grown = StepState(
        desired=4,
        service=0.010,
        last_up=NOW - INTERVAL,
        counts=((NOW - 300, 1), (NOW - INTERVAL, 4)),
    )
    found = [
        decide(
            limits(),
            ScalingState({TOKENIZER: state}, actuation=1.0),
            seen,
            counts(4, 1),
            names(1),
            NOW,
        )
        .steps[0]
        .figures.arrivals
        for state in (grown, replace(grown, last_up=NOW - 60, counts=()))
    ]
    assert found[0] == pytest.approx(250)  # 160 completions/s, and 90/s more that wait
    assert found[1] > 500
