"""The figures of one load that a tuning run decides on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from triton_pipelines.tools.loadgen import Array, LoadResult

# A rate counts as sustained if this share of the offered requests is answered: Poisson arrivals of
# some seconds vary by as much.
CARRIED_SHARE = 0.93


@dataclass(frozen=True, slots=True)
class LoadMeasurement:
    """The measured part of one load."""

    latencies: Array
    """Seconds of the answered requests, by the time of the answer."""
    sent: int
    """Requests sent."""
    failed: int
    """Requests that failed."""
    seconds: float
    """Time in which the requests were answered, without a few stragglers."""
    first_error: str = ""
    """Message of a failed request; one that is not ``late`` if there is any."""
    offered: float = 0.0
    """Actual requests/s, which random arrivals of some seconds make differ from the nominal rate;
    0: unknown.
    """
    late: int = 0
    """Failed requests that timed out in an overload or were rejected by a full queue: no errors."""
    ended: float = 0.0
    """Seconds after which an overload was ended early; 0: it was not."""
    arrivals: Array = field(default_factory=lambda: np.empty(0), repr=False)
    """Seconds at which requests were due, ascending, warm-up included; empty: unknown."""

    @property
    def faults(self) -> int:
        """Requests that failed for a reason other than the load."""
        return self.failed - self.late

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return len(self.latencies) / self.seconds if self.seconds > 0 else 0.0

    @property
    def p99(self) -> float:
        """p99 latency in seconds; infinity if more than 1 % of the requests failed."""
        if self.sent == 0 or self.failed > 0.01 * self.sent or len(self.latencies) == 0:
            return float("inf")
        return float(np.percentile(self.latencies, 99))

    @property
    def p50(self) -> float:
        """Median latency in seconds; infinity without answers."""
        return float(np.percentile(self.latencies, 50)) if len(self.latencies) else float("inf")


def measurement_of(result: LoadResult) -> LoadMeasurement:
    """Return the figures of the measured part of a load."""
    counted = result.measured()
    failed = int(np.count_nonzero(counted & (result.error >= 0)))
    found = LoadMeasurement(
        result.latencies,
        int(np.count_nonzero(counted)),
        failed,
        _answer_seconds(result),
        offered=int(np.count_nonzero(counted)) / result.duration_s,
        ended=result.end_s if result.overloaded else 0.0,
        arrivals=np.sort(result.due),
    )
    late = _late_requests(result, overload=_is_overload(found)) & counted
    codes = result.error[counted & (result.error >= 0) & ~late]
    codes = codes if len(codes) else result.error[counted & (result.error >= 0)]
    first = result.errors[codes[0]].message if len(codes) else ""
    return replace(found, first_error=first, late=int(np.count_nonzero(late)))


def _answer_seconds(result: LoadResult) -> float:
    """Return the time in which the requests that were due in the measured time were answered.

    A server that keeps up answers all of them, whenever the answers come. The time runs from the
    first answer to the last one: if each request takes long, all are late alike and there is no
    backlog. A few answers far behind all others are the tail, which p99 excludes as well: the time
    is at most what all take at the pace of the first 99 %.
    """
    ends = result.end[result.measured()]
    spans = np.percentile(ends, (99, 100)) - ends.min() if len(ends) else np.zeros(2)
    return max(result.duration_s, float(min(spans[0] / 0.99, spans[1])))


def count_late(result: LoadResult) -> int:
    """Return how many requests were rejected, or failed only because of an overload.

    The warm-up counts as well.
    """
    return int(
        np.count_nonzero(_late_requests(result, overload=_is_overload(measurement_of(result))))
    )


def _is_overload(found: LoadMeasurement) -> bool:
    return bool(found.ended) or found.rate < CARRIED_SHARE * found.offered


def _late_requests(result: LoadResult, *, overload: bool) -> NDArray[np.bool_]:
    """Return which requests timed out or were rejected.

    A timeout is an error if the server keeps up; a full queue never is.
    """
    excused = [error.is_late if overload else error.is_rejected for error in result.errors]
    # The last entry is that of code -1: answered.
    by_code = np.array([*excused, False], dtype=np.bool_)
    return by_code[result.error]
