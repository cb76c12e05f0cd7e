"""What a record of requests comes to."""

import pytest

from e2e.load.record import Outcome, summarize


def test_counts_per_kind_of_client() -> None:
    found = summarize(
        [
            Outcome("a", 0, 0.0, 0.1, "old"),
            Outcome("b", 0, 0.0, 0.1, error="reset"),
            Outcome("a", 1, 0.2, 0.1, "new"),
        ]
    )
    assert (found["a"].requests, found["a"].failed, found["a"].answers) == (
        2,
        0,
        {"old": 1, "new": 1},
    )
    assert (found["b"].requests, found["b"].failed, found["b"].errors, found["b"].answers) == (
        1,
        1,
        {"reset": 1},
        {},
    )


def test_latency_is_that_of_answered_requests_by_nearest_rank() -> None:
    outcomes = [Outcome("a", 0, index, (index + 1) / 100, "x") for index in range(100)]
    found = summarize([*outcomes, Outcome("a", 0, 100.0, 9.0, error="late")])["a"]
    assert (found.median_seconds, found.p99_seconds, found.longest_seconds) == (0.5, 0.99, 1.0)


@pytest.mark.parametrize(
    ("answered", "gap"),
    [((0.1, 0.2, 2.0, 2.1), 1.8), ((0.1, 0.2), 3.3), ((), 3.5)],
    ids=["in the middle", "at the end", "none at all"],
)
def test_gap_is_the_longest_time_without_an_answer(answered: tuple[float, ...], gap: float) -> None:
    right = [Outcome("a", 0, end - 0.05, 0.05, "x") for end in answered]
    found = summarize(
        [*right, Outcome("a", 0, 0.0, 0.01, error="lost"), Outcome("a", 0, 3.4, 0.1, error="lost")]
    )["a"]
    assert found.gap_seconds == pytest.approx(gap)


def test_figures_name_their_units() -> None:
    figures = summarize([Outcome("a", 0, 0.0, 0.0123, "old")])["a"].figures()
    assert figures["medianMilliseconds"] == 12.3
    assert figures["failed"] == 0
