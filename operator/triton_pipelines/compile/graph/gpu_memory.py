"""Bound the GPU memory that ONNX Runtime takes (``server.gpuMemory``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Graph, Step
from .instance_groups import PER_GPU
from .options import Options
from .quantities import bytes_of, memory

# Parameter of the onnxruntime backend: the limit in bytes of one instance's CUDA arena. Not set by
# its newer form, an execution accelerator: the backend resets that to unlimited if the config has
# any other parameter (onnxruntime.cc).
MEMORY_PARAMETER: Final = "gpu_mem_limit"
# A smaller arena holds no useful model; such a value is a mistaken unit.
LEAST_BYTES: Final = 64 * 1024**2
_FIELD: Final = "spec.server.gpuMemory"


def with_gpu_memory(steps: Sequence[Step], quantity: str) -> list[Step]:
    """Return the steps, with an equal share of the memory for each ONNX Runtime instance."""
    count = _instances(steps)
    if not count:
        return list(steps)
    share = {MEMORY_PARAMETER: str(bytes_of(quantity) // count)}
    return [
        replace(step, parameters={**share, **step.parameters}) if _per_gpu(step) else step
        for step in steps
    ]


def check_gpu_memory(
    pipeline: InferencePipeline, graph: Graph, options: Options
) -> Iterator[Finding]:
    """Find a bound that has no effect, that is too small, or that a parameter contradicts."""
    quantity = pipeline.spec.server.gpu_memory
    if quantity is None:
        return
    count = _instances(graph.models)
    if not count:
        # With the CPU fallback, the resource may be written for a cluster with GPUs.
        if not options.substitute_runner:
            yield Finding(
                _FIELD,
                "gpuMemory limits ONNX Runtime on a GPU, but no step runs in the "
                "onnxruntime backend on a GPU; remove gpuMemory",
                code=FindingCode.FIELD_COMBINATION,
            )
        return
    if bytes_of(quantity) < count * LEAST_BYTES:
        yield Finding(
            _FIELD,
            f"{quantity} is too small for {count} instances on a GPU; set at least"
            f" {memory(count * LEAST_BYTES)}",
            code=FindingCode.OUT_OF_RANGE,
        )
    share = str(bytes_of(quantity) // count)
    for step in graph.models:
        if _per_gpu(step) and step.parameters.get(MEMORY_PARAMETER) != share:
            yield Finding(
                f"{step.path}.parameters",
                f"{MEMORY_PARAMETER} is also set by spec.server.gpuMemory; remove one of "
                "the two settings",
                code=FindingCode.FIELD_COMBINATION,
            )


def _instances(steps: Sequence[Step]) -> int:
    """Return the number of ONNX Runtime instances on one GPU of a pod."""
    return sum(_per_gpu(step) for step in steps if step.repeats is None)


def _per_gpu(step: Step) -> int:
    """Return the instances of an ONNX Runtime step on one GPU; 0 for other steps."""
    if step.backend != "onnxruntime":
        return 0
    # Only CPU steps have a range of instances.
    return sum(group.count for group in step.instances.groups if group.kind in PER_GPU)
