"""The number of pods: more where counts cannot help, fewer once the load has long asked for fewer. Pure; times are Unix seconds.

Pods are slow (a minute to load) and dear (each holds a GPU), so they are the last to grow and the first to go: counts, then a pod's CPU,
then pods; down in reverse. Without usable metrics the number stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.autoscaling import control_law
from triton_pipelines.autoscaling.types import (
    Decision,
    PipelineLimits,
    PodsMemory,
    StepDecision,
    StepLimits,
    StepMemory,
    Verdict,
)

# Counts must have been of no help for so long (seconds) until a pod is added, and so long lies between two changes.
PRESSED_SECONDS: Final = 60.0
# The number falls only to what sufficed all this time (seconds), and by no less than a tenth: HPA's own window and tolerance.
STABILIZATION_SECONDS: Final = 300.0
TOLERANCE: Final = 0.10
# Busy share of the GPU step that is aimed at: below the 92 % from which it counts as full, above what batches leave unused.
GPU_AIM: Final = 0.75

SATURATED: Final = frozenset({Verdict.TOKENIZER_BOUND, Verdict.STEP_BOUND, Verdict.CPU_BOUND})
# Where requests wait and none completes, or the GPU step runs them one by one, nobody can tell what pods would bring.
_UNTELLING: Final = frozenset({Verdict.UNKNOWN, Verdict.NO_PROGRESS, Verdict.BATCHING_INEFFECTIVE})


@dataclass(frozen=True, slots=True)
class PodsTurn:
    """The wanted number, what to remember, why it changed, and what keeps it from what the load asks for ("" nothing)."""

    count: int
    memory: PodsMemory
    reason: str = ""
    limited: str = ""


def pressure(decision: Decision, limits: PipelineLimits, *, cpu_may_grow: bool) -> str:
    """Why counts cannot help any more, in words; "" where they can. ``cpu_may_grow``: pods can get more CPU first."""
    if decision.verdict in _UNTELLING:
        return ""
    if decision.verdict is Verdict.GPU_BOUND:
        return "GPUBound: the GPU step is full in every pod"
    for step, item in _steps(decision, limits):
        if (
            item.verdict in SATURATED
            and item.count >= _most(step, item, decision)
            and not (cpu_may_grow and item.verdict is Verdict.CPU_BOUND)
        ):
            by = (
                "its last growth bought nothing" if _frozen(item, decision) else item.figures.cap_by
            )
            return f"{item.verdict}: {item.step} stands at {item.count} in every pod ({by})"
    return ""


def asked(decision: Decision, limits: PipelineLimits, ready: int) -> float | None:
    """Pods that the load asks for, as a share of the ``ready`` ones (autoscaling.md §4.5); ``None``: nobody can tell."""
    if not decision.fresh or ready < 1 or decision.verdict in _UNTELLING:
        return None
    shares = [0.0]
    for step, item in _steps(decision, limits):
        if item.verdict in _UNTELLING:
            return None
        shares.append(
            item.figures.offered / (limits.law.target * _most(step, item, decision) * ready)
        )
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
    memory: PodsMemory,
    decision: Decision,
    *,
    ready: int,
    cpu_may_grow: bool,
    blocked: str,
    interval: float,
    now: float,
) -> PodsTurn:
    """The number of pods. ``bounds``: the user's; ``ready``: pods that serve; ``blocked``: what else is under way ("" nothing): one
    actuator at a time; ``interval``: between scrapes, seconds."""
    scale, count = memory.scale, memory.scale.desired
    share = asked(decision, limits, ready)
    why = pressure(decision, limits, cpu_may_grow=cpu_may_grow) if share is not None else ""
    since = memory.pressed if memory.pressed is not None and memory.pressed <= now else now
    pressed = since if why else None
    wanted = (
        count
        if share is None or abs(share - 1.0) <= TOLERANCE
        else max(1, math.ceil(ready * share - 1e-9))
    )
    windows = replace(limits.law, stabilization=STABILIZATION_SECONDS)
    if share is not None:
        scale = control_law.remember_want(
            scale, min(max(wanted, bounds.low), bounds.high), windows, now
        )
    ripe = pressed is not None and now - pressed >= PRESSED_SECONDS
    # A pod that is still on its way has not yet shown what it brings.
    want = min(wanted, count) if not ripe or ready != count else wanted
    turn = control_law.move(
        scale if share is not None else replace(scale, wants=()),
        bounds,
        windows,
        count=count,
        want=want,
        now=now,
        wait_up=PRESSED_SECONDS,
        # What the load does to those that are left shows only then; an addition waits for as long in any case.
        in_flight=bool(blocked)
        or (scale.last_change is not None and 0 <= now - scale.last_change < PRESSED_SECONDS),
        interval=interval,
    )
    moved = control_law.moved(scale, count, turn.count, now)
    after = PodsMemory(moved, max(wanted, bounds.low), None if turn.count != count else pressed)
    return PodsTurn(
        turn.count,
        after,
        _reason(turn.count, memory, bounds, wanted, why),
        _limited(turn.count, bounds, wanted, why, ripe, blocked),
    )


def shrinking(memory: PodsMemory | None) -> bool:
    """Whether the load asks for fewer pods than there are: they go before their instances do."""
    return memory is not None and 0 < memory.wanted < memory.scale.desired


def adopted(memory: PodsMemory | None, recorded: int) -> PodsMemory:
    """Memory of an earlier process; the number that is recorded holds."""
    known = memory if memory is not None else PodsMemory(StepMemory(desired=recorded))
    return replace(known, scale=replace(known.scale, desired=recorded))


def _steps(decision: Decision, limits: PipelineLimits) -> Iterator[tuple[StepLimits, StepDecision]]:
    decided = {item.step: item for item in decision.steps}
    return ((step, decided[step.name]) for step in limits.steps if step.name in decided)


def _most(step: StepLimits, item: StepDecision, decision: Decision) -> int:
    """Instances that one pod can run at most, and no fewer than it runs."""
    return max(
        1,
        item.count
        if _frozen(item, decision)
        else max(item.count, min(step.high, item.figures.cap)),
    )


def _frozen(item: StepDecision, decision: Decision) -> bool:
    step = decision.memory.steps.get(item.step)
    return step is not None and step.frozen is not None


def _reason(count: int, memory: PodsMemory, bounds: StepLimits, wanted: int, why: str) -> str:
    before = memory.scale.desired
    if not bounds.low <= before <= bounds.high:
        return f"scaling.pods allows {bounds.low} to {bounds.high}"
    if count > before:
        return f"{why}; the load asks for {wanted}"
    return f"at most {count} were needed in the last {STABILIZATION_SECONDS:.0f} s"


def _limited(
    count: int, bounds: StepLimits, wanted: int, why: str, ripe: bool, blocked: str
) -> str:
    if not ripe or wanted <= count:
        return ""
    if count >= bounds.high:
        return f"pods: the load asks for {wanted}, bounded to {count} by scaling.pods.max ({why})"
    return f"pods: the load asks for {wanted}; {blocked or 'those on their way come first'}"
