"""Resize the CPU limit of pods in place, through their ``resize`` subresource. Pure.

This module chooses the desired limit, reads the actual one and selects the next pod: one at a time.
The template keeps the limit that pods start with, so that scaling up starts no rollout; a pod that
starts later gets the limit of the others as soon as its server runs. While a pod of the pipeline
finds no CPU on any node, the running pods give back what they have reserved beyond the template's
request (their limit stays), so that a rollout fits where the first one did. A resize that the API
server rejects is retried later (``resize_rejections.py``). What another manager writes again is
left to it (``policies/cpu_resize.py``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.container_resources import cpu_range
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.quantities import millis
from triton_pipelines.compile.render.pod import server_container

from .actions import Resize
from .live_config_map import KEY_MILLIS, recorded
from .resize_rejections import RejectionCause
from .snapshot import Pod, Snapshot

PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"
DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"
_NO_CPU: Final = "Insufficient cpu"


def desired_limit(pipeline: InferencePipeline, graph: Graph, snapshot: Snapshot) -> int | None:
    """Return the bounded CPU limit that live scaling wants per pod; ``None`` if it owns none."""
    bounds = cpu_range(pipeline, graph)
    if bounds is None:
        return None
    recorded_limit = recorded(snapshot.live_data()).get(KEY_MILLIS)
    desired = (
        snapshot.intent.cpu
        if snapshot.intent is not None and snapshot.intent.cpu is not None
        else recorded_limit
    )
    if desired is None:
        # Without a record, for example after it was deleted: the limit that pods of a growing
        # revision were given.
        desired = max(
            (limit for pod in snapshot.pods if (limit := _grown_limit(pod, snapshot)) is not None),
            default=bounds[0],
        )
    return max(bounds[0], min(bounds[1], desired))


def _grown_limit(pod: Pod, snapshot: Snapshot) -> int | None:
    """Return the limit of a running pod that may grow."""
    if (
        pod.deleting
        or not pod.server_running
        or not server_container(
            (snapshot.revision_record(pod.revision) or {}).get("template") or {}
        ).get("resizePolicy")
    ):
        return None
    return requested_limit(pod)


def due_changes(desired: int | None, snapshot: Snapshot) -> list[Resize]:
    """Return the resizes that pods still need, those that give CPU back first.

    Others may wait for that CPU.
    """
    if desired is None:
        return []
    starved = _is_cpu_starved(snapshot)
    due = [
        change
        for pod in _resizable(snapshot)
        if (change := _resize_of(pod, desired, snapshot, starved=starved)) is not None
    ]
    return sorted(due, key=lambda change: (change.limit, change.request, change.pod))


def next_resize(due: Sequence[Resize], snapshot: Snapshot, now: dt.datetime) -> Resize | None:
    """Return the pod to resize now.

    ``None`` if no resize is due, another one is still in progress, or the API server rejected those
    that are ``due`` recently.
    """
    if any(
        is_resizing(pod) and not resize_state(pod)[0] for pod in _resizable(snapshot)
    ) and not _is_cpu_starved(snapshot):
        return None
    recently_rejected = {
        uid: rejection
        for uid, rejection in snapshot.resize_rejections.items()
        if rejection.until > now
    }
    # Without permission for one pod there is none for others. A quota never prevents giving CPU
    # back.
    kinds = {
        rejection.cause for rejection in recently_rejected.values() if rejection.affects_all_pods
    }
    if kinds - {RejectionCause.QUOTA}:
        return None
    return next(
        (
            change
            for change in due
            if change.uid not in recently_rejected and (not kinds or change.is_reduction)
        ),
        None,
    )


def _resizable(snapshot: Snapshot) -> list[Pod]:
    return [pod for pod in snapshot.pods if pod.server_running and not pod.deleting]


def _is_cpu_starved(snapshot: Snapshot) -> bool:
    """Return whether a pod finds no CPU on any node."""
    return any(_lacks_cpu(pod) for pod in snapshot.pods if not pod.deleting)


def _resize_of(pod: Pod, desired: int, snapshot: Snapshot, *, starved: bool) -> Resize | None:
    template = server_container(
        (snapshot.revision_record(pod.revision) or {}).get("template") or {}
    )
    rendered, present = _cpu_of(template), _cpu_of(server_container(pod.raw))
    if rendered is None or present is None or not template.get("resizePolicy"):
        return None  # The pods of this revision do not grow.
    limit = max(desired, rendered[0])
    guaranteed = present[0] == present[1] and rendered[0] == rendered[1] and _is_guaranteed(pod)
    request = (
        rendered[1] if starved and not guaranteed else min(limit, rendered[1] + limit - rendered[0])
    )
    return (
        None if (limit, request) == present else Resize(pod.name, pod.uid, limit, request, present)
    )


def actual_limit(pod: Pod) -> int | None:
    """Return the CPU limit that the kubelet enforces; ``None`` if it does not report one."""
    found = _cpu_of(pod.container(names.CONTAINER_SERVER))
    return found[0] if found is not None else None


def requested_limit(pod: Pod) -> int | None:
    """Return the CPU limit in the pod's spec."""
    found = _cpu_of(server_container(pod.raw))
    return found[0] if found is not None else None


def is_resizing(pod: Pod) -> bool:
    """Return whether the kubelet has not yet given the pod what its spec requests."""
    return pod.server_running and _cpu_of(pod.container(names.CONTAINER_SERVER)) != _cpu_of(
        server_container(pod.raw)
    )


def resize_state(pod: Pod) -> tuple[str, str]:
    """Return ``Deferred`` or ``Infeasible`` with the kubelet's message; empty if neither holds.

    Kubernetes releases up to 1.32 report it in ``status.resize``.
    """
    pending = pod.condition(PENDING)
    if pending.get("status") == "True" and pending.get("reason") in (DEFERRED, INFEASIBLE):
        return str(pending["reason"]), str(pending.get("message", ""))
    reported = str((pod.raw.get("status") or {}).get("resize") or "")
    return (reported, "") if reported in (DEFERRED, INFEASIBLE) else ("", "")


def pending_reason(pod: Pod) -> str:
    """Return what a pod's new CPU limit waits for, as text; empty if it is in force."""
    if not is_resizing(pod):
        return ""
    if actual_limit(pod) is None:
        return (
            "reports no CPU limit in effect, because resizing pods in place requires Kubernetes"
            " 1.33 or later"
        )
    state, why = resize_state(pod)
    node = str((pod.raw.get("spec") or {}).get("nodeName") or "its node")
    if state:
        return f"has a resize that is {state} on node {node}{f': {why}' if why else ''}"
    failed = str(pod.condition(IN_PROGRESS).get("message", ""))
    return f"does not have {requested_limit(pod)}m of CPU yet{(f': {failed}' if failed else '')}"


def _lacks_cpu(pod: Pod) -> bool:
    placed = pod.condition("PodScheduled")
    return (
        placed.get("status") == "False"
        and placed.get("reason") == "Unschedulable"
        and _NO_CPU in str(placed.get("message", ""))
    )


def _is_guaranteed(pod: Pod) -> bool:
    """Return whether the pod is Guaranteed; then limits and requests have to stay equal."""
    return (pod.raw.get("status") or {}).get("qosClass") == "Guaranteed"


def _cpu_of(container: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return limit and request; ``None`` without a limit."""
    resources = container.get("resources") or {}
    limit = (resources.get("limits") or {}).get("cpu")
    request = (resources.get("requests") or {}).get("cpu")
    return (
        None
        if limit is None
        else (millis(str(limit)), millis(str(limit if request is None else request)))
    )
