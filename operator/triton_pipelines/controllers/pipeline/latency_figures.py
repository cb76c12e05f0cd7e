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
WINDOW_SECONDS: Final = 75.0
# With fewer requests of one pod within that time its p99 is chance: three of three hundred may be
# slower than it.
REQUESTS_MIN: Final = 300


@dataclass(frozen=True, slots=True)
class LatencySample:
    """One sample of a pod."""

    at: float
    """Unix seconds."""
    p99: float | None
    """p99 of its last minute, milliseconds; ``None``: no request in it."""
    requests: float
    """Requests since its start."""


@dataclass(frozen=True, slots=True)
class RevisionLatency:
    """Latency of one revision over :data:`WINDOW_SECONDS`, of its slowest pod."""

    low: float
    """Least p99 in that time, milliseconds."""
    high: float
    """Greatest p99 in that time, milliseconds."""
    rate: float
    """Requests per second of the busiest pod: with fewer pods, each has more to do."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """The known latencies of a pipeline."""

    figures: Mapping[str, RevisionLatency] = field(default_factory=dict)
    """By revision."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a revision has no figure, by revision."""


def latency_budget_of(pipeline: InferencePipeline) -> float | None:
    """Return the latency budget of the server in milliseconds; ``None`` without one."""
    budget = pipeline.spec.slo.latency_budget_milliseconds()
    return float(budget) if budget is not None and budget > 0 else None


def latency_of(pods: Sequence[Sequence[LatencySample]]) -> RevisionLatency | None:
    """Return the latency of a revision from the samples of each of its pods, oldest first.

    ``None`` until a pod has been sampled for long enough and has had enough requests.
    """
    windows = [window for samples in pods if (window := _window(samples)) is not None]
    counted = [
        window for window in windows if window[-1].requests - window[0].requests >= REQUESTS_MIN
    ]
    known = [[sample.p99 for sample in window if sample.p99 is not None] for window in counted]
    complete = [
        values for values, window in zip(known, counted, strict=True) if len(values) == len(window)
    ]
    if not complete:
        return None
    rate = max(
        (window[-1].requests - window[0].requests) / (window[-1].at - window[0].at)
        for window in windows
    )
    return RevisionLatency(max(map(min, complete)), max(map(max, complete)), rate)


def _window(samples: Sequence[LatencySample]) -> list[LatencySample] | None:
    """Return the samples of the last :data:`WINDOW_SECONDS`.

    ``None`` if they do not reach back so far, or if the request counter was reset.
    """
    last = samples[-1].at if samples else 0.0
    before = [index for index, sample in enumerate(samples) if last - sample.at >= WINDOW_SECONDS]
    if not before:
        return None
    window = list(samples[before[-1] :])
    return window if all(a.requests <= b.requests for a, b in itertools.pairwise(window)) else None
