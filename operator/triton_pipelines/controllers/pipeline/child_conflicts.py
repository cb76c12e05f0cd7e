"""Detect who keeps undoing what the operator applies to its objects. Pure; the clock is passed in.

The operator corrects an edited or deleted object at once. If another manager undoes each
correction, every write would cause the next one. The object is therefore corrected with increasing
delays (:class:`~.field_managers.AlternatingManagers`), and the status reports it. An object with
new content is never delayed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.cluster.diff import needs_apply
from triton_pipelines.cluster.store import Key

from .actions import soonest
from .field_managers import AlternatingManagers
from .snapshot import Object
from .status_conflict import UNKNOWN_MANAGER, last_other_manager

ChildName = tuple[str, str]
"""Kind and name."""
_NO_OTHERS: Final = AlternatingManagers()


@dataclass(frozen=True, slots=True)
class _Applied:
    """An object as it was last applied, and who has undone that since."""

    digest: bytes
    """Hash of its content."""
    managers: AlternatingManagers = _NO_OTHERS
    """Managers that alternate in writing it, the operator included."""


@dataclass(slots=True)
class ChildConflicts:
    """What was applied for each pipeline; one instance per process."""

    _applied: dict[Key, dict[ChildName, _Applied]] = field(default_factory=dict)

    def delayed(self, key: Key, items: Sequence[Object], now: dt.datetime) -> frozenset[ChildName]:
        """Return which of the objects must not be applied yet."""
        known = self._applied.get(key, {})
        return frozenset(
            name
            for item in items
            if (name := name_of(item)) in known
            and known[name].managers.correction_due_in(now) is not None
            and known[name].digest == digest_of(item)
        )

    def record(
        self,
        key: Key,
        items: Sequence[Object],
        children: Mapping[ChildName, Object],
        planned: Sequence[Object],
        now: dt.datetime,
    ) -> None:
        """Record objects that were applied.

        Args:
            key: The pipeline.
            items: The objects.
            children: The pipeline's objects as they were before.
            planned: All objects that the iteration applies, before and after these.
            now: UTC.
        """
        before = self._applied.get(key, {})
        exist = children.keys() | {name_of(item) for item in planned}
        recorded = {
            name: one
            for name, one in before.items()
            if name in exist or one.managers.sequence_ends_in(now) is not None
        }
        for item in items:
            name, digest = name_of(item), digest_of(item)
            last = before.get(name) or _Applied(digest)
            if name in before and last.digest == digest:
                last = _corrected(last, children.get(name), item, now)
            recorded[name] = replace(last, digest=digest)
        if recorded:
            self._applied[key] = recorded

    def findings(self, key: Key, now: dt.datetime) -> tuple[Finding, ...]:
        """Return what the status reports about objects of a pipeline that are corrected later."""
        return tuple(
            Finding(
                "metadata.name",
                f"{one.managers.alternating} overwrite each other's changes of {kind} {name}, so "
                "the operator corrects it less often; configure the other manager to leave the "
                "object alone",
                Severity.WARNING,
                code=FindingCode.OBJECT_CONFLICT,
            )
            for (kind, name), one in sorted(self._applied.get(key, {}).items())
            if one.managers.alternating and one.managers.sequence_ends_in(now) is not None
        )

    def recheck_after(self, key: Key, now: dt.datetime) -> float | None:
        """Return the seconds until an object may be corrected, or a finding ends; else ``None``."""
        managers = [one.managers for one in self._applied.get(key, {}).values()]
        return soonest(
            *(one.correction_due_in(now) for one in managers),
            *(one.sequence_ends_in(now) for one in managers if one.alternating),
        )

    def forget(self, key: Key) -> None:
        """Drop what is known about a deleted pipeline."""
        self._applied.pop(key, None)


def _corrected(last: _Applied, live: Object | None, item: Object, now: dt.datetime) -> _Applied:
    """Return the record of an object to which the same content was applied again."""
    if live is not None and not needs_apply(live, item, names.MANAGER_CHILDREN):
        return last  # Only the ownership of a field changed.
    other = (
        last_other_manager(live["metadata"], names.MANAGER_CHILDREN)
        if live is not None
        else UNKNOWN_MANAGER
    )
    managers = last.managers.with_manager(other, now)
    return replace(last, managers=managers.with_manager(names.MANAGER_CHILDREN, now))


def name_of(item: Object) -> ChildName:
    """Return kind and name of an object."""
    return item["kind"], item["metadata"]["name"]


def digest_of(item: Object) -> bytes:
    """Return a hash of an object's content."""
    return hashlib.sha256(json.dumps(item, sort_keys=True).encode()).digest()[:16]
