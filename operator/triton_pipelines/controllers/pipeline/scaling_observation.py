"""Observe the number of pods of a pipeline, its bounds and their CPU, for live scaling. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.autoscaling.cpu_limit import CpuBounds
from triton_pipelines.autoscaling.pods_and_cpu import (
    PODS,
    PodAndCpuBounds,
    PodsObservation,
)
from triton_pipelines.autoscaling.types import InfeasibleResize, StepLimits
from triton_pipelines.compile.graph.container_resources import cpu_range
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.quantities import millis
from triton_pipelines.controllers.scaling_limits import scaled_steps

from .deployment_progress import is_rolling_out
from .pod_resize import INFEASIBLE, actual_limit, pending_reason, requested_limit, resize_state
from .resize_rejections import ResizeRejection
from .snapshot import Pod
from .state import PipelineState


def bounds_of(pipeline: InferencePipeline, graph: Graph) -> PodAndCpuBounds:
    """Return what live scaling may change of a pipeline in addition to counts."""
    pods, limit = pipeline.spec.scaling.pods, cpu_range(pipeline, graph)
    return PodAndCpuBounds(
        pods=None
        if pods is None
        else StepLimits(PODS, "", pods.low, pods.max, pipeline.spec.replicas),
        cpu=None if limit is None else CpuBounds(*limit, base=limit[1] - _most_cpu(graph)),
    )


def _most_cpu(graph: Graph) -> int:
    """Return the CPU of the most instances of all scaled steps that are sized by instance."""
    return sum(
        millis(step.resources.cpu) * step.instances.counts.max
        for step in scaled_steps(graph)
        if step.computes_on_cpu
    )


def observation_of(
    pods: Sequence[Pod],
    deployment: Mapping[str, Any] | None,
    desired: int | None,
    rejections: Mapping[str, ResizeRejection] | None = None,
    state: PipelineState | None = None,
) -> PodsObservation:
    """Return what live scaling observes of the pods.

    Args:
        pods: The pods of the pipeline.
        deployment: Its Deployment.
        desired: The desired CPU limit of each pod; ``None``: any.
        rejections: Resizes that the API server rejected, by pod uid. If a node is too small, the
            API server reports it (Kubernetes 1.36, measured) before the kubelet could.
        state: State of the policies.
    """
    state, rejections = state or PipelineState(), rejections or {}
    remaining = [pod for pod in pods if not pod.deleting]
    owned = desired is not None and not state.cpu_resize.kept_by
    running = [pod for pod in remaining if pod.server_running] if owned else []
    resize_pending = {
        pod.name: _pending_text(pod, desired, rejections.get(pod.uid))
        for pod in running
        if pending_reason(pod) or requested_limit(pod) != desired
    }
    infeasible = {
        pod.uid: found
        for pod in running
        if (found := _infeasible(pod, rejections.get(pod.uid))) is not None
    }
    return PodsObservation(
        uids=frozenset(pod.uid for pod in remaining),
        there=len(remaining),
        ready=sum(pod.serving for pod in remaining),
        rolling=_is_rollout_pending(remaining, deployment, state.stalled_rollout.revision),
        resize_pending=resize_pending,
        infeasible=infeasible,
        cpu_taken=state.cpu_resize.kept_by,
    )


def _is_rollout_pending(
    remaining: Sequence[Pod], deployment: Mapping[str, Any] | None, stalled: str
) -> bool:
    """Return whether a rollout is in progress that the serving pods have to wait for.

    A rollout that does not complete is not waited for.
    """
    if deployment is None:
        return True
    labels = ((deployment.get("spec") or {}).get("template", {}).get("metadata") or {}).get(
        "labels"
    ) or {}
    if stalled and labels.get(names.LABEL_REVISION) == stalled:
        return False
    return (
        is_rolling_out(deployment) or len({(pod.revision, pod.template) for pod in remaining}) > 1
    )


def smallest_limit(pods: Sequence[Pod]) -> Mapping[str, Any] | None:
    """Return the enforced resources of the pod with the least CPU; ``None`` if none is reported."""
    known = [(limit, pod) for pod in pods if (limit := actual_limit(pod)) is not None]
    found = min(known, key=lambda item: item[0], default=None)
    return None if found is None else found[1].container(names.CONTAINER_SERVER).get("resources")


def _pending_text(pod: Pod, desired: int | None, rejection: ResizeRejection | None) -> str:
    """Return what the pod's CPU waits for."""
    if rejection is not None and rejection.limit != requested_limit(pod):
        return rejection.reason
    return pending_reason(pod) or f"is the next to get {desired}m of CPU"


def _infeasible(pod: Pod, rejection: ResizeRejection | None) -> InfeasibleResize | None:
    """Return the infeasible resize if the pod's node is too small; ignore other rejections."""
    if rejection is not None and not rejection.is_node_limit:
        rejection = None
    requested, enforced = (
        requested_limit(pod) if rejection is None else rejection.limit,
        actual_limit(pod),
    )
    if (
        (rejection is None and resize_state(pod)[0] != INFEASIBLE)
        or requested is None
        or enforced is None
        or enforced >= requested
    ):
        return None
    return InfeasibleResize(
        pod.uid, str((pod.raw.get("spec") or {}).get("nodeName") or ""), requested, enforced
    )
