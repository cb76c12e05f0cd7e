"""Run a random sequence of faults, check the invariants after each, and count."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from random import Random

from tests.support.controlplane import ControlPlane
from tests.support.soak.faults import KINDS, Kind
from tests.support.soak.invariants import processes_are_those_started, violations
from tests.support.soak.observation import Observation
from tests.support.soak.world import CONVERGED_SECONDS, QUIET_SECONDS, World

START_SECONDS = 180.0
"""Bound on the start of two operators and three pipelines, on a busy machine."""


@dataclass
class Row:
    """What is known of one kind of fault."""

    times: int = 0
    """How often it was injected."""
    slowest: float = 0.0
    """Longest time until everything was as desired again, in seconds."""
    requests: int = 0
    """Requests sent from its beginning until then."""
    lost: int = 0
    """Of these, lost ones."""
    excused: int = 0
    """Of these, requests that failed in the broken pod."""


@dataclass
class Report:
    """Result of a run."""

    seed: int
    """The seed."""
    rows: dict[str, Row] = field(default_factory=lambda: defaultdict(Row))
    """Counts by kind of fault."""
    violations: list[str] = field(default_factory=list)
    """What did not hold; empty if the run passed."""
    seconds: float = 0.0
    """Duration of the run."""

    @property
    def injected(self) -> int:
        """Faults that were injected."""
        return sum(row.times for row in self.rows.values())

    def table(self) -> str:
        """Return the counts as a Markdown table."""
        lines = [
            "| Fault | Injected | Slowest recovery | Requests | Failed in the broken pod | Lost |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {name} | {row.times} | {row.slowest:.1f} s | {row.requests} | {row.excused} |"
            f" {row.lost} |"
            for name, row in sorted(self.rows.items())
        ]
        return "\n".join(lines)


def schedule(seed: int, only: Collection[str] = ()) -> Iterator[tuple[Kind, Random]]:
    """Yield faults without end: all kinds in random order, and so again.

    Each fault has a generator of its own, so it draws the same whatever happened before.

    Args:
        seed: seed of the run.
        only: names of faults to inject, and no others; none: all.
    """
    kinds = [kind for kind in KINDS if not only or kind.name in only]
    number = count()
    for round_number in count():
        for kind in Random(f"{seed}/{round_number}").sample(kinds, len(kinds)):
            yield kind, Random(f"{seed}/fault/{next(number)}")


async def run(
    seed: int,
    seconds: float,
    plane: ControlPlane,
    folder: Path,
    *,
    only: Collection[str] = (),
    faults: int | None = None,
    converged_seconds: float = CONVERGED_SECONDS,
    say: Callable[[str], None] = print,
) -> Report:
    """Inject faults until the time is over or an invariant does not hold.

    Args:
        seed: seed of the run.
        seconds: so long after the start of the world, no further fault begins.
        plane: a running control plane with controllers; nothing else uses it.
        folder: empty folder for logs.
        only: names of faults to inject, and no others; none: all.
        faults: number of faults to inject at most.
        converged_seconds: longest time after the end of a fault until everything is as desired.
        say: prints a line of progress.
    """
    report, begin = Report(seed), time.monotonic()
    async with World(plane, folder) as world:
        took, left = await world.converge(say, START_SECONDS)
        report.violations += left
        say(f"{time.monotonic() - begin:6.1f} s  ready after {took:.1f} s")
        end = time.monotonic() + seconds
        for number, (kind, random) in enumerate(islice(schedule(seed, only), faults)):
            if report.violations or time.monotonic() > end:
                break
            took, report.violations = await _one(
                world, kind, random, report, say, converged_seconds
            )
            say(f"{time.monotonic() - begin:6.1f} s  {number:4d}  {kind.name}: {took:.1f} s")
        if not report.violations:
            report.violations += await _remove_pipelines(world, say)
    report.violations += await _left_over(world)
    report.seconds = time.monotonic() - begin
    return report


async def _one(
    world: World,
    kind: Kind,
    random: Random,
    report: Report,
    say: Callable[[str], None],
    converged_seconds: float,
) -> tuple[float, list[str]]:
    """Inject one fault, wait, and check; return the recovery time and the violations."""
    row, sent = report.rows[kind.name], len(world.requests)
    row.times += 1
    try:
        await kind.inject(world, random)
    except Exception as error:
        return 0.0, [f"the fault could not be injected: {type(error).__name__}: {error}"]
    took, found = await world.converge(say, converged_seconds)
    if not found:
        since = time.monotonic()
        await asyncio.sleep(QUIET_SECONDS)
        found = violations(await world.observe(since))
    own = world.requests[sent:]
    row.slowest = max(row.slowest, took)
    row.requests += len(own)
    row.lost += sum(bool(request.error) and not request.excused for request in own)
    row.excused += sum(bool(request.error) and request.excused for request in own)
    return took, found


async def _remove_pipelines(world: World, say: Callable[[str], None]) -> list[str]:
    """Delete all pipelines; return what does not hold afterwards, such as objects that are left."""
    for name in tuple(world.specs):
        await world.delete_pipeline(name)
    took, left = await world.converge(say)
    say(f"          all pipelines deleted: {took:.1f} s")
    return left


async def _left_over(world: World) -> list[str]:
    """Return the processes and sockets that the world has left behind."""
    pids, ports = await world.left_over()
    seen = Observation(pids=frozenset(pids), open_ports=ports)
    return violations(seen, processes_are_those_started)
