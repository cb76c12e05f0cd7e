"""Decisions during a metrics outage. Pure.

Counts hold; after a while they may rise to what was enough before. They never fall.
"""

from __future__ import annotations

from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, MetricsProblem
from triton_pipelines.autoscaling.types import ControlLaw, Fallback, StepLimits, StepState


def fallback_count(
    state: StepState, step: StepLimits, law: ControlLaw, *, count: int, outage_seconds: float
) -> int:
    """Return the count to hold, or to rise to once the outage exceeds ``staleAfterSeconds``."""
    if outage_seconds < law.stale_after or law.fallback is Fallback.HOLD:
        return count
    recent = max((each for _, each in state.counts), default=step.initial)
    aim = step.initial if law.fallback is Fallback.INITIAL else recent
    return max(count, min(aim, step.high, state.cap if state.cap is not None else step.high))


def missing_samples(detail: str, source: str) -> MetricsFailure:
    """Return the failure for a source without usable samples, with what to check in order."""
    where = f" from {source}" if source else ""
    return MetricsFailure(
        MetricsProblem.MISSING,
        f"no usable samples{where}: {detail}. Check that (1) there is a PodMonitor"
        " (spec.observability.podMonitor) and Prometheus selects it, (2) the pods' targets are"
        " up (port 8002), (3) nv_inference_request_success has the labels namespace and pod,"
        " and (4) server.args disable neither --allow-metrics nor counter_latencies",
    )


def stale_samples(detail: str) -> MetricsFailure:
    """Return the failure for samples that are all too old."""
    return MetricsFailure(
        MetricsProblem.STALE,
        f"{detail}. Check that (1) the pods' targets are up, (2) Prometheus is not falling "
        "behind, and (3) the clocks are synchronized",
    )
