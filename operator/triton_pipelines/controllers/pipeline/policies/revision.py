"""Choose the desired revision: the compiled one, or the deployed one while that must stay. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

from triton_pipelines.controllers.pipeline.chain import Context, Draft, Outcome
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import RevisionState

# How often (seconds) to check whether another pipeline has finished its rollout, which goes first.
WAITING_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class DesiredRevision:
    """The revision that the pipeline should run."""

    name: str
    target: str
    """The same, or the one that was restored in its place by an earlier iteration."""


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Keep the deployed revision while the spec is blocked or too many other pipelines roll."""
    spec, state = draft.of(ReconciledSpec), draft.state.revision
    if spec.blocked is not None:
        name = spec.blocked.revision
        state = replace(state, desired=state.desired or name)  # which acts on no new spec
        return Outcome(DesiredRevision(name, draft.state.rollout.target(name)), (state,))
    waits = _has_to_wait(spec.revision.name, snapshot, state, draft.context)
    name = snapshot.deployed_revision() if waits else spec.revision.name
    return Outcome(
        DesiredRevision(name, draft.state.rollout.target(name)),
        (RevisionState(snapshot.generation, name, snapshot.spec_hash),),
        requeue_after=WAITING_SECONDS if waits else None,
    )


def _has_to_wait(revision: str, snapshot: Snapshot, state: RevisionState, context: Context) -> bool:
    """Return whether the revision has changed, but not the spec, and too many others roll."""
    deployed = snapshot.deployed_revision()
    if (
        context.may_roll
        or not deployed
        or deployed == revision
        or snapshot.revision_record(deployed) is None
    ):
        return False
    return (state.generation, state.desired) == (snapshot.generation, deployed)
