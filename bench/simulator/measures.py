"""Measures of a run. Pure.

They cover SLO violations, instances relative to an oracle, oscillations, GPU starvation and the
time to recover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.simulator.engine import Record

_HELD = 60  # Seconds for which p99 has to stay inside the SLO to count as recovered.
_LATE = 0.01  # Share of requests beyond the SLO that p99 allows.


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of a run; shares are 0–1."""

    violations: float
    """Share of requests beyond the SLO, including lost ones."""
    cost: float
    """Instance-seconds relative to the oracle's."""
    mean: float
    """Mean number of instances."""
    reversals: int
    """Changes of direction."""
    actions: int
    """Changes of a count."""
    late_actions: int
    """Changes of a count after t = 500 s."""
    starved: float
    """Share of seconds in which the GPU step idled while the wait before it exceeded one service
    time."""
    p99: float
    """99th percentile of the latency in seconds."""
    recovery: float | None
    """Seconds from ``since`` until p99 was inside the SLO for a minute.

    ``None`` if it never was, or if the trace has no step.
    """
    overshoot: float
    """Instances beyond the oracle's highest count."""
    lost: int
    """Lost requests."""


def measure(record: Record, oracle: Sequence[int], since: int | None = None) -> Measures:
    """Return the measures of a run; ``since`` is the second at which the load steps up."""
    signs = [1 if after > before else -1 for _, before, after in record.actions]
    everything = sorted(latency for second in record.latencies for latency in second)
    return Measures(
        violations=sum(record.late) / max(1, sum(record.arrived)),
        cost=sum(record.instances) / sum(oracle),
        mean=sum(record.instances) / len(record.instances),
        reversals=sum(1 for a, b in pairwise(signs) if a != b),
        actions=len(signs),
        late_actions=sum(1 for at, _, _ in record.actions if at >= 500),
        starved=sum(record.starved) / len(record.starved),
        p99=everything[min(len(everything) - 1, math.ceil(0.99 * len(everything)) - 1)]
        if everything
        else math.inf,
        recovery=_recovery(record, since) if since is not None else None,
        overshoot=max(record.instances) - max(oracle),
        lost=record.lost,
    )


def p99(latencies: Sequence[float]) -> float | None:
    """Return the 99th percentile; ``None`` without values."""
    ordered = sorted(latencies)
    return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else None


def _recovery(record: Record, since: int) -> float | None:
    held = 0
    for second in range(since, record.seconds):
        held = held + 1 if record.late[second] <= _LATE * record.arrived[second] else 0
        if held == _HELD:
            return float(second - _HELD + 1 - since)
    return None
