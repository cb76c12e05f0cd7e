"""A tuning run in the cluster: when it starts, which objects it has, and what became of it. Pure; the clock is passed in.

A changed ``spec.tuning.request`` starts one, once the pipeline is served by the revision that the spec asks for. All that a run is lies in
the live ConfigMap, its result included; ``status.tuning`` only shows it. The spec is never written, and the pods that serve are not touched:
a canary that finds no room waits, and gives up.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import yaml
from pydantic import ValidationError

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity, Switch
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.status import TuningStatus
from triton_pipelines.api.v1alpha1 import InferencePipeline, TuningMode
from triton_pipelines.pipeline.options import Options
from triton_pipelines.render.tuning import JOB_SECONDS, canary, inputs, job, policies

from .events import Event
from .observed import Object, Observed, Pod
from .problems import Problem, of_pod
from .times import moment, rfc3339

# A canary that is not ready by then is given up (seconds): as long as a rollout may take by default.
PENDING_SECONDS: Final = 900
# Beyond the Job's own deadline, for its end to be told (seconds).
MARGIN_SECONDS: Final = 60
RECHECK_SECONDS: Final = 15.0
# A Job that failed waits so long for what its pod says of it (seconds).
SILENT_SECONDS: Final = 10
MESSAGE_MAX: Final = 1024
# Longest short string of the status' schema.
SHORT_MAX: Final = 512
# What the Job may fill in of status.tuning; the rest is said here.
RESULT: Final = ("message", "advice", "patch", "gainPercent", "points")


class State(StrEnum):
    """How far a run is."""

    NONE = ""
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Run:
    """The last run as it is remembered. ``revision``: what is measured ("": it has not begun); ``start``, ``job``, ``end``: RFC 3339 times of
    its beginning, its Job's and its end; ``recommended``: the revision that its patch makes ("": none); ``result``: fields of ``status.tuning``."""

    request: str = ""
    state: State = State.NONE
    revision: str = ""
    start: str = ""
    job: str = ""
    end: str = ""
    recommended: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return self.state in (State.PENDING, State.RUNNING)

    def name(self, uid: str) -> str:
        """Eight characters that no other run has: another request, revision or start is another run."""
        return hashlib.sha256("\n".join((uid, self.request, self.revision, self.start)).encode()).hexdigest()[:8]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Run:
        """Read it; what an edit has made unreadable counts as no run."""
        texts = {key: document.get(key, "") for key in ("request", "state", "revision", "start", "job", "end", "recommended")}
        if not all(isinstance(text, str) and len(text) <= SHORT_MAX for text in texts.values()) or texts["state"] not in {*State}:
            return cls()
        if any(texts[key] and moment(texts[key]) is None for key in ("start", "job", "end")):
            return cls()
        found = _result(document.get("result") or {})
        return cls(**(texts | {"state": State(texts["state"])}), result=found or {})

    def to_document(self) -> dict[str, Any]:
        """What is remembered, without what is empty."""
        values = {key: getattr(self, key) for key in self.__slots__}
        return {key: str(value) if isinstance(value, State) else value for key, value in values.items() if value}

    def status(self) -> dict[str, Any]:
        """``status.tuning``; empty without a run."""
        if not self.request:
            return {}
        told = {"request": self.request, "state": str(self.state), "startTime": self.start, "completionTime": self.end, "revision": self.revision}
        return {key: value for key, value in told.items() if value} | dict(self.result)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What is decided: the run to remember, the objects that it has now (its Job, once made, as it is), and events."""

    run: Run
    objects: tuple[Object, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def created(self) -> list[Object]:
        """What is to be applied: all but a Job that is there, whose template cannot be changed."""
        return [item for item in self.objects if not item["metadata"].get("uid")]

    @property
    def recheck(self) -> float | None:
        """Seconds until a deadline may have passed."""
        return RECHECK_SECONDS if self.run.active else None


@dataclass(frozen=True, slots=True)
class Stage:
    """What a run goes by. ``wanted``: the revision that the spec asks for; ``settled``: whether it alone serves the whole pipeline;
    ``template`` and ``server_image``: as its ConfigMap recorded them; ``padding``: where the spec's own cannot be had, the one in force;
    ``recommended``: the revision that a patch would make."""

    pipeline: InferencePipeline
    observed: Observed
    wanted: str
    settled: bool
    template: Mapping[str, Any]
    server_image: str
    options: Options
    padding: str = ""
    recommended: Callable[[Mapping[str, Any]], str] = lambda _: ""


def follow(stage: Stage, before: Run, now: dt.datetime) -> Tuned:
    """The next step of the run that the spec asks for."""
    request = stage.pipeline.spec.tuning.request
    if request is None:
        # A result stays until there is another; a run that nobody wants any more goes without one.
        return Tuned(Run() if before.active else before)
    run = before if before.request == request else Run(request=request, state=State.PENDING)
    if not run.active:
        return Tuned(run)
    after = _next(stage, run, now)
    return replace(after, events=_events(before, after.run))


def _next(stage: Stage, run: Run, now: dt.datetime) -> Tuned:
    suspended = stage.pipeline.spec.suspend is Switch.ENABLED
    if not run.revision:
        if suspended or not stage.settled:
            wait = (
                "the pipeline is suspended; it begins when it serves again"
                if suspended
                else f"waits until revision {stage.wanted} serves in all pods"
            )
            return Tuned(_saying(run, wait))
        run = replace(run, revision=stage.wanted, start=rfc3339(now))
    if suspended:
        return Tuned(_failed(run, "the pipeline was suspended during the run; ask again with another spec.tuning.request", now))
    if stage.wanted != run.revision:
        why = f"revision {run.revision} is no longer wanted, but {stage.wanted}; ask again with another spec.tuning.request"
        return Tuned(_failed(run, why, now))
    if stage.observed.untuned:
        return Tuned(_failed(run, stage.observed.untuned, now))
    name = run.name(stage.pipeline.metadata.uid)
    if run.state is State.RUNNING:
        return _running(stage, run, name, now)
    return _pending(stage, run, name, now)


def _pending(stage: Stage, run: Run, name: str, now: dt.datetime) -> Tuned:
    """Until the canary is ready."""
    pods = _pods(stage.observed, name, names.COMPONENT_CANARY)
    ready = next((pod for pod in pods if pod.serving and pod.ip), None)
    if ready is not None:
        began = _saying(replace(run, state=State.RUNNING, job=rfc3339(now)), f"pod {ready.name}, which serves nobody, is being measured")
        return Tuned(began, (*_base(stage, name), _job(stage, run, name, ready)))
    problem = _problem(stage, pods)
    why = problem.message if problem is not None else stage.observed.pods_refused_to(names.tuning_name(stage.observed.name, name)) or "no pod yet"
    if problem is not None and problem.final:
        return Tuned(_failed(run, f"the pod to measure does not come up ({problem.reason.value}): {why}", now))
    if _past(run.start, PENDING_SECONDS, now):
        return Tuned(_failed(run, f"the pod to measure was not ready within {PENDING_SECONDS} s: {why}", now))
    # Pods to be scheduled and pods that load count on: their words would be a status write each time.
    said = f"{problem.reason.value}: {why}" if problem is not None else "waits for a pod that serves nobody"
    return Tuned(_saying(run, said), tuple(_base(stage, name)))


def _running(stage: Stage, run: Run, name: str, now: dt.datetime) -> Tuned:
    """Until the Job has ended."""
    made = stage.observed.child("Job", names.tuning_name(stage.observed.name, name, names.COMPONENT_TUNER))
    tuners = _pods(stage.observed, name, names.COMPONENT_TUNER)
    for pod in tuners:
        ended = (pod.container(names.CONTAINER_TUNER).get("state") or {}).get("terminated")
        if ended:
            return Tuned(_ended(stage, run, ended, now))
    failed = next((item for item in ((made or {}).get("status") or {}).get("conditions") or () if item.get("type") == "Failed"), None)
    # Its pod's own words say more, and may reach us later.
    silent = bool(tuners) and failed is not None and not _past(str(failed.get("lastTransitionTime") or ""), SILENT_SECONDS, now)
    if failed is not None and failed.get("status") == "True" and not silent:
        return Tuned(_failed(run, f"the Job failed: {failed.get('reason', '')}: {failed.get('message', '')}", now))
    mode = stage.pipeline.spec.tuning.mode or TuningMode.QUICK
    if _past(run.job, JOB_SECONDS[mode] + MARGIN_SECONDS, now):
        return Tuned(_failed(run, f"the Job did not end within {JOB_SECONDS[mode]} s", now))
    ready = next((pod for pod in _pods(stage.observed, name, names.COMPONENT_CANARY) if pod.serving and pod.ip), None)
    if made is not None:
        return Tuned(run, (*_base(stage, name), made))
    return Tuned(run, (*_base(stage, name), *([_job(stage, run, name, ready)] if ready is not None else [])))


def _ended(stage: Stage, run: Run, ended: Mapping[str, Any], now: dt.datetime) -> Run:
    text = str(ended.get("message") or "")
    if ended.get("exitCode") != 0:
        return _failed(run, f"the measurement ended with exit code {ended.get('exitCode')}: {text.strip()[-600:] or ended.get('reason', '')}", now)
    try:
        found = _result(json.loads(text))
    except ValueError:
        found = None
    if found is None:
        return _failed(run, "what the Job reports cannot be read; is its image that of this operator's release (loader.image)?", now)
    return replace(run, state=State.SUCCEEDED, end=rfc3339(now), result=found, recommended=_recommended(stage, str(found.get("patch", ""))))


def _recommended(stage: Stage, text: str) -> str:
    """The revision that a patch makes; "" where it makes none, or cannot be read."""
    try:
        patch = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # the second for what looks like a date and is none
        return ""
    return stage.recommended(patch) if isinstance(patch, Mapping) else ""


def _base(stage: Stage, name: str) -> list[Object]:
    pipeline, options = stage.pipeline, stage.options
    spec = {key: value for key, value in stage.observed.pipeline["spec"].items() if key != "tuning"}
    if stage.padding and "tokenizer" in spec:
        spec["tokenizer"] = {**spec["tokenizer"], "padding": stage.padding}
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


def _pods(observed: Observed, name: str, component: str) -> list[Pod]:
    wanted = {names.LABEL_RUN: name, names.LABEL_COMPONENT: component}
    return [pod for pod in observed.tuning_pods if wanted.items() <= (pod.raw["metadata"].get("labels") or {}).items()]


def _problem(stage: Stage, pods: Sequence[Pod]) -> Problem | None:
    gpu = stage.pipeline.spec.server.gpu.resource_name
    return next((found for pod in pods if (found := of_pod(pod, None, gpu, stage.observed.nodes)) is not None), None)


def doubts(run: Run, wanted: str) -> list[Finding]:
    """A warning where the result is of another revision than the one that is wanted, and that is not what it recommended either."""
    if run.state is not State.SUCCEEDED or wanted in (run.revision, run.recommended):
        return []
    text = f"{Reason.TUNING_STALE.value}: status.tuning was measured on revision {run.revision}; another request measures revision {wanted}"
    return [Finding("spec.tuning.request", text, Severity.WARNING)]


def _events(before: Run, after: Run) -> tuple[Event, ...]:
    if (before.request, before.state) == (after.request, after.state) or after.state is State.PENDING:
        return ()
    said = str(after.result.get("message", ""))
    return (Event(after.state is State.FAILED, f"Tuning{after.state.value}", "Tune", f"request {after.request!r}: {said}"),)


def _saying(run: Run, message: str) -> Run:
    return replace(run, result={"message": message[:MESSAGE_MAX]})


def _failed(run: Run, message: str, now: dt.datetime) -> Run:
    return replace(run, state=State.FAILED, end=rfc3339(now), result={"message": message[:MESSAGE_MAX]})


def _result(document: Any) -> dict[str, Any] | None:
    """The fields of ``status.tuning`` that a result fills; ``None`` where it is none: what a pod says is not ours to trust."""
    if not isinstance(document, Mapping):
        return None
    try:
        told = TuningStatus.model_validate({key: document[key] for key in RESULT if key in document})
    except ValidationError:
        return None
    return told.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _past(since: str, seconds: float, now: dt.datetime) -> bool:
    began = moment(since)
    return began is None or (now - began).total_seconds() > seconds
