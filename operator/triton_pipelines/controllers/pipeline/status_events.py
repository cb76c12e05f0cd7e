"""Choose the Kubernetes events that report a status change. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from triton_pipelines.api.conditions import (
    KIND_OF,
    ConditionType,
    Reason,
    ReasonKind,
    condition_of,
)
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.api.wording import numbered


@dataclass(frozen=True, slots=True)
class Event:
    """An event to post once the status that it reports is written."""

    warning: bool
    reason: str
    action: str
    note: str

    @property
    def type(self) -> Literal["Normal", "Warning"]:
        """As Kubernetes calls it."""
        return "Warning" if self.warning else "Normal"


_UNREPORTED = frozenset({Reason.PROGRESSING, Reason.LOADING, Reason.PREFLIGHT, Reason.DRAINING})


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Event]:
    """Return the events of a status change.

    They report a new revision, every new cause of Ready and Available, and new warnings. A change
    of counts alone causes none.
    """
    events = []
    revision = after.get("revision")
    if revision and revision != before.get("revision"):
        text = f"rolling out revision {revision}" + (
            f" after {before['revision']}" if before.get("revision") else ""
        )
        events.append(Event(False, "RolloutStarted", "Rollout", text))
    for kind in (ConditionType.READY, ConditionType.AVAILABLE):
        old, new = condition_of(before, kind), condition_of(after, kind)
        if not new or (old.get("status"), old.get("reason")) == (
            new.get("status"),
            new.get("reason"),
        ):
            continue
        reason = Reason(new["reason"])
        if reason in _UNREPORTED or (
            kind is ConditionType.AVAILABLE and not old and new["status"] == "False"
        ):
            continue
        if kind is ConditionType.AVAILABLE and new["reason"] == condition_of(
            after, ConditionType.READY
        ).get("reason"):
            continue
        warning = KIND_OF[reason] is not ReasonKind.FINE
        events.append(Event(warning, reason.value, kind.value, new.get("message", "")))
    return events + _scaled(before, after) + _new_warnings(before, after)


def _scaled(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Event]:
    """Return events of count changes that the status did not have, and of a failed change."""
    known = list((before.get("scaling") or {}).get("history") or ())
    added = [
        item for item in (after.get("scaling") or {}).get("history") or () if item not in known
    ]
    reason, text = (
        ("ScalingAdvised", "{step} would be scaled from {from} to {to}: {reason}")
        if (after.get("scaling") or {}).get("mode") == ScalingMode.ADVISORY
        else ("Scaled", "scaled {step} from {from} to {to}: {reason}")
    )
    events = [
        Event(
            False,
            reason,
            "Scale",
            text.format_map(item),
        )
        for item in reversed(added)
    ]
    return events + _scaling_failed(before, after) + _metrics_changed(before, after)


def _scaling_failed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Event]:
    """Return events of a change that failed, and of another manager of a scaled field."""
    events = []
    old, new = (
        condition_of(before, ConditionType.SCALING_ACTIVE),
        condition_of(after, ConditionType.SCALING_ACTIVE),
    )
    if new.get("reason") == Reason.ACTUATION_FAILED and (old.get("reason"), old.get("message")) != (
        new.get("reason"),
        new.get("message"),
    ):
        events.append(
            Event(True, Reason.ACTUATION_FAILED.value, "Scale", str(new.get("message", "")))
        )
    old, new = (
        condition_of(before, ConditionType.SCALING_LIMITED),
        condition_of(after, ConditionType.SCALING_LIMITED),
    )
    if new.get("reason") in (Reason.REPLICAS_OWNER_CONFLICT, Reason.CPU_OWNER_CONFLICT) and new.get(
        "reason"
    ) != old.get("reason"):
        events.append(Event(True, str(new["reason"]), "Scale", str(new.get("message", ""))))
    return events


def _metrics_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Event]:
    """Return the event of metrics that became unusable, or usable again."""
    old, new = (
        condition_of(before, ConditionType.METRICS_AVAILABLE),
        condition_of(after, ConditionType.METRICS_AVAILABLE),
    )
    if (
        not new
        or (old.get("status", "True"), old.get("reason")) == (new["status"], new["reason"])
        or Reason(new["reason"]) is Reason.NO_PODS
    ):
        return []
    message = str(new.get("message", ""))
    if new["status"] == "False":
        return [Event(True, str(new["reason"]), "ReadMetrics", message)]
    if old and old.get("reason") != Reason.NO_PODS:
        return [Event(False, "MetricsRecovered", "ReadMetrics", message)]
    return []


def _new_warnings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Event]:
    """Return one event with all new warnings of lint, each once.

    The event is cut if it is too long; the status has them in full.
    """
    known = {_warning_text(item) for item in before.get("warnings") or ()}
    added = [
        text for item in after.get("warnings") or () if (text := _warning_text(item)) not in known
    ]
    if not added:
        return []
    note = (
        added[0]
        if len(added) == 1
        else f"{len(added)} new warnings in status.warnings: {numbered(added)}"
    )
    return [Event(True, "SpecWarning", "Lint", note)]


def _warning_text(item: Mapping[str, Any]) -> str:
    return f"{item.get('path', '')}: {item.get('message', '')}"
