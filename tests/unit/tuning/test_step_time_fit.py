"""The law of a step's time: found again from its own points, refused where it is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.messages import Messages
from triton_pipelines.tools.tuner.step_time_fit import MAX_RESIDUAL, StepCost, TimingSample, fit

SIZES, LENGTHS = (1, 2, 4, 8, 16, 32, 64), (16, 64, 256)


def points(fixed: float, request: float, row: float, token: float) -> list[TimingSample]:
    """Single requests of many rows, and many requests of one row, as a profile has them."""

    def one(requests: int, rows: int, tokens: int) -> TimingSample:
        return TimingSample(
            requests,
            rows,
            tokens,
            fixed + request * requests + row * rows + token * rows * tokens,
            10,
        )

    return [one(1, rows, tokens) for rows in SIZES for tokens in LENGTHS] + [
        one(rows, rows, 64) for rows in (4, 16)
    ]


@given(
    fixed=st.floats(1e-4, 1e-2),
    request=st.floats(0, 1e-4),
    row=st.floats(0, 1e-4),
    token=st.floats(1e-7, 1e-5),
)
def test_coefficients_are_found_again(
    fixed: float, request: float, row: float, token: float
) -> None:
    cost = fit(points(fixed, request, row, token))
    assert cost.fitted
    assert cost.residual < 1e-6
    # What is indistinguishable in the points (a coefficient of nothing) is judged by the times that
    # it gives.
    for requests, rows, tokens in ((1, 3, 100), (5, 5, 64), (64, 64, 200)):
        true = fixed + request * requests + row * rows + token * rows * tokens
        assert cost.seconds(requests, rows, tokens) == pytest.approx(true, rel=1e-4)
    assert cost.fixed == pytest.approx(fixed, rel=1e-3)
    assert cost.per_token == pytest.approx(token, rel=1e-3)


def test_noise_of_a_few_percent_is_no_reason_to_refuse() -> None:
    noisy = [
        TimingSample(p.requests, p.rows, p.tokens, p.seconds * (1.04 if index % 2 else 0.96), 10)
        for index, p in enumerate(points(2e-3, 0, 3e-5, 1.5e-6))
    ]
    cost = fit(noisy)
    assert cost.fitted
    assert cost.residual == pytest.approx(0.04, abs=0.01)
    assert cost.fixed == pytest.approx(2e-3, rel=0.1)


def test_a_staircase_is_refused_and_looked_up_in_its_table() -> None:
    """Tensor cores compute in tiles: 8 rows take as long as one."""
    stairs = {rows: 1e-3 * (1 + (rows - 1) // 8) ** 2 for rows in SIZES}
    cost = fit([TimingSample(1, rows, 64, seconds, 5) for rows, seconds in stairs.items()])
    assert cost.residual > MAX_RESIDUAL
    assert not cost.fitted
    for rows, seconds in stairs.items():
        assert cost.seconds(1, rows, 64) == pytest.approx(seconds)
    assert cost.seconds(1, 24, 64) == pytest.approx((stairs[16] + stairs[32]) / 2)


def test_a_table_is_looked_up_between_its_lengths_too() -> None:
    cost = fit(
        [
            TimingSample(1, rows, tokens, 1e-3 * rows**3 * tokens**2, 5)
            for rows in (1, 2, 4)
            for tokens in (10, 20)
        ]
    )
    assert not cost.fitted
    assert cost.seconds(1, 2, 15) == pytest.approx((1e-3 * 8 * 100 + 1e-3 * 8 * 400) / 2)


def test_contention_and_stretch_multiply() -> None:
    cost = fit(points(2e-3, 0, 0, 1.5e-6)).stretched(1.5)
    assert cost.seconds(1, 1, 0) == pytest.approx(3e-3)


def test_nothing_measured_is_said(messages: Messages) -> None:
    with messages.raises(ValueError):
        fit([TimingSample(1, 1, 1, 0.0, 0)])


def test_beyond_a_noisy_table_more_rows_are_never_faster() -> None:
    noisy = [
        TimingSample(1, rows, 30, seconds, 50)
        for rows, seconds in ((1, 0.004), (2, 0.002), (4, 0.009), (8, 0.003))
    ]
    cost = fit(noisy)
    assert not cost.fitted
    assert cost.seconds(1, 8, 30) == pytest.approx(0.003)
    assert cost.seconds(1, 64, 30) == pytest.approx(0.003)


def test_beside_a_table_a_request_costs_what_batches_take_beyond_it() -> None:
    # Steps of 16 rows, as tensor cores have them: no line.
    alone = {rows: 0.001 * (1 + -(-rows // 16) * 3) for rows in (1, 2, 4, 8, 16, 17, 32, 64)}
    single = [TimingSample(1, rows, 32, seconds, 50) for rows, seconds in alone.items()]
    batches = [
        TimingSample(rows, rows, 32, alone[rows] + 2e-4 * (rows - 1), 10) for rows in (2, 4, 8, 16)
    ]
    cost = fit([*single, *batches])
    assert not cost.fitted
    assert cost.per_request == pytest.approx(2e-4, rel=1e-6)
    assert fit(single).per_request == 0.0


def test_a_length_that_was_timed_with_one_row_costs_more_with_more() -> None:
    """Scale the cost of a length that was timed with one row only.

    A slow step leaves time for one point of each further length, but 64 rows are not as cheap as
    one.
    """
    table = ((1.0, 20.0, 0.01), (1.0, 80.0, 0.03), (64.0, 20.0, 0.64))
    cost = StepCost(0.0, 0.0, 0.0, 0.0, fitted=False, table=table)
    assert cost.seconds(1, 1, 80) == pytest.approx(0.03)
    assert cost.seconds(1, 64, 80) == pytest.approx(64 * 0.03)
    assert cost.seconds(1, 64, 20) == pytest.approx(0.64)
