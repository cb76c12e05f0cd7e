"""Decide which revision is to run: the desired one, or the restored one after a rollback. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.deployment_progress import serves_whole
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import RolloutState

from .replicas import Replicas
from .revision import DesiredRevision


@dataclass(frozen=True, slots=True)
class RolloutTarget:
    """The revision to run before this iteration compares it with the SLO."""

    revision: str
    serves_whole_pipeline: bool
    """Whether it is the desired one and serves the whole pipeline alone."""
    state: RolloutState
    """State of rollouts without an outdated failure, and with a verified revision if one is known.
    :mod:`~.rollout` keeps it."""


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Forget a failure of another spec, and find the target."""
    desired, state = draft.of(DesiredRevision).name, draft.state.rollout
    replicas = draft.of(Replicas).desired(draft.of(ReconciledSpec).pipeline)
    state = snapshot.rollout_state(state, desired)
    if snapshot.revision_record(state.verified) is None:
        verified = _serving_alone(snapshot, desired, replicas) or _unfinished_predecessor(
            snapshot, desired
        )
        state = replace(state, verified=verified)
    target = state.target(desired)
    serves_whole_pipeline = target == desired and serves_whole(snapshot, desired, replicas)
    return Outcome(RolloutTarget(target, serves_whole_pipeline, state))


def _serving_alone(snapshot: Snapshot, desired: str, replicas: int) -> str:
    """Return the revision other than ``desired`` that serves the whole pipeline; empty without one.

    If the record of it is lost, for example with a deleted live ConfigMap, a rollback can still
    restore this one.
    """
    found = {pod.revision for pod in snapshot.pods if pod.serving} - {desired}
    known = [
        one
        for one in found
        if snapshot.revision_record(one) is not None and serves_whole(snapshot, one, replicas)
    ]
    return known[0] if known else ""


def _unfinished_predecessor(snapshot: Snapshot, desired: str) -> str:
    """Return the revision that served before the unfinished rollout to ``desired``.

    Empty without one. The Deployment records it. If only one pod fits, nothing that serves in
    between would show it.
    """
    found = snapshot.previous_revision()
    if (
        found == desired
        or snapshot.deployed_revision() != desired
        or snapshot.revision_record(found) is None
    ):
        return ""
    return (
        found
        if snapshot.deployment_condition("Progressing").get("reason") != "NewReplicaSetAvailable"
        else ""
    )
