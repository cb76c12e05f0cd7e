"""Report that the API server rejected an object, and keep what holds without it. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api.conditions import Reason
from triton_pipelines.cluster.errors import ClusterError, Invalid
from triton_pipelines.cluster.impersonation import PermissionDenied
from triton_pipelines.controllers.scaling_conditions import CONDITION_TYPES as SCALING_CONDITIONS

from . import status as statuses
from .actions import Plan
from .owner_references import FormerChild, NameTaken, UnsafeTemplate
from .padding_choices import with_choices
from .policies.tuning_run import RUN_END_EVENTS
from .resize_rejections import RejectionCause, cause_of
from .snapshot import Snapshot
from .status_events import Event
from .tuning_run_state import with_tuning

ApplyFailure = ClusterError | NameTaken | FormerChild | UnsafeTemplate
_MESSAGES: Final = {
    # What the API server rejects in a child object came from the spec: affinity, tolerations, env
    # and the like are passed on unchanged.
    Reason.INVALID_SPEC: "the API server rejects a part of the spec: {}",
    # Quota, admission or a missing permission: others than the operator have to act, so the status
    # has to show it, not only the operator's log.
    Reason.API_ERROR: "the API server rejects an object of the pipeline: {}",
    Reason.PERMISSION_DENIED: "{}",
    Reason.NAME_CONFLICT: "{}",
    Reason.PROGRESSING: "waiting until {} of a previous pipeline with this name is deleted",
}
_QUOTA_REMEDY: Final = "; raise the ResourceQuota, or delete objects that it counts"


def reason_of(error: ApplyFailure) -> Reason:
    """Return the reason that the conditions report."""
    if isinstance(error, NameTaken):
        return Reason.NAME_CONFLICT
    if isinstance(error, FormerChild):
        return Reason.PROGRESSING
    if isinstance(error, PermissionDenied | UnsafeTemplate):
        return Reason.PERMISSION_DENIED
    return Reason.INVALID_SPEC if isinstance(error, Invalid) else Reason.API_ERROR


def status_after_failure(
    snapshot: Snapshot, decided: Plan, error: ApplyFailure, now: dt.datetime
) -> dict[str, Any]:
    """Return the status after an object of the pipeline could not be applied.

    What live scaling observes and does is kept. So are the outcome of a tuning run and the settings
    that it verified: if the rejected object is the record of the run, they are known only here.
    """
    reason = reason_of(error)
    text = _MESSAGES[reason].format(error.message if isinstance(error, ClusterError) else error)
    if isinstance(error, ClusterError) and cause_of(error) is RejectionCause.QUOTA:
        text += _QUOTA_REMEDY
    status = statuses.stalled(snapshot, reason, text, now)
    reported = decided.status if decided.status is not None else snapshot.status
    status = _with_scaling(status, reported)
    return (
        status
        if decided.status is None
        else with_choices(with_tuning(status, reported.get("tuning")), reported)
    )


def _with_scaling(status: Mapping[str, Any], reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``status`` with the scaling fields of ``reported``.

    Steps are copied only if ``reported`` describes the revision that keeps running.
    """
    scaling = [
        item for item in reported.get("conditions") or () if item.get("type") in SCALING_CONDITIONS
    ]
    parts = (
        ("scaling", "steps", "tokenizer")
        if reported.get("revision") == status.get("revision")
        else ("scaling",)
    )
    kept = {key: value for key, value in status.items() if key not in parts}
    return {
        **kept,
        "conditions": [*status["conditions"], *scaling],
        **{key: reported[key] for key in parts if key in reported},
    }


def events_after_failure(decided: Plan) -> list[Event]:
    """Return the planned events that are true in spite of the failure.

    These are the ends of tuning runs, which no later reconcile iteration reports.
    """
    return [event for event in decided.action_events if event.reason in RUN_END_EVENTS]
