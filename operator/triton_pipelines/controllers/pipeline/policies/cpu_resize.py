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
from triton_pipelines.controllers.pipeline.actions import Resize, soonest
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.field_managers import OtherManagers
from triton_pipelines.controllers.pipeline.pod_resize import desired_limit, due_changes, next_resize
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.resize_rejections import (
    ResizeRejection,
    rejections_of,
    retry_delay,
)
from triton_pipelines.controllers.pipeline.snapshot import Pod, Snapshot
from triton_pipelines.controllers.pipeline.state import CpuResizeState
from triton_pipelines.controllers.timestamps import moment, timestamp

from .replicas import UNNAMED_MANAGER

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
    rejections: Mapping[str, ResizeRejection]
    """Due resizes that the API server rejected, by pod uid."""
    retry_delay: float | None
    """Seconds until they are retried."""
    state: CpuResizeState
    conflict: str = ""
    """Who else writes the CPU, and what to do; empty without any."""


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Resize one pod to the CPU limit that live scaling wants, unless another manager owns it."""
    spec = draft.of(ReconciledSpec)
    limit = desired_limit(spec.pipeline, spec.graph, snapshot)
    found = decide_cpu(limit, snapshot, draft.state.cpu_resize, now)
    forgotten_after = found.state.others.correction_ends_in(now)
    return Outcome(
        found,
        (found.state,),
        resize=found.resize,
        requeue_after=soonest(found.retry_delay, forgotten_after),
    )


def decide_cpu(
    limit: int | None, snapshot: Snapshot, state: CpuResizeState, now: dt.datetime
) -> CpuResizeDecision:
    """Choose the pod that gets the ``limit`` that live scaling wants, and who owns the CPU."""
    due = due_changes(limit, snapshot)
    rejections = rejections_of(snapshot.resize_rejections, {change.uid for change in due})
    pods = {pod.uid: pod for pod in snapshot.pods}
    managers = {
        change.uid: other
        for change in due
        if (other := _deviating_manager(pods[change.uid], change)) is not None
    }
    others = state.others
    if not managers:
        others = others.without_deviation(now)
    for change in due:
        if (other := managers.get(change.uid)) is not None and others.keeps_writing(
            other.manager, other.at, now
        ):
            others = others.with_owner(other.manager)
            return CpuResizeDecision(
                limit,
                None,
                {},
                None,
                state.with_others(others),
                _conflict_message(snapshot.name, others, change),
            )
    resize = next_resize(due, snapshot, now)
    # The first correction of each manager counts: a later write, to any pod, is a repetition.
    if (
        resize is not None
        and (other := managers.get(resize.uid)) is not None
        and not others.was_corrected(other.manager, now)
    ):
        others = others.with_correction(other.manager, now)
    return CpuResizeDecision(
        limit, resize, rejections, retry_delay(rejections, now), state.with_others(others)
    )


@dataclass(frozen=True, slots=True)
class _CpuManager:
    """A manager that wrote a pod's CPU, or an autoscaler that did at admission, and when."""

    manager: str
    at: dt.datetime | None


def _deviating_manager(pod: Pod, change: Resize) -> _CpuManager | None:
    """Return the other manager that wrote the deviating CPU.

    It wrote through the pod's ``resize`` subresource, or when the pod was created. ``None`` without
    one, as when the pod has what pods start with.
    """
    deviating = {
        field
        for field, current, target in (
            ("f:limits", change.before[0], change.limit),
            ("f:requests", change.before[1], change.request),
        )
        if current != target
    }
    for entry, fields in _resize_entries(pod):
        manager = str(entry.get("manager", "")) or UNNAMED_MANAGER
        if deviating & fields and not manager.startswith(names.MANAGER_CHILDREN):
            return _CpuManager(manager, moment(str(entry.get("time") or "")))
        deviating -= fields
    admitted = _vpa_at_admission(pod)
    if admitted is None or not deviating & admitted[1]:
        return None
    return _CpuManager(
        admitted[0], timestamp(str(pod.raw["metadata"].get("creationTimestamp") or ""))
    )


def _vpa_at_admission(pod: Pod) -> tuple[str, frozenset[str]] | None:
    """Return the Vertical Pod Autoscaler that changed the server's CPU, and which fields.

    ``None`` if none reports a change at the pod's creation. It leaves no field manager, but an
    annotation (VPA 1.x, pkg/admission-controller/resource/pod/patch): "Pod resources updated by
    NAME: container 0: cpu request, cpu limit; container 1: …". An autoscaler that evicts ends each
    pod that is resized.
    """
    annotation = str((pod.raw["metadata"].get("annotations") or {}).get(_ADMITTED_BY, ""))
    found = _UPDATED.fullmatch(annotation)
    containers = [item.get("name") for item in (pod.raw.get("spec") or {}).get("containers") or ()]
    if found is None or names.CONTAINER_SERVER not in containers:
        return None
    start = f"container {containers.index(names.CONTAINER_SERVER)}: "
    changes = {
        change.strip()
        for part in found["changes"].split("; ")
        if part.startswith(start)
        for change in part.removeprefix(start).split(",")
    }
    fields = frozenset(
        field
        for field, phrase in (("f:limits", "cpu limit"), ("f:requests", "cpu request"))
        if phrase in changes
    )
    return (f"VerticalPodAutoscaler {found['name']}", fields) if fields else None


def _resize_entries(pod: Pod) -> Iterator[tuple[Mapping[str, Any], frozenset[str]]]:
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


def _conflict_message(pipeline: str, others: OtherManagers, change: Resize) -> str:
    resize = "resize" if others.has_several else "resizes"
    return (
        f"cpu: {others.names} repeatedly {resize} the pods of {pipeline}: pod {change.pod} "
        f"has a CPU limit of {change.before[0]}m and a request of {change.before[1]}m "
        f"instead of {change.limit}m and {change.request}m, so the operator no longer "
        "changes the CPU. Stop these changes (for a VerticalPodAutoscaler, set updateMode to Off), "
        "or set spec.scaling.cpuResize to Disabled"
    )
