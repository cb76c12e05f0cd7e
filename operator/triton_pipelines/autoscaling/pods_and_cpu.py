"""The decisions besides counts, and their order: counts, then each pod's CPU, then pods. Pure.

Only one of them changes at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from triton_pipelines.autoscaling import cpu_limit, pod_count
from triton_pipelines.autoscaling.control_law import IN_FLIGHT_SECONDS
from triton_pipelines.autoscaling.cpu_limit import CpuBounds
from triton_pipelines.autoscaling.decision_state import without_change
from triton_pipelines.autoscaling.pod_count import PODS, PRESSED_SECONDS
from triton_pipelines.autoscaling.types import (
    HISTORY_MAX,
    CountChange,
    InfeasibleResize,
    Limitation,
    PipelineLimits,
    ScalingDecision,
    ScalingState,
    StepLimits,
    StepState,
)

__all__ = [
    "CPU",
    "PODS",
    "PodAndCpuBounds",
    "PodsObservation",
    "adopt_recorded",
    "change_in_progress",
    "decide_pods_and_cpu",
]

CPU: Final = "millicores"
"""Name of the CPU limit in the history, next to those of steps."""
_RESIZING: Final = "the CPU limit of the pods is being changed"


@dataclass(frozen=True, slots=True)
class PodAndCpuBounds:
    """What scaling may change besides counts; ``None``: not that."""

    pods: StepLimits | None = None
    """Bounds of the number of pods."""
    cpu: CpuBounds | None = None
    """Bounds of each pod's CPU limit."""


@dataclass(frozen=True, slots=True)
class PodsObservation:
    """The pods as they are."""

    uids: frozenset[str] = frozenset()
    """UIDs of all pods."""
    there: int = 0
    """Pods that are to stay."""
    ready: int = 0
    """Those of them that serve."""
    rolling: bool = False
    """Whether a rollout is running."""
    counting: bool = False
    """Whether counts are being changed."""
    resize_pending: Mapping[str, str] = field(default_factory=dict)
    """Pods by name whose resize is pending, and what they wait for."""
    infeasible: Mapping[str, InfeasibleResize] = field(default_factory=dict)
    """Pods by UID whose node cannot give them what was requested."""
    cpu_taken: str = ""
    """Another manager of the pods' CPU, which scaling then leaves alone; "" for none."""


def change_in_progress(state: ScalingState, seen: PodsObservation, now: float) -> str:
    """Return what keeps counts as they are for now, for people; "" for nothing.

    This is bounded in time: a pod that stays unscheduled for hours must not block the scaling of
    those that serve.
    """
    scale = state.cpu.scale if state.cpu is not None else None
    if (
        scale is not None
        and seen.resize_pending
        and _is_recent(scale.last_change, PRESSED_SECONDS, now)
    ):
        return _RESIZING
    scale = state.pods.scale if state.pods is not None else None
    if (
        scale is not None
        and not seen.there == seen.ready == scale.desired
        and _is_recent(scale.last_change, IN_FLIGHT_SECONDS, now)
    ):
        return "the number of pods is being changed"
    return ""


@dataclass(slots=True)
class _Combined:
    """What the decisions on CPU and pods add to that on counts."""

    state: ScalingState
    blocked: str
    """What is in progress, for people; "" for nothing."""
    changes: list[CountChange] = field(default_factory=list)
    limitations: list[Limitation] = field(default_factory=list)

    def change(self, what: str, before: int, after: int, reason: str, now: float) -> None:
        """Note a change unless there is none."""
        if before != after:
            self.changes.append(CountChange(now, what, before, after, reason))

    def limit(self, limitation: Limitation | None) -> None:
        """Note a limitation unless there is none."""
        if limitation is not None:
            self.limitations.append(limitation)


def decide_pods_and_cpu(
    bounds: PodAndCpuBounds,
    limits: PipelineLimits,
    decision: ScalingDecision,
    seen: PodsObservation,
    *,
    interval: float,
    now: float,
) -> ScalingDecision:
    """Return the decision with CPU and pods added.

    Args:
        bounds: What scaling may change.
        limits: What bounds the pipeline.
        decision: The decision on counts. Its state has ``cpu`` and ``pods`` where these are owned
            (:func:`adopt_recorded`).
        seen: The pods.
        interval: Seconds between scrapes.
        now: Unix seconds.
    """
    result = _Combined(decision.state, _blocked(seen), limitations=[*decision.limitations])
    if bounds.cpu is not None and not seen.cpu_taken:
        _add_cpu(result, bounds.cpu, limits, decision, seen, interval, now)
    if bounds.pods is not None:
        _add_pods(result, bounds, bounds.pods, limits, decision, seen, interval, now)
    state, changes = result.state, result.changes
    if not limits.active:
        state, changes = _as_advice(decision.state, state, changes)
    state = replace(state, history=(*changes, *state.history)[:HISTORY_MAX])
    return replace(decision, state=state, limitations=tuple(result.limitations))


def _blocked(seen: PodsObservation) -> str:
    if seen.counting:
        return "instance counts are being changed"
    return "a rollout is in progress" if seen.rolling else ""


def _add_cpu(
    result: _Combined,
    bounds: CpuBounds,
    limits: PipelineLimits,
    decision: ScalingDecision,
    seen: PodsObservation,
    interval: float,
    now: float,
) -> None:
    """Decide the CPU limit of each pod."""
    state = result.state
    if state.cpu is None:
        return
    known = cpu_limit.record_infeasible(state.cpu, seen.infeasible, seen.uids)
    other = change_in_progress(state, seen, now) if not seen.resize_pending else ""
    found = cpu_limit.decide_cpu_limit(
        bounds,
        limits,
        known,
        decision,
        settled=not seen.resize_pending,
        blocked=result.blocked or other,
        interval=interval,
        now=now,
    )
    result.change(CPU, known.scale.desired, found.millis, found.reason, now)
    result.limit(found.limitation)
    for name, why in sorted(seen.resize_pending.items()):
        result.limit(Limitation(cpu_limit.CPU, f"pod {name} {why}"))
    result.state = replace(state, cpu=found.state)
    result.blocked = result.blocked or (_RESIZING if result.changes else "")


def _add_pods(
    result: _Combined,
    bounds: PodAndCpuBounds,
    pods: StepLimits,
    limits: PipelineLimits,
    decision: ScalingDecision,
    seen: PodsObservation,
    interval: float,
    now: float,
) -> None:
    """Decide the number of pods."""
    state = result.state
    if state.pods is None:
        return
    resizing = change_in_progress(replace(state, pods=None), seen, now)
    # Where a node makes pods wait for their CPU, more pods are the way.
    cpu_is_free = not seen.resize_pending and not seen.cpu_taken
    may_grow = bool(resizing) or (cpu_limit.has_room(bounds.cpu, state.cpu) and cpu_is_free)
    found = pod_count.decide_pods(
        pods,
        limits,
        state.pods,
        decision,
        ready=seen.ready,
        cpu_may_grow=may_grow,
        blocked=result.blocked or resizing,
        interval=interval,
        now=now,
    )
    result.change(PODS, state.pods.scale.desired, found.count, found.reason, now)
    result.limit(found.limitation)
    result.state = replace(state, pods=found.state)


def adopt_recorded(
    state: ScalingState, bounds: PodAndCpuBounds, replicas: int | None, millis: int | None
) -> ScalingState:
    """Return the state for what scaling owns now; the rest is dropped.

    Args:
        state: The state so far.
        bounds: What scaling owns.
        replicas: Number of pods in force; ``None``: as remembered.
        millis: CPU limit in force, thousandths of a core; ``None``: as remembered.
    """
    owned = replace(
        state, pods=state.pods if bounds.pods else None, cpu=state.cpu if bounds.cpu else None
    )
    if bounds.pods is not None and replicas is not None:
        owned = replace(owned, pods=pod_count.adopt_replicas(state.pods, replicas))
    if bounds.cpu is not None and millis is not None:
        owned = replace(owned, cpu=cpu_limit.adopt_limit(state.cpu, millis))
    return owned


def _as_advice(
    before: ScalingState, after: ScalingState, changes: list[CountChange]
) -> tuple[ScalingState, list[CountChange]]:
    """Return what mode Advisory keeps: observations but no changes, and each advice once."""
    if before.pods is not None and after.pods is not None:
        scale = _advised(after.pods.scale, before.pods.scale)
        after = replace(after, pods=replace(after.pods, scale=scale))
    if before.cpu is not None and after.cpu is not None:
        scale = _advised(after.cpu.scale, before.cpu.scale)
        after = replace(after, cpu=replace(after.cpu, scale=scale))
    known = {(item.step, item.before, item.after) for item in before.history}
    return after, [item for item in changes if (item.step, item.before, item.after) not in known]


def _advised(after: StepState, before: StepState) -> StepState:
    return without_change(after, before, before.desired)


def _is_recent(at: float | None, seconds: float, now: float) -> bool:
    return at is not None and 0 <= now - at < seconds
