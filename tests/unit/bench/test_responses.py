"""What a step of the load came to."""

from __future__ import annotations

import math

import pytest

from bench.responses import Phase, foresight, p99_by_second, recovered, responded
from e2e.load.bins import Answer, Second

PHASES = (Phase(10, 10.0), Phase(60, 50.0), Phase(20, 10.0))
BEGAN = 1000.0


def answers(late: range = range(0), *, error: str = "", latency: float = 0.05) -> list[Answer]:
    """Return ten or fifty requests for each second of `PHASES`.

    Those of the seconds ``late`` after the step are slow, or fail.
    """
    found = []
    for second in range(90):
        count = 50 if 10 <= second < 70 else 10
        for number in range(count):
            due = BEGAN + second + number / count
            slow = second - 10 in late
            found.append(Answer(due, due + (1.0 if slow else latency), error if slow else ""))
    return found


def seconds(counts: list[int], starved: range = range(0)) -> list[Second]:
    return [
        Second(
            at=BEGAN + n + 1,
            count=count,
            starved=n in starved,
            verdict="Balanced" if n < 70 else "Idle",
        )
        for n, count in enumerate(counts)
    ]


def test_recovery_is_when_p99_is_inside_to_stay() -> None:
    """Measure recovery after 7 s of late responses.

    A single late second 40 s later is within tolerance; one of 60 requests in it is not.
    """
    step, end = BEGAN + 10, BEGAN + 70
    assert recovered([a for a in answers(range(7)) if step <= a.due < end], step, end, 0.1) == 7.0
    assert recovered([a for a in answers(range(0)) if step <= a.due < end], step, end, 0.1) == 0.0
    assert (
        recovered([a for a in answers(range(20, 22)) if step <= a.due < end], step, end, 0.1)
        == 22.0
    )
    assert recovered([a for a in answers(range(60)) if step <= a.due < end], step, end, 0.1) is None


def test_failed_requests_are_late_ones() -> None:
    step, end = BEGAN + 10, BEGAN + 70
    failed = [a for a in answers(range(3), error="refused", latency=0.05) if step <= a.due < end]
    assert recovered(failed, step, end, 2.0) == 3.0


def test_measures_of_a_run() -> None:
    counts = [1] * 16 + [3] * 64 + [2] * 5 + [1] * 5
    found = responded(
        seconds(counts, range(10, 16)),
        answers(range(6)),
        PHASES,
        began=BEGAN,
        slo=0.1,
        service=0.02,
    )
    assert found.recovery == 6.0
    assert (found.late, found.late_until, found.failed) == (300, 300, 0)
    assert found.violations == pytest.approx(300 / 3300)
    assert found.steady == 0.0
    assert (found.counts, found.reversals) == ((1, 3, 2, 1), 1)
    assert found.starved == pytest.approx(6 / 90)
    assert found.cost == pytest.approx((16 + 192 + 10 + 5) / (10 * 1 + 60 * 2 + 20 * 1))
    assert found.verdicts == ("Balanced", "Balanced", "Idle")


def test_violations_over_a_longer_run() -> None:
    """6 s of 50 late requests each, whatever the length; the steady share on top."""
    found = responded(
        seconds([1] * 90), answers(range(6)), PHASES, began=BEGAN, slo=0.1, service=0.01
    )
    assert found.over([Phase(300, 10), Phase(600, 50), Phase(600, 10)]) == pytest.approx(
        300 / 39000
    )
    assert found.over(PHASES) == pytest.approx(found.violations)


def test_steady_lateness_counts_for_all_of_a_longer_run() -> None:
    slow = [Answer(a.due, a.due + 1.0) if n % 200 == 199 else a for n, a in enumerate(answers())]
    found = responded(seconds([1] * 90), slow, PHASES, began=BEGAN, slo=0.1, service=0.01)
    assert found.recovery == 0.0
    assert found.over([Phase(1e6, 10)]) == pytest.approx(found.steady) == pytest.approx(16 / 3300)


@pytest.mark.parametrize(
    ("counts", "reversals"),
    [([1, 2, 3, 2, 1], 1), ([1, 2, 1, 2, 1], 3), ([2, 2, 2], 0), ([1, 3, 3, 2, 2, 3, 1], 3)],
)
def test_reversals(counts: list[int], reversals: int) -> None:
    assert (
        responded(seconds(counts), answers(), PHASES, began=BEGAN, slo=0.1, service=0.01).reversals
        == reversals
    )


def test_foresight_runs_at_four_fifths() -> None:
    assert (
        foresight([Phase(10, 79.9), Phase(10, 80.0), Phase(10, 80.1), Phase(10, 0.0)], 0.01)
        == 10 + 10 + 20 + 10
    )


def test_p99_stands_where_requests_were_due() -> None:
    found = p99_by_second(
        [
            Answer(BEGAN + 1.5, BEGAN + 9.0),
            Answer(BEGAN + 0.5, BEGAN + 0.6),
            Answer(BEGAN - 1, BEGAN),
        ],
        BEGAN,
        3,
    )
    assert found[1:] == [7.5, None]
    assert found[0] is not None
    assert math.isclose(found[0], 0.1)
