"""Raw samples of Triton pods as every source delivers them, with the times of their scrapes. Pure.

Names follow Triton's metrics (``nv_inference_*``); counters are sums over all label sets of a pod and model: a GPU model has one
with and one without ``gpu_uuid`` (Triton core: metric_model_reporter.cc).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

# A newest scrape older than this many scrape intervals is stale: one missed scrape and the wait for the next are no fault yet.
FRESH_INTERVALS: Final = 2.5


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """Cumulative counters of one model in one pod, and its pending gauge.

    ``success``, ``failure``: requests; ``execs``: executions (batches); ``cache_hits``: requests answered by the cache, which are in
    ``success`` and in no execution; ``*_us``: microseconds summed per request (not per execution: Triton adds a batch's time once
    for each of its requests); ``pending``: requests that wait and are not executing.
    """

    success: float = 0.0
    failure: float = 0.0
    execs: float = 0.0
    cache_hits: float = 0.0
    queue_us: float = 0.0
    compute_input_us: float = 0.0
    compute_infer_us: float = 0.0
    compute_output_us: float = 0.0
    pending: float = 0.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """One look at a pod's models; ``at``: time of the scrape itself, Unix seconds, never the time of the query."""

    at: float
    models: Mapping[str, ModelCounters]


@dataclass(frozen=True, slots=True)
class PodUsage:
    """Container and GPU figures of one pod over about the last minute; ``None``: not known.

    ``cpu_cores``: used; ``throttled``: share of CFS periods that were throttled (0–1); ``memory_bytes``: working set; ``gpu``: share
    of the time in which any kernel ran, the busiest of the pod's GPUs (0–1); ``at``: oldest sample behind these, Unix seconds.
    """

    at: float
    cpu_cores: float | None = None
    throttled: float | None = None
    memory_bytes: float | None = None
    gpu: float | None = None


@dataclass(frozen=True, slots=True)
class PodHistory:
    """What is known of a pod: its scrapes, oldest first (those of the slow window at least, once it is as old), and its usage."""

    scrapes: tuple[Scrape, ...]
    usage: PodUsage | None = None


@dataclass(frozen=True, slots=True)
class ExpectedPods:
    """What a pipeline's sample must hold: its ready pods (name → address of the metrics port, ``host:port``) and the models that each has.

    ``slow``: seconds that histories have to reach back.
    """

    namespace: str
    pods: Mapping[str, str]
    models: frozenset[str]
    slow: float


class MetricsProblem(StrEnum):
    """Why there is no usable sample. Never a zero in its place."""

    MISSING = "MetricsMissing"
    STALE = "MetricsStale"
    PARTIAL = "MetricsPartial"
    ERROR = "PrometheusError"


@dataclass(frozen=True, slots=True)
class MetricsFailure:
    """No usable sample of a pipeline: why, in a word and in words (a checklist of what to look at; no secret). ``source``: as in a sample."""

    problem: MetricsProblem
    message: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class PipelineSample:
    """All that one collection knows of a pipeline.

    ``pods``: by pod name, those that were expected and are there; ``interval``: seconds between scrapes, as seen; ``source``: for
    people, such as the connection's name; ``gpu_known``: whether any GPU figure exists (MIG and a second DCGM hide them).
    """

    pods: Mapping[str, PodHistory]
    interval: float
    source: str = ""
    gpu_known: bool = True
    notes: tuple[str, ...] = field(default=())
