"""C1 to C3: the response of scaling to a load that steps up fivefold and down again.

Measured on a real Triton under real load, with metrics read from Prometheus and directly. One run
of each workload and source yields all three results. The load is an open loop with Poisson arrivals
and fixed seeds. Its rates are chosen so that the required count is at most 70 % busy on two cores.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench import real_step
from bench.closedloop import (
    DIRECT,
    PROMETHEUS,
    SCRAPE_SECONDS,
    SOURCES,
    STABILIZATION_SECONDS,
    STAND_INS,
)
from bench.phases import play
from bench.plots import Timeline, save
from bench.responses import Phase, Response
from bench.results import NATIVE, thresholds, write
from e2e.load.bins import Second
from e2e.load.workloads import WORKLOADS, Workload

SECONDS = (20.0, 75.0, 50.0)
"""Low, high, low again: long enough to fall back."""
LIKE = (Phase(300, 1.0), Phase(600, 5.0), Phase(600, 1.0))
"""Lengths of the simulated step, and rates against the low one."""
NEVER = 1e9
"""Seconds in place of a recovery that did not come."""
MOST_SECONDS = {PROMETHEUS: 15.0, DIRECT: 6.0}
MOST_VIOLATIONS = {PROMETHEUS: 0.03, DIRECT: 0.02}
MOST_COST = 1.5
LOADS_OWN_TURNS = 1


@dataclass(frozen=True)
class Run:
    """One run and what it was worth."""

    workload: Workload
    source: str
    seconds: Sequence[Second]
    response: Response
    p99: Sequence[float | None]

    @property
    def recovery(self) -> float:
        """Seconds to recover."""
        return self.response.recovery if self.response.recovery is not None else NEVER

    @property
    def violations(self) -> float:
        """Share of late requests in a run with the lengths of the simulated step."""
        return self.response.over(
            [Phase(phase.seconds, phase.rate * self.workload.low) for phase in LIKE]
        )

    def detail(self) -> dict[str, Any]:
        """For the result file."""
        found = self.response
        return {
            "workload": self.workload.name,
            "source": self.source,
            "recoverySeconds": found.recovery,
            "violationsPercent": round(100 * self.violations, 2),
            "violationsOfThisRunPercent": round(100 * found.violations, 2),
            "steadyViolationsPercent": round(100 * found.steady, 2),
            "cost": round(found.cost, 2),
            "reversals": found.reversals,
            "failed": found.failed,
            "counts": list(found.counts),
            "starvedPercent": round(100 * found.starved, 1),
            "verdicts": list(found.verdicts),
        }


def run() -> None:
    """Measure all workloads, print and write C1, C2, C3; 17 minutes.

    With `WORKLOADS=documents` in the environment: those alone, and nothing is written.
    """
    chosen = [name for name in os.environ.get("WORKLOADS", "").split(",") if name] or list(
        WORKLOADS
    )
    real_step.prepare()
    runs = []
    for name in chosen:
        for source in SOURCES:
            runs.append(asyncio.run(_run(WORKLOADS[name](), source)))
            print(runs[-1].detail(), flush=True)
        _plot(runs[-len(SOURCES) :])
    if chosen == list(WORKLOADS):
        _write_all(runs)


async def _run(workload: Workload, source: str) -> Run:
    phases = [
        Phase(seconds, rate)
        for seconds, rate in zip(SECONDS, (workload.low, workload.high, workload.low), strict=True)
    ]
    played = await play(workload, phases, source)
    return Run(workload, source, played.seconds, played.response, played.p99)


def _write_all(runs: Sequence[Run]) -> None:
    _write(
        "C1",
        runs,
        [one.recovery for one in runs if one.source == PROMETHEUS],
        all(one.recovery <= MOST_SECONDS[one.source] for one in runs),
        "s",
    )
    thrifty = all(
        one.violations <= MOST_VIOLATIONS[one.source] and one.response.cost <= MOST_COST
        for one in runs
    )
    _write(
        "C2",
        runs,
        [100 * one.violations for one in runs if one.source == PROMETHEUS],
        thrifty,
        "percent",
    )
    calm = all(one.response.reversals <= LOADS_OWN_TURNS for one in runs)
    _write("C3", runs, [float(one.response.reversals) for one in runs], calm, "oscillations")


def _write(
    identity: str, runs: Sequence[Run], samples: Sequence[float], met: bool, unit: str
) -> None:
    stand_ins = dict.fromkeys(
        (
            *STAND_INS,
            *(
                each
                for one in runs
                for each in (f"{one.workload.name}: {what}" for what in one.workload.stand_ins)
            ),
        )
    )
    notes = {
        "read": f"Prometheus scrapes every {SCRAPE_SECONDS:g} s; directly: every 2 s",
        "run": (
            f"{'/'.join(f'{seconds:g}' for seconds in SECONDS)} s low/high/low, stabilization "
            f"{STABILIZATION_SECONDS} s"
        ),
        "violationsPercent": (
            "late until the recovery as measured, the steady share of the rest, over 300/600/600 "
            "s as in the simulated step"
        ),
    }
    path = write(
        f"{identity}{NATIVE}",
        samples,
        unit=unit,
        goal=thresholds()[identity]["goal"],
        met=met,
        workload="; ".join(dict.fromkeys(one.workload.text for one in runs)),
        stand_ins=list(stand_ins),
        command=f"make bench ID={identity}",
        detail={"notes": notes, "runs": [one.detail() for one in runs]},
    )
    print(
        f"{path.stem}: {'met' if met else 'missed'} ({thresholds()[identity]['goal']}); "
        f"{path.name} written"
    )


def _plot(runs: Sequence[Run]) -> None:
    workload = runs[0].workload
    rates: Iterable[float] = (workload.low, workload.high, workload.low)
    run = Timeline(
        title=f"C1, {workload.name}: load step on a real Triton (simulated GPU step)",
        note="; ".join((workload.text, *workload.stand_ins)),
        load=[
            rate
            for seconds, rate in zip(SECONDS, rates, strict=True)
            for _ in range(math.ceil(seconds))
        ],
        counts={one.source: [float(second.count) for second in one.seconds] for one in runs},
        p99={one.source: one.p99 for one in runs},
        verdicts=[second.verdict for second in runs[0].seconds],
        slo=workload.slo,
    )
    save(f"C1{NATIVE}-{workload.name}", run)
