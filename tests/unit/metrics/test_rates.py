"""Rates over windows: batch-corrected, per scrape times, never past a reset."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flows import NOW, Flow, history
from triton_pipelines.autoscaling.metrics.rates import (
    InstanceRange,
    ModelSeries,
    impossible_values,
    mean_pending,
    rates,
    total,
)
from triton_pipelines.autoscaling.metrics.samples import ModelCounters, PodHistory, Scrape


def instances(count: int) -> Callable[[float, float], InstanceRange]:
    """So many all the time."""
    return lambda begin, end: InstanceRange(count, count)


def executed(
    lanes: Sequence[Sequence[float]], batch: int, *, interval: float = 5.0, waiting: float = 1.0
) -> PodHistory:
    """Return scrapes of instances that run one batch after the other.

    The first scrape is when all begin, the last when the last has ended.

    Args:
        lanes: Seconds of each instance's executions.
        batch: Requests in each batch.
        interval: Seconds between scrapes.
        waiting: Pending requests at every scrape.
    """
    ends = [end for lane in lanes for end in zip(accumulate(lane), lane, strict=True)]
    last = math.ceil(max(at for at, _ in ends) / interval)
    scrapes = []
    for number in range(last + 1):
        done = [seconds for at, seconds in ends if at <= number * interval]
        counters = ModelCounters(
            success=batch * len(done),
            execs=len(done),
            compute_infer_us=1e6 * batch * sum(done),
            pending=waiting,
        )
        scrapes.append(Scrape(NOW + number * interval, {"m": counters}))
    return PodHistory(tuple(scrapes))


def test_rates_of_a_steady_flow() -> None:
    one = history({"m": Flow(rate=120, service=0.004, pending=30, growth=2)})
    window = rates(one, "m", 60)
    assert window is not None
    assert window.seconds == pytest.approx(60)
    assert window.throughput == pytest.approx(120)
    assert window.growth == pytest.approx(
        30 / 60
    )  # the backlog began 15 s ago: 2/s over 15 of 60 s
    assert window.busy == pytest.approx(0.48)
    assert window.service == pytest.approx(0.004)
    assert window.covered
    last = rates(one, "m", None)
    assert last is not None
    assert last.arrivals == pytest.approx(122)


def test_a_batch_adds_its_time_once_for_each_request_and_is_corrected() -> None:
    window = rates(history({"m": Flow(rate=100, service=0.008, batch=8)}), "m", 60)
    assert window is not None
    assert window.batch == pytest.approx(8)
    assert window.busy == pytest.approx(0.8)


def test_full_batches_and_single_requests_in_one_window_have_no_common_batch() -> None:
    """Process a backlog of 256 requests, followed by 50 requests/s, one by one.

    The backlog is processed in four batches of 64 texts, 10 ms each, within one interval.
    """
    backlog = ModelCounters(success=256, execs=4, compute_infer_us=4 * 64 * 640e3)
    after = [
        ModelCounters(
            success=256 + 250 * n,
            execs=4 + 250 * n,
            compute_infer_us=4 * 64 * 640e3 + 250 * n * 10e3,
        )
        for n in range(11)
    ]
    scrapes = [
        Scrape(NOW + 5 * n, {"m": counters})
        for n, counters in enumerate([ModelCounters(), backlog, *after[1:]])
    ]
    window = rates(PodHistory(tuple(scrapes)), "m", 60)
    assert window is not None
    assert window.service == pytest.approx(0.010)


def test_busy_time_of_an_interval_is_bounded_by_its_instances() -> None:
    """Run 100 requests one by one and six batches of 64 on one instance in 5 s.

    At 10 ms for each request, the instance is busy for 4.84 s, which the mean batch inflates to 54
    s.
    """
    executed = 100 + 6
    mixed = ModelCounters(
        success=100 + 6 * 64, execs=executed, compute_infer_us=100 * 10e3 + 6 * 64 * 640e3
    )
    series = ModelSeries(
        PodHistory((Scrape(NOW, {"m": ModelCounters()}), Scrape(NOW + 5, {"m": mixed}))), "m"
    )
    window, bounded, two = (
        one.rates(None)
        for one in (series, series.bounded(instances(1)), series.bounded(instances(2)))
    )
    assert window is not None
    assert bounded is not None
    assert two is not None
    assert window.service == pytest.approx(0.1116, rel=1e-3)
    # An execution that ends in the interval may have begun before it.
    assert bounded.service == pytest.approx((5 + 5 * window.busy / executed) / 484)
    assert two.service == pytest.approx(2 * (5 + 5 * window.busy / executed) / 484)
    assert (bounded.throughput, bounded.batch) == (window.throughput, window.batch)


def test_executions_longer_than_an_interval_are_not_cut() -> None:
    """One instance, 3 s for each request, scraped every 2 s."""
    finished = [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6]
    scrapes = [
        Scrape(
            NOW + 2 * n, {"m": ModelCounters(success=done, execs=done, compute_infer_us=done * 3e6)}
        )
        for n, done in enumerate(finished)
    ]
    window = ModelSeries(PodHistory(tuple(scrapes)), "m").bounded(instances(1)).rates(20)
    assert window is not None
    assert window.service == pytest.approx(3.0)


def test_an_execution_of_many_intervals_is_not_cut_where_short_ones_end_beside_it() -> None:
    """One instance with batches of 8 from a queue: 21 s for one of them, then 0.1 s for each."""
    seconds = [*[0.1] * 50, 21.0, *[0.1] * 40]
    for batch in (1, 8):
        window = ModelSeries(executed([seconds], batch), "m").bounded(instances(1)).rates(60)
        assert window is not None
        assert window.busy * window.seconds == pytest.approx(sum(seconds))


def test_nothing_is_carried_over_from_idle_time() -> None:
    """Bound the interval of single requests and full batches as usual after idle time.

    For a minute before that interval there are no requests, or only a few.
    """
    mixed = ModelCounters(
        success=100 + 6 * 64, execs=106, compute_infer_us=100 * 10e3 + 6 * 64 * 640e3, pending=200
    )
    for before in (0, 3):
        quiet = [
            ModelCounters(success=before * n, execs=before * n, compute_infer_us=before * n * 10e3)
            for n in range(13)
        ]
        jumped = replace(
            mixed,
            success=mixed.success + before * 12,
            execs=106 + before * 12,
            compute_infer_us=mixed.compute_infer_us + before * 12 * 10e3,
        )
        scrapes = [
            Scrape(NOW + 5 * n, {"m": counters}) for n, counters in enumerate([*quiet, jumped])
        ]
        series = ModelSeries(PodHistory(tuple(scrapes)), "m")
        window, bounded = series.rates(None), series.bounded(instances(1)).rates(None)
        assert window is not None
        assert bounded is not None
        assert window.busy * 5 > 50
        assert bounded.busy * 5 == pytest.approx(5 + window.busy * 5 / 106)


SECONDS = st.floats(0.05, 30.0)


@given(
    st.lists(st.lists(SECONDS, min_size=1, max_size=12), min_size=1, max_size=4),
    st.sampled_from((2.0, 5.0, 15.0)),
)
def test_the_time_of_requests_that_go_one_by_one_is_never_cut(
    lanes: list[list[float]], interval: float
) -> None:
    """Whatever they take, and whether or not any wait: it is exact."""
    for waiting in (0.0, 1.0):
        series = ModelSeries(executed(lanes, 1, interval=interval, waiting=waiting), "m")
        bounded = series.bounded(instances(len(lanes))).rates(1e6)
        assert bounded is not None
        assert bounded.busy * bounded.seconds == pytest.approx(sum(sum(lane) for lane in lanes))


@given(
    st.lists(st.floats(10.0, 30.0), min_size=1, max_size=12),
    st.lists(st.floats(0.05, 0.4), max_size=30),
    st.integers(2, 64),
)
def test_the_time_of_batches_longer_than_two_intervals_is_never_cut_while_requests_wait(
    long: list[float], short: list[float], batch: int
) -> None:
    lane = [
        seconds
        for number, each in enumerate(long)
        for seconds in (each, *short[2 * number : 2 * number + 3])
    ]
    series = ModelSeries(executed([lane], batch), "m")
    bounded = series.bounded(instances(1)).rates(1e6)
    assert bounded is not None
    assert bounded.busy * bounded.seconds == pytest.approx(sum(lane))


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 64), st.floats(0.001, 8.0), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_bounded_time_is_no_more_than_measured_and_no_less_than_proven(
    batches: list[tuple[int, int, float, int]], count: int
) -> None:
    """Bound the time in intervals with several single requests and one batch.

    The result is at most the time by the mean batch, and at least the time if every batch had been
    the largest one.
    """
    now, scrapes = ModelCounters(), [Scrape(NOW, {"m": ModelCounters()})]
    floor = 0.0
    for number, (singles, size, seconds, waiting) in enumerate(batches, 1):
        spent = singles * 0.01 + size * seconds
        now = replace(
            now,
            success=now.success + singles + size,
            execs=now.execs + singles + 1,
            compute_infer_us=now.compute_infer_us + spent * 1e6,
            pending=waiting,
        )
        floor += min(spent / size, spent / ((singles + size) / (singles + 1)))
        scrapes.append(Scrape(NOW + 5 * number, {"m": now}))
    series = ModelSeries(PodHistory(tuple(scrapes)), "m")
    window, bounded = series.rates(1e6), series.bounded(instances(count)).rates(1e6)
    assert window is not None
    assert bounded is not None
    assert floor * (1 - 1e-9) <= bounded.busy * bounded.seconds
    assert bounded.busy <= window.busy * (1 + 1e-9)


def test_cache_hits_are_completions_but_no_executions() -> None:
    window = rates(history({"m": Flow(rate=50, service=0.01, batch=5, hits=150)}), "m", 60)
    assert window is not None
    assert window.throughput == pytest.approx(200)
    assert window.batch == pytest.approx(5)
    assert window.busy == pytest.approx(0.5)
    assert window.service == pytest.approx(0.0025)


def test_only_samples_after_a_reset_count_and_the_window_is_not_covered() -> None:
    whole = history({"m": Flow(rate=100)})
    fresh = [
        replace(
            scrape,
            models={
                "m": ModelCounters(
                    success=100 * (10 + scrape.at - NOW),
                    compute_infer_us=1e6 * (10 + scrape.at - NOW),
                )
            },
        )
        for scrape in whole.scrapes[-3:]
    ]
    window = rates(PodHistory((*whole.scrapes[:-3], *fresh)), "m", 60)
    assert window is not None
    assert window.seconds == pytest.approx(10)
    assert window.throughput == pytest.approx(100)
    assert not window.covered
    assert rates(PodHistory((*whole.scrapes[:-3], fresh[0])), "m", 60) is None


def test_a_young_pod_does_not_cover_the_slow_window() -> None:
    young = rates(history({"m": Flow(rate=10)}, seconds=20), "m", 60)
    assert young is not None
    assert not young.covered
    assert young.throughput == pytest.approx(10)


def test_windows_shorter_than_the_interval_take_the_last_two() -> None:
    window = rates(history({"m": Flow(rate=10)}, interval=15), "m", 12)
    assert window is not None
    assert window.seconds == pytest.approx(15)


def test_a_sum_with_an_unknown_pod_is_not_covered() -> None:
    one = rates(history({"m": Flow(rate=10)}), "m", 60)
    assert one is not None
    both = total([one, one])
    assert both is not None
    assert both.covered
    assert both.throughput == pytest.approx(20)
    part = total([one, None])
    assert part is not None
    assert not part.covered
    assert total([None]) is None


def test_gauges() -> None:
    one = history({"m": Flow(rate=10, pending=40, growth=2)})
    assert ModelSeries(one, "m").pending == 40
    assert ModelSeries(one, "other").pending is None
    assert mean_pending(one, "m", 10) == pytest.approx((40 + 30 + 20) / 3)
    assert ModelSeries(one, "m").newest == NOW


def test_rejected_requests_have_arrived() -> None:
    before, after = (
        Scrape(at, {"m": ModelCounters(success=done, rejected=rejected, pending=5)})
        for at, done, rejected in ((NOW - 5, 0, 0), (NOW, 500, 750))
    )
    one = rates(PodHistory((before, after)), "m", 5)
    assert one is not None
    assert (one.throughput, one.rejected, one.arrivals) == (100, 150, 250)
    both = total([one, one])
    assert both is not None
    assert both.arrivals == 500


def test_passed_requests_are_pending() -> None:
    before, after = (
        Scrape(at, {"m": ModelCounters(pending=pending, passed=passed)})
        for at, pending, passed in ((NOW - 5, 10, 0), (NOW, 1, 19))
    )
    one = ModelSeries(PodHistory((before, after)), "m")
    assert one.pending == 20
    assert one.mean_pending(5) == 15
    found = one.rates(5)
    assert found is not None
    assert found.growth == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_absurd_values_are_named(value: float) -> None:
    one = PodHistory((Scrape(NOW, {"m": ModelCounters(pending=value)}),))
    assert "model m" in impossible_values(one, ["m"])
    assert impossible_values(one, ["other"]) == ""


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_never_a_negative_rate_whatever_counters_do_and_order_does_not_matter(
    values: list[float], random: object
) -> None:
    scrapes = [
        Scrape(
            NOW + 5 * number,
            {"m": ModelCounters(success=value, execs=value, compute_infer_us=value)},
        )
        for number, value in enumerate(values)
    ]
    window = rates(PodHistory(tuple(scrapes)), "m", 60)
    mixed = list(scrapes)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert rates(PodHistory((*mixed, mixed[0])), "m", 60) == window
    if window is not None:
        assert window.throughput >= 0
        assert window.busy >= 0
        assert window.arrivals >= 0
