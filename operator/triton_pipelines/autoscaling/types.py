"""The values of a scaling decision: limits and state in, verdicts, counts and the next state out.

The clock is passed in as Unix seconds. The rules are in :mod:`.decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from triton_pipelines.autoscaling.metrics.samples import MetricsProblem

REASON_MAX: Final = 256
"""Characters of a reason in the history."""
HISTORY_MAX: Final = 5
"""Changes that the history holds."""


class Verdict(StrEnum):
    """What limits a pipeline or one of its steps.

    Used as reason of conditions and in the printer column, never as condition type.
    """

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
    """What happens to counts during a metrics outage."""

    RECENT_MAX = "RecentMax"
    HOLD = "Hold"
    INITIAL = "Initial"


class VerdictCause(StrEnum):
    """Why a step has its verdict, where a verdict has several causes."""

    THROTTLED = "Throttled"
    OTHER_THREADS = "OtherThreads"
    GROWTH_PAUSED = "GrowthPaused"
    GROWTH_LIMITED = "GrowthLimited"
    FREEING_MEMORY = "FreeingMemory"


class CapKind(StrEnum):
    """What sets the bound on the growth of a step."""

    MAXIMUM = "Maximum"
    """``instances.max`` of the step."""
    CPU = "CPU"
    MEMORY = "Memory"
    SHARED_MEMORY = "SharedMemory"
    GPU_CAPACITY = "GPUCapacity"
    """The requests/s that the GPU step can take."""


@dataclass(frozen=True, slots=True)
class ControlLaw:
    """Constants of the control law, from ``spec.scaling`` (facts: autoscaling.md §5).

    Times are seconds, shares are 0–1.
    """

    target: float = 0.70
    """Busy share of the instances to aim at."""
    up_threshold: float = 0.80
    """Busy share from which counts grow."""
    fast: float = 12.0
    """Fast window."""
    slow: float = 60.0
    """Slow window."""
    cooldown_up: float | None = None
    """Time from one growth to the next. ``None``: until the first scrape after the growth took
    effect; 8 s until that has been measured."""
    stabilization: float = 180.0
    """A count falls only to the highest demand of this window."""
    down_step: float = 0.33
    """Share of the count that is removed at once at most."""
    drain: float = 10.0
    """Time in which a backlog is to be worked off."""
    stale_after: float = 60.0
    """Time without metrics after which ``fallback`` applies."""
    fallback: Fallback = Fallback.RECENT_MAX
    """What happens to counts during a metrics outage."""
    flaps_per_hour: int = 6
    """Reversals within an hour after which counts no longer fall."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one scaled step, per pod. A bound of 0 does not apply."""

    name: str
    """Name of the step."""
    model_name: str
    """Name of its Triton model."""
    low: int
    """Fewest instances."""
    high: int
    """Most instances."""
    initial: int
    """Instances that a new pod starts with."""
    cores: float = 1.0
    """CPU cores that one more instance may use at most (``resourcesPerInstance``)."""
    memory_bytes: float = 0.0
    """Memory that one more instance keeps at most."""
    shared_memory_bytes: float = 0.0
    """Share of /dev/shm that the renderer reserves for one instance."""
    tokenizer: bool = True
    """Whether the step is the tokenizer."""
    grows_under_load: bool = True
    """Whether Triton completes a growth while requests wait. Otherwise, it makes no further change
    until none waits (docs/decisions/0042-growth-under-load.md)."""


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """What bounds the pods of a pipeline."""

    steps: tuple[StepLimits, ...]
    """The scaled steps, in the order of the data."""
    gpu_steps: tuple[str, ...] = ()
    """Model names of the steps that they feed, in the order of the data; usually on the GPU."""
    on_cpu: frozenset[str] = frozenset()
    """Those of ``gpu_steps`` that run on the CPU, where GPU utilization says nothing about them."""
    cpu_limit: float | None = None
    """Cores of one container as applied (the pod's status after a resize). ``None``: unlimited or
    unknown; the same holds for the next two."""
    memory_limit: float | None = None
    """Memory limit of one container, bytes."""
    shared_memory: float | None = None
    """Shared memory (/dev/shm) of one container, bytes."""
    shared_memory_base: float = 0.0
    """Part of ``shared_memory`` that is not available to instances, bytes."""
    gpu_instances: Mapping[str, int] = field(default_factory=dict)
    """Instances per pod of each GPU step; 1 where absent."""
    gpu_batches: Mapping[str, int] = field(default_factory=dict)
    """``max_batch_size`` of each GPU step; batching is not assessed where absent or below 2."""
    gpu_capacity: float | None = None
    """Requests/s that the GPU step of one pod sustains, from the tuner's profile; ``None``:
    unknown."""
    revision: str = ""
    """Revision of the pods; measurements of another revision are discarded."""
    active: bool = True
    """``False`` in mode Advisory: counts are recommended starting from those that run."""
    probe_rate: float = 0.0
    """Test inferences per second that the operator itself sends to each pod. A step that gets no
    other requests is idle."""
    actuation: float | None = None
    """Seconds that a change takes, for use until one has been measured; ``None``: unknown."""
    hold_counts_for_pods: bool = False
    """Whether pods are about to be removed; counts do not fall before that."""
    law: ControlLaw = ControlLaw()
    """Constants of the control law."""


@dataclass(frozen=True, slots=True)
class CountChange:
    """A change of a count that was made or recommended."""

    at: float
    """Unix seconds."""
    step: str
    """Name of the step, or what else was changed (pods, CPU)."""
    before: int
    """Count before."""
    after: int
    """Count after."""
    reason: str
    """Why, for people."""


@dataclass(frozen=True, slots=True)
class InstanceGrowth:
    """The last growth of a saturated step, and what it must have raised to allow another.

    See :mod:`.diminishing_returns`.
    """

    at: float
    """Unix seconds."""
    before: int
    """Instances before."""
    after: int
    """Instances after."""
    throughput: float
    """Requests/s of the GPU step before the growth."""
    service: float
    """Service time before the growth, seconds."""
    cores: float | None = None
    """CPU limit at that time, cores."""


@dataclass(frozen=True, slots=True)
class StepState:
    """What the control law remembers of a step. Times are Unix seconds."""

    desired: int
    """Desired count."""
    service: float | None = None
    """Service time: seconds of one instance per request."""
    demands: tuple[tuple[float, int], ...] = ()
    """(time, highest demand) in slots over the stabilization window."""
    counts: tuple[tuple[float, int], ...] = ()
    """(time, count) where the count changed, over the last 15 minutes."""
    last_up: float | None = None
    """Time of the last growth."""
    last_change: float | None = None
    """Time of the last change."""
    reversals: tuple[float, ...] = ()
    """Times of changes of direction within the last hour."""
    direction: int = 0
    """Sign of the last change."""
    growth: InstanceGrowth | None = None
    """The last growth, until it has been assessed."""
    growth_held: tuple[float, InstanceGrowth] | None = None
    """Since when growth is held, and the growth that did not raise throughput."""
    stalled_since: float | None = None
    """Since when requests wait or are rejected, and none completes."""
    cap: int | None = None
    """Last known bound on growth."""
    memory_held: tuple[float, int, float] | None = None
    """Since when growth is held because memory ran short, the count left, and the limit (bytes)."""


@dataclass(frozen=True, slots=True)
class PodCountState:
    """What is remembered of the number of pods."""

    scale: StepState
    """As for the count of a step."""
    demand: int = 0
    """Pods that the load last asked for, before windows; at least the allowed minimum."""
    pressed_since: float | None = None
    """Unix seconds since when counts cannot help."""


@dataclass(frozen=True, slots=True)
class InfeasibleResize:
    """A pod whose node can never give it the CPU that was requested; thousandths of a core."""

    pod: str
    """UID of the pod."""
    node: str
    """Name of the node."""
    requested: int
    """CPU limit that was requested."""
    given: int
    """CPU limit in force."""


@dataclass(frozen=True, slots=True)
class CpuLimitState:
    """What is remembered of the CPU limit of each pod."""

    scale: StepState
    """As for the count of a step, in thousandths of a core."""
    infeasible: tuple[InfeasibleResize, ...] = ()
    """Pods that cannot have more."""


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What scaling remembers of a pipeline across a restart."""

    steps: Mapping[str, StepState] = field(default_factory=dict)
    """State by step."""
    history: tuple[CountChange, ...] = ()
    """Last changes, newest first, at most :data:`HISTORY_MAX`."""
    actuation: float | None = None
    """Measured seconds that a change takes; set by the actuator."""
    last_fresh: float | None = None
    """Unix seconds of the last usable sample."""
    outage_since: float | None = None
    """Unix seconds since when there is no usable sample."""
    revision: str = ""
    """Revision that the measurements are of."""
    pods: PodCountState | None = None
    """``None`` where scaling does not own the number of pods."""
    cpu: CpuLimitState | None = None
    """``None`` where scaling does not own the CPU limit."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The numbers behind a verdict on one step over all pods, for status and metrics."""

    arrivals: float = 0.0
    """Requests/s that arrive."""
    busy: float = 0.0
    """Busy share of the instances (0–1)."""
    wait: float = 0.0
    """Current wait in the worst pod, seconds (Little's law)."""
    service: float | None = None
    """Service time, seconds."""
    offered: float = 0.0
    """Offered load, Erlang."""
    demand: int = 0
    """Instances per pod that the load asks for, whatever bounds them."""
    cap: int = 0
    """Bound on growth."""
    cap_reason: str = ""
    """What sets the bound, for people."""


@dataclass(frozen=True, slots=True)
class StepDecision:
    """The count of one step and why."""

    step: str
    """Name of the step."""
    count: int
    """Desired count; the present one where nothing is to be done."""
    verdict: Verdict
    """What limits the step."""
    reason: str
    """The verdict with its numbers, for people."""
    figures: StepFigures
    """The numbers."""
    cause: VerdictCause | None = None
    """The cause that the reason explains; ``None`` if the verdict says it all."""


@dataclass(frozen=True, slots=True)
class Limitation:
    """What keeps a count from what the load asks for."""

    subject: str
    """Step, or what else is limited (pods, CPU)."""
    text: str
    """Why, for people."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """One decision for a pipeline."""

    steps: tuple[StepDecision, ...]
    """Decision of each step."""
    verdict: Verdict
    """Verdict on the pipeline (the printer column)."""
    state: ScalingState
    """The next state."""
    limitations: tuple[Limitation, ...] = ()
    """What keeps counts from what the load asks for (``ScalingLimited``)."""
    gpu_busy: float | None = None
    """Share of the time in which the GPU step computed (0–1); ``None``: unknown."""
    problem: MetricsProblem | None = None
    """Why metrics are not, or not all, usable; ``None`` where they are."""
    reasons: tuple[str, ...] = ()
    """Reasons of the steps with the pipeline's verdict, for people; their figures change often."""
    notes: tuple[str, ...] = ()
    """What else readers should know, for people; without figures that change often."""

    @property
    def message(self) -> str:
        """Reasons and notes, for people."""
        return "; ".join(part for part in dict.fromkeys((*self.reasons, *self.notes)) if part)

    @property
    def topics(self) -> tuple[str, ...]:
        """What the message is about apart from verdicts and figures, for comparison."""
        causes = (f"{item.step}:{item.cause.value}" for item in self.steps if item.cause)
        return (*causes, *self.notes)

    @property
    def fresh(self) -> bool:
        """Whether metrics of all ready pods were usable."""
        return self.problem is None

    @property
    def limited(self) -> str:
        """The limitations, for people; "" where there are none."""
        return "; ".join(f"{item.subject}: {item.text}" for item in self.limitations)

    @property
    def limited_subjects(self) -> tuple[str, ...]:
        """What the limitations are about, each once for every limitation."""
        return tuple(item.subject for item in self.limitations)
