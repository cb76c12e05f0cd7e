"""What one sample says about a pipeline: scaled steps, GPU steps and the pods' CPU. Pure.

Values are computed per pod first and then combined: sums for demand, the worst pod for saturation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.autoscaling.metrics.rates import (
    InstanceRange,
    ModelSeries,
    Rates,
    impossible_values,
    total,
)
from triton_pipelines.autoscaling.metrics.samples import (
    FRESH_INTERVALS,
    PipelineSample,
    PodUsage,
)
from triton_pipelines.autoscaling.types import ControlLaw, PipelineLimits

SATURATED_STEP: Final = 0.92
"""Busy share of a GPU step from which it counts as busy all the time."""
SATURATED_GPU: Final = 0.95
"""Utilization of a GPU from which it counts as busy all the time."""
THROTTLED: Final = 0.10
"""Share of throttled CFS periods from which CPU counts as short."""
CPU_HEADROOM: Final = 0.95
"""Share of the CPU limit that may be planned with."""
BATCHED: Final = 1.15
"""Requests per execution below which a queueing GPU step does not batch."""
_FAST_INTERVALS: Final = 2.2
"""Scrape intervals that the fast window holds at least."""
_PROBLEMS_MAX: Final = 5
"""Pods whose problems are reported."""


@dataclass(frozen=True, slots=True)
class PodSignals:
    """A pod whose samples can be trusted."""

    series: Mapping[str, ModelSeries]
    """Samples by model."""
    age: float
    """Age of the oldest of the models' newest samples, seconds."""
    usage: PodUsage | None
    """CPU, memory and GPU."""


@dataclass(frozen=True, slots=True)
class TrustedPods:
    """The ready pods with fresh and plausible samples."""

    pods: Mapping[str, PodSignals]
    """Signals by pod name."""
    problem: str = ""
    """What is wrong with the other pods, for people; "" for nothing."""
    stale: bool = False
    """Whether no pod can be trusted because samples are too old."""


@dataclass(frozen=True, slots=True)
class StepSignal:
    """Signals of one CPU step. Rates are sums over pods; ``None``: not known yet."""

    slow: Rates | None
    """Over the slow window."""
    possible: Rates | None
    """Over the slow window, with no more busy time than the instances had."""
    fast: Rates | None
    """Over the fast window."""
    last: Rates | None
    """Over the last interval."""
    before: Rates | None
    """Over a fast window that ends before the last interval."""
    busy: Mapping[str, float]
    """Busy instances by pod."""
    pending: Mapping[str, float]
    """Queued requests by pod."""

    @property
    def waiting(self) -> float:
        """Queued requests in all pods."""
        return sum(self.pending.values())

    @property
    def cpu_share(self) -> float | None:
        """Share of busy time with a core over the last interval; ``None``: not reported."""
        return self.last.cpu_share if self.last is not None else None

    @property
    def covered(self) -> bool:
        """Whether every pod's history covers the slow window without a counter reset."""
        return self.slow is not None and self.slow.covered


@dataclass(frozen=True, slots=True)
class GpuSignal:
    """The steps that the scaled ones feed, usually on the GPU; the worst of steps and pods."""

    model: str = ""
    """The step that limits most."""
    busy: float | None = None
    """Its busy share of its instances' time, in the busiest pod."""
    pending: float = 0.0
    """Requests that are queued for it, over the fast window."""
    full: bool = False
    """Whether it is busy nearly all the time, by its own counters or the GPU's, and more requests
    are queued than its instances take at once. A step that batches is busy long before it is full:
    its batches grow with the load."""
    on_cpu: bool = False
    """Whether it runs on the CPU, where GPU utilization says nothing about it."""
    gpu_busy: float | None = None
    """Largest busy share of the steps that run on a GPU."""
    throughput: float | None = None
    """Requests/s of the last step over the fast window."""
    utilization: float | None = None
    """Utilization of the GPU."""
    unbatched: str = ""
    """The first step that queues and does not batch."""
    batch: float | None = None
    """Requests per execution of ``unbatched``."""


@dataclass(frozen=True, slots=True)
class CpuSignal:
    """CPU and memory of the pod that uses most."""

    used: float
    """Cores."""
    measured: bool
    """``False`` where ``used`` is an estimate."""
    throttled: float
    """Share of throttled CFS periods (0–1)."""
    memory_bytes: float | None
    """Working set."""
    memory_at: float | None = None
    """Unix seconds of the oldest sample behind ``memory_bytes``."""
    memory_pod: str = ""
    """The pod that ``memory_bytes`` is of."""


def fast_window(law: ControlLaw, interval: float) -> float:
    """Return the fast window in seconds, at least 2.2 scrape intervals."""
    return max(law.fast, _FAST_INTERVALS * interval)


def slow_window(law: ControlLaw, interval: float) -> float:
    """Return the slow window in seconds, at least the fast window."""
    return max(law.slow, fast_window(law, interval))


def trusted_pods(
    sample: PipelineSample, models: Sequence[str], ready: Sequence[str], now: float
) -> TrustedPods:
    """Return the ready pods whose newest scrape is recent and whose counters are possible."""
    limit = FRESH_INTERVALS * sample.interval
    trusted: dict[str, PodSignals] = {}
    problems: list[str] = []
    stale = False
    for name in sorted(ready):
        history = sample.pods.get(name)
        series: dict[str, ModelSeries] = {}
        problem = "no samples"
        if history is not None and not (problem := impossible_values(history, models)):
            series = {model: ModelSeries(history, model) for model in models}
            problem = _missing_models(series)
        newest = [one.newest for one in series.values() if one.newest is not None]
        age = now - min(newest, default=now)
        if history is None or problem:
            problems.append(f"pod {name}: {problem}")
        elif not -limit <= age <= limit:
            stale = True
            problems.append(f"pod {name}: the newest scrape is more than {limit:.0f} s old")
        else:
            trusted[name] = PodSignals(series, age, history.usage)
    return TrustedPods(trusted, "; ".join(problems[:_PROBLEMS_MAX]), stale and not trusted)


def _missing_models(series: Mapping[str, ModelSeries]) -> str:
    """Return which models have no samples, for people; "" for none."""
    missing = [model for model, one in series.items() if one.newest is None]
    return f"no samples of model {', '.join(missing)}" if missing else ""


def step_signal(
    pods: Mapping[str, PodSignals],
    model: str,
    law: ControlLaw,
    interval: float,
    ran: Mapping[str, Callable[[float, float], InstanceRange]],
) -> StepSignal:
    """Return the signals of one CPU step.

    Args:
        pods: The trusted pods.
        model: Model of the step.
        law: Constants of the control law.
        interval: Seconds between scrapes.
        ran: By pod, the instances between two Unix times.
    """
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
    """Return the signals of the fed steps."""
    known = [
        pod.usage.gpu
        for pod in pods.values()
        if pod.usage is not None and pod.usage.gpu is not None
    ]
    utilization = max(known, default=None)
    found = GpuSignal(utilization=utilization)
    unbatched, batch = "", None
    throughput: float | None = None
    on_gpu: list[float] = []
    for model in limits.gpu_steps:
        signal = _fed_step(pods, model, limits, interval, utilization)
        throughput = signal.throughput
        if signal.busy is not None and not signal.on_cpu:
            on_gpu.append(signal.busy)
        if not found.model or (signal.full, signal.busy or 0.0) > (found.full, found.busy or 0.0):
            found = signal
        if not unbatched and (size := _ineffective_batch(pods, model, limits, interval)):
            unbatched, batch = model, size
    return replace(
        found,
        gpu_busy=max(on_gpu, default=None),
        throughput=throughput,
        unbatched=unbatched,
        batch=batch,
    )


def _fed_step(
    pods: Mapping[str, PodSignals],
    model: str,
    limits: PipelineLimits,
    interval: float,
    utilization: float | None,
) -> GpuSignal:
    """Return the signals of one fed step."""
    seconds = fast_window(limits.law, interval)
    on_cpu = model in limits.on_cpu
    instances = max(1, limits.gpu_instances.get(model, 1))
    all_series = [pod.series[model] for pod in pods.values()]
    each = [one.rates(seconds) for one in all_series]
    fast = total(each)
    busy = max((item.busy / instances for item in each if item is not None), default=None)
    queue = sum(one.mean_pending(seconds) or 0.0 for one in all_series)
    batch = (fast.batch if fast is not None else None) or 1.0
    at_once = max(1.0, batch) * instances * len(pods)
    gpu_saturated = utilization is not None and utilization >= SATURATED_GPU and not on_cpu
    saturated = (busy is not None and busy >= SATURATED_STEP) or gpu_saturated
    return GpuSignal(
        model,
        busy,
        queue,
        saturated and queue > at_once,
        on_cpu,
        throughput=fast.throughput if fast is not None else None,
        utilization=utilization,
    )


def _ineffective_batch(
    pods: Mapping[str, PodSignals], model: str, limits: PipelineLimits, interval: float
) -> float | None:
    """Return the requests per execution of a step that queues and does not batch, else ``None``."""
    seconds = slow_window(limits.law, interval)
    instances = max(1, limits.gpu_instances.get(model, 1))
    all_series = [pod.series[model] for pod in pods.values()]
    slow = total(one.rates(seconds) for one in all_series)
    queued = max((one.mean_pending(seconds) or 0.0 for one in all_series), default=0.0)
    may_batch = limits.gpu_batches.get(model, 0) > 1
    if not may_batch or slow is None or slow.batch is None or queued < 2 * instances:
        return None
    return slow.batch if slow.batch < BATCHED else None


def cpu_signal(pods: Mapping[str, PodSignals], estimated: float) -> CpuSignal:
    """Return CPU and memory of the pod that uses most.

    Args:
        pods: The trusted pods.
        estimated: Cores to assume where no usage is known.
    """
    usages = [pod.usage for pod in pods.values() if pod.usage is not None]
    used = [usage.cpu_cores for usage in usages if usage.cpu_cores is not None]
    throttled = [usage.throttled for usage in usages if usage.throttled is not None]
    memory = [
        (pod.usage.memory_bytes, pod.usage.at, name)
        for name, pod in pods.items()
        if pod.usage is not None and pod.usage.memory_bytes is not None
    ]
    memory_bytes, memory_at, memory_pod = max(memory, default=(None, None, ""))
    return CpuSignal(
        used=max(used, default=estimated),
        measured=bool(used),
        throttled=max(throttled, default=0.0),
        memory_bytes=memory_bytes,
        memory_at=memory_at,
        memory_pod=memory_pod,
    )
