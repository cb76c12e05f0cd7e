"""The simulator against queueing theory, and its batching against Triton's rules case by case."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.simulator import traces
from bench.simulator.station import NOISE, Station, StationSpec

SECONDS = 600


def station(
    spec: StationSpec, factors: list[float] | None = None, shapes: list[float] | None = None
) -> Station:
    return Station(
        spec,
        factors if factors is not None else [1.0] * NOISE,
        shapes if shapes is not None else [0.0] * NOISE,
    )


def run(one: Station, rate: float, seed: int = 1) -> tuple[float, float]:
    """Mean wait in the queue in seconds and mean batch, of Poisson arrivals."""
    for number, second in enumerate(traces.arrivals([rate] * SECONDS, seed)):
        one.offer([(at, at) for at in second])
        one.advance(float(number + 1), math.inf)
    return one.totals.queue / one.totals.success, one.totals.success / one.totals.execs


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_server_with_equal_times_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    wait, _ = run(station(StationSpec("s", alpha=0.005)), load / 0.005)
    assert wait == pytest.approx(load * 0.005 / (2 * (1 - load)), rel=0.05)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.8), (8, 0.75)])
def test_several_servers_with_exponential_times_wait_as_erlang_says(
    servers: int, load: float
) -> None:
    factors = np.random.default_rng(5).exponential(1.0, NOISE)
    factors = (factors / factors.mean()).tolist()
    wait, _ = run(
        station(StationSpec("s", alpha=0.010, instances=servers), factors), servers * load / 0.010
    )
    offered = servers * load
    queued = offered**servers / math.factorial(servers) / (1 - load)
    erlang_c = queued / (sum(offered**k / math.factorial(k) for k in range(servers)) + queued)
    assert wait == pytest.approx(erlang_c * 0.010 / (servers * (1 - load)), rel=0.12)


@pytest.mark.parametrize("work", [0.4, 0.6, 0.8])
def test_batches_without_bound_wait_as_inoue_bounds_and_nearly_that_long(work: float) -> None:
    """Compare with the bound of Inoue 2021 (arXiv 1912.06322): tau(b) = alpha b + tau0, no delay.

    The bound is on the response time; the wait is that time less one batch.
    """
    alpha, fixed = 0.0008, 0.004
    rate = work / alpha
    one = station(StationSpec("s", alpha=alpha, fixed=fixed, max_batch=100_000, cpu=False))
    wait, batch = run(one, rate)
    response = wait + one.totals.compute / one.totals.success
    first = (alpha + fixed) / (2 * (1 - work)) * (1 + 2 * rate * fixed + (1 - work) / (1 + work))
    second = 1.5 * fixed / (1 - work) + alpha / 2 * (work + 2) / (1 - work**2)
    assert response <= 1.02 * min(first, second)
    assert response == pytest.approx(min(first, second), rel=0.06)
    assert batch == pytest.approx(rate * fixed / (1 - work), rel=0.1)


def batches(
    spec: StationSpec, arrivals: list[float], shapes: list[float] | None = None
) -> list[tuple[float, int]]:
    """(start, size) of each execution."""
    one = station(spec, shapes=shapes)
    seen: list[tuple[float, int]] = []
    done = 0

    one.offer([(at, at) for at in arrivals])
    starts: list[float] = []
    one.on_busy = lambda start, finish: starts.append(start)
    finished = one.advance(1e6, math.inf)
    sizes: dict[float, int] = {}
    for finish, _ in finished:
        sizes[finish] = sizes.get(finish, 0) + 1
    for start, size in zip(starts, sizes.values(), strict=True):
        seen.append((start, size))
        done += size
    assert done == len(arrivals)
    return seen


GPU = StationSpec("s", alpha=0.0, fixed=1.0, max_batch=4, cpu=False)


def test_an_idle_instance_takes_what_waits_at_once_up_to_max_batch() -> None:
    assert batches(GPU, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]) == [(0.0, 1), (1.0, 4), (2.0, 1)]


def test_a_queue_delay_ends_with_a_full_batch_or_with_the_oldest_requests_patience() -> None:
    delayed = StationSpec("s", alpha=0.0, fixed=1.0, max_batch=3, delay=0.5, cpu=False)
    assert batches(delayed, [0.0, 0.1, 0.2, 5.0, 5.4, 5.6]) == [(0.2, 3), (5.5, 2), (6.5, 1)]


def test_another_shape_ends_the_batch() -> None:
    shapes = [0.0] * NOISE
    shapes[2] = 1.0  # the third request has another shape than the second
    alike = StationSpec("s", alpha=0.0, fixed=1.0, max_batch=8, cpu=False, same_shape=0.5)
    assert batches(alike, [0.0, 0.0, 0.0, 0.0], shapes) == [(0.0, 2), (1.0, 2)]


def test_counters_move_at_completion_and_a_batch_adds_its_time_to_each_request() -> None:
    one = station(GPU)
    one.offer([(0.0, 0.0), (0.5, 0.5), (0.6, 0.6)])
    one.advance(1.5, math.inf)
    early = one.counters(1.5)
    assert (early.success, early.execs, early.pending) == (1, 1, 0)
    one.advance(2.0, math.inf)
    late = one.counters(2.0)
    assert (late.success, late.execs, late.compute_infer_us) == (3, 2, pytest.approx(3e6))


def test_instances_beyond_the_cores_slow_each_other() -> None:
    one = station(StationSpec("s", alpha=1.0, instances=4))
    one.offer([(0.0, 0.0)] * 4)
    finished = one.advance(10.0, 2.0)
    assert max(finish for finish, _ in finished) == pytest.approx(2.0)
    assert one.totals.throttled > 0


def test_growth_serves_at_once_and_removal_lets_batches_end() -> None:
    one = station(StationSpec("s", alpha=1.0))
    one.offer([(0.0, 0.0)] * 3)
    one.advance(0.5, math.inf)
    one.grow(2, 0.5)
    assert [finish for finish, _ in one.advance(2.0, math.inf)] == [1.0, 1.5, 1.5]
    one.shrink(5)
    assert one.instances == 1


def test_a_restart_loses_what_is_inside_and_counts_from_zero() -> None:
    one = station(StationSpec("s", alpha=1.0))
    one.offer([(0.0, 0.0), (0.1, 0.1), (0.2, 0.2)])
    one.advance(1.05, math.inf)
    assert one.clear(1.05, 1) == 2
    assert one.counters(2.0).success == 0


def test_the_oracle_keeps_four_fifths_busy() -> None:
    assert traces.oracle([620.0] * 30 + [120.0] * 30, [0.010] * 60) == [8] * 30 + [2] * 30
    assert traces.oracle([620.0] * 30, [0.010] * 30, pods=2, most=3) == [6] * 30


@pytest.mark.parametrize("name", [*traces.CHOSEN, *traces.HELD_OUT])
def test_traces_are_the_same_for_the_same_seed(name: str) -> None:
    make = {**traces.CHOSEN, **traces.HELD_OUT}[name]
    assert make(4) == make(4)
    assert len(make(4)) == traces.SECONDS
    assert min(make(4)) >= 0
    assert traces.arrivals(make(4), 1) == traces.arrivals(make(4), 1) != traces.arrivals(make(4), 2)
