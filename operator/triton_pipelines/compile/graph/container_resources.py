"""CPU, memory and shared memory of the Triton container."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from triton_pipelines.api.scaling import CpuResize
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Graph, Step
from .quantities import bytes_of, cpu, memory, millis
from .server_settings import cache_argument, cache_bytes

# Need of the server itself, before any python instance: host memory for the model while it loads,
# CUDA contexts, Triton.
BASE_CPU_MILLIS = 250
BASE_MEMORY = 2 * 1024**3
# One shared-memory region per python instance: 1 MB growing in 1 MB steps from 24.10, 64 MB in
# older ones (python_backend).
SHARED_MEMORY_BASE = 64 * 1024**2
SHARED_MEMORY_PER_INSTANCE = 64 * 1024**2
# What a built-in tokenizer instance keeps: at most 25 MB of cached words (native/src/words.rs), and
# the tokens of its last batch.
MEMORY_PER_NATIVE_INSTANCE = 32 * 1024**2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Resources of the Triton container, as canonical Kubernetes quantities."""

    cpu_request: str
    """Requested CPU."""
    cpu_limit: str
    """CPU limit."""
    memory_request: str
    """Requested memory."""
    memory_limit: str
    """Memory limit, which includes the shared memory."""
    shared_memory: str
    """Size of /dev/shm."""


def shared_memory_per_instance(step: Step) -> int:
    """Return the bytes of /dev/shm that one more instance of the step needs."""
    return SHARED_MEMORY_PER_INSTANCE if step.python else 0


def memory_per_instance(step: Step) -> int:
    """Return the bytes of memory that one more instance of the step keeps at most.

    A pod is sized for ``resourcesPerInstance.memory`` whatever runs the step, because the memory
    of a large request does not depend on it.
    """
    memory = bytes_of(step.resources.memory)
    return min(memory, MEMORY_PER_NATIVE_INSTANCE) if step.native else memory


def _instances(step: Step, gpus: int) -> tuple[int, int]:
    """Return the initial and the highest number of instances of a step.

    Triton counts instances per served version.
    """
    versions = 1
    if step.version_policy is not None:
        versions = max(step.version_policy.latest or 1, len(step.version_policy.specific))
    initial, most = step.instances.processes(gpus)
    return initial * versions, most * versions


def sizes(pipeline: InferencePipeline, graph: Graph) -> Sizes:
    """Return Triton's own demand plus ``resourcesPerInstance`` times the instances.

    Requests count initial instances, limits count max. Values in the resource replace these.

    A computed request never exceeds a limit that the user wrote: the API server refuses such a pod.
    """
    server = pipeline.spec.server
    computing = [step for step in graph.models if step.computes_on_cpu]
    low = [(step, _instances(step, server.gpu.count)[0]) for step in computing]
    high = [(step, _instances(step, server.gpu.count)[1]) for step in computing]
    processes = sum(count for step, count in high if step.python)
    shared = SHARED_MEMORY_BASE + SHARED_MEMORY_PER_INSTANCE * processes
    if server.shared_memory:
        shared = bytes_of(server.shared_memory)
    given = cache_argument(pipeline)
    cache = _given_cache(given) if given is not None else cache_bytes(graph)
    requests, capped = server.resources.requests, server.resources.limits
    request_cpu = millis(requests.cpu) if requests.cpu else BASE_CPU_MILLIS + _cpu(low)
    request_memory = (
        bytes_of(requests.memory) if requests.memory else BASE_MEMORY + cache + _memory(low)
    )
    # Where pods grow in place they start with what the initial instances need, and the rest is free
    # for others until it is needed.
    held = low if pipeline.spec.scaling.cpu_resize is CpuResize.IN_PLACE else high
    limit_cpu = millis(capped.cpu) if capped.cpu else max(request_cpu, BASE_CPU_MILLIS + _cpu(held))
    limit_memory = (
        bytes_of(capped.memory)
        if capped.memory
        else max(request_memory, BASE_MEMORY + cache + _memory(high)) + shared
    )
    if not requests.cpu:
        request_cpu = min(request_cpu, limit_cpu)
    if not requests.memory:
        request_memory = min(request_memory, limit_memory)
    return Sizes(
        cpu(request_cpu),
        cpu(limit_cpu),
        memory(request_memory),
        memory(limit_memory),
        memory(shared),
    )


def cpu_range(pipeline: InferencePipeline, graph: Graph) -> tuple[int, int] | None:
    """Return the initial CPU limit of a pod and the limit for the most instances, in millicores.

    ``None`` if the limit does not change. A limit that the user sets is never changed.
    """
    if (
        pipeline.spec.scaling.cpu_resize is not CpuResize.IN_PLACE
        or pipeline.spec.server.resources.limits.cpu
    ):
        return None
    start = millis(sizes(pipeline, graph).cpu_limit)
    high = [
        (step, _instances(step, pipeline.spec.server.gpu.count)[1])
        for step in graph.models
        if step.computes_on_cpu
    ]
    most = BASE_CPU_MILLIS + _cpu(high)
    return (start, most) if most > start else None


def _given_cache(argument: str) -> int:
    """Return the bytes of a response cache that a user's argument configures; 0 if unknown."""
    match = re.search(r"size=([0-9]+)", argument) or re.fullmatch(
        r"--response-cache-byte-size[= ]([0-9]+)", argument
    )
    return int(match[1]) if match else 0


def _cpu(steps: Sequence[tuple[Step, int]]) -> int:
    return sum(millis(step.resources.cpu) * count for step, count in steps)


def _memory(steps: Sequence[tuple[Step, int]]) -> int:
    return sum(bytes_of(step.resources.memory) * count for step, count in steps)
