"""Each verdict for people: what it means and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from triton_pipelines.autoscaling.types import Verdict


@dataclass(frozen=True, slots=True)
class VerdictAdvice:
    """What a verdict means."""

    means: str
    """What limits the pipeline, in a sentence."""
    moves: tuple[str, ...] = ()
    """What would change that, most likely first."""


_MORE_INSTANCES: Final = (
    "The operator adds instances up to the step's instances.max. If the count has reached "
    "instances.max, raise instances.max."
)
_GROWTH_HELD: Final = (
    "If the last increase did not raise throughput, check what the step waits for: CPU, "
    "memory bandwidth, or a service that it calls."
)

ADVICE: Final[Mapping[Verdict, VerdictAdvice]] = {
    Verdict.TOKENIZER_BOUND: VerdictAdvice(
        "The tokenizer is the bottleneck: requests wait for an instance.",
        (_MORE_INSTANCES, _GROWTH_HELD),
    ),
    Verdict.STEP_BOUND: VerdictAdvice(
        "A CPU step other than the tokenizer is the bottleneck: requests wait for an instance.",
        (
            _MORE_INSTANCES,
            "A model on the CPU is not scaled live. Raise its instances.count, add pods, or "
            "run it on a GPU (spec.server.gpu).",
            _GROWTH_HELD,
        ),
    ),
    Verdict.CPU_BOUND: VerdictAdvice(
        "A CPU step is the bottleneck, and the pod has no CPU left for another instance.",
        (
            "Raise the limit that the reason names: spec.server.resources.limits.cpu or the "
            "step's instances.max.",
            (
                "Lower the step's resourcesPerInstance.cpu if an instance uses less than it is "
                "granted."
            ),
            "To let a pod's CPU grow in place, set spec.scaling.cpuResize: InPlace.",
            (
                "Add pods with spec.replicas, or scale them with the load by setting "
                "spec.scaling.pods. Each pod adds CPU (and requests its own GPU)."
            ),
        ),
    ),
    Verdict.GPU_BOUND: VerdictAdvice(
        "The GPU step is the bottleneck: it is busy all the time and requests queue for it. More"
        " tokenizers cannot help.",
        (
            "Add pods with spec.replicas, scale them with the load by setting "
            "spec.scaling.pods, or select a faster GPU with spec.server.gpu.products.",
            (
                "Reduce the cost of the model: use FP16 or TensorRT, a shorter "
                "spec.tokenizer.maxLength, or larger preferred batch sizes."
            ),
        ),
    ),
    Verdict.CPU_CONTENDED: VerdictAdvice(
        "CPU is scarce, but most of it is used by steps other than the scaled one.",
        (
            "Check the number of threads of the other steps: the intra_op threads of ONNX "
            "Runtime, and OMP_NUM_THREADS or OPENBLAS_NUM_THREADS in spec.server.env.",
            (
                "Raise spec.server.resources.limits.cpu. A throttled container is slow "
                "regardless of its instance counts."
            ),
        ),
    ),
    Verdict.BALANCED: VerdictAdvice(
        "There is none: the CPU steps keep up with the GPU step and have spare capacity."
    ),
    Verdict.OVERPROVISIONED: VerdictAdvice(
        "There is none: more instances are running than the load needs.",
        (
            "The operator removes instances that were not needed for "
            "scaleDown.stabilizationSeconds.",
        ),
    ),
    Verdict.IDLE: VerdictAdvice("There is none: no requests arrive."),
    Verdict.NO_PROGRESS: VerdictAdvice(
        "Requests are queued or rejected, but none of them completes.",
        (
            "A process of a Python model might have died; check the pod's log. The "
            "operator recreates such a pod when it detects the failure.",
            (
                "Custom code that blocks (on a lock, or in a service call without a timeout) "
                "has the same symptoms."
            ),
        ),
    ),
    Verdict.BATCHING_INEFFECTIVE: VerdictAdvice(
        "The GPU step runs requests one at a time although multiple requests are queued, "
        "because Triton cannot batch them.",
        (
            "Use a padding mode that gives all requests the same shape: set "
            "spec.tokenizer.padding to Bucketed or Fixed, or to Ragged with a model that supports "
            "it.",
            "Check that the model has dynamicBatching and a maxBatchSize above 1.",
        ),
    ),
    Verdict.UNKNOWN: VerdictAdvice(
        "Unknown: there are no usable metrics, no pod is ready, or no request has completed yet.",
        ("For what is missing and what to check, see the condition MetricsAvailable.",),
    ),
}
