"""What bounds growth per pod: CPU, memory, shared memory, the GPU step, the user's maximum. Pure.

Caps bound growth only: a cap below the running count holds the count. Only memory pressure removes
instances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from triton_pipelines.api.wording import counted
from triton_pipelines.autoscaling.memory_pressure import memory_left
from triton_pipelines.autoscaling.signals import CPU_HEADROOM, THROTTLED, CpuSignal
from triton_pipelines.autoscaling.types import CapKind, PipelineLimits, StepLimits

_BUSY_ENOUGH: Final = 0.2
"""Busy instances below which CPU per busy second is not measured: Triton's own CPU would dominate
it."""
_ROOMY: Final = 0.25
"""Share of the CPU limit that is unused (or one instance's cores) from which busy time is not
stretched by contention."""
_OWN_CORE: Final = 0.5
"""Share of its busy time below which an instance has no core of its own: more than two instances
share one, so another instance hardly adds throughput."""
_LEAST_CORES: Final = 0.05
"""Least cores assumed per instance: 20 instances per core exceed any use of this law."""


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step asks for per pod, and how urgently."""

    limits: StepLimits
    """Bounds of the step."""
    count: int
    """Instances that run."""
    steady_instances: int
    """Instances for what arrives."""
    instances: int
    """Instances for what arrives and for the backlog."""
    busy: float
    """Busy instances."""
    wait: float
    """Current wait, seconds."""
    service: float | None
    """Service time, seconds."""
    cpu_share: float | None = None
    """Share of their busy time in which instances had a core; ``None``: not reported."""
    grows_at_once: bool = False
    """Whether it is to get what the other steps do not ask for."""
    added: int = 0
    """Instances that may not have been running when memory was read."""
    memory_held: int | None = None
    """Count beyond which memory ran short; ``None``: growth is not held for it."""

    @property
    def used(self) -> int:
        """Instances that are busy or needed; the CPU of the others is free for other steps."""
        return min(self.count, max(self.instances, math.ceil(self.busy)))


@dataclass(frozen=True, slots=True)
class GrowthCap:
    """The bound on the growth of one step."""

    count: int
    """Most instances."""
    kind: CapKind
    """What sets the bound."""
    text: str
    """What sets the bound, with its numbers, for people."""
    at_once: int = 0
    """Most instances that leave the other steps what they ask for; 0 if the step does not grow at
    once."""


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """The CPU of one pod, in cores."""

    cores: Mapping[str, float]
    """Cores per busy instance, by step."""
    headroom: float
    """Cores that are unused now."""
    share: float
    """Cores for all scaled steps together."""
    other: float
    """Cores that everything else uses."""
    limited: bool
    """Whether there is a CPU limit."""
    throttled: bool
    """Whether the container is throttled by it."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Share of their busy time in which instances had a core, by step that reports it."""

    def is_short(self, step: str) -> bool:
        """Return whether there is no room for one more busy instance of ``step`` now."""
        full = self.limited and self.headroom < self.cores[step]
        return self.throttled or full or self.lacks_cores(step)

    def lacks_cores(self, step: str) -> bool:
        """Return whether busy instances of ``step`` wait for a core most of their time.

        Another instance would then take its core from those that run.
        """
        return self.shares.get(step, 1.0) < _OWN_CORE


def cpu_budget(limits: PipelineLimits, loads: Sequence[StepLoad], cpu: CpuSignal) -> CpuBudget:
    """Split the CPU limit into what others use, what instances may use and what is free.

    CPU per busy second is at most what the resource grants an instance, and at most all the CPU
    used per busy second. The latter counts only while CPU is not short, since contention stretches
    busy time.
    """
    throttled = cpu.throttled > THROTTLED
    granted = {load.limits.name: max(_LEAST_CORES, load.limits.cores) for load in loads}
    shares = {load.limits.name: load.cpu_share for load in loads if load.cpu_share is not None}
    if limits.cpu_limit is None:
        return CpuBudget(
            granted, math.inf, math.inf, 0.0, limited=False, throttled=throttled, shares=shares
        )
    plan = CPU_HEADROOM * limits.cpu_limit
    headroom = plan - cpu.used
    need = sum(granted[load.limits.name] * load.busy for load in loads)
    cores = dict(granted)
    roomy = not throttled and headroom >= min(_ROOMY * limits.cpu_limit, *granted.values())
    busy_enough = sum(load.busy for load in loads) >= _BUSY_ENOUGH
    if cpu.measured and roomy and need > cpu.used and busy_enough:
        cores = {
            name: max(_LEAST_CORES, value * cpu.used / need) for name, value in granted.items()
        }
    other = max(0.0, cpu.used - sum(cores[load.limits.name] * load.busy for load in loads))
    share = max(0.0, plan - other)
    return CpuBudget(
        cores, headroom, share, other, limited=True, throttled=throttled, shares=shares
    )


@dataclass(slots=True)
class _Free:
    """What is left for the steps that have not been given their share yet."""

    cores: float
    memory: float | None
    """Bytes; ``None``: not limited."""
    shared_memory: float | None
    """Bytes; ``None``: not limited."""

    def take(self, load: StepLoad, cap: int, cores: float) -> None:
        """Subtract what the step takes within its cap."""
        taken = min(load.instances, cap)
        self.cores -= max(0, taken - load.used) * cores
        self._take_memory(load.limits, max(0, taken - load.count))

    def take_rest(self, load: StepLoad, cap: int, cores: float) -> int:
        """Subtract what the step takes beyond :meth:`take`, and return its count."""
        taken = min(load.instances, cap)
        room = [float(cap - taken)]
        if math.isfinite(self.cores):
            room.append(self.cores / cores)
        for left, each in (
            (self.memory, load.limits.memory_bytes),
            (self.shared_memory, load.limits.shared_memory_bytes),
        ):
            if left is not None and each:
                room.append(left / each)
        more = max(0, _fits(min(room), 1.0))
        self.cores -= more * cores
        self._take_memory(load.limits, more)
        return taken + more

    def _take_memory(self, step: StepLimits, instances: int) -> None:
        if self.memory is not None:
            self.memory -= instances * step.memory_bytes
        if self.shared_memory is not None:
            self.shared_memory -= instances * step.shared_memory_bytes


def growth_caps(
    limits: PipelineLimits, loads: Sequence[StepLoad], budget: CpuBudget, cpu: CpuSignal
) -> dict[str, GrowthCap]:
    """Return the bound of each step.

    Steps that ask for more share the free CPU and memory. The step with the longest wait per
    CPU-second comes first, but working off its backlog comes after what all steps need steadily.
    What is left then goes to the steps that grow at once.
    """
    result: dict[str, GrowthCap] = {}
    free = _Free(
        budget.share - sum(budget.cores[load.limits.name] * load.used for load in loads),
        _memory_left(limits, loads, cpu),
        _shared_memory_left(limits, loads),
    )
    order = sorted(loads, key=lambda load: (-_urgency(load, budget), load.limits.name))
    for number, load in enumerate(order):
        bounds = list(_bounds(limits, load, order[number + 1 :], budget, free))
        lowest = min(bounds, key=lambda bound: bound.count)
        result[load.limits.name] = GrowthCap(max(1, lowest.count), lowest.kind, lowest.text)
        free.take(load, lowest.count, budget.cores[load.limits.name])
    for load in order:
        if load.grows_at_once:
            name = load.limits.name
            count = free.take_rest(load, result[name].count, budget.cores[name])
            result[name] = replace(result[name], at_once=count)
    return result


def _bounds(
    limits: PipelineLimits,
    load: StepLoad,
    later: Sequence[StepLoad],
    budget: CpuBudget,
    free: _Free,
) -> Iterator[GrowthCap]:
    """Yield every bound on one step; of equal bounds the first counts."""
    step = load.limits
    yield GrowthCap(step.high, CapKind.MAXIMUM, f"instances.max is {step.high}")
    if budget.limited:
        count = load.used + _cpu_growth(load, later, budget, free.cores)
        yield GrowthCap(count, CapKind.CPU, _cpu_text(limits, budget, step))
    elif budget.lacks_cores(step.name):
        yield GrowthCap(load.count, CapKind.CPU, _cpu_text(limits, budget, step))
    if load.memory_held is not None:
        yield GrowthCap(
            load.memory_held,
            CapKind.MEMORY,
            f"memory ran short with {counted(load.memory_held + 1, 'instance')}",
        )
    if free.memory is not None and step.memory_bytes:
        yield GrowthCap(
            load.count + _fits(free.memory, step.memory_bytes),
            CapKind.MEMORY,
            f"only {_mib(max(0.0, free.memory))} of {_mib(limits.memory_limit)} of memory is left",
        )
    if free.shared_memory is not None and step.shared_memory_bytes:
        yield GrowthCap(
            load.count + _fits(free.shared_memory, step.shared_memory_bytes),
            CapKind.SHARED_MEMORY,
            f"the shared memory of {_mib(limits.shared_memory)} has no room for more instances",
        )
    if limits.gpu_capacity is not None and load.service:
        yield GrowthCap(
            math.ceil(limits.gpu_capacity * load.service / limits.law.target),
            CapKind.GPU_CAPACITY,
            f"the GPU step can process at most {limits.gpu_capacity:.0f} requests/s",
        )


def _cpu_growth(load: StepLoad, later: Sequence[StepLoad], budget: CpuBudget, free: float) -> int:
    """Return by how many instances CPU lets the step grow beyond those used."""
    cores = budget.cores[load.limits.name]
    claimed = sum(
        budget.cores[other.limits.name] * max(0, other.steady_instances - other.used)
        for other in later
    )
    more = max(
        _fits(free - claimed, cores), min(load.steady_instances - load.used, _fits(free, cores))
    )
    return min(more, load.count - load.used) if budget.is_short(load.limits.name) else more


def _urgency(load: StepLoad, budget: CpuBudget) -> float:
    """Return the wait per CPU-second of a request."""
    return load.wait / (budget.cores[load.limits.name] * load.service) if load.service else 0.0


def _memory_left(limits: PipelineLimits, loads: Sequence[StepLoad], cpu: CpuSignal) -> float | None:
    """Return the bytes that are left, without those promised since memory was read."""
    left = memory_left(limits, cpu)
    if left is None:
        return None
    return left - sum(load.added * load.limits.memory_bytes for load in loads)


def _shared_memory_left(limits: PipelineLimits, loads: Sequence[StepLoad]) -> float | None:
    if limits.shared_memory is None:
        return None
    return (
        limits.shared_memory
        - limits.shared_memory_base
        - sum(load.count * load.limits.shared_memory_bytes for load in loads)
    )


def _fits(left: float, each: float) -> int:
    return math.floor(left / each + 1e-9)


def _cpu_text(limits: PipelineLimits, budget: CpuBudget, step: StepLimits) -> str:
    if budget.throttled:
        return f"the container is throttled at its CPU limit of {limits.cpu_limit:g} cores"
    if budget.lacks_cores(step.name):
        return (
            "busy instances share too few CPU cores and run only "
            f"{budget.shares[step.name]:.0%} of the time"
        )
    return (
        f"only {max(0.0, budget.headroom):.1f} of {limits.cpu_limit:g} CPU cores are unused, "
        f"and each busy instance needs {budget.cores[step.name]:.2g}"
    )


def _mib(size: float | None) -> str:
    return "unlimited" if size is None else f"{size / 2**20:.0f} MiB"
