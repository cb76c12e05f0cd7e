"""Each verdict for people: what it means, and what would move it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from triton_pipelines.autoscaling.types import Verdict


@dataclass(frozen=True, slots=True)
class Advice:
    """``means``: what limits the pipeline, in a sentence; ``moves``: what would change that, most likely first."""

    means: str
    moves: tuple[str, ...] = ()


_MORE_INSTANCES: Final = "The operator adds instances by itself, up to instances.max of the step; raise that where the count stands at it."
_FROZEN: Final = "Where the last growth bought nothing, look at what the step waits for: CPU, memory bandwidth, a service that it calls."

ADVICE: Final[Mapping[Verdict, Advice]] = {
    Verdict.TOKENIZER_BOUND: Advice(
        "Tokenizers are the narrow place: requests wait for one.", (_MORE_INSTANCES, _FROZEN)
    ),
    Verdict.STEP_BOUND: Advice(
        "A CPU step beside the tokenizer is the narrow place: requests wait for one of its instances.",
        (
            _MORE_INSTANCES,
            "A model on the CPU is not scaled live: raise its instances.count, add pods, or give it a GPU (spec.server.gpu).",
            _FROZEN,
        ),
    ),
    Verdict.CPU_BOUND: Advice(
        "A CPU step is the narrow place, and there is no room for one more of its instances.",
        (
            "Raise what the reason names: spec.server.resources.limits.cpu, or the step's instances.max.",
            "Lower the step's resourcesPerInstance.cpu where an instance uses less than it is granted.",
            "Let a pod's CPU grow in place with spec.scaling.cpuResize: InPlace.",
            "Add pods with spec.replicas, or let them follow the load with spec.scaling.pods; each brings its own CPU (and asks for its own GPU).",
        ),
    ),
    Verdict.GPU_BOUND: Advice(
        "The GPU step is the narrow place: it computes all the time, and requests wait before it. More tokenizers cannot help.",
        (
            "Add pods with spec.replicas, or let them follow the load with spec.scaling.pods; or take a faster GPU with spec.server.gpu.products.",
            "Make the model cheaper: FP16 or TensorRT, shorter spec.tokenizer.maxLength, larger preferred batches.",
        ),
    ),
    Verdict.CPU_CONTENDED: Advice(
        "CPU is short, but it is not the scaled step that uses it.",
        (
            "Look for threads of another step: intra_op threads of ONNX, OMP_NUM_THREADS, RAYON_NUM_THREADS; spec.server.env sets them.",
            "Raise spec.server.resources.limits.cpu: a throttled container is slow whatever its counts are.",
        ),
    ),
    Verdict.BALANCED: Advice("Nothing: the CPU steps feed the GPU step, with room to spare."),
    Verdict.OVERPROVISIONED: Advice(
        "Nothing: there are more instances than the load asks for.",
        (
            "The operator removes them once they have not been needed for scaleDown.stabilizationSeconds.",
        ),
    ),
    Verdict.IDLE: Advice("Nothing: no request arrives."),
    Verdict.NO_PROGRESS: Advice(
        "Requests wait and none completes.",
        (
            "A process of a Python model may have died; look at the pod's log. The operator makes such a pod anew where it meets it.",
            "Code that waits for ever (a lock, a service without a time limit) looks the same.",
        ),
    ),
    Verdict.BATCHING_INEFFECTIVE: Advice(
        "The GPU step runs requests one by one although several wait: Triton cannot put them into one batch.",
        (
            "Use padding that gives equal shapes: spec.tokenizer.padding Bucketed or Fixed, or Ragged with a model that takes it.",
            "See that the model has dynamicBatching and a maxBatchSize above 1.",
        ),
    ),
    Verdict.UNKNOWN: Advice(
        "Not known: there are no usable metrics, no ready pod, or no request has completed yet.",
        ("Condition MetricsAvailable says what is missing, and what to look at.",),
    ),
}
