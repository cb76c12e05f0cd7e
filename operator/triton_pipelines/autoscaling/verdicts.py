"""What limits a pipeline, and in which words people read it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from triton_pipelines.autoscaling.caps import Cap, Cpu
from triton_pipelines.autoscaling.control_law import Need
from triton_pipelines.autoscaling.signals import GpuSignal
from triton_pipelines.autoscaling.types import Law, PipelineLimits, StepLimits, Verdict

# The pipeline's verdict is the most telling of its steps': what somebody has to see to first.
_ORDER = (
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
_STALL_WINDOWS = 2  # slow windows without a completion while requests wait


@dataclass(frozen=True, slots=True)
class State:
    """What a verdict on one step is made of. ``most``: highest want of the stabilization window; ``pods``: that speak."""

    step: StepLimits
    need: Need
    count: int
    pods: int
    pending: float
    most: int
    cap: Cap
    idle: bool
    stalled_seconds: float
    frozen: bool


def gpu_bound(gpu: GpuSignal, pending: float) -> bool:
    """Whether the fed step, as a rule the one on the GPU, is the narrow place: full, with the longer queue."""
    return gpu.full and gpu.pending > pending


def defeated(gpu: GpuSignal, pending: float) -> bool:
    """Whether requests queue before a GPU step that runs them one by one."""
    return bool(gpu.unbatched) and gpu.pending > pending


def no_progress(stalled_seconds: float, slow: float) -> bool:
    """Whether requests have waited for two slow windows without one that completed."""
    return stalled_seconds >= _STALL_WINDOWS * slow


def verdict(state: State, gpu: GpuSignal, cpu: Cpu, slow: float) -> Verdict:
    """The decision table (autoscaling.md §4.3) for one step. ``slow``: slow window, seconds."""
    if no_progress(state.stalled_seconds, slow):
        return Verdict.NO_PROGRESS
    if gpu_bound(gpu, state.pending):
        return Verdict.STEP_BOUND if gpu.on_cpu else Verdict.GPU_BOUND
    if defeated(gpu, state.pending):
        return Verdict.BATCHING_INEFFECTIVE
    if state.need.saturated:
        if cpu.short(state.step.name) or (
            state.cap.by.startswith("CPU") and state.cap.count <= state.count
        ):
            return Verdict.CPU_BOUND
        return Verdict.TOKENIZER_BOUND if state.step.tokenizer else Verdict.STEP_BOUND
    if state.idle:
        return Verdict.IDLE
    if state.need.service is None:
        return Verdict.UNKNOWN
    own = cpu.cores[state.step.name] * state.need.offered / max(1, state.pods)
    if cpu.throttled or (cpu.short(state.step.name) and cpu.other > own):
        return Verdict.CPU_CONTENDED
    return Verdict.OVERPROVISIONED if state.most < state.count else Verdict.BALANCED


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The pipeline's verdict."""
    listed = list(verdicts)
    return min(listed, key=_ORDER.index) if listed else Verdict.UNKNOWN


def words(state: State, found: Verdict, gpu: GpuSignal, cpu: Cpu, law: Law) -> str:
    """The verdict with the numbers that led to it."""
    if found in (Verdict.GPU_BOUND, Verdict.STEP_BOUND) and gpu_bound(gpu, state.pending):
        return f"{_gpu_words(gpu)}; {gpu.pending:.0f} requests wait before it, {state.pending:.0f} before {state.step.name}: more of those cannot help"
    match found:
        case Verdict.NO_PROGRESS:
            return (
                f"{state.pending:.0f} requests wait before {state.step.name} and none has completed for {state.stalled_seconds:.0f} s: "
                "its instances may have died, which only a new pod or a full reload heals"
            )
        case Verdict.BATCHING_INEFFECTIVE:
            return (
                f"{gpu.unbatched} runs {gpu.batch:.2f} requests per execution while {gpu.pending:.0f} wait: unequal shapes, or no dynamic batching; "
                "see spec.tokenizer.padding and the step's dynamicBatching"
            )
        case Verdict.IDLE:
            return "no request arrives, none waits"
        case Verdict.UNKNOWN:
            return f"no request has completed in {state.step.name} yet: what one costs is not known"
        case Verdict.CPU_CONTENDED:
            if cpu.throttled:
                return f"{_load_words(state, law)}; the container is throttled by its CPU limit"
            return f"{_load_words(state, law)}; others in the pod use {cpu.other:.1f} cores: threads of another step (intra_op, OMP, RAYON)?"
        case Verdict.CPU_BOUND:
            return f"{_load_words(state, law)}; no room for one more: {state.cap.by}"
        case Verdict.TOKENIZER_BOUND | Verdict.STEP_BOUND if state.frozen:
            return f"{_load_words(state, law)}; the last growth did not raise the GPU step's throughput, so no further one"
        case Verdict.OVERPROVISIONED:
            return f"{_load_words(state, law)}; at most {state.most} wanted in the last {law.stabilization:.0f} s"
        case _:
            return _load_words(state, law)


def limitation(state: State, found: Verdict, gpu: GpuSignal) -> str:
    """In words, what keeps the step from the count its load asks for; "" where nothing does."""
    if state.need.wanted <= state.count:
        return ""
    if state.frozen:
        return f"{state.step.name}: the load asks for {state.need.wanted}; growth beyond {state.count} did not raise throughput"
    if gpu_bound(gpu, state.pending) or found in (
        Verdict.BATCHING_INEFFECTIVE,
        Verdict.NO_PROGRESS,
    ):
        return f"{state.step.name}: the load asks for {state.need.wanted}; {found} holds it at {state.count}"
    if state.need.wanted > state.cap.count:
        return f"{state.step.name}: the load asks for {state.need.wanted}, bounded to {max(state.count, state.cap.count)} by {state.cap.by}"
    return ""


def gpu_notes(gpu: GpuSignal, limits: PipelineLimits) -> str:
    """What a reader has to know of GPU figures beside the verdict; "" nothing."""
    if limits.on_cpu.issuperset(limits.gpu_steps):
        return ""
    if gpu.utilisation is None:
        return "GPUMetricsUnavailable: judged by the GPU step's own busy time and queue"
    if gpu.busy is None or gpu.on_cpu:
        return ""
    if gpu.utilisation >= 0.9 and gpu.busy < 0.5:
        return f"the GPU is used {gpu.utilisation:.0%} of the time but {gpu.model} computes only {gpu.busy:.0%}: something else uses it too"
    if gpu.busy >= 0.9 and gpu.utilisation < 0.5:
        return f"{gpu.model} is busy {gpu.busy:.0%} of the time but the GPU only {gpu.utilisation:.0%}: its time goes into host code"
    return ""


def _load_words(state: State, law: Law) -> str:
    need = state.need
    if need.service is None:
        return f"{state.pending:.0f} requests wait before {state.step.name}"
    return (
        f"{_figure(need.arrivals)} requests/s of {_figure(need.service * 1000)} ms keep {state.count * state.pods} of {state.step.name} "
        f"{need.busy:.0%} busy (aim {law.target:.0%}), live wait {_figure(need.worst_wait * 1000)} ms, {state.pending:.0f} wait"
    )


def _figure(value: float) -> str:
    """Three digits that count, never as a power of ten."""
    return f"{float(f'{value:.3g}'):.10g}"


def _gpu_words(gpu: GpuSignal) -> str:
    own = (
        f"{gpu.model} computes {gpu.busy:.0%} of the time"
        if gpu.busy is not None
        else f"the own time of {gpu.model} is not known"
    )
    if gpu.on_cpu:
        return f"{own}, on the CPU"
    return f"{own}, the GPU is used {gpu.utilisation:.0%}" if gpu.utilisation is not None else own
