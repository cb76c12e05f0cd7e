"""Raw samples of Triton pods as every source delivers them, with the times of their scrapes. Pure.

Names follow Triton's metrics (``nv_inference_*``). Counters are sums over all label sets of a pod
and model: a GPU model has one with and one without ``gpu_uuid`` (Triton core:
metric_model_reporter.cc).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

FRESH_INTERVALS: Final = 2.5
"""A newest scrape older than this many scrape intervals is stale: one missed scrape and the wait
for the next are no fault yet."""
COUNTER_MAX: Final = 2.0**64
"""Triton's counters and gauges are whole numbers of 64 bits. A greater value is no count, and sums
and products of such values exceed what a float holds."""


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """Cumulative counters of one model in one pod, and its gauges of queued requests.

    Triton's own times are microseconds summed per request and not per execution: it adds a batch's
    time once for each of its requests.
    """

    success: float = 0.0
    """Requests that completed."""
    rejected: float = 0.0
    """Requests that a queue policy rejected."""
    execs: float = 0.0
    """Executions (batches)."""
    cache_hits: float = 0.0
    """Requests answered by the cache; they count in ``success`` and in no execution."""
    queue_us: float = 0.0
    """Time in the queue."""
    compute_input_us: float = 0.0
    """Time to prepare inputs."""
    compute_infer_us: float = 0.0
    """Time of inference."""
    compute_output_us: float = 0.0
    """Time to collect outputs."""
    pending: float = 0.0
    """Requests in Triton's queue that are not executing."""
    busy_us: float = 0.0
    """Time in which instances executed, each batch once; 0 where the step does not report it."""
    cpu_us: float = 0.0
    """CPU time of the instances; 0 where the step does not report it."""
    passed: float = 0.0
    """Requests that a new instance passed on and that are queued; Triton does not count them as
    pending. Only the built-in tokenizer passes requests on."""

    @property
    def queued(self) -> float:
        """Requests that wait and are not executing."""
        return self.pending + self.passed


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape of a pod's models."""

    at: float
    """Time of the scrape itself, Unix seconds; never the time of the query."""
    models: Mapping[str, ModelCounters]
    """Counters by model."""


@dataclass(frozen=True, slots=True)
class PodUsage:
    """Container and GPU usage of one pod over about the last minute; ``None``: unknown."""

    at: float
    """Time of the oldest sample behind these values, Unix seconds."""
    cpu_cores: float | None = None
    """Cores used."""
    throttled: float | None = None
    """Share of CFS periods that were throttled (0–1)."""
    memory_bytes: float | None = None
    """Working set."""
    gpu: float | None = None
    """Share of the time in which any kernel ran on the busiest of the pod's GPUs (0–1)."""


@dataclass(frozen=True, slots=True)
class PodHistory:
    """What is known of a pod."""

    scrapes: tuple[Scrape, ...]
    """Scrapes, oldest first: at least those of the slow window, once the history is as long."""
    usage: PodUsage | None = None
    """Newest usage."""


@dataclass(frozen=True, slots=True)
class ExpectedPods:
    """What a pipeline's sample must hold."""

    namespace: str
    """Namespace of the pipeline."""
    pods: Mapping[str, str]
    """Ready pods: name → address of the metrics port (``host:port``)."""
    models: frozenset[str]
    """Models that each pod has."""
    slow: float
    """Seconds that histories have to reach back."""


class MetricsProblem(StrEnum):
    """Why there is no usable sample. It never turns into a zero."""

    MISSING = "MetricsMissing"
    STALE = "MetricsStale"
    PARTIAL = "MetricsPartial"
    ERROR = "PrometheusError"


@dataclass(frozen=True, slots=True)
class MetricsFailure:
    """No usable sample of a pipeline."""

    problem: MetricsProblem
    """Why, as a reason."""
    message: str
    """Why, for people, with what to check; has no secret, and no figure that changes often."""
    source: str = ""
    """Where metrics come from, for people."""


@dataclass(frozen=True, slots=True)
class PipelineSample:
    """All that one collection knows of a pipeline."""

    pods: Mapping[str, PodHistory]
    """Histories of the expected pods that were found, by name."""
    interval: float
    """Seconds between scrapes, as observed."""
    source: str = ""
    """Where metrics come from, for people, such as the connection's name."""
    notes: tuple[str, ...] = field(default=())
    """What readers should know, for people."""
