"""What is decided without usable metrics: counts hold; after a while they may rise to what was enough, never fall. Pure."""

from __future__ import annotations

from triton_pipelines.autoscaling.metrics.samples import Failure, Trouble
from triton_pipelines.autoscaling.types import Fallback, Law, StepLimits, StepMemory


def fallback_count(
    memory: StepMemory, step: StepLimits, law: Law, *, count: int, blind_seconds: float
) -> int:
    """The count to hold, or to rise to once metrics have stayed away for ``staleAfterSeconds``."""
    if blind_seconds < law.stale_after or law.fallback is Fallback.HOLD:
        return count
    recent = max((seen for _, seen in memory.counts), default=step.initial)
    aim = step.initial if law.fallback is Fallback.INITIAL else recent
    return max(count, min(aim, step.high, memory.cap if memory.cap is not None else step.high))


def missing(detail: str, source: str) -> Failure:
    """No pod speaks: what somebody should look at, in order."""
    where = f" in {source}" if source else ""
    return Failure(
        Trouble.MISSING,
        f"no usable samples{where}: {detail}. Look: 1. is there a PodMonitor (spec.observability.podMonitor), and does Prometheus select it? "
        "2. are the pods' targets up (port 8002)? 3. does nv_inference_request_success arrive with their namespace and pod? "
        "4. is --allow-metrics or counter_latencies switched off in server.args?",
    )


def stale(detail: str) -> Failure:
    """All samples are old."""
    return Failure(
        Trouble.STALE,
        f"{detail}. Look: 1. are the pods' targets up? 2. does Prometheus fall behind? 3. do clocks agree?",
    )
