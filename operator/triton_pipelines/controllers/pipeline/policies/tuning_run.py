"""Drive a tuning run: when it starts, its objects and its result. Pure; the clock is passed in.

A changed ``spec.tuning.request`` starts a run, once the desired revision serves the pipeline. The
whole state of a run is in the live ConfigMap, its result included; ``status.tuning`` only shows it.
The spec is never written, and the serving pods are not touched: a canary that finds no room waits
and then gives up. One that has room gives it up as soon as a serving pod finds none.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.conditions import KIND_OF, Condition, Reason, ReasonKind
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.controllers.pipeline.actions import Apply, ApplyStage
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.compiled_pipeline import recommended_revision
from triton_pipelines.controllers.pipeline.latency_figures import latency_budget_of
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.serving_conditions import conditions_of
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import TuningRunState, json_object
from triton_pipelines.controllers.pipeline.status_events import Event
from triton_pipelines.controllers.pipeline.tuning_run_inputs import Stage, cleared, stage_of
from triton_pipelines.controllers.pipeline.tuning_run_state import Run, State, last_run
from triton_pipelines.controllers.pipeline.tuning_steps import (
    RETRY_ADVICE,
    TuningDecision,
    is_past,
    pending,
    running,
)
from triton_pipelines.controllers.timestamps import rfc3339

from .replicas import Replicas
from .revision import DesiredRevision
from .rollout import Rollout

# How long (seconds) a request waits until all pods of the pipeline serve: nodes may have to be
# provisioned first. After that, the requester is not likely to be waiting any more.
WAITING_SECONDS: Final = 3600
# Events of a run that has ended.
RUN_END_EVENTS: Final = ("TuningSucceeded", "TuningFailed")


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """The next step of a tuning run."""

    before: Run
    """The run as it was."""
    after: TuningDecision


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Start, follow or end the tuning run that the spec requests."""
    spec = draft.of(ReconciledSpec)
    before = last_run(
        draft.state.tuning_run.document,
        snapshot.status.get("tuning"),
        is_record_lost=not json_object(snapshot.live_data().get(names.KEY_STATE)),
    )
    tuned = (
        interrupt(before, now)
        if spec.blocked is not None and spec.blocked.invalid
        else next_step(_stage(snapshot, draft), before, now)
    )
    return Outcome(
        TuningProgress(before, tuned),
        (TuningRunState(tuned.run.to_document()),),
        apply=tuple(Apply(ApplyStage.TUNING_RUN, item) for item in tuned.to_apply),
        kept=tuned.objects,
        clear=cleared(snapshot, tuned.objects),
        events=tuned.events,
        requeue_after=tuned.recheck,
    )


def _stage(snapshot: Snapshot, draft: Draft) -> Stage:
    spec, rollout = draft.of(ReconciledSpec), draft.of(Rollout)
    desired, number = draft.of(DesiredRevision).name, draft.of(Replicas)
    pipeline, options = spec.pipeline, draft.context.options

    def ready() -> Condition:
        return conditions_of(
            pipeline, spec.graph, snapshot, rollout, desired, draft.problems, number
        )[0]

    def revision_of(patch: Mapping[str, Any]) -> str:
        return recommended_revision(pipeline, patch, snapshot, options)

    return stage_of(
        pipeline,
        spec.graph,
        snapshot,
        options,
        rollout,
        draft.state.slo_guard,
        desired,
        number.desired(pipeline),
        ready,
        revision_of,
    )


def next_step(stage: Stage, before: Run, now: dt.datetime) -> TuningDecision:
    """Return the next step of the run that the spec requests.

    Another request ends a run; so does another mode once the run has begun.
    """
    spec = stage.pipeline.spec.tuning
    if spec.request is None:
        # A result stays until there is another; a run that is no longer requested ends without one.
        return (
            TuningDecision(
                Run(serial=before.serial),
                events=_stop_event(before, "spec.tuning.request was removed"),
            )
            if before.is_active
            else TuningDecision(before)
        )
    mode = (spec.mode or TuningMode.QUICK).value
    new, reason = (
        Run(request=spec.request, serial=before.serial + 1, state=State.PENDING, mode=mode),
        "",
    )
    if before.request != spec.request:
        run, reason = new, f"another run, {spec.request!r}, was requested"
    elif before.is_active and before.mode != mode:
        run, reason = (
            (new, f"spec.tuning.mode was changed to {mode}, so the run starts again")
            if before.has_begun
            else (replace(before, mode=mode), "")
        )
    else:
        run = before
    if not run.is_active:
        return TuningDecision(run)
    after = _next(stage, run, now)
    return replace(
        after, events=(*(_stop_event(before, reason) if reason else ()), *_events(run, after))
    )


def interrupt(
    before: Run, now: dt.datetime, reason: str = "the spec became invalid during the run"
) -> TuningDecision:
    """Return the run while the spec cannot be acted on at all, for this ``reason``.

    A run that has begun ends: it holds room for a spec that cannot be acted on.
    """
    if not (before.is_active and before.has_begun):
        return TuningDecision(before)
    after = TuningDecision(before.failed(f"{reason}; fix the cause, and then {RETRY_ADVICE}", now))
    return replace(after, events=_events(before, after))


def _next(stage: Stage, run: Run, now: dt.datetime) -> TuningDecision:
    rejection = stage.snapshot.tuning_rejection if run.has_begun else ""
    if not run.has_begun:
        waiting = _waiting(stage, run, now)
        if waiting is not None:
            return waiting
        run = replace(run, revision=stage.desired, start=rfc3339(now), waiting_since="")
    reason = rejection or _early_end(stage, run)
    if reason:
        return TuningDecision(run.failed(f"{reason}; {RETRY_ADVICE}", now))
    name = run.name(stage.pipeline.metadata.uid)
    return (running if run.state is State.RUNNING else pending)(stage, run, name, now)


def _waiting(stage: Stage, run: Run, now: dt.datetime) -> TuningDecision | None:
    """Return a request that waits for the pipeline or has failed; ``None`` if it can begin."""
    if stage.is_suspended or stage.replicas == 0:
        # While no pods are desired, the time spent waiting does not count.
        wait = (
            "the pipeline is suspended; the run starts when the pipeline serves requests again"
            if stage.is_suspended
            else "spec.replicas is 0; the run starts when pods are serving"
        )
        return TuningDecision(replace(run, waiting_since=""), message=wait)
    if latency_budget_of(stage.pipeline) is None:
        # Nor does the time without that field: setting it starts an iteration.
        return TuningDecision(replace(run, waiting_since=""), message=_missing_slo(stage.pipeline))
    if stage.is_settled and not stage.watched_until:
        return None
    run = replace(run, waiting_since=run.waiting_since or rfc3339(now))
    wait = f"waiting until all pods serve revision {stage.desired}"
    if stage.snapshot.missing_sources:
        wait = f"waiting for a source: {'; '.join(stage.snapshot.missing_sources.values())}"
    elif stage.is_settled:
        message = (
            f"waiting until {stage.watched_until}, when the SLO watch of revision "
            f"{stage.desired} ends, because a measurement could affect its latency"
        )
        return TuningDecision(run, message=message)
    else:
        ready = stage.ready()
        if ready.status is not True and KIND_OF[ready.reason] is ReasonKind.STALLED:
            return TuningDecision(
                run.failed(
                    f"revision {stage.desired} does not serve ({ready.reason.value}: "
                    f"{ready.message}). Fix the cause, and then {RETRY_ADVICE}",
                    now,
                )
            )
        wait += (
            f" ({ready.reason.value}: {ready.message})"
            if ready.status is not True
            else f": {ready.message}"
        )
    if is_past(run.waiting_since, WAITING_SECONDS, now):
        return TuningDecision(
            run.failed(
                f"the run did not start within {WAITING_SECONDS // 60} min, because it was "
                f"{wait}; {RETRY_ADVICE}",
                now,
            )
        )
    return TuningDecision(run, message=wait)


def _missing_slo(pipeline: InferencePipeline) -> str:
    """Return why there is no latency to tune for, with the name of the field."""
    slo = pipeline.spec.slo
    if slo.p99_milliseconds is None:
        return (
            "tuning requires a latency target, but spec.slo.p99Milliseconds is not set; set "
            "spec.slo.p99Milliseconds to start the run"
        )
    return (
        "spec.slo.networkAndQueueBudgetMilliseconds: "
        f"{slo.network_and_queue_budget_milliseconds:g} ms leaves no latency budget within "
        f"spec.slo.p99Milliseconds ({slo.p99_milliseconds:g} ms); lower the budget, or "
        "raise the SLO, to start the run"
    )


def _early_end(stage: Stage, run: Run) -> str:
    """Return why a run that has begun cannot continue; empty if it can."""
    if stage.is_suspended:
        return "the pipeline was suspended during the run"
    if stage.desired != run.revision:
        return f"the desired revision changed from {run.revision} to {stage.desired}"
    if stage.target != run.revision:
        return f"revision {run.revision} was rolled back: {stage.ready().message}"
    return _serving_pod_blocked(stage)


def _serving_pod_blocked(stage: Stage) -> str:
    """Return why the run releases its resources: a serving pod lacks them; empty otherwise.

    Otherwise a rollout would remove an old pod for the room that a canary holds.
    """
    for pod in stage.snapshot.pods:
        if (
            not pod.ready
            and not pod.deleting
            and pod.condition("PodScheduled").get("reason") == "Unschedulable"
        ):
            return (
                f"serving pod {pod.name} of the pipeline cannot be scheduled,"
                " so the run releases its resources"
            )
    if stage.snapshot.pods_rejected:
        return (
            "the API server rejects further serving pods, so the run releases its resources:"
            f" {stage.snapshot.pods_rejected}"
        )
    return ""


def stale_result_warnings(run: Run, desired: str) -> list[Finding]:
    """Return a warning if the result is of another revision than the desired one.

    There is none if the result recommended the desired revision.
    """
    if run.state is not State.SUCCEEDED or desired in (run.revision, run.recommended):
        return []
    text = (
        f"{Reason.TUNING_STALE.value}: status.tuning was measured on revision "
        f"{run.revision}; to measure revision {desired}, change spec.tuning.request"
    )
    return [Finding("spec.tuning.request", text, Severity.WARNING, code=FindingCode.TUNING_STALE)]


def _events(before: Run, tuned: TuningDecision) -> tuple[Event, ...]:
    after = tuned.run
    if before.state == after.state or after.state is State.PENDING:
        return ()
    message = (
        after.result.get("message")
        or f"the run measures a pod of revision {after.revision} without client traffic"
    )
    return (
        Event(
            after.state is State.FAILED,
            f"Tuning{after.state.value}",
            "Tune",
            f"request {after.request!r}: {message}",
        ),
    )


def _stop_event(run: Run, reason: str) -> tuple[Event, ...]:
    """Return the event for an unfinished run that the status no longer shows."""
    return (
        (Event(False, "TuningStopped", "Tune", f"request {run.request!r}: {reason}"),)
        if run.is_active
        else ()
    )
