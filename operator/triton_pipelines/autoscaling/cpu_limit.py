"""The CPU limit of each pod where it can be resized in place. Pure.

Values are thousandths of a core; times are Unix seconds. The limit grows only where CPU is what
limits (CPUBound), at most to what the most instances need. It falls once fewer instances have run
for long: CPU that is given back may be in use elsewhere by the time it is needed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.autoscaling import control_law
from triton_pipelines.autoscaling.pod_count import STABILIZATION_SECONDS
from triton_pipelines.autoscaling.types import (
    CpuLimitState,
    InfeasibleResize,
    Limitation,
    PipelineLimits,
    ScalingDecision,
    StepLimits,
    StepState,
    Verdict,
)

CPU: Final = "cpu"
"""Subject of limitations."""


@dataclass(frozen=True, slots=True)
class CpuBounds:
    """Bounds of the CPU limit."""

    start: int
    """Limit that pods begin with."""
    most: int
    """What ``instances.max`` of every step needs."""
    base: int
    """Part of both that no scaled step uses."""


@dataclass(frozen=True, slots=True)
class CpuLimitDecision:
    """The decision on the CPU limit."""

    millis: int
    """Desired limit."""
    state: CpuLimitState
    """The next state."""
    reason: str = ""
    """Why it changed, for people."""
    limitation: Limitation | None = None
    """What keeps it from what is needed."""


def has_room(bounds: CpuBounds | None, state: CpuLimitState | None) -> bool:
    """Return whether pods can get more CPU."""
    return bounds is not None and state is not None and state.scale.desired < _high(bounds, state)


def record_infeasible(
    state: CpuLimitState, seen: Mapping[str, InfeasibleResize], present: frozenset[str]
) -> CpuLimitState:
    """Return the state with the infeasible resizes that were seen now.

    Args:
        state: The state so far.
        seen: Infeasible resizes by pod UID.
        present: UIDs of the pods that exist; others are dropped.
    """
    known = [item for item in state.infeasible if item.pod in present and item.pod not in seen]
    return replace(state, infeasible=(*known, *seen.values()))


def decide_cpu_limit(
    bounds: CpuBounds,
    limits: PipelineLimits,
    state: CpuLimitState,
    decision: ScalingDecision,
    *,
    settled: bool,
    blocked: str,
    interval: float,
    now: float,
) -> CpuLimitDecision:
    """Return the CPU limit of each pod.

    Args:
        bounds: Bounds of the limit.
        limits: What bounds the pipeline.
        state: The state after the last decision.
        decision: The decision on counts.
        settled: Whether every pod has the limit that was requested last.
        blocked: What else is in progress, for people ("" for nothing).
        interval: Seconds between scrapes.
        now: Unix seconds.
    """
    scale, current, high = state.scale, state.scale.desired, _high(bounds, state)
    verdicts = {item.verdict for item in decision.steps}
    known = decision.fresh and Verdict.UNKNOWN not in verdicts
    bound = known and Verdict.CPU_BOUND in verdicts
    needed = _needed(bounds, limits, decision, growing=bound)
    # Instances that use less than they are granted run within a smaller limit: it falls with their
    # count but is not raised for it.
    desired = max(needed, current + _smallest_instance(limits)) if bound else min(current, needed)
    windows = replace(limits.law, stabilization=STABILIZATION_SECONDS, down_step=1.0)
    if known:
        within = min(max(desired, bounds.start), high)
        scale = control_law.record_demand(scale, within, windows, now)
    reachable = desired if settled else min(desired, current)
    following = control_law.next_count(
        scale if known else replace(scale, demands=()),
        StepLimits(CPU, "", bounds.start, high, bounds.start),
        windows,
        count=current,
        demand=reachable if known else current,
        now=now,
        wait_up=control_law.cooldown(limits.law, decision.state.actuation, interval, interval),
        in_flight=bool(blocked),
        interval=interval,
    ).count
    after = replace(state, scale=control_law.after_change(scale, current, following, now))
    limitation = _limitation(state) if bound and current >= high else None
    return CpuLimitDecision(following, after, _reason(following, state, high, needed), limitation)


def adopt_limit(state: CpuLimitState | None, recorded: int) -> CpuLimitState:
    """Return the state of an earlier process with the recorded limit."""
    known = state if state is not None else CpuLimitState(StepState(desired=recorded))
    return replace(known, scale=replace(known.scale, desired=recorded))


def _high(bounds: CpuBounds, state: CpuLimitState) -> int:
    """Return the most that every pod can have."""
    return max(bounds.start, min([bounds.most, *(item.given for item in state.infeasible)]))


def _needed(
    bounds: CpuBounds, limits: PipelineLimits, decision: ScalingDecision, *, growing: bool
) -> int:
    """Return what the running instances may use.

    Where CPU keeps a step from growing, the instances that its load asks for count.
    """
    decided = {item.step: item for item in decision.steps}
    total = float(bounds.base)
    for step in limits.steps:
        if (item := decided.get(step.name)) is None:
            continue
        count = item.count
        if growing and item.verdict is Verdict.CPU_BOUND:
            count = max(count, min(step.high, max(item.figures.demand, count + 1)))
        total += 1000 * step.cores * count
    return math.ceil(total - 1e-6)


def _smallest_instance(limits: PipelineLimits) -> int:
    """Return the CPU of one more of the smallest instance."""
    cores = min((step.cores for step in limits.steps if step.cores > 0), default=1.0)
    return max(1, math.ceil(1000 * cores))


def _limitation(state: CpuLimitState) -> Limitation | None:
    if not state.infeasible:
        return None
    worst = min(state.infeasible, key=lambda item: item.given)
    return Limitation(
        CPU,
        f"a pod on node {worst.node} can have at most {worst.given}m of CPU ({worst.requested}m "
        "is infeasible there)",
    )


def _reason(millis: int, state: CpuLimitState, high: int, needed: int) -> str:
    before = state.scale.desired
    if before > high:
        rejected = (
            f"{item.requested}m of CPU is infeasible on node {item.node}"
            for item in state.infeasible
        )
        return "; ".join(rejected) or f"at most {high}m of CPU is needed"
    if millis > before:
        return f"CPUBound: the instances in each pod need {needed}m of CPU"
    return f"at most {millis}m of CPU was needed in the last {STABILIZATION_SECONDS:.0f} s"
