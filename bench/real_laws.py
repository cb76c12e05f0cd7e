"""C5 on a real Triton: the managed count against the simulator's best baseline.

The load follows two shortened traces, and metrics are read from a real Prometheus every 5 s. The
baseline decides from the same samples, once per scrape, and its counts are changed in place like
the operator's. It is given the step's service time, which it could not measure, and it does not
wait for a change to be verified.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from bench.closedloop import (
    POD,
    PROMETHEUS,
    SCRAPE_SECONDS,
    STABILIZATION_SECONDS,
    STAND_INS,
    Place,
)
from bench.phases import play
from bench.plots import Timeline, save
from bench.responses import Phase, Response
from bench.results import thresholds, write
from bench.simulator.baselines import Kpa
from bench.simulator.engine import LawInput, World
from bench.simulator.station import StationSpec
from e2e.load.bins import Second
from e2e.load.workloads import Workload, cleaner

MANAGED, BASELINE = "managed", "KPA-like"
CORES = 8.0
MOST = 8
TRACES: dict[str, Sequence[Phase]] = {
    "step": (Phase(20, 1.0), Phase(70, 5.0), Phase(50, 1.0)),
    # Two bursts of other heights with a gap that is shorter than the stabilization, then one after
    # a longer gap.
    "burst": tuple(
        Phase(seconds, rate)
        for seconds, rate in (
            (20, 1.6),
            (25, 5.0),
            (20, 1.6),
            (25, 4.0),
            (45, 1.6),
            (25, 5.0),
            (20, 1.6),
        )
    ),
}
"""Rates against the workload's low one."""


async def baseline(made: Place) -> None:
    """The baseline in place of the operator's loop."""
    step = made.workload.step
    law = Kpa(
        World(
            (StationSpec(step, alpha=made.workload.service, scaled=True),),
            scrape=SCRAPE_SECONDS,
            high=MOST,
        )
    )
    while True:
        due = time.monotonic() + SCRAPE_SECONDS
        count = await made.count()
        wanted, _ = law.wanted(
            LawInput(time.time(), await made.sample(), {step: {POD: count}}, [POD], CORES)
        )
        aim = min(max(wanted.get(step, count), 1), MOST)
        if aim != count:
            await made.change(aim)
        await asyncio.sleep(max(0.0, due - time.monotonic()))


def run() -> None:
    """Measure, print and write C5-real; twelve minutes."""
    workload = cleaner()
    found: dict[tuple[str, str], Response] = {}
    for trace in TRACES:
        phases = [Phase(phase.seconds, phase.rate * workload.low) for phase in TRACES[trace]]
        curves: dict[str, tuple[Sequence[Second], Sequence[float | None]]] = {}
        for law in (MANAGED, BASELINE):
            played = asyncio.run(
                play(workload, phases, PROMETHEUS, None if law == MANAGED else baseline)
            )
            found[trace, law], curves[law] = played.response, (played.seconds, played.p99)
            print(f"{trace}, {law}: {_detail(found[trace, law])}", flush=True)
        _plot(workload, trace, phases, curves)
    better = {
        trace: found[trace, MANAGED].violations < found[trace, BASELINE].violations
        for trace in TRACES
    }
    path = write(
        "C5-real",
        [100 * found[trace, MANAGED].violations for trace in TRACES],
        unit="percent of requests over the SLO, managed, per trace",
        goal=thresholds()["C5-real"]["goal"],
        met=all(better.values()),
        workload=(
            f"{workload.name}: {workload.low:g} to {workload.high:g} requests/s, traces of "
            f"{', '.join(_length(name) for name in TRACES)}; stabilization "
            f"{STABILIZATION_SECONDS} s"
        ),
        stand_ins=[
            *STAND_INS,
            *workload.stand_ins,
            "baseline control law: reimplemented from its sources",
        ],
        detail={
            trace: {law: _detail(found[trace, law]) for law in (MANAGED, BASELINE)}
            for trace in TRACES
        },
    )
    print(f"C5-real: {'met' if all(better.values()) else 'missed'}; {path.name} written")


def _length(trace: str) -> str:
    return f"{sum(phase.seconds for phase in TRACES[trace]):g} s ({trace})"


def _detail(found: Response) -> dict[str, Any]:
    return {
        "violationsPercent": round(100 * found.violations, 2),
        "cost": round(found.cost, 2),
        "reversals": found.reversals,
        "starvedPercent": round(100 * found.starved, 1),
        "failed": found.failed,
        "counts": list(found.counts),
    }


def _plot(
    workload: Workload,
    trace: str,
    phases: Sequence[Phase],
    curves: dict[str, tuple[Sequence[Second], Sequence[float | None]]],
) -> None:
    save(
        f"C5-real-{trace}",
        Timeline(
            title=f"C5-real, {workload.name}, trace {trace}: real Triton (simulated GPU step)",
            note="; ".join(("metrics from Prometheus, scraped every 5 s", *workload.stand_ins)),
            load=[phase.rate for phase in phases for _ in range(int(phase.seconds))],
            counts={
                law: [float(one.count) for one in seconds] for law, (seconds, _) in curves.items()
            },
            p99={law: p99 for law, (_, p99) in curves.items()},
            verdicts=[one.verdict for one in curves[MANAGED][0]],
            slo=workload.slo,
        ),
    )
