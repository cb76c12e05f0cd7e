"""What a scaling decision is made of: limits and observed figures in, a verdict and wanted counts out, and what is remembered.

Everything here is a value; the clock is passed in as Unix seconds. The rules are those of decide.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

REASON_MAX: Final = 256  # characters of a reason in the history


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
    BATCHING_INEFFECTIVE = "BatchingIneffective"
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
    cooldown_up: float | None = (
        None  # None: until the first scrape after it is in force; 8 s until measured
    )
    stabilization: float = 180.0
    down_step: float = 0.33
    drain: float = 10.0
    stale_after: float = 60.0
    fallback: Fallback = Fallback.RECENT_MAX
    flaps_per_hour: int = 6


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one scaled step, per pod.

    ``cores`` and ``memory_bytes``: what one more instance may use at most (resourcesPerInstance); ``shared_memory_bytes``: what the
    renderer reserves of /dev/shm for one instance. 0: not bounded by it.
    """

    name: str
    model_name: str
    low: int
    high: int
    initial: int
    cores: float = 1.0
    memory_bytes: float = 0.0
    shared_memory_bytes: float = 0.0
    tokenizer: bool = True


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """What bounds a pipeline's pods: the scaled steps in the order of the data, the GPU steps that they feed, and one container's CPU and memory.

    ``cpu_limit`` (cores), ``memory_limit``, ``shared_memory`` (bytes): of one container, as applied (the pod's status after a
    resize); ``None``: unlimited or unknown. ``shared_memory_base``: what of it no instance may count on. ``gpu_steps``: model names
    of the steps that they feed, on the GPU as a rule, in the order of the data; ``on_cpu``: those of them that run on the CPU, where no
    GPU's figures speak for them; ``gpu_instances``: their instances per pod (1 where absent); ``gpu_batches``:
    their max_batch_size (batching is not judged where absent or < 2). ``gpu_capacity``: requests/s that one pod's GPU step carries,
    from the tuner's profile; ``None``: not known. ``revision``: what was measured of another revision is forgotten. ``active``: False
    in mode Advisory: counts are recommended from those that run, never taken for granted. ``own_requests``: requests/s with which the
    operator itself asks each pod whether it answers; they alone do not make a step anything but idle. ``pods_first``: pods are about to
    go, and counts do not fall before them.
    """

    steps: tuple[StepLimits, ...]
    gpu_steps: tuple[str, ...] = ()
    on_cpu: frozenset[str] = frozenset()
    cpu_limit: float | None = None
    memory_limit: float | None = None
    shared_memory: float | None = None
    shared_memory_base: float = 0.0
    gpu_instances: Mapping[str, int] = field(default_factory=dict)
    gpu_batches: Mapping[str, int] = field(default_factory=dict)
    gpu_capacity: float | None = None
    revision: str = ""
    active: bool = True
    own_requests: float = 0.0
    pods_first: bool = False
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
class Growth:
    """The last growth, while the step stays saturated: what it must have raised to be followed by another (knee.py).

    ``throughput``: requests/s of the GPU step before it; ``service``: E then; ``cores``: the CPU limit then.
    """

    at: float
    before: int
    after: int
    throughput: float
    service: float
    cores: float | None = None


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What the law remembers of a step, beside its desired count.

    ``service``: E, seconds of one instance per request; ``wants``: (time, highest wanted count) in slots over the stabilization
    window; ``counts``: (time, count) where it changed, over the last 15 minutes; ``turns``: times of direction changes in the last
    hour, ``direction``: sign of the last change; ``growth``: judged by the knee; ``frozen``: (time, the growth that bought nothing);
    ``stalled``: since when requests wait and none completes; ``cap``: the last known bound on growth.
    """

    desired: int
    service: float | None = None
    wants: tuple[tuple[float, int], ...] = ()
    counts: tuple[tuple[float, int], ...] = ()
    last_up: float | None = None
    last_change: float | None = None
    turns: tuple[float, ...] = ()
    direction: int = 0
    growth: Growth | None = None
    frozen: tuple[float, Growth] | None = None
    stalled: float | None = None
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class PodsMemory:
    """What is remembered of the number of pods: ``scale`` as for the count of a step, ``wanted``: what the load asked for last, before
    windows, the least that is allowed at least; ``pressed``: since when counts cannot help."""

    scale: StepMemory
    wanted: int = 0
    pressed: float | None = None


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A pod whose node can never give it the CPU that was ``asked`` for, and what it was ``given`` before; thousandths of a core."""

    pod: str
    node: str
    asked: int
    given: int


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """What is remembered of the CPU limit of each pod: ``scale`` as for the count of a step, in thousandths of a core; ``infeasible``:
    pods (by uid) that cannot have more."""

    scale: StepMemory
    infeasible: tuple[Infeasible, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """What survives a restart: per step, the last actions (newest first, at most 5), and measured actuation seconds.

    ``actuation`` is set by who carries decisions out; ``last_fresh``: time of the last usable sample; ``blind``: since when there is
    none; ``revision``: of the pipeline whose figures these are. ``pods``, ``cpu``: ``None`` where scaling does not own them.
    """

    steps: Mapping[str, StepMemory] = field(default_factory=dict)
    history: tuple[Action, ...] = ()
    actuation: float | None = None
    last_fresh: float | None = None
    blind: float | None = None
    revision: str = ""
    pods: PodsMemory | None = None
    cpu: CpuMemory | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers that led to a verdict, for one step over all pods: what status and metrics show.

    ``arrivals``, ``throughput``: requests/s; ``busy``: share of the instances' time (0–1); ``wait``: seconds, live (Little);
    ``service``: E; ``offered``: Erlang; ``pending``: requests; ``batch``: requests per execution; ``wanted``: instances per pod that
    the load asks for, whatever bounds them; ``cap`` and ``cap_by``: the bound on growth and what sets it.
    """

    arrivals: float = 0.0
    throughput: float = 0.0
    busy: float = 0.0
    wait: float = 0.0
    service: float | None = None
    offered: float = 0.0
    pending: float = 0.0
    batch: float | None = None
    wanted: int = 0
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


def cut(text: str, most: int) -> str:
    """The text in at most so many characters, with "…" where it goes on."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
