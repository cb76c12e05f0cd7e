"""The pods of a pipeline as live scaling looks at them beside their counts: how many, how many may be, and what CPU they have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.pipeline.graph import Graph
from triton_pipelines.pipeline.server import cpu_range, millis
from triton_pipelines.scaling.fleet import PODS, Bounds, Seen
from triton_pipelines.scaling.resize import CpuBounds
from triton_pipelines.scaling.types import Infeasible, StepLimits

from .observed import Pod
from .resizing import INFEASIBLE, actual_limit, asked_limit, state_of, waits
from .scaling import scaled_steps


def bounds_of(pipeline: InferencePipeline, graph: Graph) -> Bounds:
    """What live scaling may change of a pipeline beside counts."""
    pods, limit = pipeline.spec.scaling.pods, cpu_range(pipeline, graph)
    return Bounds(
        pods=None if pods is None else StepLimits(PODS, "", pods.low, pods.max, pipeline.spec.replicas),
        cpu=None if limit is None else CpuBounds(*limit, base=limit[1] - _most(graph)),
    )


def _most(graph: Graph) -> int:
    """CPU of the most instances of all scaled steps, as far as it is granted to Python processes."""
    return sum(millis(step.resources.cpu) * step.instances.high for step in scaled_steps(graph) if step.python)


def seen_of(pods: Sequence[Pod], deployment: Mapping[str, Any] | None, wanted: int | None, refused: Mapping[str, int] | None = None) -> Seen:
    """The pods as they are. ``wanted``: the CPU limit that each is to have, ``None``: any; ``refused``: limits that the API server did not
    give, by pod uid: where a node is too small for it, it says so (Kubernetes 1.36, measured) before the kubelet could."""
    staying = [pod for pod in pods if not pod.deleting]
    running = [pod for pod in staying if pod.server_running] if wanted is not None else []
    uneven = {pod.name: waits(pod) or f"is next for {wanted}m" for pod in running if waits(pod) or asked_limit(pod) != wanted}
    infeasible = {pod.uid: found for pod in running if (found := _infeasible(pod, (refused or {}).get(pod.uid))) is not None}
    return Seen(
        uids=frozenset(pod.uid for pod in staying),
        there=len(staying),
        ready=sum(pod.serving for pod in staying),
        rolling=deployment is None or rolls(deployment) or len({(pod.revision, pod.template) for pod in staying}) > 1,
        uneven=uneven,
        infeasible=infeasible,
    )


def smallest_limit(pods: Sequence[Pod]) -> Mapping[str, Any] | None:
    """Resources in force in the pod that has least CPU; ``None``: no kubelet tells them."""
    known = [(limit, pod) for pod in pods if (limit := actual_limit(pod)) is not None]
    found = min(known, key=lambda item: item[0], default=None)
    return None if found is None else found[1].container(names.CONTAINER_SERVER).get("resources")


def rolls(deployment: Mapping[str, Any]) -> bool:
    """Whether a Deployment is on its way to its latest template: not yet seen by its controller, or neither there nor given up."""
    status = deployment.get("status") or {}
    if int(status.get("observedGeneration") or 0) < int(deployment["metadata"].get("generation") or 0):
        return True
    progressing: Mapping[str, Any] = next((item for item in status.get("conditions") or () if item.get("type") == "Progressing"), {})
    return progressing.get("reason") not in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded")


def _infeasible(pod: Pod, refused: int | None) -> Infeasible | None:
    asked, given = asked_limit(pod) if refused is None else refused, actual_limit(pod)
    if (refused is None and state_of(pod)[0] != INFEASIBLE) or asked is None or given is None or given >= asked:
        return None
    return Infeasible(pod.uid, str((pod.raw.get("spec") or {}).get("nodeName") or ""), asked, given)
