"""Test correcting the cost model with measured load.

The reference is a step with known times, executed one execution at a time with rows drawn from the
mix.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.tuning.test_prediction import LENGTHS, PIPE, TOKENIZER
from triton_pipelines.tools.tuner import BatchingSetting
from triton_pipelines.tools.tuner.calibration import (
    StepExecutions,
    calibrate,
    cost_under_load,
    estimate_spread,
)
from triton_pipelines.tools.tuner.prediction import StepModel, bursty, capacity, poisson, simulate
from triton_pipelines.tools.tuner.profile_fit import contention
from triton_pipelines.tools.tuner.profile_loads import BURSTS, burst_spec
from triton_pipelines.tools.tuner.step_time_fit import StepCost

# The step as it is: 2 ms and 1.5 us for every token, padding included; a request costs nothing of
# its own.
FIXED, PER_TOKEN = 2e-3, 1.5e-6
TRUE = StepCost(FIXED, 0.0, 0.0, PER_TOKEN)
# As a profile in company of a busy client told it: every request costs a millisecond.
DEAR = StepCost(FIXED, 1e-3, 0.0, PER_TOKEN)


def ran(batches: dict[int, int], stretch: float = 1.0) -> StepExecutions:
    """Return executions of these sizes with their mean times.

    For each size, rows are drawn and padded to the longest.
    """
    random = np.random.default_rng(11)
    times = {}
    for size in batches:
        longest = random.choice(LENGTHS, (4000, size)).max(axis=1)
        times[size] = stretch * (FIXED + PER_TOKEN * size * float(longest.mean()))
    count = sum(batches.values())
    seconds = sum(times[size] * batches[size] for size in batches) / count
    return StepExecutions(batches, seconds, 0.5, times)


def test_what_a_request_costs_is_learnt_from_the_batches_of_a_load() -> None:
    learnt = cost_under_load(DEAR, ran({1: 300, 2: 150, 3: 80, 4: 50, 6: 25, 8: 20}), LENGTHS, 1)
    assert learnt.per_request * learnt.scale == pytest.approx(0.0, abs=3e-5)
    for size in (1, 8, 32):
        longest = float(np.random.default_rng(5).choice(LENGTHS, (4000, size)).max(axis=1).mean())
        assert learnt.seconds(size, size, longest) == pytest.approx(
            FIXED + PER_TOKEN * size * longest, rel=0.03
        )


def test_near_the_capacity_p99_is_that_of_the_step_as_it_is() -> None:
    setting = BatchingSetting(32, 0, 1, 1)
    real = replace(PIPE, stages=(TOKENIZER, StepModel("model", TRUE, 32)))
    dear = replace(real, stages=(TOKENIZER, StepModel("model", DEAR, 32)))
    rate = 0.9 * capacity(real)
    arrivals = poisson(rate, 12_000, 3)
    learnt = calibrate(dear, {"model": ran({1: 300, 2: 150, 3: 80, 4: 50, 6: 25, 8: 20})}, arrivals)
    wanted = simulate(real.with_setting(setting), arrivals, 3).p99
    assert simulate(dear.with_setting(setting), arrivals, 3).p99 > 2 * wanted, (
        "without the correction it is far too careful"
    )
    assert simulate(learnt.with_setting(setting), arrivals, 3).p99 == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("together", [False, True])
def test_a_load_that_was_learnt_from_is_predicted_as_it_was(together: bool) -> None:
    """Whether what takes time outside the steps has to do with the time inside, or not."""
    rate = 0.5 * capacity(PIPE)
    arrivals = poisson(rate, 8_000, 5)
    inside = simulate(PIPE, arrivals).latencies
    outside = 0.5 * inside if together else np.random.default_rng(0).exponential(1e-3, len(inside))
    learnt = calibrate(PIPE, {}, arrivals, inside + 1e-3 + outside)
    for share in (0.5, 0.99):
        assert simulate(learnt, arrivals).quantile(share) == pytest.approx(
            np.quantile(inside + 1e-3 + outside, share), rel=0.03
        )


def test_arrivals_that_were_crowded_by_chance_are_no_time_outside() -> None:
    arrivals = bursty(0.5 * capacity(PIPE), 8_000, 5)
    learnt = calibrate(PIPE, {}, arrivals, simulate(PIPE, arrivals).latencies + 1e-3)
    assert learnt.overhead == pytest.approx([1e-3] * len(learnt.overhead))


def test_a_table_learns_what_a_request_costs_too() -> None:
    table = tuple((float(size), 32.0, FIXED + PER_TOKEN * 32 * size) for size in (1, 2, 4, 8))
    cost = StepCost(0.0, 1e-3, 0.0, 0.0, fitted=False, table=table)
    seen = StepExecutions(
        {1: 100, 2: 100, 4: 100},
        0.0,
        0.4,
        {size: 1.2 * (FIXED + PER_TOKEN * 32 * size) + 2e-4 * (size - 1) for size in (1, 2, 4)},
    )
    learnt = cost_under_load(cost, seen, (32,), 1)
    assert learnt.seconds(8, 8, 32) == pytest.approx(
        1.2 * (FIXED + PER_TOKEN * 32 * 8) + 7 * 2e-4, rel=0.01
    )


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_a_busy_machine_does_not_pass_for_padding(spread: float) -> None:
    random = np.random.default_rng(2)
    times = {}
    for size in (1, 2, 4, 8):
        drawn = random.choice(LENGTHS, (6000, size))
        tokens = (1 - spread) * drawn.sum(axis=1) + spread * size * drawn.max(axis=1)
        times[size] = 1.5 * (
            FIXED + PER_TOKEN * float(tokens.mean())
        )  # half as long again, for what else goes on
    batches = {1: 60, 2: 10, 4: 10, 8: 10}
    seen = StepExecutions(
        batches, sum(times[size] * count for size, count in batches.items()) / 90, 0.5, times
    )
    assert estimate_spread(TRUE, seen, LENGTHS, 1) == pytest.approx(spread, abs=0.1)


def test_batches_of_like_sizes_only_stretch_the_times() -> None:
    learnt = cost_under_load(TRUE, ran({1: 300, 2: 150}, stretch=1.3), LENGTHS, 1)
    assert learnt.scale == pytest.approx(1.3, rel=0.01)
    assert learnt.per_request == 0.0


@pytest.mark.parametrize("instances", [1, 2])
def test_requests_of_many_rows_count_once(instances: int) -> None:
    cost = StepCost(FIXED, 0.0, 1e-4, 0.0, contention=(1.0, 1.5))
    factor = (1.0, 1.5)[instances - 1]
    times = {
        4 * count: factor * 1.1 * (FIXED + 1e-4 * 4 * count) + 3e-4 * count for count in (1, 2, 4)
    }
    seen = StepExecutions(dict.fromkeys(times, 50), 0.0, 2.0, times)
    learnt = cost_under_load(cost, seen, (32,), 4, instances)
    assert learnt.seconds(8, 32, 32, instances) == pytest.approx(
        factor * 1.1 * (FIXED + 1e-4 * 32) + 8 * 3e-4, rel=0.01
    )


def test_bursts_have_time_to_be_done_with() -> None:
    alone = {1: 0.003, 2: 0.004, 4: 0.005, 8: 0.008, 16: 0.012}
    spec = burst_spec(alone, 1)
    starts, counts = np.unique(np.asarray(spec.schedule), return_counts=True)
    turns, rest = divmod(len(counts), len(BURSTS))
    assert rest == 0
    assert tuple(counts) == BURSTS * turns
    gaps = np.diff([*starts, spec.duration_s])
    # 5 requests: as long as twice one of 8 rows, and a millisecond for each; 17: nothing so large
    # was timed, the largest counts.
    assert gaps[2] == pytest.approx(2 * 0.008 + 0.005)
    assert gaps[4] == pytest.approx(2 * 0.012 + 0.017)


def test_a_slow_step_is_not_kept_busy_for_minutes() -> None:
    spec = burst_spec({1: 0.5, 2: 0.9, 4: 1.6, 8: 3.0}, 1)
    # Twice 0.9 s and twice 1.6 s are beyond 4 s.
    assert len(spec.schedule) == BURSTS[0] + BURSTS[1]
    assert spec.duration_s == pytest.approx(2 * 0.9 + 0.002 + 2 * 1.6 + 0.003)


@pytest.mark.parametrize(
    ("factor", "busy", "wanted"),
    [
        (1.5, 2.0, (1.0, 1.5)),
        (3.6, 2.0, (1.0, 2.0)),
        (1.3, 1.1, (1.0, 1.0)),
        (0.9, 2.0, (1.0, 1.0)),
    ],
)
def test_instances_that_share_alternate_in_the_worst_case(
    factor: float, busy: float, wanted: tuple[float, ...]
) -> None:
    assert contention(factor, busy, 2) == pytest.approx(wanted)
