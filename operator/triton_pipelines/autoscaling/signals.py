"""What one sample says of a pipeline: the scaled steps, the GPU steps and the pods' CPU. Pure.

Per pod first, together after: sums for demand, the worst pod for saturation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.autoscaling.metrics.rates import (
    InstanceRange,
    ModelSeries,
    Rates,
    impossible_values,
    total,
)
from triton_pipelines.autoscaling.metrics.samples import FRESH_INTERVALS, PipelineSample, PodUsage
from triton_pipelines.autoscaling.types import ControlLaw, PipelineLimits

SATURATED_STEP = 0.92  # busy share of a GPU step, and
SATURATED_GPU = 0.95  # utilisation of a GPU, from which it counts as busy all the time
THROTTLED = 0.10  # share of throttled CFS periods from which CPU counts as short
CPU_HEADROOM = 0.95  # share of the CPU limit that is planned with
BATCHED = 1.15  # requests per execution below which a queueing GPU step does not batch
_FAST_INTERVALS = 2.2  # the fast window holds at least two intervals


@dataclass(frozen=True, slots=True)
class PodSignals:
    """A pod that can speak: its series by model, the age of the oldest newest sample in seconds, its usage."""

    series: Mapping[str, ModelSeries]
    age: float
    usage: PodUsage | None


@dataclass(frozen=True, slots=True)
class TrustedPods:
    """The pods that can speak: those with fresh, possible samples; ``trouble`` says in words what the others lack ("" none)."""

    pods: Mapping[str, PodSignals]
    problem: str = ""
    stale: bool = False


@dataclass(frozen=True, slots=True)
class StepSignal:
    """One CPU step. ``slow``, ``fast``, ``last``: rates summed over the pods (``None``: not known yet), ``before``: over a fast window that
    ends before the last interval; ``possible``: those of the slow window, with no more busy time than instances had; ``busy``, ``pending``: by
    pod."""

    slow: Rates | None
    possible: Rates | None
    fast: Rates | None
    last: Rates | None
    before: Rates | None
    busy: Mapping[str, float]
    pending: Mapping[str, float]

    @property
    def waiting(self) -> float:
        """Requests that wait, in all pods."""
        return sum(self.pending.values())

    @property
    def covered(self) -> bool:
        """Whether every pod's history covers the slow window without a reset."""
        return self.slow is not None and self.slow.covered


@dataclass(frozen=True, slots=True)
class GpuSignal:
    """The steps that the scaled ones feed, on the GPU as a rule; together, the worst of steps and pods.

    ``model``: the narrowest step; ``busy``: its busy share of its instances' time, in the pod where it is highest; ``pending``:
    requests that wait before it, over the fast window; ``full``: busy nearly all the time, by its own account or the GPU's, and more
    waits than its instances take at once: a step that batches is busy long before it is full, its batches grow with the load.
    ``on_cpu``: the narrowest step runs on the CPU, and no GPU has a say in it; ``gpu_busy``: the largest busy share of those that do
    run on a GPU. ``throughput``: requests/s of the last step over the fast window; ``utilisation``: of the GPU itself; ``batch``:
    requests per execution of ``unbatched``, the first step that waits and does not batch.
    """

    model: str = ""
    busy: float | None = None
    pending: float = 0.0
    full: bool = False
    on_cpu: bool = False
    gpu_busy: float | None = None
    throughput: float | None = None
    utilization: float | None = None
    unbatched: str = ""
    batch: float | None = None


@dataclass(frozen=True, slots=True)
class CpuSignal:
    """CPU of the worst pod, cores. ``used`` may be an estimate (``measured`` False); ``throttled``: share of periods."""

    used: float
    measured: bool
    throttled: float
    memory_bytes: float | None


def fast_window(law: ControlLaw, interval: float) -> float:
    """The fast window in seconds: as set, never below 2.2 scrape intervals."""
    return max(law.fast, _FAST_INTERVALS * interval)


def slow_window(law: ControlLaw, interval: float) -> float:
    """The slow window in seconds, never shorter than the fast one."""
    return max(law.slow, fast_window(law, interval))


def trusted_pods(
    sample: PipelineSample, models: Sequence[str], ready: Sequence[str], now: float
) -> TrustedPods:
    """The ready pods of ``sample`` whose newest scrape is recent and whose counters are possible."""
    limit = FRESH_INTERVALS * sample.interval
    good: dict[str, PodSignals] = {}
    said: list[str] = []
    stale = False
    for name in sorted(ready):
        history = sample.pods.get(name)
        if history is None:
            said.append(f"pod {name}: no samples")
            continue
        wrong = impossible_values(history, models)
        if wrong:
            said.append(f"pod {name}: {wrong}")
            continue
        series = {model: ModelSeries(history, model) for model in models}
        lacking = [model for model, one in series.items() if one.newest is None]
        oldest = min((one.newest for one in series.values() if one.newest is not None), default=now)
        if lacking:
            said.append(f"pod {name}: no samples of model {', '.join(lacking)}")
        elif not -limit <= now - oldest <= limit:
            stale = True
            said.append(
                f"pod {name}: the newest scrape is {now - oldest:.0f} s old, more than {limit:.0f} s"
            )
        else:
            good[name] = PodSignals(series, now - oldest, history.usage)
    return TrustedPods(good, "; ".join(said[:5]), stale and not good)


def step_signal(
    pods: Mapping[str, PodSignals],
    model: str,
    law: ControlLaw,
    interval: float,
    ran: Mapping[str, Callable[[float, float], InstanceRange]],
) -> StepSignal:
    """Signals of one CPU step over the given pods. ``ran``: by pod, the instances between two Unix times."""
    each = {name: pod.series[model] for name, pod in pods.items()}
    fast_seconds = fast_window(law, interval)
    slow_seconds = slow_window(law, interval)
    fast = {name: one.rates(fast_seconds) for name, one in each.items()}
    return StepSignal(
        slow=total(one.rates(slow_seconds) for one in each.values()),
        possible=total(one.bounded(ran[name]).rates(slow_seconds) for name, one in each.items()),
        fast=total(fast.values()),
        last=total(one.rates(None) for one in each.values()),
        before=total(one.rates(fast_seconds, skip=1) for one in each.values()),
        busy={name: item.busy for name, item in fast.items() if item is not None},
        pending={name: one.pending or 0.0 for name, one in each.items()},
    )


def gpu_signal(
    pods: Mapping[str, PodSignals], limits: PipelineLimits, interval: float
) -> GpuSignal:
    """Signals of the fed steps over the given pods."""
    fast_seconds, slow_seconds = (
        fast_window(limits.law, interval),
        slow_window(limits.law, interval),
    )
    known = [
        pod.usage.gpu
        for pod in pods.values()
        if pod.usage is not None and pod.usage.gpu is not None
    ]
    utilisation = max(known, default=None)
    found = GpuSignal(utilization=utilisation)
    unbatched, batch = "", None
    throughput: float | None = None
    on_gpu: list[float] = []
    for model in limits.gpu_steps:
        on_cpu = model in limits.on_cpu
        instances = max(1, limits.gpu_instances.get(model, 1))
        all_series = [pod.series[model] for pod in pods.values()]
        each = [one.rates(fast_seconds) for one in all_series]
        fast, slow = total(each), total(one.rates(slow_seconds) for one in all_series)
        throughput = fast.throughput if fast is not None else None
        busy = max((item.busy / instances for item in each if item is not None), default=None)
        queue = sum(one.mean_pending(fast_seconds) or 0.0 for one in all_series)
        at_once = (
            max(1.0, (fast.batch if fast is not None else None) or 1.0) * instances * len(pods)
        )
        if busy is not None and not on_cpu:
            on_gpu.append(busy)
        driven = utilisation is not None and utilisation >= SATURATED_GPU and not on_cpu
        hot = (busy is not None and busy >= SATURATED_STEP) or driven
        signal = GpuSignal(
            model, busy, queue, hot and queue > at_once, on_cpu, utilization=utilisation
        )
        if not found.model or (signal.full, busy or 0.0) > (found.full, found.busy or 0.0):
            found = signal
        waits = max((one.mean_pending(slow_seconds) or 0.0 for one in all_series), default=0.0)
        may_batch = limits.gpu_batches.get(model, 0) > 1
        if (
            not unbatched
            and may_batch
            and slow is not None
            and slow.batch is not None
            and slow.batch < BATCHED
            and waits >= 2 * instances
        ):
            unbatched, batch = model, slow.batch
    return replace(
        found,
        gpu_busy=max(on_gpu, default=None),
        throughput=throughput,
        unbatched=unbatched,
        batch=batch,
    )


def cpu_signal(pods: Mapping[str, PodSignals], estimated: float) -> CpuSignal:
    """CPU and memory of the pod that uses most. ``estimated``: cores to assume where no usage is known."""
    usages = [pod.usage for pod in pods.values() if pod.usage is not None]
    used = [usage.cpu_cores for usage in usages if usage.cpu_cores is not None]
    return CpuSignal(
        used=max(used, default=estimated),
        measured=bool(used),
        throttled=max(
            (usage.throttled for usage in usages if usage.throttled is not None), default=0.0
        ),
        memory_bytes=max(
            (usage.memory_bytes for usage in usages if usage.memory_bytes is not None), default=None
        ),
    )
