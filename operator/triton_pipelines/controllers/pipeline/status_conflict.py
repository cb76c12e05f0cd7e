"""Detect other controllers that keep overwriting a status of the operator. Pure.

The operator corrects what others write into its status. If a controller repeats its write after
each correction, every write would cause the next one. Corrections are therefore delayed, with
increasing delays (:class:`~.field_managers.AlternatingManagers`). A status whose summary changes
(:func:`summary_of`) is never delayed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.conditions import ConditionType

from .field_managers import AlternatingManagers

UNKNOWN_MANAGER: Final = "an unknown manager"
# Conditions that the operator computes without reading the status, so a forged status cannot change
# them.
_SUMMARY_TYPES: Final = (
    ConditionType.READY,
    ConditionType.AVAILABLE,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
)


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    """The last status that this process wrote, and who has overwritten it."""

    digest: str = ""
    """Hash of the status as the API server returned it; empty if none was written."""
    summary: tuple[Any, ...] = ()
    """What it reported (:func:`summary_of`)."""
    managers: AlternatingManagers = field(default_factory=AlternatingManagers)
    """Managers that alternate in writing it, the operator included."""

    def is_correction(self, pipeline: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Return whether writing a status would only undo what others wrote.

        Args:
            pipeline: The pipeline as observed.
            status: The status to write.
        """
        return (
            bool(self.digest)
            and digest_of(pipeline.get("status")) != self.digest
            and summary_of(pipeline, status) == self.summary
        )

    def with_correction(self, pipeline: Mapping[str, Any], now: dt.datetime) -> WrittenStatus:
        """Return the state after correcting the observed pipeline now."""
        other = last_other_manager(pipeline["metadata"], names.MANAGER_STATUS, "status")
        managers = self.managers.with_manager(other, now)
        return replace(self, managers=managers.with_manager(names.MANAGER_STATUS, now))

    def with_status(self, applied: Mapping[str, Any], status: Mapping[str, Any]) -> WrittenStatus:
        """Return the state after a status was written.

        Args:
            applied: The pipeline as the API server returned it.
            status: The status that was written.
        """
        return replace(
            self, digest=digest_of(applied.get("status")), summary=summary_of(applied, status)
        )


def digest_of(status: Any) -> str:
    """Return a hash of a status."""
    return hashlib.sha256(json.dumps(status or {}, sort_keys=True).encode()).hexdigest()


def summary_of(pipeline: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a status reports, without texts and figures, which change all the time."""
    conditions = {
        item.get("type"): (item.get("status"), item.get("reason"))
        for item in status.get("conditions") or ()
    }
    return (
        pipeline["metadata"].get("generation"),
        status.get("readyReplicas"),
        *(conditions.get(kind.value) for kind in _SUMMARY_TYPES),
    )


def last_other_manager(metadata: Mapping[str, Any], own: str, subresource: str = "") -> str:
    """Return the manager that wrote a subresource last, after the operator.

    A manager that only removes fields leaves no trace, and is unknown.

    Args:
        metadata: Metadata of the object.
        own: The operator's field manager.
        subresource: The subresource; empty for the rest of the object.
    """
    writes = [
        (str(entry.get("time") or ""), str(entry["manager"]))
        for entry in metadata.get("managedFields") or ()
        if (entry.get("subresource") or "") == subresource and entry.get("manager")
    ]
    since = max((time for time, manager in writes if manager == own), default="")
    others = [write for write in writes if write[1] != own and write[0] >= since]
    return max(others)[1] if others else UNKNOWN_MANAGER
