"""What limits a pipeline, and the text that says so. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from triton_pipelines.api.wording import counted
from triton_pipelines.autoscaling.caps import CpuBudget, GrowthCap
from triton_pipelines.autoscaling.control_law import StepDemand
from triton_pipelines.autoscaling.signals import GpuSignal
from triton_pipelines.autoscaling.types import (
    CapKind,
    ControlLaw,
    Limitation,
    PipelineLimits,
    StepLimits,
    Verdict,
    VerdictCause,
)

# The pipeline's verdict is that of its steps which needs attention first.
_ORDER: Final = (
    Verdict.UNKNOWN,
    Verdict.NO_PROGRESS,
    Verdict.GPU_BOUND,
    Verdict.BATCHING_INEFFECTIVE,
    Verdict.CPU_BOUND,
    Verdict.TOKENIZER_BOUND,
    Verdict.STEP_BOUND,
    Verdict.CPU_CONTENDED,
    Verdict.OVERPROVISIONED,
    Verdict.BALANCED,
    Verdict.IDLE,
)
# GPU utilization and the busy time of the GPU step contradict each other if one of them is high and
# the other one is low.
_HIGH: Final = 0.9
_LOW: Final = 0.5
_STALL_WINDOWS: Final = 2
"""Slow windows without a completion while requests wait."""


@dataclass(frozen=True, slots=True)
class VerdictInputs:
    """What the verdict on one step is made from."""

    step: StepLimits
    """Bounds of the step."""
    demand: StepDemand
    """What the step needs."""
    count: int
    """Present count per pod."""
    pods: int
    """Trusted pods."""
    pending: float
    """Queued requests."""
    highest_demand: int
    """Highest demand of the stabilization window."""
    cap: GrowthCap
    """Bound on growth."""
    idle: bool
    """Whether only the operator's own test inferences arrive."""
    stalled_seconds: float
    """How long requests have waited or have been rejected without a completion."""
    growth_held: bool
    """Whether the last growth did not raise throughput."""

    @property
    def is_capped_by_cpu(self) -> bool:
        """Whether CPU keeps the step from growing."""
        is_capped = self.cap.kind is CapKind.CPU and self.cap.count <= self.count
        return is_capped and self.count <= self.demand.instances


def is_gpu_bound(gpu: GpuSignal, pending: float) -> bool:
    """Return whether the fed step (usually on the GPU) is full and has the longer queue."""
    return gpu.full and gpu.pending > pending


def is_batching_ineffective(gpu: GpuSignal, pending: float) -> bool:
    """Return whether requests queue before a GPU step that runs them one by one."""
    return bool(gpu.unbatched) and gpu.pending > pending


def makes_no_progress(stalled_seconds: float, slow: float) -> bool:
    """Return whether no request has completed for two slow windows, although some arrived."""
    return stalled_seconds >= _STALL_WINDOWS * slow


def step_verdict(inputs: VerdictInputs, gpu: GpuSignal, cpu: CpuBudget, slow: float) -> Verdict:
    """Return the verdict on one step by the decision table (autoscaling.md §4.3).

    Args:
        inputs: What is known of the step.
        gpu: Signals of the GPU steps.
        cpu: CPU of the pod.
        slow: Slow window, seconds.
    """
    if makes_no_progress(inputs.stalled_seconds, slow):
        return Verdict.NO_PROGRESS
    if is_gpu_bound(gpu, inputs.pending):
        return Verdict.STEP_BOUND if gpu.on_cpu else Verdict.GPU_BOUND
    if is_batching_ineffective(gpu, inputs.pending):
        return Verdict.BATCHING_INEFFECTIVE
    if inputs.demand.saturated:
        return _saturated_verdict(inputs, cpu)
    if inputs.idle:
        return Verdict.IDLE
    if inputs.demand.service is None:
        return Verdict.UNKNOWN
    own = cpu.cores[inputs.step.name] * inputs.demand.offered / max(1, inputs.pods)
    if cpu.throttled or (cpu.is_short(inputs.step.name) and cpu.other > own):
        return Verdict.CPU_CONTENDED
    overprovisioned = inputs.highest_demand < inputs.count
    return Verdict.OVERPROVISIONED if overprovisioned else Verdict.BALANCED


def _saturated_verdict(inputs: VerdictInputs, cpu: CpuBudget) -> Verdict:
    if cpu.is_short(inputs.step.name) or inputs.is_capped_by_cpu:
        return Verdict.CPU_BOUND
    return Verdict.TOKENIZER_BOUND if inputs.step.tokenizer else Verdict.STEP_BOUND


def pipeline_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on the pipeline from those on its steps."""
    return min(verdicts, key=_ORDER.index, default=Verdict.UNKNOWN)


def verdict_cause(
    inputs: VerdictInputs, found: Verdict, gpu: GpuSignal, cpu: CpuBudget
) -> VerdictCause | None:
    """Return the cause of the verdict, where the verdict has several."""
    if found is Verdict.CPU_CONTENDED:
        return VerdictCause.THROTTLED if cpu.throttled else VerdictCause.OTHER_THREADS
    if found is Verdict.CPU_BOUND:
        return VerdictCause.GROWTH_LIMITED
    is_saturated = found in (Verdict.TOKENIZER_BOUND, Verdict.STEP_BOUND)
    if is_saturated and inputs.growth_held and not is_gpu_bound(gpu, inputs.pending):
        return VerdictCause.GROWTH_PAUSED
    return None


# --- text -----------------------------------------------------------------------------------------


def reason_text(
    inputs: VerdictInputs,
    found: Verdict,
    cause: VerdictCause | None,
    gpu: GpuSignal,
    cpu: CpuBudget,
    law: ControlLaw,
) -> str:
    """Return the verdict's numbers and cause as text."""
    is_gpu_verdict = found in (Verdict.GPU_BOUND, Verdict.STEP_BOUND)
    if is_gpu_verdict and is_gpu_bound(gpu, inputs.pending):
        return _gpu_bound_text(inputs, gpu)
    if found is Verdict.BATCHING_INEFFECTIVE:
        return _unbatched_text(gpu)
    if found in _TEXTS_WITHOUT_LOAD:
        return _TEXTS_WITHOUT_LOAD[found](inputs)
    addition = _addition(inputs, found, cause, cpu, law)
    return "; ".join(part for part in (_load_text(inputs, law), addition) if part)


def _addition(
    inputs: VerdictInputs,
    found: Verdict,
    cause: VerdictCause | None,
    cpu: CpuBudget,
    law: ControlLaw,
) -> str:
    """Return what the text says in addition to the load."""
    if cause is VerdictCause.THROTTLED:
        return "the container is throttled at its CPU limit"
    if cause is VerdictCause.OTHER_THREADS:
        return (
            f"other threads in the pod use {cpu.other:.1f} cores; check the thread counts "
            "of other steps (intra_op_thread_count, OMP_NUM_THREADS, RAYON_NUM_THREADS)"
        )
    if cause is VerdictCause.GROWTH_LIMITED:
        return f"there is no room for another instance, because {inputs.cap.text}"
    if cause is VerdictCause.GROWTH_PAUSED:
        return (
            "the count is not increased, because the last increase did not raise the "
            "throughput of the GPU step"
        )
    if found is Verdict.OVERPROVISIONED:
        needed = counted(inputs.highest_demand, "instance was", "instances were")
        return f"at most {needed} needed in the last {law.stabilization:.0f} s"
    return ""


def _requests(pending: float) -> str:
    return counted(round(pending), "request is", "requests are")


def _no_progress_text(inputs: VerdictInputs) -> str:
    seconds = f"{inputs.stalled_seconds:.0f} s"
    found = (
        f"{_requests(inputs.pending)} queued for step '{inputs.step.name}', but none has "
        f"completed for {seconds}"
        if inputs.pending
        else f"step '{inputs.step.name}' has only rejected requests for {seconds}"
    )
    return f"{found}, so the instances might have died; check the pod's log"


def _idle_text(inputs: VerdictInputs) -> str:
    del inputs
    return "no requests arrive, and none are queued"


def _unknown_text(inputs: VerdictInputs) -> str:
    return (
        f"step '{inputs.step.name}' has not completed a request yet, so its service time is unknown"
    )


_TEXTS_WITHOUT_LOAD: Final[Mapping[Verdict, Callable[[VerdictInputs], str]]] = {
    Verdict.NO_PROGRESS: _no_progress_text,
    Verdict.IDLE: _idle_text,
    Verdict.UNKNOWN: _unknown_text,
}


def _gpu_bound_text(inputs: VerdictInputs, gpu: GpuSignal) -> str:
    name = inputs.step.name
    return (
        f"{_gpu_text(gpu)}; {_requests(gpu.pending)} queued for step '{gpu.model}' and "
        f"{inputs.pending:.0f} for step '{name}', so more {name} instances would not help"
    )


def _unbatched_text(gpu: GpuSignal) -> str:
    return (
        f"step '{gpu.unbatched}' runs {gpu.batch:.2f} requests per execution while "
        f"{counted(round(gpu.pending), 'request is', 'requests are')} queued, because their "
        "shapes differ or dynamic batching is disabled; check spec.tokenizer.padding and "
        "the step's dynamicBatching"
    )


def limitation(inputs: VerdictInputs, found: Verdict, gpu: GpuSignal) -> Limitation | None:
    """Return what keeps the step from the count its load asks for; ``None`` where nothing does."""
    needed, count = inputs.demand.instances, inputs.count
    if needed <= count:
        return None
    text = ""
    if inputs.growth_held:
        text = f"the count is held at {count}, because the last increase did not raise throughput"
    elif is_gpu_bound(gpu, inputs.pending) or found in (
        Verdict.BATCHING_INEFFECTIVE,
        Verdict.NO_PROGRESS,
    ):
        text = f"the count is held at {count} ({found})"
    elif needed > inputs.cap.count:
        text = f"the count is limited to {max(count, inputs.cap.count)}, because {inputs.cap.text}"
    if not text:
        return None
    return Limitation(inputs.step.name, f"the load needs {needed} instances, but {text}")


def gpu_note(gpu: GpuSignal, limits: PipelineLimits) -> str:
    """Return what readers should know of the GPU's numbers besides the verdict; "" for nothing.

    The text has no figures, so that it stays the same while they change.
    """
    if limits.on_cpu.issuperset(limits.gpu_steps):
        return ""
    if gpu.utilization is None:
        return (
            "GPUMetricsUnavailable: GPU metrics are not available, so scaling uses the busy time "
            "and the queue of the GPU step"
        )
    if gpu.busy is None or gpu.on_cpu:
        return ""
    if gpu.utilization >= _HIGH and gpu.busy < _LOW:
        return (
            f"the GPU is at least {_HIGH:.0%} utilized, but step '{gpu.model}' is less than "
            f"{_LOW:.0%} busy, so another process is probably using the GPU"
        )
    if gpu.busy >= _HIGH and gpu.utilization < _LOW:
        return (
            f"step '{gpu.model}' is at least {_HIGH:.0%} busy, but the GPU is less than "
            f"{_LOW:.0%} utilized, so the step probably spends its time in CPU code"
        )
    return ""


def _load_text(inputs: VerdictInputs, law: ControlLaw) -> str:
    demand, name = inputs.demand, inputs.step.name
    if demand.service is None:
        return f"{_requests(inputs.pending)} queued for step '{name}'"
    instances = inputs.count * inputs.pods
    count = counted(instances, f"{name} instance is", f"{name} instances are")
    return (
        f"{count} {demand.busy:.0%} busy (target: {law.target:.0%}) with "
        f"{_number(demand.arrivals)} requests/s at {_number(demand.service * 1000)} ms each; "
        f"{_requests(inputs.pending)} queued, and the wait time is "
        f"{_number(demand.worst_wait * 1000)} ms"
    )


def _number(value: float) -> str:
    """Return two or three significant digits, never with an exponent."""
    digits = 2 if value < 1 else 3
    text = f"{float(f'{value:.{digits}g}'):.10f}"
    return text.rstrip("0").rstrip(".")


def _gpu_text(gpu: GpuSignal) -> str:
    own = (
        f"step '{gpu.model}' is {gpu.busy:.0%} busy"
        if gpu.busy is not None
        else f"the busy time of step '{gpu.model}' is unknown"
    )
    if gpu.on_cpu:
        return f"{own} on the CPU"
    if gpu.utilization is None:
        return own
    return f"{own}, and the GPU is {gpu.utilization:.0%} utilized"
