"""Drive a tuning run: when it starts, its objects and its result. Pure; the clock is passed in.

A changed ``spec.tuning.request`` starts a run, once the desired revision serves the pipeline. The
whole state of a run is in the live ConfigMap, its result included; ``status.tuning`` only shows it.
The spec is never written, and the serving pods are not touched: a canary that finds no room waits
and then gives up. One that has room gives it up as soon as a serving pod finds none.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.conditions import KIND_OF, Condition, Reason, ReasonKind
from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.fingerprint import cost_fingerprint
from triton_pipelines.compile.render.tuning_objects import (
    JOB_SECONDS,
    canary,
    inputs,
    job,
    policies,
)
from triton_pipelines.controllers.pipeline import status as statuses
from triton_pipelines.controllers.pipeline.actions import Apply, ApplyStage
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.compiled_pipeline import recommended_revision
from triton_pipelines.controllers.pipeline.latency_figures import latency_budget_of
from triton_pipelines.controllers.pipeline.padding_choices import VerifiedPaddings, split_result
from triton_pipelines.controllers.pipeline.pod_problems import IMAGE_REASONS, Problem, problem_of
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Object, Pod, Snapshot, is_alive
from triton_pipelines.controllers.pipeline.state import TuningRunState
from triton_pipelines.controllers.pipeline.status_events import Event
from triton_pipelines.controllers.pipeline.tuning_run_inputs import Stage, cleared, stage_of
from triton_pipelines.controllers.pipeline.tuning_run_state import Run, State, last_run, result_of
from triton_pipelines.controllers.timestamps import moment, rfc3339

from .replicas import Replicas
from .revision import DesiredRevision
from .rollout import Rollout

# A canary that is not ready by then is given up (seconds): as long as a rollout may take by
# default. So is a Job that does not start.
PENDING_SECONDS: Final = 900
# How long (seconds) a request waits until all pods of the pipeline serve: nodes may have to be
# provisioned first. After that, the requester is not likely to be waiting any more.
WAITING_SECONDS: Final = 3600
# Time after the Job's own deadline for its end to be reported (seconds).
MARGIN_SECONDS: Final = 60
RECHECK_SECONDS: Final = 15.0
# How long (seconds) a Job that ended waits for the report of its pod.
SILENT_SECONDS: Final = 10
# Events of a run that has ended.
RUN_END_EVENTS: Final = ("TuningSucceeded", "TuningFailed")
RETRY_ADVICE: Final = "set another spec.tuning.request to try again"


@dataclass(frozen=True, slots=True)
class TuningDecision:
    """Decision on the tuning run in one reconcile iteration."""

    run: Run
    """The run to record."""
    objects: tuple[Object, ...] = ()
    """Its objects; an existing Job as it is."""
    message: str = ""
    """What the run waits for; empty once it has ended."""
    events: tuple[Event, ...] = ()
    choices: VerifiedPaddings = field(default_factory=dict)
    """The padding that it has verified for ``Auto``, by fingerprint."""

    @property
    def to_apply(self) -> list[Object]:
        """Return the objects to apply: all but an existing Job, whose template is immutable."""
        return [item for item in self.objects if not item["metadata"].get("uid")]

    @property
    def recheck(self) -> float | None:
        """Return the seconds until a deadline may have passed.

        ``None`` without a deadline, for example while no pods are desired.
        """
        return (
            RECHECK_SECONDS
            if self.run.is_active and (self.run.has_begun or self.run.waiting_since)
            else None
        )

    def status(self) -> dict[str, Any]:
        """Return ``status.tuning``; empty without a run."""
        return self.run.status(self.message)


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """The next step of a tuning run."""

    before: Run
    """The run as it was."""
    after: TuningDecision


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Start, follow or end the tuning run that the spec requests."""
    spec = draft.of(ReconciledSpec)
    before = last_run(draft.state.tuning_run.document, snapshot.status.get("tuning"))
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
        return statuses.conditions_of(
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
        run, reason = new, f"{spec.request!r} is requested instead"
    elif before.is_active and before.mode != mode:
        run, reason = (
            (new, f"spec.tuning.mode is {mode} now, and the run starts again")
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
    before: Run, now: dt.datetime, reason: str = "the spec has become invalid during the run"
) -> TuningDecision:
    """Return the run while the spec cannot be acted on at all, for this ``reason``.

    A run that has begun ends: it holds room for a spec that cannot be acted on.
    """
    if not (before.is_active and before.has_begun):
        return TuningDecision(before)
    after = TuningDecision(before.failed(f"{reason}; correct it, then {RETRY_ADVICE}", now))
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
    return (_running if run.state is State.RUNNING else _pending)(stage, run, name, now)


def _waiting(stage: Stage, run: Run, now: dt.datetime) -> TuningDecision | None:
    """Return a request that waits for the pipeline or has failed; ``None`` if it can begin."""
    if stage.is_suspended or stage.replicas == 0:
        # While no pods are desired, the time spent waiting does not count.
        wait = (
            "the pipeline is suspended; it begins when it serves again"
            if stage.is_suspended
            else "spec.replicas is 0; it begins when pods serve"
        )
        return TuningDecision(replace(run, waiting_since=""), message=wait)
    if latency_budget_of(stage.pipeline) is None:
        # Nor does the time without that field: setting it starts an iteration.
        return TuningDecision(replace(run, waiting_since=""), message=_missing_slo(stage.pipeline))
    if stage.is_settled and not stage.watched_until:
        return None
    run = replace(run, waiting_since=run.waiting_since or rfc3339(now))
    wait = f"waits until revision {stage.desired} serves in all pods"
    if stage.snapshot.missing_sources:
        wait = f"waits for a source: {'; '.join(stage.snapshot.missing_sources.values())}"
    elif stage.is_settled:
        message = (
            f"waits until {stage.watched_until}: until then the latency of revision"
            f" {stage.desired} is watched, which a measurement could disturb"
        )
        return TuningDecision(run, message=message)
    else:
        ready = stage.ready()
        if ready.status is not True and KIND_OF[ready.reason] is ReasonKind.STALLED:
            return TuningDecision(
                run.failed(
                    f"revision {stage.desired} does not serve ({ready.reason.value}):"
                    f" {ready.message}; correct that, then {RETRY_ADVICE}",
                    now,
                )
            )
        wait += (
            f" ({ready.reason.value}: {ready.message})"
            if ready.status is not True
            else f": {ready.message}"
        )
    if _is_past(run.waiting_since, WAITING_SECONDS, now):
        return TuningDecision(
            run.failed(
                f"given up after {WAITING_SECONDS // 60} min; it {wait}; {RETRY_ADVICE}", now
            )
        )
    return TuningDecision(run, message=wait)


def _missing_slo(pipeline: InferencePipeline) -> str:
    """Return why there is no latency to tune for, with the name of the field."""
    slo = pipeline.spec.slo
    if slo.p99_milliseconds is None:
        return (
            "spec.slo.p99Milliseconds is not set, and tuning needs the latency to keep:"
            " set it; the run begins then"
        )
    return (
        "spec.slo.networkAndQueueBudgetMilliseconds:"
        f" {slo.network_and_queue_budget_milliseconds:g} ms leave nothing of"
        " spec.slo.p99Milliseconds,"
        f" {slo.p99_milliseconds:g} ms, for the pipeline: lower it, or raise the SLO;"
        " the run begins then"
    )


def _early_end(stage: Stage, run: Run) -> str:
    """Return why a run that has begun cannot continue; empty if it can."""
    if stage.is_suspended:
        return "the pipeline was suspended during the run"
    if stage.desired != run.revision:
        return f"the desired revision is {stage.desired} now, no longer {run.revision}"
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


def _pending(stage: Stage, run: Run, name: str, now: dt.datetime) -> TuningDecision:
    """Wait until the canary is ready."""
    pods = _pods(stage.snapshot, name, names.COMPONENT_CANARY)
    ready = next((pod for pod in pods if pod.serving and pod.ip), None)
    if ready is not None:
        run = replace(run, state=State.RUNNING, job_start=rfc3339(now), server=_server_of(ready))
        return TuningDecision(
            run,
            (*_canary_objects(stage, name), _job(stage, run, name, ready)),
            _not_running_text(_start_blocker(())),
        )
    problem = _problem(stage, pods)
    rejection = stage.snapshot.pods_rejected_of(names.tuning_name(stage.snapshot.name, name))
    reason = problem.message if problem is not None else rejection or "no pod yet"
    if problem is not None and problem.is_final:
        return TuningDecision(
            run.failed(
                f"the pod to measure does not become ready ({problem.reason.value}): {reason}", now
            )
        )
    if _is_past(run.start, PENDING_SECONDS, now):
        return TuningDecision(
            run.failed(
                f"the pod to measure was not ready within {PENDING_SECONDS} s: {reason}", now
            )
        )
    message = "waits for a pod without client traffic"
    if problem is not None:
        message = f"{problem.reason.value}: {reason}"
    elif rejection:
        message += f"; the API server rejects it: {rejection}"
    return TuningDecision(run, tuple(_canary_objects(stage, name)), message)


def _running(stage: Stage, run: Run, name: str, now: dt.datetime) -> TuningDecision:
    """Wait until the Job has ended."""
    job_object = stage.snapshot.child(
        "Job", names.tuning_name(stage.snapshot.name, name, names.COMPONENT_TUNER)
    )
    tuners = _pods(stage.snapshot, name, names.COMPONENT_TUNER)
    for pod in tuners:
        ended = (pod.container(names.CONTAINER_TUNER).get("state") or {}).get("terminated")
        if ended:
            return _result_of_job(stage, run, ended, now)
    # The Job may have changed the canary's settings, so a second Job could not start from them: a
    # Job is never created twice.
    if run.job_uid and (
        job_object is None
        or job_object["metadata"].get("uid") != run.job_uid
        or job_object["metadata"].get("deletionTimestamp")
    ):
        return TuningDecision(run.failed(f"its Job was deleted; {RETRY_ADVICE}", now))
    end_condition = _end_condition(job_object)
    # The report of its pod has more details, and may arrive later.
    is_report_due = bool(tuners) and not _is_past(
        str(end_condition.get("lastTransitionTime") or ""), SILENT_SECONDS, now
    )
    if end_condition and not is_report_due:
        message = (
            f"the Job failed: {end_condition.get('reason', '')}: {end_condition.get('message', '')}"
        )
        return TuningDecision(
            run.failed(
                message
                if end_condition["type"] == "Failed"
                else f"the Job ended, but its result was lost with its pod; {RETRY_ADVICE}",
                now,
            )
        )
    canary_pod = next(
        (
            pod
            for pod in _pods(stage.snapshot, name, names.COMPONENT_CANARY)
            if is_alive(pod.raw) and _server_of(pod) == run.server
        ),
        None,
    )
    if canary_pod is None or canary_pod.deleting:
        return TuningDecision(run.failed(f"{_canary_end(stage, name)}; {RETRY_ADVICE}", now))
    seconds = JOB_SECONDS[TuningMode(run.mode)]
    if _is_past(run.job_start, seconds + MARGIN_SECONDS, now):
        return TuningDecision(run.failed(f"the Job did not end within {seconds} s", now))
    blocker = _start_blocker(tuners)
    if blocker and _is_past(run.job_start, PENDING_SECONDS, now):
        return TuningDecision(
            run.failed(
                f"the pod that measures did not start within {PENDING_SECONDS} s: {blocker}", now
            )
        )
    message = (
        _not_running_text(blocker)
        if blocker
        else f"pod {canary_pod.name}, which has no client traffic, is being measured"
    )
    if job_object is None:
        return TuningDecision(
            run, (*_canary_objects(stage, name), _job(stage, run, name, canary_pod)), message
        )
    return TuningDecision(
        replace(run, job_uid=str(job_object["metadata"].get("uid", ""))),
        (*_canary_objects(stage, name), job_object),
        message,
    )


def _not_running_text(reason: str) -> str:
    return f"the pod that measures does not run yet: {reason}"


def _server_of(pod: Pod) -> str:
    """Identify one start of one pod's server.

    A restarted server has the settings of the files again, and its address may belong to another
    pod by then.
    """
    return f"{pod.uid}/{pod.container(names.CONTAINER_SERVER).get('restartCount', 0)}"


def _canary_end(stage: Stage, name: str) -> str:
    """Return what became of the canary, as text."""
    pods = _pods(stage.snapshot, name, names.COMPONENT_CANARY)
    for pod in pods:
        status = pod.raw.get("status") or {}
        if not is_alive(pod.raw):
            message = ": ".join(
                text for key in ("reason", "message") if (text := str(status.get(key) or ""))
            )
            detail = f" ({message[:300]})" if message else ""
            return f"pod {pod.name}, which was measured, has ended{detail}"
    problem = _problem(stage, pods)
    return (
        "the measured pod no longer exists, or its server was restarted"
        f"{f' ({problem.message})' if problem is not None else ''}"
    )


def _end_condition(made: Object | None) -> Mapping[str, Any]:
    """Return the condition that reports the end of a Job, or an empty one."""
    conditions = ((made or {}).get("status") or {}).get("conditions") or ()
    return next(
        (
            item
            for item in conditions
            if item.get("type") in ("Failed", "Complete") and item.get("status") == "True"
        ),
        {},
    )


def _start_blocker(tuners: Sequence[Pod]) -> str:
    """Return why no pod of the Job runs; empty if one does."""
    if any(
        "running" in (pod.container(names.CONTAINER_TUNER).get("state") or {}) for pod in tuners
    ):
        return ""
    for pod in tuners:
        waiting = (pod.container(names.CONTAINER_TUNER).get("state") or {}).get("waiting") or {}
        placed = pod.condition("PodScheduled")
        if waiting.get("reason") in IMAGE_REASONS:
            return f"{waiting['reason']}: {waiting.get('message', '')}"
        if placed.get("status") == "False":
            return f"{placed.get('reason', '')}: {placed.get('message', '')}"
    return "it starts" if tuners else "the Job has no pod"


def _result_of_job(
    stage: Stage, run: Run, ended: Mapping[str, Any], now: dt.datetime
) -> TuningDecision:
    text = str(ended.get("message") or "")
    if ended.get("exitCode") != 0:
        message = (
            f"the measurement ended with exit code {ended.get('exitCode')}:"
            f" {text.strip()[-600:] or ended.get('reason', '')}"
        )
        return TuningDecision(run.failed(message, now))
    try:
        result = result_of(json.loads(text))
    except ValueError:
        result = None
    if result is None:
        return TuningDecision(
            run.failed(
                "the report of the Job cannot be read;"
                " is its image that of this operator's release (loader.image)?",
                now,
            )
        )

    def fingerprint(pipeline: InferencePipeline) -> str:
        return cost_fingerprint(pipeline, stage.options, stage.snapshot.digests)

    end = rfc3339(now)
    split = split_result(
        stage.pipeline,
        stage.padding,
        result,
        (run.request, end),
        latency_budget_of(stage.pipeline),
        fingerprint,
    )
    recommended_revision = stage.recommended(split.patch) if split.patch else ""
    return TuningDecision(
        replace(
            run,
            state=State.SUCCEEDED,
            end=end,
            result=split.result,
            recommended=recommended_revision,
        ),
        choices=split.choices,
    )


def _canary_objects(stage: Stage, name: str) -> list[Object]:
    pipeline, options = stage.pipeline, stage.options
    spec = {key: value for key, value in stage.snapshot.pipeline["spec"].items() if key != "tuning"}
    if "tokenizer" in spec:
        spec["tokenizer"] = {**spec["tokenizer"], **stage.pinned_padding()}
    document = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": pipeline.name, "namespace": pipeline.namespace},
        "spec": spec,
    }
    return [
        *policies(pipeline, name, options.operator_namespace),
        inputs(pipeline, name, document, stage.server_image, options),
        canary(pipeline, name, stage.template, PENDING_SECONDS),
    ]


def _job(stage: Stage, run: Run, name: str, pod: Pod) -> Object:
    return job(stage.pipeline, name, run.revision, pod.ip, stage.template, stage.options)


def _pods(snapshot: Snapshot, name: str, component: str) -> list[Pod]:
    labels = {names.LABEL_RUN: name, names.LABEL_COMPONENT: component}
    return [
        pod
        for pod in snapshot.tuning_pods
        if labels.items() <= (pod.raw["metadata"].get("labels") or {}).items()
    ]


def _problem(stage: Stage, pods: Sequence[Pod]) -> Problem | None:
    gpu = stage.pipeline.spec.server.gpu.resource_name
    alive_pods = (pod for pod in pods if is_alive(pod.raw))
    return next(
        (
            found
            for pod in alive_pods
            if (found := problem_of(pod, None, gpu, stage.snapshot.nodes)) is not None
        ),
        None,
    )


def stale_result_warnings(run: Run, desired: str) -> list[Finding]:
    """Return a warning if the result is of another revision than the desired one.

    There is none if the result recommended the desired revision.
    """
    if run.state is not State.SUCCEEDED or desired in (run.revision, run.recommended):
        return []
    text = (
        f"{Reason.TUNING_STALE.value}: status.tuning was measured on revision {run.revision};"
        f" another request measures revision {desired}"
    )
    return [Finding("spec.tuning.request", text, Severity.WARNING)]


def _events(before: Run, tuned: TuningDecision) -> tuple[Event, ...]:
    after = tuned.run
    if before.state == after.state or after.state is State.PENDING:
        return ()
    message = (
        after.result.get("message")
        or f"a pod of revision {after.revision}, which has no client traffic, is measured"
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


def _is_past(since: str, seconds: float, now: dt.datetime) -> bool:
    began = moment(since)
    return began is None or (now - began).total_seconds() > seconds
