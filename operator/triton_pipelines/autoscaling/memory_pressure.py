"""Memory pressure: an instance is removed before the kernel kills the container. Pure.

Growth beyond the count that is left is then held: what an instance really uses is more than what
the resource grants it, so memory would run short again. The hold ends after a quarter of an hour
(one more try), or when the memory limit changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from triton_pipelines.autoscaling.signals import CpuSignal
from triton_pipelines.autoscaling.types import PipelineLimits, ScalingState, StepState

MEMORY_HEADROOM: Final = 0.95
"""Share of the memory limit that may be planned with, as for CPU."""
HOLD_SECONDS: Final = 900.0


def memory_left(limits: PipelineLimits, cpu: CpuSignal) -> float | None:
    """Return the bytes that were left when memory was read; ``None``: unlimited or unknown."""
    if limits.memory_limit is None or cpu.memory_bytes is None:
        return None
    return MEMORY_HEADROOM * limits.memory_limit - cpu.memory_bytes


def must_free_memory(
    limits: PipelineLimits, cpu: CpuSignal, state: StepState, *, slow: float, now: float
) -> bool:
    """Return whether a step has to give up an instance.

    At most one goes per slow window and per reading of memory, so that its effect shows.
    """
    left = memory_left(limits, cpu)
    if left is None or left >= 0:
        return False
    last = state.last_change
    if last is None:
        return True
    return now - last >= slow and cpu.memory_at is not None and cpu.memory_at > last


def hold_growth(state: StepState, limits: PipelineLimits, now: float) -> StepState:
    """Return the state after an instance was removed: growth beyond what is left is held."""
    if limits.memory_limit is None:
        return state
    held = (now, state.desired, limits.memory_limit)
    return replace(state, memory_held=held, cap=min(state.cap or state.desired, state.desired))


def without_ended_holds(state: ScalingState, limits: PipelineLimits, now: float) -> ScalingState:
    """Return the state without the holds that have ended."""
    ended = {
        name: replace(step, memory_held=None)
        for name, step in state.steps.items()
        if step.memory_held is not None
        and (
            now - step.memory_held[0] >= HOLD_SECONDS or step.memory_held[2] != limits.memory_limit
        )
    }
    return replace(state, steps={**state.steps, **ended})


def removal_text(limits: PipelineLimits, cpu: CpuSignal) -> str:
    """Return why an instance is removed."""
    used = (cpu.memory_bytes or 0.0) / 2**20
    limit = (limits.memory_limit or 0.0) / 2**20
    return f"{used:.0f} of {limit:.0f} MiB of memory is used, so one instance is removed"
