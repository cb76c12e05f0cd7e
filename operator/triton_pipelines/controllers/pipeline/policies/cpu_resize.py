"""Choose the CPU limit of the pods, and respect other managers of it. Pure; the clock is passed in.

A pod may be resized by another manager, such as the Vertical Pod Autoscaler, in place or when the
pod is created. This is corrected once. A manager that writes it again within minutes does so on
purpose (``field_managers.py``): it is reported, and keeps the CPU of all pods for as long as a pod
has what it wrote.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.actions import Resize
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.field_managers import Writers
from triton_pipelines.controllers.pipeline.pod_resize import due_changes, next_resize, wanted_limit
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.resize_rejections import Refusal, asked_again, of_pods
from triton_pipelines.controllers.pipeline.snapshot import Pod, Snapshot
from triton_pipelines.controllers.pipeline.state import CpuResizeState
from triton_pipelines.controllers.timestamps import timestamp

_SUBRESOURCE: Final = "resize"
_ADMITTED_BY: Final = "vpaUpdates"
_UPDATED: Final = re.compile(r"Pod resources updated by (?P<name>[a-z0-9.-]+): (?P<changes>.+)")


@dataclass(frozen=True, slots=True)
class CpuResizeDecision:
    """Decision on the CPU of the pods in one reconcile iteration."""

    limit: int | None
    """The desired limit (thousandths of a core); ``None``: any."""
    resize: Resize | None
    """The pod to resize now."""
    refused: Mapping[str, Refusal]
    """Due resizes that the API server rejected, by pod uid."""
    again: float | None
    """Seconds until they are retried."""
    state: CpuResizeState
    conflict: str = ""
    """Who else writes the CPU, and what to do; empty without any."""


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Resize one pod to the CPU limit that live scaling wants, unless another manager owns it."""
    spec = draft.of(ReconciledSpec)
    limit = wanted_limit(spec.pipeline, spec.graph, snapshot)
    found = decide_cpu(limit, snapshot, draft.state.cpu_resize, now)
    return Outcome(found, (found.state,), resize=found.resize, requeue_after=found.again)


def decide_cpu(
    limit: int | None, snapshot: Snapshot, state: CpuResizeState, now: dt.datetime
) -> CpuResizeDecision:
    """Choose the pod that gets the ``limit`` that live scaling wants, and who owns the CPU."""
    due = due_changes(limit, snapshot)
    refused = of_pods(snapshot.resize_rejections, {change.uid for change in due})
    pods = {pod.uid: pod for pod in snapshot.pods}
    written = {
        change.uid: other
        for change in due
        if (other := _other_writer(pods[change.uid], change)) is not None
    }
    writers = state.writers
    if not written:
        writers = writers.rested(now)
    for change in due:
        if (other := written.get(change.uid)) is not None and writers.insist(
            other.manager, other.at, now
        ):
            writers = writers.left_to(other.manager)
            return CpuResizeDecision(
                limit,
                None,
                {},
                None,
                state.with_writers(writers),
                _taken(snapshot.name, writers, change),
            )
    resize = next_resize(due, snapshot, now)
    # The first correction of each manager counts: a later write, to any pod, is a repetition.
    if (
        resize is not None
        and (other := written.get(resize.uid)) is not None
        and not writers.knows(other.manager, now)
    ):
        writers = writers.mending(other.manager, now)
    return CpuResizeDecision(
        limit, resize, refused, asked_again(refused, now), state.with_writers(writers)
    )


@dataclass(frozen=True, slots=True)
class _Writer:
    """A manager that wrote a pod's CPU, or an autoscaler that did at admission, and when."""

    manager: str
    at: dt.datetime | None


def _other_writer(pod: Pod, change: Resize) -> _Writer | None:
    """Return the other manager that wrote the deviating CPU.

    It wrote through the pod's ``resize`` subresource, or when the pod was created. ``None`` without
    one, as when the pod has what pods start with.
    """
    deviating = {
        field
        for field, is_now, to_be in (
            ("f:limits", change.before[0], change.limit),
            ("f:requests", change.before[1], change.request),
        )
        if is_now != to_be
    }
    for entry, fields in _written(pod):
        manager = str(entry.get("manager", "")) or "somebody"
        if deviating & fields and not manager.startswith(names.MANAGER_CHILDREN):
            return _Writer(manager, timestamp(str(entry.get("time") or "")))
        deviating -= fields
    admitted = _admitted(pod)
    if admitted is None or not deviating & admitted[1]:
        return None
    return _Writer(admitted[0], timestamp(str(pod.raw["metadata"].get("creationTimestamp") or "")))


def _admitted(pod: Pod) -> tuple[str, frozenset[str]] | None:
    """Return the Vertical Pod Autoscaler that changed the server's CPU, and which fields.

    ``None`` if none reports a change at the pod's creation. It leaves no field manager, but an
    annotation (VPA 1.x, pkg/admission-controller/resource/pod/patch): "Pod resources updated by
    NAME: container 0: cpu request, cpu limit; container 1: …". An autoscaler that evicts ends each
    pod that is resized.
    """
    said = str((pod.raw["metadata"].get("annotations") or {}).get(_ADMITTED_BY, ""))
    found = _UPDATED.fullmatch(said)
    containers = [item.get("name") for item in (pod.raw.get("spec") or {}).get("containers") or ()]
    if found is None or names.CONTAINER_SERVER not in containers:
        return None
    start = f"container {containers.index(names.CONTAINER_SERVER)}: "
    mine = {
        change.strip()
        for part in found["changes"].split("; ")
        if part.startswith(start)
        for change in part.removeprefix(start).split(",")
    }
    fields = frozenset(
        field
        for field, word in (("f:limits", "cpu limit"), ("f:requests", "cpu request"))
        if word in mine
    )
    return (f"VerticalPodAutoscaler {found['name']}", fields) if fields else None


def _written(pod: Pod) -> Iterator[tuple[Mapping[str, Any], frozenset[str]]]:
    """Return the managedFields entries of resizes, with the CPU fields of the server they own."""
    for entry in pod.raw["metadata"].get("managedFields") or ():
        if entry.get("subresource") != _SUBRESOURCE:
            continue
        found: Any = entry.get("fieldsV1") or {}
        for key in (
            "f:spec",
            "f:containers",
            f'k:{{"name":"{names.CONTAINER_SERVER}"}}',
            "f:resources",
        ):
            found = found.get(key) or {}
        yield (
            entry,
            frozenset(
                field for field in ("f:limits", "f:requests") if "f:cpu" in (found.get(field) or {})
            ),
        )


def _taken(pipeline: str, writers: Writers, change: Resize) -> str:
    resize, them, their = (
        ("resize", "them", "their") if writers.several else ("resizes", "it", "its")
    )
    return (
        f"cpu: {writers.names} {resize} the pods of {pipeline} again and again: pod {change.pod}"
        f" has a CPU limit of {change.before[0]}m and a request of"
        f" {change.before[1]}m where live scaling wants {change.limit}m and {change.request}m;"
        f" it is left to {them}. Take these pods out of {their} reach"
        " (of a VerticalPodAutoscaler: updateMode Off, or no controlledResources cpu),"
        " or set spec.scaling.cpuResize to Disabled"
    )
