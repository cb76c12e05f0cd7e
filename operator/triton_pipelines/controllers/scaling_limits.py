"""Derive what bounds scaling, and the constants of the control law, from a spec. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api.health import InferenceHealth
from triton_pipelines.api.scaling import Scaling, ScalingMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.autoscaling.types import ControlLaw, Fallback, PipelineLimits, StepLimits
from triton_pipelines.compile.graph.container_resources import (
    memory_per_instance,
    shared_memory_per_instance,
    sizes,
)
from triton_pipelines.compile.graph.example_request import probe_blocker
from triton_pipelines.compile.graph.graph import Graph, Implementation, Role, Step
from triton_pipelines.compile.graph.quantities import bytes_of, millis

# Default fast window (seconds) if pods are read directly, which happens every 2 s: growth need not
# wait as long as with scrapes of Prometheus.
DIRECT_FAST_SECONDS: Final = 6.0
# Seconds in which native instances start or stop at most. No process starts, and no memory is
# allocated in advance.
NATIVE_ACTUATION: Final = 0.2


def scaled_steps(graph: Graph) -> list[Step]:
    """Return the steps whose instance count may change live."""
    if graph.auto_complete:
        return []
    return [
        step
        for step in graph.models
        if step.instances.scaled and step.sequences is None and step.instances.on_cpu
    ]


def law_of(scaling: Scaling, *, direct: bool = False) -> ControlLaw:
    """Return the control law's constants as the resource sets them.

    Args:
        scaling: ``spec.scaling``.
        direct: Whether pods are read directly; the default fast window is shorter then.
    """
    target = scaling.target / 100
    up = scaling.scale_up_threshold_percent
    cooldown = scaling.scale_up.cooldown_seconds
    short_window = direct and scaling.windows.fast_seconds is None
    return ControlLaw(
        target=target,
        up_threshold=max(0.80, target) if up is None else up / 100,
        fast=DIRECT_FAST_SECONDS if short_window else float(scaling.windows.fast),
        slow=float(scaling.windows.slow),
        cooldown_up=None if cooldown is None else float(cooldown),
        stabilization=float(scaling.scale_down.stabilization_seconds),
        down_step=scaling.scale_down.max_step_percent / 100,
        drain=float(scaling.backlog_drain_seconds),
        stale_after=float(scaling.stale_after_seconds),
        fallback=Fallback(scaling.fallback.value),
        flaps_per_hour=scaling.max_direction_changes_per_hour,
    )


def limits_of(
    pipeline: InferencePipeline,
    graph: Graph,
    revision: str,
    applied: Mapping[str, Any] | None = None,
    *,
    direct: bool = False,
) -> PipelineLimits:
    """Return what bounds the pods of a pipeline.

    Args:
        pipeline: The pipeline.
        graph: Its graph.
        revision: The revision that its pods run.
        applied: ``resources`` of the container's status, if the kubelet reports them (after a
            resize).
        direct: As in :func:`law_of`.
    """
    size = sizes(pipeline, graph)
    limits = (applied or {}).get("limits") or {}
    scaled = scaled_steps(graph)
    health = pipeline.spec.health
    is_tested = health.inference is InferenceHealth.AUTO and not probe_blocker(pipeline, graph)
    fed = [
        step
        for step in graph.steps
        if step not in scaled
        and step.repeats is None
        and step.role not in (Role.POSTPROCESS, Role.TOKENIZER)
    ]
    return PipelineLimits(
        steps=tuple(_step_limits(step) for step in scaled),
        gpu_steps=tuple(step.model_name for step in fed),
        on_cpu=frozenset(step.model_name for step in fed if _runs_on_cpu(pipeline, step)),
        cpu_limit=millis(str(limits.get("cpu", size.cpu_limit))) / 1000,
        memory_limit=float(bytes_of(str(limits.get("memory", size.memory_limit)))),
        shared_memory=float(bytes_of(size.shared_memory)),
        gpu_instances={
            step.model_name: step.instances.processes(pipeline.spec.server.gpu.count)[0]
            for step in fed
        },
        gpu_batches={
            step.model_name: step.max_batch_size for step in fed if step.batching is not None
        },
        revision=revision,
        active=pipeline.spec.scaling.mode is ScalingMode.ACTIVE,
        probe_rate=1 / health.period_seconds if is_tested else 0.0,
        actuation=NATIVE_ACTUATION if scaled and all(step.native for step in scaled) else None,
        law=law_of(pipeline.spec.scaling, direct=direct),
    )


def _runs_on_cpu(pipeline: InferencePipeline, step: Step) -> bool:
    """Return whether no GPU computes the step.

    A step that runs on the CPU fallback backend by the operator's choice still counts as one that
    is meant for the GPU.
    """
    gpu = pipeline.spec.server.gpu
    if gpu.count == 0 and gpu.claim_template is None:
        return True
    spec = pipeline.spec
    fields = {
        "spec.model": spec.model,
        **{f"spec.steps[{index}]": one for index, one in enumerate(spec.steps)},
    }.get(step.path)
    substituted = (
        step.implementation is Implementation.ONNX_RUNNER
        and fields is not None
        and fields.python is None
    )
    if substituted and fields is not None and None in fields.instances.kinds:
        return False
    return step.instances.on_cpu


def _step_limits(step: Step) -> StepLimits:
    return StepLimits(
        name=step.name,
        model_name=step.model_name,
        low=step.instances.counts.min,
        high=step.instances.counts.max,
        initial=step.instances.counts.initial,
        cores=millis(step.resources.cpu) / 1000,
        memory_bytes=float(memory_per_instance(step)),
        shared_memory_bytes=float(shared_memory_per_instance(step)),
        tokenizer=step.role is Role.TOKENIZER,
        grows_under_load=grows_under_load(step),
    )


def grows_under_load(step: Step) -> bool:
    """Return whether Triton completes an increase of the count while requests wait."""
    return step.native or not _forms_batches_ahead(step)


def _forms_batches_ahead(step: Step) -> bool:
    """Return whether Triton queues batches for the instances in advance.

    It does not with priorities or a queue policy (``support_prefetching_`` in scheduler_utils.cc).
    """
    batching = step.batching
    if batching is None:
        return True
    policy = batching.queue_policy
    return not (batching.priority_levels or (policy is not None and policy.limits))
