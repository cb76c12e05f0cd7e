"""Reduce the outcome of all policies to what differs from the cluster. Pure."""

from __future__ import annotations

from triton_pipelines.api import names
from triton_pipelines.cluster.diff import needs_apply

from .actions import ApplyStage, Plan
from .chain import Draft
from .snapshot import Snapshot
from .status import differs
from .status_events import transitions


def changes(snapshot: Snapshot, draft: Draft) -> Plan:
    """Return the plan: objects in their order and a status, where they differ."""
    outcome = draft.outcome
    due = [
        entry
        for entry in sorted(outcome.apply, key=lambda entry: entry.stage)
        if entry.always
        or needs_apply(
            snapshot.child(entry.item["kind"], entry.item["metadata"]["name"]),
            entry.item,
            names.MANAGER_CHILDREN,
        )
    ]
    optional = (ApplyStage.PREFLIGHT, ApplyStage.TUNING_RUN)
    preflight_objects, tuning_objects = (
        tuple(entry.item for entry in due if entry.stage is stage) for stage in optional
    )
    records_run = any(entry.stage is ApplyStage.LIVE_CONFIG_MAP for entry in due) and outcome.clear
    status = dict(outcome.status or {})
    changed = differs(snapshot.pipeline, status)
    return Plan(
        apply=tuple(entry.item for entry in due if entry.stage not in optional),
        delete=outcome.delete,
        status=status if changed else None,
        events=tuple(transitions(snapshot.status, status)) if changed else (),
        requeue_after=outcome.requeue_after,
        action_events=outcome.events,
        resize=outcome.resize,
        tuning_objects=tuning_objects,
        preflight_objects=preflight_objects,
        clear=outcome.clear,
        apply_before_clear=sum(entry.stage <= ApplyStage.LIVE_CONFIG_MAP for entry in due)
        if records_run
        else 0,
    )
