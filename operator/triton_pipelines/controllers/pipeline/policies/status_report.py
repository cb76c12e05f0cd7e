"""Report the status of the pipeline. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triton_pipelines.api.conditions import ConditionType, condition_of
from triton_pipelines.controllers.pipeline import padding_choices, ragged_fallback, step_status
from triton_pipelines.controllers.pipeline import status as statuses
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.tuning_run_state import with_tuning

from .certificate import with_deployed_tls
from .cpu_resize import CpuResizeDecision
from .instance_counts import InstanceCounts
from .pod_repair import PodRepairs
from .replicas import Replicas
from .revision import WAITING_SECONDS, DesiredRevision
from .rollout import Rollout
from .tuned_padding import TunedPadding
from .tuning_run import TuningProgress


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Write the whole status, or what still holds of it while the spec is blocked.

    An iteration with nothing to wait for is repeated by the resync. While pods are starting, their
    watch starts the next one; the delay that is requested here is a fallback.
    """
    blocked, tuning = draft.of(ReconciledSpec).blocked, draft.of(TuningProgress)
    status = (
        _status(snapshot, draft, now)
        if blocked is None
        else _blocked_status(blocked.status, snapshot, draft, now)
    )
    invalid, run = blocked is not None and blocked.invalid, draft.of(TunedPadding).run
    if not invalid or run != tuning.before:
        status = with_tuning(status, replace(tuning.after, run=run).status())
    # An invalid spec needs no next check: a change of the spec starts an iteration.
    is_ready = condition_of(status, ConditionType.READY).get("status") == "True"
    waits = (not invalid and not is_ready) or draft.problems
    return Outcome(status=status, requeue_after=WAITING_SECONDS if waits else None)


def _status(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> dict[str, Any]:
    spec, desired = draft.of(ReconciledSpec), draft.of(DesiredRevision).name
    status = statuses.compute(
        with_deployed_tls(snapshot, draft),
        spec.graph,
        snapshot,
        draft.of(Rollout),
        desired,
        draft.outcome.warnings,
        draft.problems,
        draft.of(InstanceCounts).by_step,
        draft.of(PodRepairs).diverged,
        draft.of(Replicas),
        now,
        draft.of(CpuResizeDecision),
    )
    if spec.graph.padding is None:
        return status
    padding = draft.of(TunedPadding)
    run = padding.run
    other = padding_choices.note_on_others(
        padding.choices,
        padding.fingerprint,
        run.request if run.revision == desired else "",
        is_in_force=spec.graph.padding.measured,
    )
    padding_fields = ragged_fallback.padding_status(
        spec.graph.padding,
        run.status(),
        desired in (run.revision, run.recommended),
        other,
    )
    return status | {"padding": padding_fields | padding_choices.to_status(padding.choices)}


def _blocked_status(
    status: Mapping[str, Any], snapshot: Snapshot, draft: Draft, now: dt.datetime
) -> dict[str, Any]:
    spec = draft.of(ReconciledSpec)
    found = step_status.blocked_status(
        dict(status),
        spec.pipeline,
        spec.graph,
        snapshot,
        draft.of(DesiredRevision).name,
        draft.of(InstanceCounts).by_step,
        draft.of(PodRepairs).diverged,
        draft.of(Replicas),
        now,
        draft.of(CpuResizeDecision),
    )
    choices = padding_choices.to_status(draft.of(TunedPadding).choices)
    return padding_choices.with_choices(found, {"padding": choices})
