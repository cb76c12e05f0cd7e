"""What a scaling decision is made of: limits and observed figures in, a verdict and wanted counts out, and what is remembered.

Everything here is a value; the clock is passed in as Unix seconds. The rules are those of decide.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What limits a pipeline: reasons of conditions and of the printer column, never condition types."""

    TOKENIZER_BOUND = "TokenizerBound"
    STEP_BOUND = "StepBound"
    CPU_BOUND = "CPUBound"
    GPU_BOUND = "GPUBound"
    CPU_CONTENDED = "CPUContended"
    BALANCED = "Balanced"
    OVERPROVISIONED = "Overprovisioned"
    IDLE = "Idle"
    NO_PROGRESS = "NoProgress"
    BATCHING_DEFEATED = "BatchingDefeated"
    UNKNOWN = "Unknown"


class Fallback(StrEnum):
    """What happens to counts when metrics stay away."""

    RECENT_MAX = "RecentMax"
    HOLD = "Hold"
    INITIAL = "Initial"


@dataclass(frozen=True, slots=True)
class Law:
    """Constants of the control law (facts: autoscaling.md §5); seconds and shares (0–1). From ``spec.scaling``."""

    target: float = 0.70
    up_threshold: float = 0.80
    fast: float = 12.0
    slow: float = 60.0
    cooldown_up: float | None = None  # None: max(8 s, measured actuation + one scrape)
    stabilization: float = 180.0
    down_step: float = 0.33
    drain: float = 10.0
    stale_after: float = 60.0
    fallback: Fallback = Fallback.RECENT_MAX
    flaps_per_hour: int = 6


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one scaled step. ``cores`` and ``memory_bytes``: what one more instance may use at most (resourcesPerInstance)."""

    name: str
    model_name: str
    low: int
    high: int
    initial: int
    cores: float = 1.0
    memory_bytes: float = 0.0
    tokenizer: bool = True


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """What bounds a pipeline's pods: the scaled steps, the GPU steps that they feed, and one container's CPU and memory.

    ``cpu_limit`` (cores), ``memory_limit``, ``shared_memory`` (bytes): of one container, as applied (the pod's status after a
    resize); ``None``: unlimited or unknown. ``gpu_steps``: model names of the steps on the GPU, in the order of the data.
    """

    steps: tuple[StepLimits, ...]
    gpu_steps: tuple[str, ...] = ()
    cpu_limit: float | None = None
    memory_limit: float | None = None
    shared_memory: float | None = None
    law: Law = Law()


@dataclass(frozen=True, slots=True)
class Action:
    """A count change that happened or would have: time, step, from, to, why."""

    at: float
    step: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What the law remembers of a step, beside its desired count."""

    desired: int
    service: float | None = None  # E, seconds of one instance per request
    wants: tuple[tuple[float, int], ...] = ()  # (time, wanted count) over the stabilization window
    counts: tuple[tuple[float, int], ...] = ()  # (time, count) over the last 15 minutes
    last_up: float | None = None
    turns: tuple[float, ...] = ()  # times of direction changes in the last hour
    direction: int = 0  # sign of the last change
    knee: tuple[float, int, float] | None = None  # (time, count, GPU-step throughput) before the last growth
    frozen_at: int | None = None  # count above which growth bought nothing


@dataclass(frozen=True, slots=True)
class Memory:
    """What survives a restart: per step, the last actions (newest first, at most 5), and measured actuation seconds."""

    steps: Mapping[str, StepMemory] = field(default_factory=dict)
    history: tuple[Action, ...] = ()
    actuation: float | None = None
    last_fresh: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers that led to a verdict, for one step over all pods: what status and metrics show.

    ``arrivals``, ``throughput``: requests/s; ``busy``: share of the instances' time (0–1); ``wait``: seconds, live (Little);
    ``service``: E; ``offered``: Erlang; ``pending``: requests; ``batch``: requests per execution; ``cap`` and ``cap_by``: the
    bound on growth and what sets it.
    """

    arrivals: float = 0.0
    throughput: float = 0.0
    busy: float = 0.0
    wait: float = 0.0
    service: float | None = None
    offered: float = 0.0
    pending: float = 0.0
    batch: float | None = None
    cap: int = 0
    cap_by: str = ""


@dataclass(frozen=True, slots=True)
class StepDecision:
    """Wanted count of one step and why. ``count`` equals the present one where nothing is to be done."""

    step: str
    count: int
    verdict: Verdict
    reason: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision for a pipeline: per step, the verdict over all (the printer column), and the next memory.

    ``limited``: in words, what keeps counts from what the load asks for (``ScalingLimited``), "" where nothing does;
    ``gpu_busy``: share of the time in which the GPU step computed (0–1), ``None``: unknown; ``fresh``: whether metrics were usable.
    """

    steps: tuple[StepDecision, ...]
    verdict: Verdict
    memory: Memory
    limited: str = ""
    gpu_busy: float | None = None
    fresh: bool = True
    message: str = ""
