"""Choose the revision that the Deployment runs, and how it gets there. Pure.

The clock is passed in. A new revision replaces the old one pod by pod through the Deployment. If
there is no room for a second pod (one GPU), ``Auto`` reads the scheduler's message and removes an
old pod first. A revision that fails after old pods were removed is rolled back. So is one whose
test inferences keep failing, and one that serves but violates the SLO that the revision before met.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace

from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.rollout_strategy import RolloutStrategy
from triton_pipelines.controllers.pipeline.actions import soonest
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.deployment_progress import (
    deadline_counts_in,
)
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import RolloutState, SloGuardState
from triton_pipelines.controllers.pipeline.surge_room import (
    is_surging,
    lacks_room,
    leaving_until,
    surge_ends_in,
)
from triton_pipelines.controllers.timestamps import moment, rfc3339

from .preflight import Preflight
from .replicas import Replicas
from .revision import DesiredRevision
from .rollout_failure import SCALING_BLOCKED, RolloutFailure, failed_inference, failure_of
from .rollout_target import RolloutTarget
from .slo_guard import SloVerdict

# Kept length of a failure's message: the live ConfigMap and each status have it until the spec
# changes.
FAILURE_MAX = 1024


@dataclass(frozen=True, slots=True)
class Rollout:
    """Which revision the Deployment runs, and how it gets there."""

    target: str
    """The revision to run: the desired one, or the restored one after a rollback."""
    mode: RolloutStrategy
    state: RolloutState
    downtime: str = ""
    """Announcement that nothing serves until the new pod is ready; empty if something does."""
    recheck: float | None = None
    """Seconds until the clock may change the decision; ``None`` without such a time."""
    failure_message: str = ""
    """Why the desired revision, which has not served the whole pipeline yet, cannot come to serve
    it: it was rolled back, its preflight failed, or it stays next to the old pods, which a surge
    leaves alone. Empty if it can."""
    preflight: Preflight = field(default_factory=Preflight)
    """The preflight that the rollout waits for."""
    deadline_counts_in: float | None = None
    """Seconds until the exceeded progress deadline counts; ``None`` if it does, or has not passed.
    """


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Roll the desired revision out; roll back if it fails or violates the SLO."""
    pipeline, desired = draft.of(ReconciledSpec).pipeline, draft.of(DesiredRevision).name
    begun_target, verdict = draft.of(RolloutTarget), draft.of(SloVerdict)
    number, strategy = draft.of(Replicas), pipeline.spec.rollout.strategy
    replicas = number.desired(pipeline)
    blocks_scaling = number.blocked_by_rollout(snapshot, draft.state.stalled_rollout)
    state = _after_success(begun_target, desired, snapshot)
    preflight = draft.of(Preflight)
    mode, state, recheck = _mode(strategy, begun_target, state, snapshot, preflight, now)
    if begun_target.revision != desired and state.failed_reason != Reason.SLO_VIOLATED:
        mode = _restoring_strategy(strategy)
    state = _with_overdue(begun_target.revision, mode, state, snapshot)
    old_removed = _has_removed_old_pods(mode, snapshot, desired) or (
        strategy is RolloutStrategy.AUTO and _has_lost_old_pods(snapshot, desired, state.verified)
    )
    counts_in = deadline_counts_in(begun_target.revision, snapshot, now)
    failure = failure_of(
        begun_target.revision,
        snapshot,
        draft.problems,
        old_removed,
        counts_deadline=counts_in is None and state.overdue_revision != begun_target.revision,
    )
    if blocks_scaling and failure is None:
        failure = SCALING_BLOCKED
    not_serving = failed_inference(begun_target.revision, snapshot, draft.problems)
    failed = failure or not_serving
    message = failed.message if failed is not None else preflight.failure_message
    rollout = Rollout(
        begun_target.revision,
        mode,
        state,
        _downtime(strategy)
        if _has_downtime(begun_target.revision, mode, replicas, snapshot, preflight, recheck)
        else "",
        recheck,
        # If it is not known what served before, it may be this one.
        message if begun_target.revision == desired and state.verified not in ("", desired) else "",
        preflight,
        counts_in,
    )
    # A surge removes old pods only for new ones that are ready, although these may fail inferences.
    cause = (failure if blocks_scaling or old_removed else None) or not_serving
    rollback = _rollback(rollout, cause, verdict, desired, snapshot, strategy)
    rollout = rollback or rollout
    # A rollback ends the watch over the rollout.
    states = (rollout.state, SloGuardState()) if rollback is not None else (rollout.state,)
    return Outcome(
        decision=rollout, states=states, requeue_after=soonest(rollout.recheck, counts_in)
    )


def _after_success(begun_target: RolloutTarget, desired: str, snapshot: Snapshot) -> RolloutState:
    """Return the state with the desired revision as verified, once it serves the whole pipeline."""
    if not begun_target.serves_whole_pipeline:
        return begun_target.state
    state = replace(begun_target.state, verified=desired)
    if all(pod.serving for pod in snapshot.pods if not pod.deleting):
        # The next rollout starts with a surge again: there may be room by then.
        state = replace(state, mode_revision="", mode="", left="")
    return state


def _mode(
    strategy: RolloutStrategy,
    begun_target: RolloutTarget,
    state: RolloutState,
    snapshot: Snapshot,
    preflight: Preflight,
    now: dt.datetime,
) -> tuple[RolloutStrategy, RolloutState, float | None]:
    if preflight.is_holding and not preflight.kept_revision:
        return RolloutStrategy.SURGE, state, None
    if strategy is not RolloutStrategy.AUTO:
        return strategy, state, None
    state = (
        state
        if begun_target.serves_whole_pipeline
        else _with_recorded_strategy(begun_target.revision, snapshot, state)
    )
    return _auto(begun_target.revision, snapshot, state, now)


def _rollback(
    rollout: Rollout,
    cause: RolloutFailure | None,
    verdict: SloVerdict,
    desired: str,
    snapshot: Snapshot,
    strategy: RolloutStrategy,
) -> Rollout | None:
    """Return the rollback from the desired revision; ``None`` if it stays, or does not run."""
    if rollout.target != desired:
        return None
    return _rolled_back(rollout, cause, desired, snapshot, strategy) or _reverted_for_slo(
        rollout, verdict, desired, snapshot, strategy
    )


def _rolled_back(
    rollout: Rollout,
    failure: RolloutFailure | None,
    desired: str,
    snapshot: Snapshot,
    strategy: RolloutStrategy,
) -> Rollout | None:
    """Return the rollback after a failure; ``None`` if nothing failed or can be restored."""
    verified = rollout.state.verified
    if failure is None or verified in ("", desired) or snapshot.revision_record(verified) is None:
        return None
    state = _with_failure(
        rollout.state, desired, snapshot.spec_hash, failure.reason, failure.message, verified
    )
    return replace(
        rollout, target=verified, mode=_restoring_strategy(strategy), state=state, downtime=""
    )


def _reverted_for_slo(
    rollout: Rollout,
    verdict: SloVerdict,
    desired: str,
    snapshot: Snapshot,
    strategy: RolloutStrategy,
) -> Rollout | None:
    """Return the rollback after an SLO violation; ``None`` without one.

    Both revisions serve, so the way back is that of any rollout. The predecessor counts as the last
    verified revision.
    """
    rollback = verdict.watch.predecessor
    if not verdict.violation or snapshot.revision_record(rollback) is None:
        return None
    state = _with_failure(
        rollout.state, desired, snapshot.spec_hash, Reason.SLO_VIOLATED, verdict.violation, rollback
    )
    mode = strategy if strategy is not RolloutStrategy.AUTO else RolloutStrategy.SURGE
    state = replace(state, verified=rollback, mode_revision="", mode="")
    return replace(rollout, target=rollback, mode=mode, state=state, downtime="")


def _with_failure(
    state: RolloutState, revision: str, spec: str, reason: Reason, message: str, restored: str
) -> RolloutState:
    return replace(
        state,
        failed_revision=revision,
        failed_spec=spec,
        failed_reason=reason.value,
        failed_message=message[:FAILURE_MAX],
        restored=restored,
    )


def _restoring_strategy(strategy: RolloutStrategy) -> RolloutStrategy:
    """Return the strategy that restores a verified revision.

    The failed pods serve no requests and hold the room that it needs.
    """
    return strategy if strategy is RolloutStrategy.RECREATE else RolloutStrategy.NO_SURGE


def _with_recorded_strategy(target: str, snapshot: Snapshot, state: RolloutState) -> RolloutState:
    """Return the state with the strategy that ``Auto`` chose, if the live ConfigMap is gone.

    The Deployment shows which one that was.
    """
    rolling = (((snapshot.deployment or {}).get("spec") or {}).get("strategy") or {}).get(
        "rollingUpdate"
    ) or {}
    if (
        snapshot.live_data()
        or snapshot.deployed_revision() != target
        or rolling.get("maxSurge") != 0
    ):
        return state
    return replace(state, mode_revision=target, mode=RolloutStrategy.NO_SURGE.value)


def _auto(
    target: str, snapshot: Snapshot, state: RolloutState, now: dt.datetime
) -> tuple[RolloutStrategy, RolloutState, float | None]:
    if state.mode_revision == target and state.mode == RolloutStrategy.NO_SURGE:
        return RolloutStrategy.NO_SURGE, state, None
    remaining = surge_ends_in(target, snapshot, moment(state.left), now)
    if remaining is None:
        return RolloutStrategy.SURGE, state, None
    leaving = leaving_until(snapshot)
    if leaving is not None:
        # Once these pods are gone, the scheduler needs time to give their room to the new pod.
        state = replace(state, left=rfc3339(leaving))
    if remaining > 0:
        return RolloutStrategy.SURGE, state, remaining
    return (
        RolloutStrategy.NO_SURGE,
        replace(state, mode_revision=target, mode=RolloutStrategy.NO_SURGE.value),
        None,
    )


def _downtime(strategy: RolloutStrategy) -> str:
    """Return the announcement that no pod serves, and why."""
    why = (
        f"the strategy is {strategy.value}"
        if strategy in (RolloutStrategy.NO_SURGE, RolloutStrategy.RECREATE)
        else "the cluster has no room for a second pod"
    )
    return (
        f"{why}, so the old pod is removed before the new pod starts; the pipeline serves no "
        "requests until the new pod is ready"
    )


def _has_downtime(
    target: str,
    mode: RolloutStrategy,
    replicas: int,
    snapshot: Snapshot,
    preflight: Preflight,
    recheck: float | None,
) -> bool:
    """Return whether no pod serves, now or soon.

    Args:
        target: The revision to run.
        mode: The strategy.
        replicas: The desired number of pods.
        snapshot: What is observed.
        preflight: The preflight that the rollout waits for.
        recheck: Seconds until a surge without room is given up; ``None`` if it is not. That is
            announced in the reconcile iterations before that one, since the old pod leaves as soon
            as the Deployment is changed.
    """
    if preflight.problem is not None:
        return False
    is_imminent = recheck is not None or preflight.is_holding
    if (mode is RolloutStrategy.SURGE and not is_imminent) or any(
        pod.serving and pod.revision == target for pod in snapshot.pods
    ):
        return False
    if (
        not any(pod.revision != target for pod in snapshot.pods)
        and snapshot.deployed_revision() != target
    ):
        return False
    return mode is RolloutStrategy.RECREATE or replicas <= 1


def _with_overdue(
    target: str, mode: RolloutStrategy, state: RolloutState, snapshot: Snapshot
) -> RolloutState:
    """Return the state with the revision whose deadline passed while old pods kept their room.

    The Deployment reports it until it makes progress, which the removal of an old pod is.
    """
    is_exceeded = (
        snapshot.deployed_revision() == target
        and snapshot.deployment_condition("Progressing").get("reason") == "ProgressDeadlineExceeded"
    )
    if not is_exceeded:
        return replace(state, overdue_revision="")
    if mode is not RolloutStrategy.SURGE and is_surging(snapshot):
        return replace(state, overdue_revision=target)
    return state


def _has_removed_old_pods(mode: RolloutStrategy, snapshot: Snapshot, desired: str) -> bool:
    """Return whether the strategy has removed old pods.

    A surge never removes one before the new pod is ready.
    """
    return (
        mode in (RolloutStrategy.NO_SURGE, RolloutStrategy.RECREATE)
        and snapshot.deployed_revision() == desired
    )


def _has_lost_old_pods(snapshot: Snapshot, desired: str, verified: str) -> bool:
    """Return whether new pods of a surge have taken the room of the old ones.

    Nothing serves then: old pods were lost, for example with their node, and wait for room.
    """
    return (
        snapshot.deployed_revision() == desired != verified
        and not any(pod.serving for pod in snapshot.pods)
        and any(pod.revision == verified and lacks_room(pod) for pod in snapshot.pods)
    )
