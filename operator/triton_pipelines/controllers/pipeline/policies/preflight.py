"""Check a new revision in a Job before a serving pod is removed to make room for it. Pure.

The Job runs the revision's loader without GPUs. While it runs, and if the loader reports that the
revision cannot be loaded, the serving pods stay. The Job retries like the loader of a serving pod,
so a rollout continues by itself once a missing source is there.

Nothing is remembered: the Job and its pod are the state. Reasons for these rules:
docs/decisions/0034-preflight.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.loadplan import INFORMATIVE, LoadReason
from triton_pipelines.api.rollout_strategy import PreflightMode, RolloutStrategy
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.render.preflight_objects import preflight_job, preflight_policy
from triton_pipelines.controllers.pipeline.actions import Apply, ApplyStage
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.deployment_progress import job_end
from triton_pipelines.controllers.pipeline.owner_references import owned
from triton_pipelines.controllers.pipeline.pod_problems import Problem, preflight_problem
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Object, Pod, Snapshot, is_alive
from triton_pipelines.controllers.pipeline.state import RolloutState
from triton_pipelines.controllers.pipeline.status_events import Event
from triton_pipelines.controllers.pipeline.surge_room import is_surging, surge_ends_in
from triton_pipelines.controllers.timestamps import moment, timestamp

from .revision import DesiredRevision

# How long (seconds) the Job's pod may wait for a node. A cluster autoscaler adds a node within a
# few minutes, and the old pod serves meanwhile. A pod that is not placed says nothing about the
# revision, so the rollout continues without the preflight.
PLACEMENT_SECONDS: Final = 300
ADVICE: Final = "set spec.rollout.preflight to Disabled to skip this check"


@dataclass(frozen=True, slots=True)
class Preflight:
    """The preflight of the desired revision."""

    is_holding: bool = False
    """Whether the rollout must not remove a serving pod yet."""
    kept_revision: str = ""
    """Revision that the Deployment keeps meanwhile; empty if the new one may be in its template,
    as with a surge."""
    problem: Problem | None = None
    """Why the check does not pass; ``None`` while it may still pass at the first attempt."""

    @property
    def failure_message(self) -> str:
        """Why the revision cannot be loaded; empty if it still may."""
        return self.problem.message if self.problem is not None and self.problem.is_final else ""


@dataclass(frozen=True, slots=True)
class _Check:
    """What the Job says of the revision."""

    problem: Problem | None = None
    """Why it has not passed."""
    ended: Event | None = None
    """Event of its end, after which the rollout continues; ``None`` until then."""
    due: float | None = None
    """Seconds until the clock may change this; ``None`` without such a time."""


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Run the Job while the rollout would remove a serving pod, and hold the rollout meanwhile."""
    spec, revision = draft.of(ReconciledSpec), draft.of(DesiredRevision).name
    pipeline = spec.pipeline
    state = snapshot.rollout_state(draft.state.rollout, revision)
    record = snapshot.revision_record(revision)
    is_known = record is not None or revision == spec.revision.name
    found = snapshot.child("Job", names.preflight_name(pipeline.name, revision))
    job = found if found is not None and owned(found, pipeline.metadata.uid) else None
    is_needed = _would_interrupt(snapshot, revision, has_begun=job is not None)
    if not (is_known and is_needed and _removes_old_pod(pipeline, revision, snapshot, state, now)):
        return Outcome(Preflight())
    check = _check(job, revision, pipeline, snapshot, now)
    if check.ended is not None:
        return Outcome(Preflight(), events=(check.ended,))
    template = record["template"] if record is not None else spec.revision.template
    policy = preflight_policy(pipeline, revision)
    return Outcome(
        Preflight(True, _kept_revision(snapshot, revision, state), check.problem),
        apply=(
            *((Apply(ApplyStage.PREFLIGHT, policy),) if policy is not None else ()),
            # A Job's template is immutable, so an existing one is not applied again.
            *(
                (Apply(ApplyStage.PREFLIGHT, preflight_job(pipeline, revision, template)),)
                if job is None
                else ()
            ),
        ),
        kept=(job,) if job is not None else (),
        requeue_after=check.due,
    )


def _would_interrupt(snapshot: Snapshot, revision: str, *, has_begun: bool) -> bool:
    """Return whether the pods that serve run other revisions only.

    Once the Job exists, pods that should serve are enough: one that is unready for a moment, or is
    being replaced, must not release the rollout.
    """
    serving = {pod.revision for pod in snapshot.pods if pod.serving}
    are_expected = has_begun and snapshot.deployed_replicas > 0
    return revision not in serving and (bool(serving) or are_expected)


def _kept_revision(snapshot: Snapshot, revision: str, state: RolloutState) -> str:
    """Return the revision that the Deployment keeps; empty if the new one is in its template.

    If the deployed one does not serve, it is the one that last served the whole pipeline.
    """
    deployed = snapshot.deployed_revision()
    if deployed == revision:
        return ""
    has_failed = not any(pod.serving and pod.revision == deployed for pod in snapshot.pods)
    can_restore = (
        state.verified != revision and snapshot.revision_record(state.verified) is not None
    )
    return state.verified if has_failed and can_restore else deployed


def _removes_old_pod(
    pipeline: InferencePipeline,
    revision: str,
    snapshot: Snapshot,
    state: RolloutState,
    now: dt.datetime,
) -> bool:
    """Return whether the rollout to ``revision`` would remove a pod of another one now."""
    rollout, deployed = pipeline.spec.rollout, snapshot.deployed_revision()
    if deployed == revision and not is_surging(snapshot):
        return False  # Old pods have been removed already.
    if rollout.preflight is PreflightMode.DISABLED or state.target(revision) != revision:
        return False
    if rollout.strategy is RolloutStrategy.SURGE:
        return False
    if rollout.strategy is RolloutStrategy.AUTO:
        ends_in = surge_ends_in(revision, snapshot, moment(state.left), now)
        has_begun = state.mode_revision == revision and state.mode == RolloutStrategy.NO_SURGE
        return ends_in is not None and ends_in <= 0 and not has_begun
    # The Deployment keeps its present template, which has to be known.
    return snapshot.revision_record(deployed) is not None


def _check(
    job: Object | None,
    revision: str,
    pipeline: InferencePipeline,
    snapshot: Snapshot,
    now: dt.datetime,
) -> _Check:
    """Return what the Job says of the revision."""
    if snapshot.preflight_rejection:
        return _Check(ended=_skipped(revision, snapshot.preflight_rejection))
    if job is None:
        return _Check()
    pods = [pod for pod in snapshot.preflight_pods if pod.revision == revision]
    end = job_end(job)
    # A sidecar that a mesh injects keeps the pod running, so that the Job never completes.
    if end.get("type") == "Complete" or any(_has_loaded(pod) for pod in pods):
        text = f"the preflight of revision {revision} has passed; the rollout removes a serving pod"
        return _Check(ended=Event(False, "PreflightPassed", "Preflight", text))
    if end:
        text = f"the Job failed: {end.get('reason', '')}: {end.get('message', '')}"
        return _Check(ended=_skipped(revision, text))
    pod = _present_pod(pods)
    gpu, nodes = pipeline.spec.server.gpu.resource_name, snapshot.nodes
    problem = preflight_problem(pod, gpu, nodes) if pod is not None else None
    unplaced = _unplaced_since(job, pod, now)
    if unplaced is not None:
        waited = (now - unplaced).total_seconds()
        if waited < PLACEMENT_SECONDS:
            return _Check(due=PLACEMENT_SECONDS - waited)
        why = problem.message if problem is not None else "the Job has no pod; see its events"
        text = f"the pod could not be scheduled for {PLACEMENT_SECONDS} s: {why}"
        return _Check(ended=_skipped(revision, text))
    if problem is not None and pod is not None and _lacks_only_space(pod):
        return _Check(
            ended=_skipped(revision, f"the volume has no space for the files: {problem.message}")
        )
    return _by_deadline(problem, pipeline, _created(job, now), now)


def _by_deadline(
    problem: Problem | None, pipeline: InferencePipeline, begun: dt.datetime, now: dt.datetime
) -> _Check:
    """Return a check that has not passed: after the deadline, the rollout has failed."""
    age = (now - begun).total_seconds()
    deadline = pipeline.spec.rollout.progress_deadline_seconds
    if age < deadline:
        return _Check(problem, due=deadline - age)
    if problem is None or not problem.is_final:
        why = problem.message if problem is not None else "the loader has not finished"
        text = f"timed out after {deadline} s: {why}; {ADVICE}"
        problem = Problem(Reason.ROLLOUT_FAILED, text, problem.pod if problem is not None else "")
    return _Check(problem)


def _created(item: Object, now: dt.datetime) -> dt.datetime:
    return timestamp(item["metadata"].get("creationTimestamp")) or now


def _is_placed(pod: Pod) -> bool:
    return pod.condition("PodScheduled").get("status") == "True"


def _present_pod(pods: Sequence[Pod]) -> Pod | None:
    """Return the pod that shows most: one that was placed, if possible one that still runs.

    A pod that is drained, evicted or deleted was placed all the same.
    """
    placed = [pod for pod in pods if _is_placed(pod)]
    running = [pod for pod in placed if not pod.deleting and is_alive(pod.raw)]
    found = running or placed or pods
    return max(
        found, key=lambda pod: str(pod.raw["metadata"].get("creationTimestamp")), default=None
    )


def _unplaced_since(job: Object, pod: Pod | None, now: dt.datetime) -> dt.datetime | None:
    """Return since when the Job waits for a node; ``None`` once it had a pod that was placed."""
    if pod is not None:
        return None if _is_placed(pod) else _created(pod.raw, now)
    counts = job.get("status") or {}
    had_pod = any(counts.get(key) for key in ("active", "terminating", "failed"))
    return None if had_pod else _created(job, now)


def _has_loaded(pod: Pod) -> bool:
    ended = (pod.container(names.CONTAINER_LOADER).get("state") or {}).get("terminated") or {}
    return ended.get("exitCode") == 0


def _skipped(revision: str, why: str) -> Event:
    text = f"the rollout of revision {revision} continues without a preflight: {why}"
    return Event(True, "PreflightSkipped", "Preflight", text)


def _lacks_only_space(pod: Pod) -> bool:
    """Return whether the loader's only finding is a full disk.

    That says nothing about the revision: the serving pod's files may occupy the space.
    """
    report = pod.load_report()
    failures = (
        [item for item in report.findings if item.reason not in INFORMATIVE]
        if report is not None and not report.ok
        else []
    )
    return bool(failures) and all(item.reason is LoadReason.NO_SPACE for item in failures)
