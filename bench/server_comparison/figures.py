"""Figures of the comparison, from the samples of all rounds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One load on one server."""

    requests_per_s: float
    """Requests answered per second."""
    p50_s: float
    """Median latency."""
    p99_s: float
    """p99 latency."""
    cpu_s: float | None
    """CPU seconds of the server's processes per request; ``None`` if they run elsewhere."""


Samples = Mapping[str, Sequence[Sample]]
"""Samples by the name of the server, one per round."""


@dataclass(frozen=True)
class Loss:
    """A figure in which a baseline is better than every form of the pipeline."""

    load: str
    """Texts per request, in words."""
    figure: str
    """What is compared."""
    baseline: str
    """Name of the server."""
    ours: float
    """The pipeline's best value."""
    theirs: float
    """The baseline's value."""


REQUESTS, CPU = "requests/s at no higher p99", "µs of CPU time per request outside the model"


def median(samples: Sequence[Sample], name: str) -> float | None:
    """Return the median of an attribute over the rounds; ``None`` if it is not known."""
    values = [getattr(sample, name) for sample in samples]
    return None if None in values else float(statistics.median(values))


def spread(samples: Sequence[Sample], name: str, factor: float = 1.0) -> list[float] | None:
    """Return median, minimum and maximum of an attribute, times a factor."""
    values = [getattr(sample, name) for sample in samples]
    if None in values:
        return None
    return [
        round(factor * value, 3) for value in (statistics.median(values), min(values), max(values))
    ]


def document(samples: Samples) -> dict[str, Any]:
    """Return the figures of each server for a result file."""
    return {
        name: {
            "requestsPerSecond": spread(own, "requests_per_s"),
            "p50Milliseconds": spread(own, "p50_s", 1e3),
            "p99Milliseconds": spread(own, "p99_s", 1e3),
            "cpuMicrosecondsPerRequest": spread(own, "cpu_s", 1e6),
        }
        for name, own in samples.items()
    }


def best(samples: Samples, names: Sequence[str], figure: str = "requests_per_s") -> str:
    """Return the name with the highest median of a figure."""
    return max(names, key=lambda name: median(samples[name], figure) or 0.0)


def request_losses(load: str, ours: Sequence[Samples], baselines: Samples) -> list[Loss]:
    """Return the baselines that answer more requests/s than the pipeline does at their p99.

    Args:
        load: in words.
        ours: samples of the pipeline, one mapping for each number of clients.
        baselines: samples of the others at one number of clients.
    """
    points = [
        (median(own, "requests_per_s") or 0.0, median(own, "p99_s") or 0.0)
        for samples in ours
        for own in samples.values()
    ]
    losses = []
    for name, own in baselines.items():
        theirs, limit = median(own, "requests_per_s") or 0.0, median(own, "p99_s") or 0.0
        within = max((rate for rate, p99 in points if p99 <= limit), default=0.0)
        if within < theirs:
            losses.append(Loss(load, REQUESTS, name, round(within, 1), round(theirs, 1)))
    return losses


def cpu_losses(load: str, ours: Samples, baselines: Samples) -> list[Loss]:
    """Return the baselines that need less CPU time per request than the pipeline's best form."""
    least = min(value for own in ours.values() if (value := median(own, "cpu_s")) is not None)
    return [
        Loss(load, CPU, name, round(least * 1e6, 1), round(theirs * 1e6, 1))
        for name, own in baselines.items()
        if (theirs := median(own, "cpu_s")) is not None and theirs < least
    ]


Command = tuple[str, ...]


def shares(
    before: Mapping[Command, float], after: Mapping[Command, float], requests: int
) -> dict[str, float]:
    """Return the µs of CPU time per request of Triton and of each step's processes.

    Args:
        before: CPU seconds by command line before a load.
        after: the same after it.
        requests: number of requests of the load.
    """
    found: dict[str, float] = {}
    for command, seconds in after.items():
        step = step_of(command)
        cost = (seconds - before.get(command, 0.0)) / max(1, requests) * 1e6
        found[step] = round(found.get(step, 0.0) + cost, 1)
    return found


def step_of(command: Command) -> str:
    """Return the step of a process of the Python backend; ``server`` for Triton itself."""
    is_step = command[0].endswith("triton_python_backend_stub")
    return PurePath(command[1]).parts[-3] if is_step else "server"
