"""Decide the number of pods: more if counts cannot help, fewer after a long lower load. Pure.

Times are Unix seconds. Pods are slow (a minute to load) and expensive (each holds a GPU), so they
grow last and shrink first: counts, then a pod's CPU, then pods; the reverse on the way down.
Without usable metrics the number does not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.api.wording import counted
from triton_pipelines.autoscaling import control_law
from triton_pipelines.autoscaling.types import (
    ControlLaw,
    Limitation,
    PipelineLimits,
    PodCountState,
    ScalingDecision,
    StepDecision,
    StepLimits,
    StepState,
    Verdict,
)

PODS: Final = "pods"
"""Name of the number of pods in history and limitations, next to those of steps."""
PRESSED_SECONDS: Final = 60.0
"""Counts must have been of no help for this long before a pod is added; also the least time between
two changes."""
STABILIZATION_SECONDS: Final = 300.0
"""The number falls only to what was enough all this time: HPA's own window."""
TOLERANCE: Final = 0.10
"""Smallest relative change that is made: HPA's own tolerance."""
GPU_AIM: Final = 0.75
"""Busy share of the GPU step to aim at: below the 92 % from which it counts as full, above what
batches leave unused."""

SATURATED: Final = frozenset({Verdict.TOKENIZER_BOUND, Verdict.STEP_BOUND, Verdict.CPU_BOUND})
# Where requests wait and none completes, or the GPU step runs them one by one, the effect of more
# pods cannot be predicted.
_INCONCLUSIVE: Final = frozenset(
    {Verdict.UNKNOWN, Verdict.NO_PROGRESS, Verdict.BATCHING_INEFFECTIVE}
)


@dataclass(frozen=True, slots=True)
class PodCountDecision:
    """The decision on the number of pods."""

    count: int
    """Desired number."""
    state: PodCountState
    """The next state."""
    reason: str = ""
    """Why it changed, for people."""
    limitation: Limitation | None = None
    """What keeps it from what the load asks for."""


def pod_pressure(decision: ScalingDecision, limits: PipelineLimits, *, cpu_may_grow: bool) -> str:
    """Return why counts cannot help any more, for people; "" where they can.

    Args:
        decision: The decision on counts.
        limits: What bounds the pipeline.
        cpu_may_grow: Whether pods can get more CPU first.
    """
    if decision.verdict in _INCONCLUSIVE:
        return ""
    if decision.verdict is Verdict.GPU_BOUND:
        return "GPUBound: the GPU step is fully utilized in every pod"
    for step, item in _steps(decision, limits):
        waits_for_cpu = cpu_may_grow and item.verdict is Verdict.CPU_BOUND
        at_most = item.count >= _most(step, item, decision)
        if item.verdict in SATURATED and at_most and not waits_for_cpu:
            by = (
                "the last increase did not raise throughput"
                if _is_growth_held(item, decision)
                else item.figures.cap_reason
            )
            instances = counted(item.count, f"{item.step} instance")
            return f"{item.verdict}: every pod has {instances}, and {by}"
    return ""


def pods_demand(decision: ScalingDecision, limits: PipelineLimits, ready: int) -> float | None:
    """Return the pods that the load asks for as a share of the ready ones (autoscaling.md §4.5).

    ``None`` where it cannot be known.
    """
    if not decision.fresh or ready < 1 or decision.verdict in _INCONCLUSIVE:
        return None
    shares = [0.0]
    for step, item in _steps(decision, limits):
        if item.verdict in _INCONCLUSIVE:
            return None
        most = _most(step, item, decision)
        shares.append(item.figures.offered / (limits.law.target * most * ready))
        if limits.gpu_capacity is not None:
            shares.append(item.figures.arrivals / (limits.gpu_capacity * ready))
    if limits.gpu_steps:
        if decision.gpu_busy is None:
            return None
        shares.append(decision.gpu_busy / GPU_AIM)
    return max(shares)


def decide_pods(
    bounds: StepLimits,
    limits: PipelineLimits,
    state: PodCountState,
    decision: ScalingDecision,
    *,
    ready: int,
    cpu_may_grow: bool,
    blocked: str,
    interval: float,
    now: float,
) -> PodCountDecision:
    """Return the number of pods.

    Args:
        bounds: The user's bounds.
        limits: What bounds the pipeline.
        state: The state after the last decision.
        decision: The decision on counts.
        ready: Pods that serve.
        cpu_may_grow: Whether pods can get more CPU first.
        blocked: What else is in progress, for people ("" for nothing): one actuator at a time.
        interval: Seconds between scrapes.
        now: Unix seconds.
    """
    count = state.scale.desired
    share = pods_demand(decision, limits, ready)
    why = pod_pressure(decision, limits, cpu_may_grow=cpu_may_grow) if share is not None else ""
    known = state.pressed_since is not None and state.pressed_since <= now
    pressed = (state.pressed_since if known else now) if why else None
    ripe = pressed is not None and now - pressed >= PRESSED_SECONDS
    demand = _demanded(share, count, ready)
    scale = state.scale
    if share is not None:
        within = min(max(demand, bounds.low), bounds.high)
        scale = control_law.record_demand(scale, within, _windows(limits), now)
    following = control_law.next_count(
        scale if share is not None else replace(scale, demands=()),
        bounds,
        _windows(limits),
        count=count,
        # The effect of a pod that is not ready yet is unknown.
        demand=demand if ripe and ready == count else min(demand, count),
        now=now,
        wait_up=PRESSED_SECONDS,
        in_flight=bool(blocked) or _changed_recently(scale, now),
        interval=interval,
    ).count
    after = PodCountState(
        control_law.after_change(scale, count, following, now),
        max(demand, bounds.low),
        None if following != count and limits.active else pressed,
    )
    reason = _reason(following, state, bounds, demand, why)
    limitation = _limitation(following, bounds, demand, why, blocked) if ripe else None
    return PodCountDecision(following, after, reason, limitation)


def _windows(limits: PipelineLimits) -> ControlLaw:
    """Return the control law with the window for pods."""
    return replace(limits.law, stabilization=STABILIZATION_SECONDS)


def _demanded(share: float | None, count: int, ready: int) -> int:
    """Return the number of pods that the load asks for."""
    if share is None or abs(share - 1.0) <= TOLERANCE:
        return count
    return max(1, math.ceil(ready * share - 1e-9))


def _changed_recently(scale: StepState, now: float) -> bool:
    """Return whether the number changed so recently that the load on the rest is not known yet.

    An addition waits for as long in any case.
    """
    return scale.last_change is not None and 0 <= now - scale.last_change < PRESSED_SECONDS


def is_shrinking(state: PodCountState | None) -> bool:
    """Return whether the load asks for fewer pods; these go before their instances do."""
    return state is not None and 0 < state.demand < state.scale.desired


def adopt_replicas(state: PodCountState | None, recorded: int) -> PodCountState:
    """Return the state of an earlier process with the recorded number."""
    known = state if state is not None else PodCountState(StepState(desired=recorded))
    return replace(known, scale=replace(known.scale, desired=recorded))


def _steps(
    decision: ScalingDecision, limits: PipelineLimits
) -> Iterator[tuple[StepLimits, StepDecision]]:
    decided = {item.step: item for item in decision.steps}
    return ((step, decided[step.name]) for step in limits.steps if step.name in decided)


def _most(step: StepLimits, item: StepDecision, decision: ScalingDecision) -> int:
    """Return the most instances that one pod can run, at least those that run."""
    if _is_growth_held(item, decision):
        return max(1, item.count)
    return max(1, item.count, min(step.high, item.figures.cap))


def _is_growth_held(item: StepDecision, decision: ScalingDecision) -> bool:
    step = decision.state.steps.get(item.step)
    return step is not None and step.growth_held is not None


def _reason(count: int, state: PodCountState, bounds: StepLimits, demand: int, why: str) -> str:
    before = state.scale.desired
    if not bounds.low <= before <= bounds.high:
        return f"spec.scaling.pods allows {bounds.low} to {bounds.high}"
    if count > before:
        return f"{why}; the load needs {demand} pods"
    needed = counted(count, "pod was", "pods were")
    return f"at most {needed} needed in the last {STABILIZATION_SECONDS:.0f} s"


def _limitation(
    count: int, bounds: StepLimits, demand: int, why: str, blocked: str
) -> Limitation | None:
    if demand <= count:
        return None
    if count >= bounds.high:
        limit = f", but spec.scaling.pods.max limits the number of pods to {count} ({why})"
    else:
        limit = f"; {blocked or 'waiting for the pods that are being added'}"
    return Limitation(PODS, f"the load needs {demand} pods{limit}")
