"""The CPU limit of each pod, where it may grow in place: to what the instances need, no further than for the most of them. Pure.

Thousandths of a core throughout; times are Unix seconds. It grows only where CPU is what limits (CPUBound), and falls once fewer instances
have long run: what is given back may be somebody else's by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from triton_pipelines.autoscaling import control_law
from triton_pipelines.autoscaling.pod_count import STABILIZATION_SECONDS
from triton_pipelines.autoscaling.types import (
    CpuMemory,
    Decision,
    Infeasible,
    PipelineLimits,
    StepLimits,
    StepMemory,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class CpuBounds:
    """``start``: the limit that pods begin with; ``most``: what instances.max of every step need; ``base``: of both, what no scaled step uses."""

    start: int
    most: int
    base: int


@dataclass(frozen=True, slots=True)
class CpuTurn:
    """The wanted limit, what to remember, why it changed, and what keeps it from what is needed ("" nothing)."""

    millis: int
    memory: CpuMemory
    reason: str = ""
    limited: str = ""


def room(bounds: CpuBounds | None, memory: CpuMemory | None) -> bool:
    """Whether pods can still get more CPU."""
    return (
        bounds is not None and memory is not None and memory.scale.desired < _high(bounds, memory)
    )


def noted(memory: CpuMemory, seen: Mapping[str, Infeasible], present: frozenset[str]) -> CpuMemory:
    """Memory with the pods that were ``seen`` to be unable to have more (by uid), without those that are no longer ``present``."""
    known = [item for item in memory.infeasible if item.pod in present and item.pod not in seen]
    return replace(memory, infeasible=(*known, *seen.values()))


def decide_cpu(
    bounds: CpuBounds,
    limits: PipelineLimits,
    memory: CpuMemory,
    decision: Decision,
    *,
    settled: bool,
    blocked: str,
    interval: float,
    now: float,
) -> CpuTurn:
    """The CPU limit of each pod. ``settled``: every pod has what was asked for last; ``blocked``: what else is under way ("" nothing);
    ``interval``: between scrapes, seconds."""
    scale, current, high = memory.scale, memory.scale.desired, _high(bounds, memory)
    known = decision.fresh and not any(item.verdict is Verdict.UNKNOWN for item in decision.steps)
    bound = known and any(item.verdict is Verdict.CPU_BOUND for item in decision.steps)
    needed = _needed(bounds, limits, decision, growing=bound)
    # Instances that use less than they are granted run within a smaller limit; it falls with their count, but is not raised for it.
    wanted = max(needed, current + _least(limits)) if bound else min(current, needed)
    windows = replace(limits.law, stabilization=STABILIZATION_SECONDS, down_step=1.0)
    if known:
        scale = control_law.remember_want(scale, min(max(wanted, bounds.start), high), windows, now)
    turn = control_law.move(
        scale if known else replace(scale, wants=()),
        StepLimits("cpu", "", bounds.start, high, bounds.start),
        windows,
        count=current,
        want=(wanted if settled else min(wanted, current)) if known else current,
        now=now,
        wait_up=control_law.cooldown(limits.law, decision.memory.actuation, interval, interval),
        in_flight=bool(blocked),
        interval=interval,
    )
    after = replace(memory, scale=control_law.moved(scale, current, turn.count, now))
    limited = ""
    if bound and memory.infeasible and current >= high:
        worst = min(memory.infeasible, key=lambda item: item.given)
        limited = f"cpu: a pod on node {worst.node} cannot have more than {worst.given}m ({worst.asked}m is refused there)"
    return CpuTurn(turn.count, after, _reason(turn.count, memory, high, needed), limited)


def adopted(memory: CpuMemory | None, recorded: int) -> CpuMemory:
    """Memory of an earlier process; the limit that is recorded holds."""
    known = memory if memory is not None else CpuMemory(StepMemory(desired=recorded))
    return replace(known, scale=replace(known.scale, desired=recorded))


def _high(bounds: CpuBounds, memory: CpuMemory) -> int:
    """The most that every pod can have."""
    return max(bounds.start, min([bounds.most, *(item.given for item in memory.infeasible)]))


def _needed(bounds: CpuBounds, limits: PipelineLimits, decision: Decision, *, growing: bool) -> int:
    """What the instances may use: those that run, and where CPU keeps them from growing those that the load asks for."""
    decided = {item.step: item for item in decision.steps}
    total = float(bounds.base)
    for step in limits.steps:
        if (item := decided.get(step.name)) is None:
            continue
        count = item.count
        if growing and item.verdict is Verdict.CPU_BOUND:
            count = max(count, min(step.high, max(item.figures.wanted, count + 1)))
        total += 1000 * step.cores * count
    return math.ceil(total - 1e-6)


def _least(limits: PipelineLimits) -> int:
    """One more of the smallest instance."""
    return max(
        1,
        math.ceil(1000 * min((step.cores for step in limits.steps if step.cores > 0), default=1.0)),
    )


def _reason(millis: int, memory: CpuMemory, high: int, needed: int) -> str:
    before = memory.scale.desired
    if before > high:
        return (
            "; ".join(f"{item.asked}m is refused on node {item.node}" for item in memory.infeasible)
            or f"at most {high}m are needed"
        )
    if millis > before:
        return f"CPUBound: instances need {needed}m in each pod"
    return f"at most {millis}m were needed in the last {STABILIZATION_SECONDS:.0f} s"
