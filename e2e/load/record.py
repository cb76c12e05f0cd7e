"""Outcomes of requests, and their summary per kind of client. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: who sent it, when, how long it took, and its outcome.

    The time is in seconds since the load began.

    Attributes:
        client: the kind of client.
        worker: number of the client within its kind; each has connections of its own.
        answer: what the judge called the answer; empty where there was none or a wrong one.
        error: why there was none; empty where there was one.
    """

    client: str
    worker: int
    start: float
    seconds: float
    answer: str = ""
    error: str = ""

    @property
    def end(self) -> float:
        """When it was over, in seconds since the load began."""
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """All requests of one kind of client.

    Attributes:
        errors: how often which error came.
        answers: how often which answer came.
        longest_seconds: of an answered request.
        median_seconds, p99_seconds: of answered requests (nearest rank).
        gap_seconds: the longest time in which no request of this kind was answered, the ends of the
            record included.
    """

    client: str
    requests: int
    errors: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    median_seconds: float = 0.0
    p99_seconds: float = 0.0
    longest_seconds: float = 0.0
    gap_seconds: float = 0.0

    @property
    def failed(self) -> int:
        """Requests without a right answer."""
        return sum(self.errors.values())

    def figures(self) -> dict[str, Any]:
        """As a JSON document with units in its names."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "errors": dict(sorted(self.errors.items())),
            "answers": dict(sorted(self.answers.items())),
            "medianMilliseconds": round(self.median_seconds * 1000, 1),
            "p99Milliseconds": round(self.p99_seconds * 1000, 1),
            "longestMilliseconds": round(self.longest_seconds * 1000, 1),
            "longestGapMilliseconds": round(self.gap_seconds * 1000),
        }

    def __str__(self) -> str:
        what = (
            f"{self.client}: {self.requests} requests, {self.failed} failed, answers "
            f"{self.answers}, p99 {self.p99_seconds * 1000:.0f} ms"
        )
        return what + (f", errors {self.errors}" if self.errors else "")


def summarize(outcomes: Iterable[Outcome]) -> dict[str, Summary]:
    """Kind of client → its summary."""
    by_client: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_client.setdefault(outcome.client, []).append(outcome)
    return {client: _summary(client, found) for client, found in sorted(by_client.items())}


def _summary(client: str, outcomes: Sequence[Outcome]) -> Summary:
    answered = [outcome for outcome in outcomes if not outcome.error]
    durations = sorted(outcome.seconds for outcome in answered)
    ends = sorted(
        [
            min(outcome.start for outcome in outcomes),
            *(item.end for item in answered),
            max(outcome.end for outcome in outcomes),
        ]
    )
    return Summary(
        client=client,
        requests=len(outcomes),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        answers=dict(Counter(outcome.answer for outcome in answered)),
        median_seconds=_rank(durations, 0.5),
        p99_seconds=_rank(durations, 0.99),
        longest_seconds=durations[-1] if durations else 0.0,
        gap_seconds=max(after - before for before, after in itertools.pairwise(ends)),
    )


def _rank(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    if not ordered:
        return 0.0
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
