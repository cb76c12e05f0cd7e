"""Test the choice of a setting.

It never exceeds the latency budget, prefers the highest batch size among equals, and changes
nothing without a verified gain.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tuning.test_prediction import PIPE
from triton_pipelines.tools.tuner import BatchingSetting
from triton_pipelines.tools.tuner.acceptance import (
    MIN_GAIN,
    BudgetCheck,
    SettingMeasurement,
    decide,
    interval,
)
from triton_pipelines.tools.tuner.load_measurement import LoadMeasurement
from triton_pipelines.tools.tuner.prediction import (
    MAX_UTILIZATION,
    SEARCH_ARRIVALS,
    poisson,
    simulate,
)
from triton_pipelines.tools.tuner.selection import (
    RATE_TOLERANCE,
    PredictedSetting,
    candidates,
    curve,
    extreme_points,
    predict_settings,
    rank,
)

CURRENT = BatchingSetting(4, 0, 1, 1)
GRID = [
    BatchingSetting(batch, delay, 1, count)
    for batch in (1, 4, 16, 64)
    for delay in (0, 2000)
    for count in (1, 2)
]
LATENCY_BUDGET = 0.030


@pytest.mark.parametrize("latency_budget", [0.008, LATENCY_BUDGET, 0.2])
def test_what_is_chosen_keeps_the_wall(latency_budget: float) -> None:
    for one in predict_settings(PIPE, GRID, CURRENT, latency_budget):
        assert one.rate <= MAX_UTILIZATION * one.capacity * 1.001
        if one.rate:
            assert (
                simulate(
                    PIPE.with_setting(one.setting), poisson(one.rate, SEARCH_ARRIVALS, 0), 0
                ).p99
                <= latency_budget
            )
        assert one.setting == CURRENT or one.setting.queue_delay / 1e6 <= latency_budget / 4


def test_a_wall_below_one_request_leaves_nothing_to_choose() -> None:
    found = predict_settings(PIPE, GRID, CURRENT, 0.001)
    assert all(one.rate == 0 for one in found)
    assert candidates(found, CURRENT) == []


planneds = st.lists(
    st.builds(
        PredictedSetting,
        setting=st.builds(
            BatchingSetting,
            st.sampled_from([1, 8, 64]),
            st.sampled_from([0, 500, 4000]),
            st.sampled_from([1, 2]),
            st.sampled_from([1, 2]),
        ),
        rate=st.floats(0, 1000),
        capacity=st.just(2000.0),
    ),
    min_size=1,
    unique_by=lambda one: one.setting,
)


@given(planneds)
def test_the_first_is_close_to_the_most_and_none_of_these_has_a_larger_batch(
    found: list[PredictedSetting],
) -> None:
    first, most = rank(found)[0], max(one.rate for one in found)
    if most == 0:
        return
    assert first.rate >= (1 - RATE_TOLERANCE) * most
    close = [one for one in found if one.rate >= (1 - RATE_TOLERANCE) * most]
    assert first.setting.max_batch_size == max(one.setting.max_batch_size for one in close)
    largest = [one for one in close if one.setting.max_batch_size == first.setting.max_batch_size]
    assert first.setting.queue_delay == min(one.setting.queue_delay for one in largest)


def test_candidates_differ_and_are_never_the_current_one() -> None:
    found = candidates(predict_settings(PIPE, GRID, CURRENT, LATENCY_BUDGET), CURRENT)
    assert 1 <= len(found) <= 3
    assert CURRENT not in [one.setting for one in found]
    assert len({one.setting for one in found}) == len(found)


def test_the_ends_have_their_delays() -> None:
    quick, full = extreme_points(PIPE, GRID, 400.0)
    assert quick.name == "latency first"
    assert 1000 <= quick.setting.queue_delay <= 2000
    assert full.name == "throughput first"
    assert 50_000 <= full.setting.queue_delay <= 100_000
    assert full.predicted_p99 > quick.predicted_p99


def test_a_curve_rises() -> None:
    points = curve("current", PIPE, predict_settings(PIPE, GRID, CURRENT, LATENCY_BUDGET)[0]).points
    assert [rate for rate, _ in points] == sorted(rate for rate, _ in points)
    assert points[-1][1] > points[0][1]


# --- do no harm -----------------------------------------------------------------------------------


def measured(
    setting: BatchingSetting,
    rate: float,
    p99: float,
    *,
    failed: int = 0,
    carried: float = 1.0,
    noise: float = 0.0,
) -> SettingMeasurement:
    """A measurement of four seconds; ``noise``: relative, between stretches of time."""
    count = int(4 * rate * carried)
    random = np.random.default_rng(1)
    latencies = np.full(count, p99 / 3)
    for block in np.array_split(np.arange(count), 20):
        latencies[block[: max(1, len(block) // 50)]] = p99 * (1 + noise * random.standard_normal())
    return SettingMeasurement(
        setting, rate, LoadMeasurement(latencies, count + failed, failed, 4.0)
    )


BETTER = BatchingSetting(64, 0, 1, 1)


def test_a_proven_gain_is_taken() -> None:
    points = [
        measured(CURRENT, 400, 0.02),
        measured(BETTER, 600, 0.02),
        measured(CURRENT, 600 / 1.05, 0.08),
        measured(BETTER, 600, 0.025),
    ]
    decision = decide(CURRENT, points, LATENCY_BUDGET, [BETTER])
    assert decision.setting == BETTER
    assert decision.gain == pytest.approx(0.5)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(
            [measured(CURRENT, 570, 0.02), measured(BETTER, 600, 0.02)],
            id="the current one keeps up",
        ),
        pytest.param(
            [measured(CURRENT, 400, 0.02), measured(BETTER, 600, 0.02)],
            id="the current one was never tried there",
        ),
        pytest.param(
            [
                measured(CURRENT, 570, 0.08),
                measured(BETTER, 600, 0.02),
                measured(BETTER, 600, 0.04),
            ],
            id="broken in a repeat",
        ),
        pytest.param(
            [measured(CURRENT, 570, 0.08), measured(BETTER, 600, 0.02, failed=1)],
            id="a request failed",
        ),
        pytest.param(
            [measured(CURRENT, 570, 0.08), measured(BETTER, 600, 0.02, carried=0.8)],
            id="not carried",
        ),
        pytest.param(
            [measured(CURRENT, 595, 0.08), measured(BETTER, 600, 0.02)], id="less than five percent"
        ),
        pytest.param(
            [measured(CURRENT, 570, 0.031, noise=0.3), measured(BETTER, 600, 0.02)],
            id="broken within noise",
        ),
        pytest.param(
            [measured(CURRENT, 570, 0.08), measured(BETTER, 600, 0.0295, noise=0.3)],
            id="kept within noise",
        ),
        pytest.param([], id="nothing"),
    ],
)
def test_without_proof_nothing_changes(points: list[SettingMeasurement]) -> None:
    decision = decide(CURRENT, points, LATENCY_BUDGET, [BETTER])
    assert decision.setting == CURRENT
    assert not decision.is_better


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([CURRENT, BETTER, BatchingSetting(16, 500, 1, 2)]),
            st.floats(100, 900),
            st.floats(0.005, 0.1),
        ),
        max_size=6,
    )
)
def test_whatever_was_measured_a_change_is_proven(
    raw: list[tuple[BatchingSetting, float, float]],
) -> None:
    points = [measured(setting, rate, p99) for setting, rate, p99 in raw]
    decision = decide(CURRENT, points, LATENCY_BUDGET, [BETTER, BatchingSetting(16, 500, 1, 2)])
    if not decision.is_better:
        assert decision.setting == CURRENT
        return
    mine = [one for one in points if one.setting == decision.setting and one.rate <= decision.rate]
    assert mine
    assert all(one.load.p99 <= LATENCY_BUDGET and not one.load.failed for one in mine)
    broken = [
        one.rate
        for one in points
        if one.setting == CURRENT and one.check_budget(LATENCY_BUDGET) is BudgetCheck.EXCEEDED
    ]
    assert min(broken) * (1 + MIN_GAIN) <= decision.rate * 1.001


def test_a_rate_beyond_what_it_carries_says_nothing_of_a_lower_one() -> None:
    points = [
        measured(CURRENT, 400, 0.02),
        measured(BETTER, 700, 0.04),
        measured(BETTER, 600, 0.02),
        measured(CURRENT, 570, 0.08),
    ]
    decision = decide(CURRENT, points, LATENCY_BUDGET, [BETTER])
    assert (decision.setting, decision.rate) == (BETTER, 600)
    assert not decide(
        CURRENT, [*points, measured(BETTER, 550, 0.04)], LATENCY_BUDGET, [BETTER]
    ).is_better, "a lower one that breaks does"
    assert not decide(
        CURRENT, [*points, measured(BETTER, 800, 0.04, failed=1)], LATENCY_BUDGET, [BETTER]
    ).is_better, "and so does a failed request"


def test_a_challenger_counts_where_it_was_measured_again() -> None:
    other = BatchingSetting(64, 0, 1, 2)
    points = [
        measured(CURRENT, 400, 0.02),
        measured(BETTER, 560, 0.024),
        measured(CURRENT, 533, 0.08),
        measured(other, 588, 0.02),
    ]
    decision = decide(CURRENT, points, LATENCY_BUDGET, [BETTER, other], other)
    assert (decision.setting, decision.rate) == (BETTER, 560)
    again = decide(
        CURRENT, [*points, measured(other, 588, 0.02)], LATENCY_BUDGET, [BETTER, other], other
    )
    assert (again.setting, again.rate) == (other, 588)
    alone = decide(
        CURRENT, [*points, measured(BETTER, 560, 0.08)], LATENCY_BUDGET, [BETTER, other], other
    )
    assert not alone.is_better
    assert (
        f"{other} was rejected, because it met the latency budget at 588 requests/s, but this "
        "was not confirmed by a second measurement" in alone.reason
    )


def test_the_highest_rate_counts_up_to_which_every_measurement_kept_the_wall() -> None:
    points = [
        measured(CURRENT, 500, 0.08),
        measured(BETTER, 560, 0.02),
        measured(BETTER, 600, 0.02),
        measured(BETTER, 700, 0.04),
    ]
    assert decide(CURRENT, points, LATENCY_BUDGET, [BETTER]).rate == 600


def test_a_gain_is_counted_from_what_the_current_setting_was_measured_to_carry() -> None:
    unsure = measured(
        CURRENT, 480, 0.045, noise=0.3
    )  # its p99 is 25 ms, the bound of its interval 32 ms
    assert unsure.check_budget(LATENCY_BUDGET) is BudgetCheck.INCONCLUSIVE
    points = [
        measured(CURRENT, 240, 0.02),
        unsure,
        measured(CURRENT, 570, 0.08),
        measured(BETTER, 600, 0.02),
    ]
    assert decide(CURRENT, points, LATENCY_BUDGET, [BETTER]).gain == pytest.approx(600 / 480 - 1)
    decision = decide(
        CURRENT,
        [measured(CURRENT, 500, 0.08), measured(BETTER, 600, 0.02)],
        LATENCY_BUDGET,
        [BETTER],
    )
    assert decision.gain == pytest.approx(0.2)
    assert "so the gain is larger" in decision.reason


def test_the_interval_holds_the_p99_and_widens_with_noise() -> None:
    calm, noisy = (
        measured(CURRENT, 400, 0.03, noise=noise).load.latencies for noise in (0.01, 0.3)
    )
    low, high = interval(calm)
    assert low <= np.percentile(calm, 99) <= high
    assert interval(noisy)[1] - interval(noisy)[0] > high - low
