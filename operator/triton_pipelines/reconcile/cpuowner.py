"""Whose the CPU of the pods is: live scaling's, or somebody else's whom nobody fights. Pure; the clock is passed in.

As with the number of pods (replicas.py): a pod that somebody else has resized, as the Vertical Pod Autoscaler does in place, is mended once.
Whoever writes it again within minutes means it, is named, and keeps the CPU of all pods for as long as a pod has what they wrote. Of several who
take turns each is mended once, and all are named.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from triton_pipelines.api import names

from .observed import Memory, Observed, Pod
from .refusals import Refusal, asked_again, of_pods
from .replicas import MENDED_FOR
from .resizing import Resize, due_changes, next_resize
from .times import timestamp

_SUBRESOURCE = "resize"
# Between the names of managers, as remembered and as told; and of how many is told.
_AND = " and "
MANAGERS_MAX = 4


@dataclass(frozen=True, slots=True)
class CpuPass:
    """One pass over the pods' CPU: the ``limit`` that is wanted (thousandths of a core, ``None``: any), the pod to ``resize`` now, what was
    ``refused`` of what is still due (by pod uid) and in how many seconds that is asked for ``again``, and who else writes it (``conflict``: who
    and what to do, "" nobody)."""

    limit: int | None
    resize: Resize | None
    refused: Mapping[str, Refusal]
    again: float | None
    memory: Memory
    conflict: str = ""


def taken_by(memory: Memory) -> str:
    """Whom the CPU of the pods is left to, "" nobody."""
    return memory.resized_manager if not memory.resized else ""


def decide_cpu(limit: int | None, observed: Observed, memory: Memory, now: dt.datetime) -> CpuPass:
    """Which pod gets the ``limit`` that live scaling wants, and whose the CPU is."""
    due = due_changes(limit, observed)
    refused = of_pods(observed.unresized, {change.uid for change in due})
    pods = {pod.uid: pod for pod in observed.pods}
    written = {change.uid: other for change in due if (other := _other_writer(pods[change.uid], change)) is not None}
    if not written and not _recent(memory, now):
        memory = replace(memory, resized_manager="", resized="")
    for change in due:
        if (other := written.get(change.uid)) is not None and _insists(other, memory, now):
            left = replace(memory, resized_manager=_with(memory, other.manager), resized="")
            return CpuPass(limit, None, {}, None, left, _taken(observed.name, left.resized_manager, change))
    resize = next_resize(due, observed, now)
    if resize is not None and (other := written.get(resize.uid)) is not None and not (_recent(memory, now) and other.manager in _mended(memory)):
        # The first mending of each counts: what is written later, to whichever pod, is written again.
        known = _with(memory, other.manager) if _recent(memory, now) else other.manager
        memory = replace(memory, resized_manager=known, resized=now.isoformat(timespec="seconds"))
    return CpuPass(limit, resize, refused, asked_again(refused, now), memory)


@dataclass(frozen=True, slots=True)
class _Writer:
    """A field manager that resized a pod, and when."""

    manager: str
    at: dt.datetime | None


def _recent(memory: Memory, now: dt.datetime) -> bool:
    """Whether somebody's resize was mended a short time ago."""
    at = timestamp(memory.resized)
    return at is not None and now - at < MENDED_FOR


def _insists(other: _Writer, memory: Memory, now: dt.datetime) -> bool:
    """Whether this manager wrote after it was mended. What it wrote to several pods before is one slip. To whom the CPU is left, nobody writes
    against, whoever joins them."""
    mended = timestamp(memory.resized)
    if mended is None:
        return bool(memory.resized_manager)
    known = _mended(memory)
    return (other.manager in known or len(known) >= MANAGERS_MAX) and _recent(memory, now) and (other.at is None or other.at > mended)


def _mended(memory: Memory) -> list[str]:
    """The managers whose resizes were mended, or to whom the CPU is left."""
    return [name for name in memory.resized_manager.split(_AND) if name]


def _with(memory: Memory, manager: str) -> str:
    """These managers and one more, in an order of their own, so that nothing is new when they take turns."""
    return _AND.join(sorted({*_mended(memory), manager})[:MANAGERS_MAX])


def _other_writer(pod: Pod, change: Resize) -> _Writer | None:
    """Who else wrote what deviates in the pod, through its ``resize`` subresource; ``None``: nobody, as where it is what pods start with."""
    deviating = {
        field
        for field, is_now, to_be in (("f:limits", change.before[0], change.limit), ("f:requests", change.before[1], change.request))
        if is_now != to_be
    }
    for entry, fields in _written(pod):
        manager = str(entry.get("manager", "")) or "somebody"
        if deviating & fields and not manager.startswith(names.MANAGER_CHILDREN):
            return _Writer(manager, timestamp(str(entry.get("time") or "")))
    return None


def _written(pod: Pod) -> Iterator[tuple[Mapping[str, Any], frozenset[str]]]:
    """Entries of managedFields of resizes, with which of the server's CPU they own."""
    for entry in pod.raw["metadata"].get("managedFields") or ():
        if entry.get("subresource") != _SUBRESOURCE:
            continue
        found: Any = entry.get("fieldsV1") or {}
        for key in ("f:spec", "f:containers", f'k:{{"name":"{names.CONTAINER_SERVER}"}}', "f:resources"):
            found = found.get(key) or {}
        yield entry, frozenset(field for field in ("f:limits", "f:requests") if "f:cpu" in (found.get(field) or {}))


def _taken(pipeline: str, managers: str, change: Resize) -> str:
    resize = "resize" if _AND in managers else "resizes"
    return (
        f"cpu: {managers} {resize} the pods of {pipeline} again and again: pod {change.pod} has a CPU limit of {change.before[0]}m and a request of"
        f" {change.before[1]}m where live scaling wants {change.limit}m and {change.request}m; it is left to it. Take these pods out of its reach"
        " (of a VerticalPodAutoscaler: updateMode Off, or no controlledResources cpu), or set spec.scaling.cpuResize to Disabled"
    )
