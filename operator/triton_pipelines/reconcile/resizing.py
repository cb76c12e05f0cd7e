"""A pod's CPU limit, changed in place through its ``resize`` subresource: what it is to be, what it is, and which pod is next. Pure.

One pod at a time. The template keeps the limit that pods start with, so that a count's growth rolls nothing; a pod that starts later is
brought to the others' limit as soon as its server runs. While a pod of the pipeline finds no CPU on any node, those that run give back what
they have reserved beyond the template's request (their limit stays), so that a rollout fits where the first one did.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.pipeline.graph import Graph
from triton_pipelines.pipeline.server import cpu, cpu_range, millis

from .observed import Observed, Pod
from .replicas import KEY_MILLIS, recorded

PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"
DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"
_NO_CPU: Final = "Insufficient cpu"


@dataclass(frozen=True, slots=True)
class Resize:
    """One pod's server gets this limit and request, thousandths of a core."""

    pod: str
    uid: str
    limit: int
    request: int

    @property
    def patch(self) -> dict[str, Any]:
        """As a strategic merge patch of the pod: a JSON merge patch would take the other resources away."""
        resources = {"limits": {"cpu": cpu(self.limit)}, "requests": {"cpu": cpu(self.request)}}
        return {"spec": {"containers": [{"name": names.CONTAINER_SERVER, "resources": resources}]}}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the API server did not resize a pod, the limit that was asked for, and until when it is not asked again."""

    text: str
    limit: int
    until: dt.datetime


def still_refused(known: Mapping[str, Refusal], pods: Sequence[Pod], now: dt.datetime) -> dict[str, Refusal]:
    """Refusals (by pod uid) that still hold: of pods that are there, for their time."""
    there = {pod.uid for pod in pods}
    return {uid: refusal for uid, refusal in known.items() if uid in there and refusal.until > now}


def wanted_limit(pipeline: InferencePipeline, graph: Graph, observed: Observed) -> int | None:
    """The CPU limit that live scaling wants for each pod, within bounds; ``None``: it owns none."""
    bounds = cpu_range(pipeline, graph)
    if bounds is None:
        return None
    known = recorded(observed.live_data()).get(KEY_MILLIS)
    wanted = observed.intent.cpu if observed.intent is not None and observed.intent.cpu is not None else known
    return bounds[0] if wanted is None else max(bounds[0], min(bounds[1], wanted))


def next_resize(wanted: int | None, observed: Observed) -> Resize | None:
    """The pod to resize now; ``None`` where all are as they should be, or one is still on its way."""
    if wanted is None:
        return None
    pods = [pod for pod in observed.pods if pod.server_running and not pod.deleting and pod.uid not in observed.unresized]
    pinched = any(_finds_no_cpu(pod) for pod in observed.pods if not pod.deleting)
    due = [change for pod in pods if (change := _change(pod, wanted, observed, pinched=pinched)) is not None]
    if any(on_its_way(pod) and not state_of(pod)[0] for pod in pods) and not pinched:
        return None
    # What is given back comes first: others wait for it.
    return min(due, key=lambda change: (change.limit, change.request, change.pod), default=None)


def _change(pod: Pod, wanted: int, observed: Observed, *, pinched: bool) -> Resize | None:
    template = _server((observed.revision_record(pod.revision) or {}).get("template") or {})
    rendered, present = _cpu_of(template), _cpu_of(_server(pod.raw))
    if rendered is None or present is None or not template.get("resizePolicy"):
        return None  # of a revision whose pods do not grow
    limit = max(wanted, rendered[0])
    guaranteed = present[0] == present[1] and rendered[0] == rendered[1] and _guaranteed(pod)
    request = rendered[1] if pinched and not guaranteed else min(limit, rendered[1] + limit - rendered[0])
    return None if (limit, request) == present else Resize(pod.name, pod.uid, limit, request)


def actual_limit(pod: Pod) -> int | None:
    """The CPU limit that the kubelet has put into force; ``None``: it does not say."""
    found = _cpu_of(pod.container(names.CONTAINER_SERVER))
    return found[0] if found is not None else None


def asked_limit(pod: Pod) -> int | None:
    """The CPU limit that the pod's spec asks for."""
    found = _cpu_of(_server(pod.raw))
    return found[0] if found is not None else None


def on_its_way(pod: Pod) -> bool:
    """Whether the kubelet has not yet given the pod what its spec asks for."""
    return pod.server_running and _cpu_of(pod.container(names.CONTAINER_SERVER)) != _cpu_of(_server(pod.raw))


def state_of(pod: Pod) -> tuple[str, str]:
    """``Deferred`` or ``Infeasible`` with the kubelet's words, "" neither. Releases up to 1.32 tell it in ``status.resize``."""
    pending = pod.condition(PENDING)
    if pending.get("status") == "True" and pending.get("reason") in (DEFERRED, INFEASIBLE):
        return str(pending["reason"]), str(pending.get("message", ""))
    old = str((pod.raw.get("status") or {}).get("resize") or "")
    return (old, "") if old in (DEFERRED, INFEASIBLE) else ("", "")


def waits(pod: Pod) -> str:
    """What a pod's new CPU limit waits for, in words; "" where it has it."""
    if not on_its_way(pod):
        return ""
    if actual_limit(pod) is None:
        return "tells no CPU limit in force: Kubernetes 1.33 or newer is needed to resize pods in place"
    state, why = state_of(pod)
    node = str((pod.raw.get("spec") or {}).get("nodeName") or "its node")
    if state:
        return f"is {state} on node {node}{f': {why}' if why else ''}"
    failed = str(pod.condition(IN_PROGRESS).get("message", ""))
    return f"has not got {asked_limit(pod)}m yet{f': {failed}' if failed else ''}"


def _finds_no_cpu(pod: Pod) -> bool:
    placed = pod.condition("PodScheduled")
    return placed.get("status") == "False" and placed.get("reason") == "Unschedulable" and _NO_CPU in str(placed.get("message", ""))


def _guaranteed(pod: Pod) -> bool:
    """Its class stays what it is: of a Guaranteed pod limits and requests are one."""
    return (pod.raw.get("status") or {}).get("qosClass") == "Guaranteed"


def _server(template_or_pod: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = (template_or_pod.get("spec") or {}).get("containers") or ()
    return next((item for item in containers if item.get("name") == names.CONTAINER_SERVER), {})


def _cpu_of(container: Mapping[str, Any]) -> tuple[int, int] | None:
    """Limit and request; ``None`` where there is no limit."""
    resources = container.get("resources") or {}
    limit = (resources.get("limits") or {}).get("cpu")
    request = (resources.get("requests") or {}).get("cpu")
    return None if limit is None else (millis(str(limit)), millis(str(limit if request is None else request)))
