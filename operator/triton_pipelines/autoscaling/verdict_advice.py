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
    "The operator adds instances up to instances.max of the step. Raise instances.max if the count"
    " has reached it."
)
_GROWTH_HELD: Final = (
    "If the last increase did not raise throughput, check what the step waits for: CPU, memory"
    " bandwidth, a service that it calls."
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
            "A model on the CPU is not scaled live: raise its instances.count, add pods, or give it"
            " a GPU (spec.server.gpu).",
            _GROWTH_HELD,
        ),
    ),
    Verdict.CPU_BOUND: VerdictAdvice(
        "A CPU step is the bottleneck, and the pod has no CPU for another instance.",
        (
            "Raise what the reason names: spec.server.resources.limits.cpu or the step's"
            " instances.max.",
            (
                "Lower the step's resourcesPerInstance.cpu if an instance uses less than it is "
                "granted."
            ),
            "Let a pod's CPU grow in place with spec.scaling.cpuResize: InPlace.",
            "Add pods with spec.replicas, or scale them with the load by spec.scaling.pods. Each"
            " pod brings its own CPU (and requests its own GPU).",
        ),
    ),
    Verdict.GPU_BOUND: VerdictAdvice(
        "The GPU step is the bottleneck: it is busy all the time and requests queue for it. More"
        " tokenizers cannot help.",
        (
            "Add pods with spec.replicas, or scale them with the load by spec.scaling.pods; or use"
            " a faster GPU with spec.server.gpu.products.",
            "Make the model cheaper: FP16 or TensorRT, a shorter spec.tokenizer.maxLength, larger"
            " preferred batches.",
        ),
    ),
    Verdict.CPU_CONTENDED: VerdictAdvice(
        "CPU is short, but the scaled step is not what uses it.",
        (
            "Check the threads of other steps: intra_op threads of ONNX, OMP_NUM_THREADS,"
            " RAYON_NUM_THREADS; set them with spec.server.env.",
            "Raise spec.server.resources.limits.cpu: a throttled container is slow whatever its"
            " counts are.",
        ),
    ),
    Verdict.BALANCED: VerdictAdvice(
        "Nothing: the CPU steps keep up with the GPU step and have capacity to spare."
    ),
    Verdict.OVERPROVISIONED: VerdictAdvice(
        "Nothing: there are more instances than the load needs.",
        (
            "The operator removes them once they have not been needed for"
            " scaleDown.stabilizationSeconds.",
        ),
    ),
    Verdict.IDLE: VerdictAdvice("Nothing: no requests arrive."),
    Verdict.NO_PROGRESS: VerdictAdvice(
        "Requests are queued and none completes.",
        (
            "A process of a Python model may have died; check the pod's log. The operator recreates"
            " such a pod when it detects it.",
            "Custom code that blocks (a lock, a service call without a timeout) looks the same.",
        ),
    ),
    Verdict.BATCHING_INEFFECTIVE: VerdictAdvice(
        "The GPU step runs requests one by one although several are queued: Triton cannot batch"
        " them.",
        (
            "Use padding that gives equal shapes: spec.tokenizer.padding Bucketed or Fixed, or"
            " Ragged with a model that supports it.",
            "Check that the model has dynamicBatching and a maxBatchSize above 1.",
        ),
    ),
    Verdict.UNKNOWN: VerdictAdvice(
        "Unknown: there are no usable metrics, no pod is ready, or no request has completed yet.",
        ("Condition MetricsAvailable says what is missing and what to check.",),
    ),
}
