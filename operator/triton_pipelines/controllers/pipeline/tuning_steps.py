"""Follow the canary and the Job of a tuning run. Pure; the clock is passed in.

The serving pods are not touched: a canary that finds no room waits and then gives up. One that has
room gives it up as soon as a serving pod finds none.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from triton_pipelines.api import names
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
from triton_pipelines.controllers.timestamps import moment, rfc3339

from .deployment_progress import job_end
from .latency_figures import latency_budget_of
from .padding_choices import VerifiedPaddings
from .padding_result import split_result
from .pod_problems import IMAGE_REASONS, Problem, problem_of
from .snapshot import Object, Pod, Snapshot, is_alive
from .status_events import Event
from .tuning_run_inputs import Stage
from .tuning_run_state import Run, State, result_of

# A canary that is not ready by then is given up (seconds): as long as a rollout may take by
# default. So is a Job that does not start.
PENDING_SECONDS: Final = 900
# Time after the Job's own deadline for its end to be reported (seconds).
MARGIN_SECONDS: Final = 60
RECHECK_SECONDS: Final = 15.0
# How long (seconds) a Job that ended waits for the report of its pod.
SILENT_SECONDS: Final = 10
RETRY_ADVICE: Final = "change spec.tuning.request to try again"


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


def pending(stage: Stage, run: Run, name: str, now: dt.datetime) -> TuningDecision:
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
    reason = problem.message if problem is not None else rejection or "the pod does not exist yet"
    if problem is not None and problem.is_final:
        return TuningDecision(
            run.failed(
                f"the pod for the measurement does not become ready ({problem.reason.value}): "
                f"{reason}",
                now,
            )
        )
    if is_past(run.start, PENDING_SECONDS, now):
        return TuningDecision(
            run.failed(
                f"the pod for the measurement was not ready within {PENDING_SECONDS} s: {reason}",
                now,
            )
        )
    message = "waiting for a pod without client traffic"
    if problem is not None:
        message = f"{problem.reason.value}: {reason}"
    elif rejection:
        message += f"; the API server rejects the pod: {rejection}"
    return TuningDecision(run, tuple(_canary_objects(stage, name)), message)


def running(stage: Stage, run: Run, name: str, now: dt.datetime) -> TuningDecision:
    """Wait until the Job has ended."""
    job_object = stage.snapshot.child(
        "Job", names.tuning_name(stage.snapshot.name, name, names.COMPONENT_TUNER)
    )
    tuners = _pods(stage.snapshot, name, names.COMPONENT_TUNER)
    for pod in tuners:
        ended = (pod.container(names.CONTAINER_TUNER).get("state") or {}).get("terminated")
        if ended:
            return _result_of_job(stage, run, ended, now)
    failure = _job_failure(run, job_object, tuners, now)
    if failure:
        return TuningDecision(run.failed(failure, now))
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
    if is_past(run.job_start, seconds + MARGIN_SECONDS, now):
        return TuningDecision(run.failed(f"the Job did not end within {seconds} s", now))
    blocker = _start_blocker(tuners)
    if blocker and is_past(run.job_start, PENDING_SECONDS, now):
        return TuningDecision(
            run.failed(
                f"the pod of the Job did not start within {PENDING_SECONDS} s: {blocker}", now
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


def _job_failure(
    run: Run, job_object: Object | None, tuners: Sequence[Pod], now: dt.datetime
) -> str:
    """Return why the Job has ended without a result; empty if it has not."""
    # The Job may have changed the canary's settings, so a second Job could not start from them: a
    # Job is never created twice.
    if run.job_uid and (
        job_object is None
        or job_object["metadata"].get("uid") != run.job_uid
        or job_object["metadata"].get("deletionTimestamp")
    ):
        return f"its Job was deleted; {RETRY_ADVICE}"
    end = job_end(job_object)
    # The report of its pod has more details, and may arrive later.
    is_report_due = bool(tuners) and not is_past(
        str(end.get("lastTransitionTime") or ""), SILENT_SECONDS, now
    )
    if not end or is_report_due:
        return ""
    if end["type"] == "Failed":
        return f"the Job failed: {end.get('reason', '')}: {end.get('message', '')}"
    return f"the Job ended, but its result was lost with its pod; {RETRY_ADVICE}"


def _not_running_text(reason: str) -> str:
    return f"the pod of the Job is not running yet: {reason}"


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
            return f"pod {pod.name}, which was being measured, has terminated{detail}"
    problem = _problem(stage, pods)
    return (
        "the measured pod no longer exists, or its server was restarted"
        f"{f' ({problem.message})' if problem is not None else ''}"
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
            f"the tuning Job failed with exit code {ended.get('exitCode')}: "
            f"{text.strip()[-600:] or ended.get('reason', '')}"
        )
        return TuningDecision(run.failed(message, now))
    try:
        result = result_of(json.loads(text))
    except (ValueError, RecursionError):
        result = None
    if result is None:
        return TuningDecision(
            run.failed(
                "the report of the tuning Job cannot be read; check that loader.image of "
                "the chart matches the operator's release",
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
        spec["tokenizer"] = {**spec["tokenizer"], **stage.pinned_tokenizer()}
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


def is_past(since: str, seconds: float, now: dt.datetime) -> bool:
    """Return whether ``seconds`` have passed since a time (RFC 3339), or it is unknown."""
    began = moment(since)
    return began is None or (now - began).total_seconds() > seconds
