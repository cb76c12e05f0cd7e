"""Detect a rollout that failed while pods of another revision still serve. Pure.

With strategy Surge that may be at its first pod or at a later one.
"""

from __future__ import annotations

import datetime as dt

from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.deployment_progress import deadline_exceeded
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import StalledRolloutState

from .revision import DesiredRevision


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Remember a stalled rollout until it progresses, completes or is replaced.

    That is, until more of its pods serve, the others are gone, or another revision is desired.
    Whatever scaling changes of a Deployment starts its progress deadline again; without this state,
    the pods that serve would wait for that deadline each time.
    """
    target, state = draft.of(DesiredRevision).target, draft.state.stalled_rollout
    serving = [pod.revision for pod in snapshot.pods if pod.serving]
    updated = serving.count(target)
    if snapshot.deployed_revision() != target or updated == len(serving):
        return Outcome(states=(StalledRolloutState(),))
    pod_names = {pod.name for pod in snapshot.pods if pod.revision == target and not pod.deleting}
    failed = (
        any(problem.is_final and problem.pod in pod_names for problem in draft.problems)
        or deadline_exceeded(target, snapshot, draft.problems) is not None
    )
    if state.revision == target:
        recovers = updated > state.pods and not failed
        return Outcome(states=(StalledRolloutState() if recovers else state,))
    return Outcome(
        states=(StalledRolloutState(target, updated) if failed else StalledRolloutState(),)
    )
