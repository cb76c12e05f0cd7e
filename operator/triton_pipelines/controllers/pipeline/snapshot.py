"""What a reconcile pass sees: caches and probe results, as plain values. No I/O here."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.loadplan import LoadReport
from triton_pipelines.controllers.handover import ScalingIntent, ScalingView
from triton_pipelines.controllers.timestamps import moment

from .resize_rejections import Refusal, explained
from .slo_guard import Latencies

Object = dict[str, Any]
# Put on pods by the Deployment's controller (apps/v1 DefaultDeploymentUniqueLabelKey).
LABEL_TEMPLATE_HASH = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model of a pod as Triton's repository index tells it."""

    name: str
    state: str
    reason: str = ""


# Looks in a row without an answer after which a pod that was good no longer counts as such: with the default period some two minutes.
MISSES_ALLOWED = 3
# How long a look that met a dead process counts, and how many are kept: releases up to 24.05 start such processes again by themselves.
DEAD_WINDOW = dt.timedelta(minutes=10)
DEAD_KEPT = 16
# Fields of the spec that are no other wish: the number of pods, which autoscalers write, suspension, and tuning requests.
NO_OTHER_WISH = ("replicas", "suspend", "tuning")


@dataclass(frozen=True, slots=True)
class Probe:
    """What one Triton pod said when it was last asked. ``at`` is a UTC time.

    ``ensemble_ready`` is the ensemble's own readiness; ``inference_error`` is empty when a real inference gave a sane answer and
    ``None`` when none was tried; ``mismatch``: what of an answer that is sane otherwise is not of the type, shape or number of rows that is declared
    (:mod:`~.mismatches` says what that means); ``error`` says why the pod could not be asked at all. ``misses`` counts later looks that brought no
    answer in time: a busy pod keeps its last verdict for some of them. ``dead``: the looks of late that met a dead process of a model,
    oldest first, and ``dead_in_a_row`` how many of the last ones did; ``wrong_in_a_row``: how many of the last ones met another fault of the answer.
    """

    at: dt.datetime
    ensemble_ready: bool
    models: tuple[ModelState, ...] = ()
    inference_error: str | None = None
    mismatch: str = ""
    error: str = ""
    misses: int = 0
    dead: tuple[dt.datetime, ...] = ()
    dead_in_a_row: int = 0
    wrong_in_a_row: int = 0

    @property
    def good(self) -> bool:
        """Whether nothing is wrong with the pod."""
        return self.ensemble_ready and not self.inference_error and not self.error

    def after(self, last: Probe | None) -> Probe:
        """This look, or the last one kept where this brought no answer: a good pod is given :data:`MISSES_ALLOWED` of them."""
        if self.error and last is not None and last.good and last.misses < MISSES_ALLOWED:
            return replace(last, at=self.at, misses=last.misses + 1)
        before = tuple(
            moment for moment in (last.dead if last else ()) if self.at - moment < DEAD_WINDOW
        )
        dead, wrong = (last.dead_in_a_row, last.wrong_in_a_row) if last else (0, 0)
        if self.dead:
            dead += 1  # which says nothing of answers
        elif not self.error:  # a look without an answer says nothing of either
            dead, wrong = 0, wrong + 1 if self.inference_error or self.mismatch else 0
        return replace(
            self, dead=(*before, *self.dead)[-DEAD_KEPT:], dead_in_a_row=dead, wrong_in_a_row=wrong
        )


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod that decisions rest on."""

    name: str
    uid: str
    revision: str
    ip: str
    phase: str
    ready: bool
    deleting: bool
    raw: Object = field(repr=False)

    @classmethod
    def of(cls, raw: Object) -> Pod:
        """Read a pod as the API server gives it."""
        metadata, status = raw["metadata"], raw.get("status") or {}
        conditions = {item.get("type"): item for item in status.get("conditions") or ()}
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            revision=(metadata.get("labels") or {}).get(names.LABEL_REVISION, ""),
            ip=status.get("podIP") or "",
            phase=status.get("phase") or "Pending",
            ready=conditions.get("Ready", {}).get("status") == "True",
            deleting=metadata.get("deletionTimestamp") is not None,
            raw=raw,
        )

    @property
    def template(self) -> str:
        """Which pod template it was made from, as the Deployment's controller numbers them; it changes on a restart, the revision does not."""
        return str((self.raw["metadata"].get("labels") or {}).get(LABEL_TEMPLATE_HASH, ""))

    def condition(self, kind: str) -> Mapping[str, Any]:
        """The pod's condition of that type, or an empty one."""
        found = [
            item
            for item in (self.raw.get("status") or {}).get("conditions") or ()
            if item.get("type") == kind
        ]
        return found[0] if found else {}

    def container(self, name: str) -> Mapping[str, Any]:
        """Status of a container or init container, or an empty one."""
        status = self.raw.get("status") or {}
        for item in [
            *(status.get("initContainerStatuses") or ()),
            *(status.get("containerStatuses") or ()),
        ]:
            if item.get("name") == name:
                return dict(item)
        return {}

    @property
    def serving(self) -> bool:
        """Ready and not on its way out."""
        return self.ready and not self.deleting

    @property
    def server_running(self) -> bool:
        """Whether Triton's process runs, so that it can be asked."""
        return "running" in (self.container(names.CONTAINER_SERVER).get("state") or {}) and bool(
            self.ip
        )

    def load_report(self) -> LoadReport | None:
        """What the init container reported last, in this run or the one before; ``None`` where it has not yet."""
        status = self.container(names.CONTAINER_LOADER)
        for phase in ("state", "lastState"):
            terminated = (status.get(phase) or {}).get("terminated")
            if terminated and terminated.get("message"):
                try:
                    return LoadReport.model_validate_json(terminated["message"])
                except ValueError:
                    return None
        return None


@dataclass(frozen=True, slots=True)
class Memory:
    """The controller's memory of one pipeline, kept in the live ConfigMap so that a restart loses nothing.

    ``secrets``: revision → hash of the control key that was applied; ``mode_revision``/``mode``: the fallback that an Auto rollout
    took; ``healed``: when a pod was last deleted for a dead process (RFC 3339); ``mended_manager``, ``mended``: who edit the number of
    pods, and when that was last mended; ``resized_manager``, ``resized``: the same of the pods' CPU (:class:`~.writers.Writers`); ``turns``:
    who write the pipeline's own number (:class:`~.writers.Turns`); ``stuck``:
    a revision whose pods do not all come while those of another one serve, and ``stuck_pods``: how many had come by then (fleet.py);
    ``rollout_pods``: with how many pods a rollout goes on, where scaling wants more than find room (0: with all); ``proven``: the revision that last served the whole pipeline; ``failed``: a revision that was taken back, with the
    hash of the spec that asked for it, why, and the revision that took its place; ``generation`` and ``wanted``: the spec last
    acted on and the revision it came to, so that another revision for the same spec is known to be nobody's wish, and ``spec`` its hash;
    ``watch``: the rollout whose latency is being watched (:class:`~.watch.Watch`); ``tuning``: the last tuning run (:class:`~.tuningrun.Run`).
    """

    secrets: Mapping[str, str] = field(default_factory=dict)
    mode_revision: str = ""
    mode: str = ""
    proven: str = ""
    failed_revision: str = ""
    failed_spec: str = ""
    failed_reason: str = ""
    failed_message: str = ""
    restored: str = ""
    generation: int = 0
    wanted: str = ""
    spec: str = ""
    healed: str = ""
    mended_manager: str = ""
    mended: str = ""
    resized_manager: str = ""
    resized: str = ""
    stuck: str = ""
    stuck_pods: int = 0
    rollout_pods: int = 0
    turns: Mapping[str, Any] = field(default_factory=dict)
    watch: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Memory:
        """Read it; what cannot be read, as after an edit by hand, is forgotten: at worst a Secret is applied again."""
        document, blank = json_object(text), cls()
        known = {
            key: document[key]
            for key in cls.__slots__
            if type(document.get(key)) is type(getattr(blank, key))
        }
        secrets = known.get("secrets") or {}
        known["secrets"] = {
            revision: digest for revision, digest in secrets.items() if isinstance(digest, str)
        }
        memory = cls(**known)
        if moment(memory.healed) is None:
            memory = replace(memory, healed="")
        if memory.mended and moment(memory.mended) is None:
            memory = replace(memory, mended_manager="", mended="")
        if memory.resized and moment(memory.resized) is None:
            memory = replace(memory, resized_manager="", resized="")
        if memory.failed_reason not in {*Reason, ""}:
            return replace(memory, failed_revision="", failed_reason="")
        return memory

    def to_json(self) -> str:
        """Canonical JSON, without what is empty."""
        values = {key: getattr(self, key) for key in self.__slots__}
        return json.dumps({key: value for key, value in values.items() if value}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything known about one pipeline at one moment.

    ``children`` are cached labelled objects by (kind, name); ``probes`` by pod uid; ``digests`` hashes of ConfigMap sources by step,
    ``missing_sources`` those that are not there (step → message); ``nodes`` is ``None`` where nodes were not needed or may not be read.
    ``unresized``: why the API server refused to give a pod (by uid) another CPU limit when it was asked last.
    ``intent`` and ``view``: what live scaling wants recorded and says, where it has looked; ``latencies``: what revisions promise is
    measured by. ``tuning_pods``: pods of a tuning run, which are none of the pipeline's, in whatever phase; ``untuned``: why the API server
    takes an object of the run not. ``monitoring``: findings on PodMonitor and PrometheusRule; ``None``: not looked at yet.
    ``remembered``: the last spec that was acted on, for where the record of it is gone. ``acted``: the hash of the spec that is gone by,
    where the present one cannot be acted on.
    """

    pipeline: Object
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    missing_sources: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Object, ...] | None = None
    intent: ScalingIntent | None = None
    view: ScalingView | None = None
    unresized: Mapping[str, Refusal] = field(default_factory=dict, kw_only=True)
    latencies: Latencies | None = None
    tuning_pods: tuple[Pod, ...] = ()
    untuned: str = ""
    monitoring: Sequence[Finding] | None = ()
    remembered: str = ""
    acted: str = field(default="", kw_only=True)

    @property
    def accepted(self) -> str:
        """The last spec that was acted on, as it is recorded (keeping.py)."""
        return str(self.live_data().get(names.KEY_ACCEPTED) or self.remembered)

    def monitoring_warnings(self) -> list[Finding]:
        """What is to be said of PodMonitor and PrometheusRule; what was said holds until they have been looked at."""
        if self.monitoring is not None:
            return list(self.monitoring)
        return monitoring_said(self.status)

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return str(self.pipeline["metadata"]["name"])

    @property
    def generation(self) -> int:
        """Generation of the spec."""
        return int(self.pipeline["metadata"].get("generation") or 0)

    @property
    def spec_hash(self) -> str:
        """Hash of the spec that is acted on but for :data:`NO_OTHER_WISH`, which must not try a failed revision again. It is that of the spec
        as it is stored, whose defaults are written out; no other form of the same spec has it."""
        if self.acted:
            return self.acted
        spec = {
            key: value
            for key, value in (self.pipeline.get("spec") or {}).items()
            if key not in NO_OTHER_WISH
        }
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def status(self) -> Mapping[str, Any]:
        """The status as it stands."""
        return self.pipeline.get("status") or {}

    def child(self, kind: str, name: str) -> Object | None:
        """A cached child."""
        return self.children.get((kind, name))

    @property
    def deployment(self) -> Object | None:
        """The pipeline's Deployment."""
        return self.child("Deployment", self.name)

    def live_data(self) -> Mapping[str, str]:
        """Content of the live ConfigMap."""
        return (self.child("ConfigMap", names.live_name(self.name)) or {}).get("data") or {}

    def memory(self) -> Memory:
        """The controller's memory of the pipeline."""
        return Memory.parse(self.live_data().get(names.KEY_MEMORY))

    def revision_record(self, revision: str) -> Mapping[str, Any] | None:
        """What the ConfigMap of a revision recorded: pod template, hash of its spec, server image."""
        found = (
            self.child("ConfigMap", names.revision_name(self.name, revision)) if revision else None
        )
        record = json_object(((found or {}).get("data") or {}).get(names.KEY_TEMPLATE))
        return (
            record
            if isinstance(record.get("template"), dict)
            and isinstance(record.get("serverImage"), str)
            else None
        )

    def deployed_revision(self) -> str:
        """Revision of the Deployment's template, empty without one."""
        template = ((self.deployment or {}).get("spec") or {}).get("template") or {}
        return str(
            ((template.get("metadata") or {}).get("labels") or {}).get(names.LABEL_REVISION, "")
        )

    def previous_revision(self) -> str:
        """The revision that served before the rollout of the deployed one, as far as the Deployment tells."""
        found = str(
            ((self.deployment or {}).get("metadata", {}).get("annotations") or {}).get(
                names.ANNOTATION_BEFORE, ""
            )
        )
        return found if names.is_revision(found) else ""

    def deployment_condition(self, kind: str) -> Mapping[str, Any]:
        """The Deployment's condition of that type, or an empty one."""
        return _condition(self.deployment, kind)

    @property
    def pods_refused(self) -> str:
        """Why the API server takes no further pod (quota, admission, a missing service account), in its words; empty where it does."""
        return self.pods_refused_to(self.name)

    def pods_refused_to(self, deployment: str) -> str:
        """The same of a Deployment by its name."""
        condition = _condition(self.child("Deployment", deployment), "ReplicaFailure")
        return (
            explained(str(condition.get("message") or condition.get("reason", "")))
            if condition.get("status") == "True"
            else ""
        )


def _condition(deployment: Object | None, kind: str) -> Mapping[str, Any]:
    status = (deployment or {}).get("status") or {}
    found = [item for item in status.get("conditions") or () if item.get("type") == kind]
    return found[0] if found else {}


def monitoring_said(status: Mapping[str, Any]) -> list[Finding]:
    """What a status says of PodMonitor and PrometheusRule."""
    said = [
        (str(item.get("path", "")), str(item.get("message", "")))
        for item in status.get("warnings") or ()
    ]
    return [
        Finding(path, message, Severity.WARNING)
        for path, message in said
        if path.startswith("spec.observability.")
    ]


def alive(pod: Object) -> bool:
    """Whether a raw pod has not ended: those that have (evicted, node lost) stay listed, and are history."""
    return (pod.get("status") or {}).get("phase") not in ("Failed", "Succeeded")


def serves(pod: Object) -> bool:
    """Whether a raw pod of a pipeline is one of its own; those of a tuning run serve nobody."""
    return (pod["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT) not in (
        names.COMPONENT_CANARY,
        names.COMPONENT_TUNER,
    )


def json_object(text: str | None) -> dict[str, Any]:
    """A JSON object out of a ConfigMap that anybody may have edited; anything else counts as an empty one."""
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
