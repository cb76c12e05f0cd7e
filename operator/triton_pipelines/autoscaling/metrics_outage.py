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
    where = f" in {source}" if source else ""
    return MetricsFailure(
        MetricsProblem.MISSING,
        f"no usable samples{where}: {detail}. Check: 1. is there a PodMonitor"
        " (spec.observability.podMonitor), and does Prometheus select it? 2. are the pods' targets"
        " up (port 8002)? 3. does nv_inference_request_success have the labels namespace and pod?"
        " 4. is --allow-metrics or counter_latencies turned off in server.args?",
    )


def stale_samples(detail: str) -> MetricsFailure:
    """Return the failure for samples that are all too old."""
    return MetricsFailure(
        MetricsProblem.STALE,
        f"{detail}. Check: 1. are the pods' targets up? 2. is Prometheus falling behind? 3. "
        "are the clocks synchronized?",
    )
