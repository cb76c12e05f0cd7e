"""Latency of revisions, as Triton's own metrics show it. Pure.

The figures are the p99 of the pipeline's public model over a sliding window of a minute, per pod
(``summary_latencies``). They do not include the network and the time that requests wait in front of
the server; the share of the SLO that the spec sets aside for these is subtracted first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from triton_pipelines.api.v1alpha1 import InferencePipeline

# Every sample of a pod within this time (seconds) has to be over the limit. It is longer than
# Triton's window (60 s, prometheus-cpp's default), so that the first slow responses of a new
# process do not count.
HELD_SECONDS: Final = 75.0
# With fewer requests of one pod within that time its p99 is chance: three of three hundred may be
# slower than it.
REQUESTS_MIN: Final = 300


@dataclass(frozen=True, slots=True)
class Look:
    """One sample of a pod."""

    at: float
    """Unix seconds."""
    p99: float | None
    """p99 of its last minute, milliseconds; ``None``: no request in it."""
    requests: float
    """Requests since its start."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Latency of one revision over :data:`HELD_SECONDS`, of its slowest pod."""

    low: float
    """Least p99 in that time, milliseconds."""
    high: float
    """Greatest p99 in that time, milliseconds."""
    rate: float
    """Requests per second of the busiest pod: with fewer pods, each has more to do."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """The known latencies of a pipeline."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By revision."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a revision has no figure, by revision."""


def limit_of(pipeline: InferencePipeline) -> float | None:
    """Return the latency budget of the server in milliseconds; ``None`` without one."""
    budget = pipeline.spec.slo.latency_budget_milliseconds()
    return float(budget) if budget is not None and budget > 0 else None


def figure_of(pods: Sequence[Sequence[Look]]) -> Figure | None:
    """Return the latency of a revision from the samples of each of its pods, oldest first.

    ``None`` until a pod has been sampled for long enough and has had enough requests.
    """
    spans = [held for looks in pods if (held := _held(looks)) is not None]
    judged = [held for held in spans if held[-1].requests - held[0].requests >= REQUESTS_MIN]
    known = [[look.p99 for look in held if look.p99 is not None] for held in judged]
    complete = [
        values for values, held in zip(known, judged, strict=True) if len(values) == len(held)
    ]
    if not complete:
        return None
    rate = max(
        (held[-1].requests - held[0].requests) / (held[-1].at - held[0].at) for held in spans
    )
    return Figure(max(map(min, complete)), max(map(max, complete)), rate)


def _held(looks: Sequence[Look]) -> list[Look] | None:
    """Return the samples of the last :data:`HELD_SECONDS`.

    ``None`` if they do not reach back so far, or if the request counter was reset.
    """
    last = looks[-1].at if looks else 0.0
    before = [index for index, look in enumerate(looks) if last - look.at >= HELD_SECONDS]
    if not before:
        return None
    held = list(looks[before[-1] :])
    return held if all(a.requests <= b.requests for a, b in itertools.pairwise(held)) else None
