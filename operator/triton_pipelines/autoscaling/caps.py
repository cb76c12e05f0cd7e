"""What bounds growth: CPU, memory, shared memory, what the GPU step can take, the user's bounds; all per pod. Pure.

Caps bound growth only: where one falls below a count that runs, the count is held. Memory alone may take instances away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.autoscaling.signals import CPU_HEADROOM, THROTTLED, CpuSignal
from triton_pipelines.autoscaling.types import PipelineLimits, StepLimits

MEMORY_HEADROOM = 0.95  # share of the memory limit that is planned with, as for CPU
_BUSY_ENOUGH = 0.2  # busy instances below which CPU per busy second is not judged: Triton's own CPU would swamp it
_ROOMY = 0.25  # share of the CPU limit that is unused, or one instance's cores: then busy time is not stretched by contention
_LEAST_CORES = (
    0.05  # no step is taken to need less: 20 instances a core are beyond any use of this law
)


@dataclass(frozen=True, slots=True)
class Load:
    """What one step asks for and how urgently, per pod. ``steady``: for what arrives, ``wanted``: with what drains its backlog too;
    ``busy``: busy instances; ``wait``, ``service``: seconds."""

    limits: StepLimits
    count: int
    steady: int
    wanted: int
    busy: float
    wait: float
    service: float | None

    @property
    def kept(self) -> int:
        """Instances that are used, or needed: those beyond stand idle and leave their CPU to other steps."""
        return min(self.count, max(self.wanted, math.ceil(self.busy)))


@dataclass(frozen=True, slots=True)
class Cap:
    """The bound on one step's count, and what sets it in words."""

    count: int
    by: str


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU budget of one pod, cores: per busy instance of each step, not used now (``headroom``), ``share`` of all
    scaled steps together, and used by others."""

    cores: Mapping[str, float]
    headroom: float
    share: float
    other: float
    limited: bool
    throttled: bool

    def short(self, step: str) -> bool:
        """Whether CPU leaves no room for one more busy instance of ``step`` now, or is throttled."""
        return self.throttled or (self.limited and self.headroom < self.cores[step])


def cpu_budget(limits: PipelineLimits, loads: Sequence[Load], cpu: CpuSignal) -> Cpu:
    """Split the CPU limit: what runs beside the steps, what their instances may use, what is free.

    CPU per busy second is at most what the resource grants an instance, and at most all the CPU used per busy second; the second
    is believed only while CPU is not short: contention stretches busy time.
    """
    throttled = cpu.throttled > THROTTLED
    granted = {load.limits.name: max(_LEAST_CORES, load.limits.cores) for load in loads}
    if limits.cpu_limit is None:
        return Cpu(granted, math.inf, math.inf, 0.0, limited=False, throttled=throttled)
    plan = CPU_HEADROOM * limits.cpu_limit
    headroom = plan - cpu.used
    need = sum(granted[load.limits.name] * load.busy for load in loads)
    cores = dict(granted)
    roomy = not throttled and headroom >= min(_ROOMY * limits.cpu_limit, *granted.values())
    if (
        cpu.measured
        and roomy
        and need > cpu.used
        and sum(load.busy for load in loads) >= _BUSY_ENOUGH
    ):
        cores = {
            name: max(_LEAST_CORES, value * cpu.used / need) for name, value in granted.items()
        }
    other = max(0.0, cpu.used - sum(cores[load.limits.name] * load.busy for load in loads))
    return Cpu(cores, headroom, max(0.0, plan - other), other, limited=True, throttled=throttled)


def caps(
    limits: PipelineLimits, loads: Sequence[Load], budget: Cpu, cpu: CpuSignal
) -> dict[str, Cap]:
    """The bound of each step. Steps that want more share free CPU and memory: the longer wait per CPU-second first, but what drains a
    backlog comes after what all of them need for good."""
    result: dict[str, Cap] = {}
    free = budget.share - sum(budget.cores[load.limits.name] * load.kept for load in loads)
    memory, shared = _memory_left(limits, cpu), _shared_left(limits, loads)
    order = sorted(loads, key=lambda load: (-_urgency(load, budget), load.limits.name))
    for number, load in enumerate(order):
        step, cores = load.limits, budget.cores[load.limits.name]
        bounds = [(step.high, f"instances.max {step.high}")]
        if budget.limited:
            claimed = sum(
                budget.cores[other.limits.name] * max(0, other.steady - other.kept)
                for other in order[number + 1 :]
            )
            more = max(
                _fits(free - claimed, cores), min(load.steady - load.kept, _fits(free, cores))
            )
            more = min(more, load.count - load.kept) if budget.short(step.name) else more
            bounds.append((load.kept + more, _cpu_words(limits, budget, step)))
        if memory is not None and step.memory_bytes:
            bounds.append(
                (
                    load.count + _fits(memory, step.memory_bytes),
                    f"memory: {_mib(memory)} left of {_mib(limits.memory_limit)}",
                )
            )
        if shared is not None and step.shared_memory_bytes:
            bounds.append(
                (
                    load.count + _fits(shared, step.shared_memory_bytes),
                    f"shared memory of {_mib(limits.shared_memory)}",
                )
            )
        if limits.gpu_capacity is not None and load.service:
            most = math.ceil(limits.gpu_capacity * load.service / limits.law.target)
            bounds.append((most, f"the GPU step's {limits.gpu_capacity:.0f} requests/s"))
        count, by = min(bounds, key=lambda bound: bound[0])
        result[step.name] = Cap(max(1, count), by)
        grown = max(0, min(load.wanted, count) - load.count)
        free -= max(0, min(load.wanted, count) - load.kept) * cores
        memory = None if memory is None else memory - grown * step.memory_bytes
        shared = None if shared is None else shared - grown * step.shared_memory_bytes
    return result


def _urgency(load: Load, budget: Cpu) -> float:
    """Wait per CPU-second of a request."""
    return load.wait / (budget.cores[load.limits.name] * load.service) if load.service else 0.0


def too_much_memory(limits: PipelineLimits, cpu: CpuSignal) -> bool:
    """Whether a pod is so close to its memory limit that an instance has to go before the kernel takes the whole container."""
    left = _memory_left(limits, cpu)
    return left is not None and left < 0


def _memory_left(limits: PipelineLimits, cpu: CpuSignal) -> float | None:
    if limits.memory_limit is None or cpu.memory is None:
        return None
    return MEMORY_HEADROOM * limits.memory_limit - cpu.memory


def _shared_left(limits: PipelineLimits, loads: Sequence[Load]) -> float | None:
    if limits.shared_memory is None:
        return None
    return (
        limits.shared_memory
        - limits.shared_memory_base
        - sum(load.count * load.limits.shared_memory_bytes for load in loads)
    )


def _fits(left: float, each: float) -> int:
    return math.floor(left / each + 1e-9)


def _cpu_words(limits: PipelineLimits, budget: Cpu, step: StepLimits) -> str:
    if budget.throttled:
        return f"CPU: throttled at a limit of {limits.cpu_limit:g} cores"
    return f"CPU: limit {limits.cpu_limit:g} cores, {max(0.0, budget.headroom):.1f} unused, {budget.cores[step.name]:.2g} per busy instance"


def _mib(size: float | None) -> str:
    return "unlimited" if size is None else f"{size / 2**20:.0f} MiB"
