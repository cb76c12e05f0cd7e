"""Measure the response to a load that steps up and down again. Pure.

The measures are the time to recover, SLO violations, instances relative to an oracle, and changes
of direction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from e2e.load.bins import Answer, Second, percentile

WINDOW = 5
"""Seconds over which p99 is taken: of some hundreds of requests."""
HELD = 30
"""Seconds that p99 has to stay inside the SLO to count as recovered."""
FORESIGHT_LOAD = 0.8
"""Busy share of the instances that somebody with foresight would run, as in the simulator's oracle.
"""


@dataclass(frozen=True, slots=True)
class Phase:
    """So many seconds at a rate (requests/s)."""

    seconds: float
    rate: float


@dataclass(frozen=True, slots=True)
class Response:
    """Measures of a run.

    Attributes:
        recovery: seconds from the step up until p99 was inside the SLO to stay; `None`: never.
        late: requests that were late or failed: of all, and of those that were due between the step
            and the recovery.
        late_until: the latter.
        violations: share of all requests that were late or failed.
        steady: the same share of the requests that were due at other times than between the step
            and the recovery.
        cost: instance-seconds against those of foresight.
        reversals: changes of direction of the count.
        failed: requests without an answer.
        counts: the counts in turn, as in (1, 3, 1).
        starved: share of seconds in which the GPU step was starved.
        verdicts: the verdict of most seconds in each phase.
    """

    recovery: float | None
    late: int
    late_until: int
    violations: float
    steady: float
    cost: float
    reversals: int
    failed: int
    counts: tuple[int, ...]
    starved: float
    verdicts: tuple[str, ...]

    def over(self, phases: Sequence[Phase]) -> float:
        """Return the share of late requests for a run of other phase lengths.

        It combines the late requests measured during the growth with the steady share of the rest.
        The number of requests that are late until the growth takes effect does not increase with
        the length of the load, so their share of a short run would mainly reflect its length.
        """
        total = sum(phase.seconds * phase.rate for phase in phases)
        return min(1.0, self.late_until / total + self.steady)


def responded(
    seconds: Sequence[Second],
    answers: Sequence[Answer],
    phases: Sequence[Phase],
    *,
    began: float,
    slo: float,
    service: float,
) -> Response:
    """Return the measures of a run of three phases (low, high, low).

    Args:
        seconds: Seconds of the run; their times are on the clock of `began`.
        answers: Answers of the run; their times are on the clock of `began`.
        phases: Phases of the load.
        began: when the first phase began.
        slo: in seconds.
        service: busy seconds of one instance per request, without contention.
    """
    step, end = began + phases[0].seconds, began + phases[0].seconds + phases[1].seconds
    recovery = recovered([answer for answer in answers if step <= answer.due < end], step, end, slo)
    until = step + recovery if recovery is not None else end
    late = [answer for answer in answers if _late(answer, slo)]
    late_until = sum(step <= answer.due < until for answer in late)
    others = sum(not step <= answer.due < until for answer in answers)
    runs = turns([one.count for one in seconds])
    signs = [after > before for before, after in pairwise(runs)]
    return Response(
        recovery=recovery,
        late=len(late),
        late_until=late_until,
        violations=len(late) / max(1, len(answers)),
        steady=(len(late) - late_until) / max(1, others),
        cost=sum(one.count for one in seconds)
        / len(seconds)
        * sum(phase.seconds for phase in phases)
        / foresight(phases, service),
        reversals=sum(before != after for before, after in pairwise(signs)),
        failed=sum(bool(answer.error) for answer in answers),
        counts=tuple(runs),
        starved=sum(one.starved for one in seconds) / len(seconds),
        verdicts=tuple(_verdicts(seconds, phases, began)),
    )


def recovered(answers: Sequence[Answer], begin: float, end: float, slo: float) -> float | None:
    """Return the seconds after `begin` until p99 stays inside the SLO; `None` if it never does.

    It must be inside the SLO in each window of the next `HELD` seconds (or up to `end`). Requests
    count at the time when they were due, and a late answer counts as late from then on.
    """
    bins: list[list[float]] = [[] for _ in range(math.ceil(end - begin))]
    for answer in answers:
        bins[int(answer.due - begin)].append(math.inf if answer.error else answer.seconds)
    good = [_inside(bins[at : at + WINDOW], slo) for at in range(max(1, len(bins) - WINDOW + 1))]
    for at in range(len(good)):
        if all(good[at : at + HELD]) and len(bins) - at >= WINDOW:
            return float(at)
    return None


def _inside(bins: Iterable[Sequence[float]], slo: float) -> bool:
    latencies = [latency for one in bins for latency in one]
    return not latencies or percentile(latencies) <= slo


def turns(counts: Iterable[int]) -> list[int]:
    """The counts, each stretch of equal ones once."""
    return [count for count, _ in groupby(counts)]


def foresight(phases: Sequence[Phase], service: float) -> float:
    """Instance-seconds of somebody who knows the load."""
    return sum(
        phase.seconds * max(1, math.ceil(phase.rate * service / FORESIGHT_LOAD - 1e-9))
        for phase in phases
    )


def p99_by_second(answers: Sequence[Answer], began: float, seconds: int) -> list[float | None]:
    """p99 of the requests that were due in each second; `None` where none was."""
    bins: list[list[float]] = [[] for _ in range(seconds)]
    for answer in answers:
        if 0 <= answer.due - began < seconds and not answer.error:
            bins[int(answer.due - began)].append(answer.seconds)
    return [percentile(one) if one else None for one in bins]


def _late(answer: Answer, slo: float) -> bool:
    return bool(answer.error) or answer.seconds > slo


def _verdicts(seconds: Sequence[Second], phases: Sequence[Phase], begin: float) -> Iterable[str]:
    for phase in phases:
        found = Counter(one.verdict for one in seconds if begin < one.at <= begin + phase.seconds)
        yield found.most_common(1)[0][0] if found else ""
        begin += phase.seconds
