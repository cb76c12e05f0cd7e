"""C4: failed requests and the longest latency while counts change in place under a steady load.

The load is an open loop at no more than 70 % of the capacity of one instance. Every count can
sustain it, so clients are affected only by the change itself.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench import real_step
from bench.closedloop import STAND_INS, place
from bench.results import NATIVE, thresholds, write
from e2e.load.bins import Answer, percentile
from e2e.load.workloads import WORKLOADS, Workload

STEADY_SECONDS = 20.0
COUNTS = (2, 3, 1)
"""In turn, from 1."""
ROUNDS = 3
AFTER_SECONDS = 3.0
"""After a change its effects are looked for so long: a removed instance ends its batch, a new one
takes its first.
"""
REST_SECONDS = 4.0
MOST_MILLISECONDS = 100.0


@dataclass(frozen=True)
class Change:
    """One change: counts, when it began and ended (seconds, as the answers' clock)."""

    before: int
    after: int
    begin: float
    end: float


@dataclass(frozen=True)
class Found:
    """One workload's changes and what they cost. Times in milliseconds."""

    workload: Workload
    failed: int
    requests: int
    steady: float
    steady_p99: float
    beyond: tuple[float, ...]
    seconds: tuple[float, ...]

    def detail(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "workload": self.workload.name,
            "requestsPerSecond": self.workload.alone,
            "requests": self.requests,
            "failed": self.failed,
            "steadyLongestMilliseconds": round(self.steady, 1),
            "steadyP99Milliseconds": round(self.steady_p99, 1),
            "longestBeyondSteadyMilliseconds": [round(one, 1) for one in self.beyond],
            "changeSeconds": [round(one, 2) for one in self.seconds],
        }


def run() -> None:
    """Measure, print and write C4; five minutes.

    With `WORKLOADS=documents` in the environment: those alone, and nothing is written.
    """
    chosen = [name for name in os.environ.get("WORKLOADS", "").split(",") if name] or list(
        WORKLOADS
    )
    real_step.prepare()
    found = []
    for name in chosen:
        found.append(asyncio.run(_measure(WORKLOADS[name]())))
        print(found[-1].detail(), flush=True)
    if chosen != list(WORKLOADS):
        return
    longest = [one for item in found for one in item.beyond]
    met = not any(item.failed for item in found) and max(longest) <= MOST_MILLISECONDS
    path = write(
        f"C4{NATIVE}",
        longest,
        unit="ms above the longest request at a steady count, per change",
        goal=thresholds()["C4"]["goal"],
        met=met,
        workload="; ".join(
            (
                f"{item.workload.name} at {item.workload.alone:g} requests/s, 1 → 2 → 3 → 1 "
                f"instances, {ROUNDS} times"
            )
            for item in found
        ),
        stand_ins=[
            *STAND_INS,
            *(
                f"{item.workload.name}: {what}"
                for item in found
                for what in item.workload.stand_ins
            ),
        ],
        command="make bench ID=C4",
        detail={"workloads": [item.detail() for item in found]},
    )
    print(
        f"{path.stem}: {sum(item.failed for item in found)} failed, {max(longest):.0f} ms at most "
        f"beyond the steady longest ({'met' if met else 'missed'}); {path.name} written"
    )


async def _measure(workload: Workload) -> Found:
    async with place(workload, None) as made:
        await made.during(REST_SECONDS, workload.alone)
        steady_begin = time.monotonic()
        await made.during(STEADY_SECONDS, workload.alone)
        steady_end = time.monotonic()
        changes: list[Change] = []
        count = await made.count()
        for target in COUNTS * ROUNDS:
            begin = time.monotonic()
            await made.change(target)
            changes.append(Change(count, target, begin, time.monotonic()))
            count = await made.count()
            assert count == target, (
                f"{workload.step} has {count} instances after a change to {target}"
            )
            await asyncio.sleep(REST_SECONDS)
        answers = await made.answers()
    steady = [one for one in answers if steady_begin <= one.due < steady_end and not one.error]
    longest = max(one.seconds for one in steady)
    return Found(
        workload=workload,
        failed=sum(bool(one.error) for one in answers),
        requests=len(answers),
        steady=1000 * longest,
        steady_p99=1000 * percentile([one.seconds for one in steady]),
        beyond=tuple(1000 * beyond(answers, change, longest) for change in changes),
        seconds=tuple(change.end - change.begin for change in changes),
    )


def beyond(answers: Sequence[Answer], change: Change, steady: float) -> float:
    """Return the seconds by which the longest request around a change exceeded `steady`, or 0.

    Requests count that were running during a change or began soon after it.
    """
    met = [
        one.seconds
        for one in answers
        if one.end > change.begin and one.due < change.end + AFTER_SECONDS and not one.error
    ]
    return max(0.0, max(met, default=0.0) - steady)
