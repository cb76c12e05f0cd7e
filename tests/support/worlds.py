"""A pure model of the world around the planner.

It consists of an API server that keeps what is applied, a Deployment controller, a scheduler and a
kubelet.

It replaces a cluster where thousands of histories are needed. The rules are those of Kubernetes'
own controllers (rolling update with maxSurge and maxUnavailable, Recreate, progress deadline,
graceful termination), and time is a number. The planner is the real one.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tests.support import builders, ownership
from tests.support.copies import copied
from tests.support.rolloutmodel import Counted, progressing
from tests.support.worldchecks import check_object, check_status
from triton_pipelines.api import names
from triton_pipelines.api.base import Finding as SpecFinding
from triton_pipelines.api.crd import stored
from triton_pipelines.api.loadplan import LoadFinding, LoadReason, LoadReport, ReportSource
from triton_pipelines.compile.graph import Options
from triton_pipelines.controllers.pipeline import padding_choices
from triton_pipelines.controllers.pipeline.actions import Deletion
from triton_pipelines.controllers.pipeline.compiled_pipeline import CompiledPipeline, resolve
from triton_pipelines.controllers.pipeline.deployment_progress import is_preflight
from triton_pipelines.controllers.pipeline.latency_figures import Latencies
from triton_pipelines.controllers.pipeline.planner import Context, Plan, plan
from triton_pipelines.controllers.pipeline.policies.last_good_spec import last_good_after
from triton_pipelines.controllers.pipeline.server_certificate import ServerCertificate
from triton_pipelines.controllers.pipeline.snapshot import (
    ModelState,
    Object,
    Pod,
    Probe,
    Snapshot,
)
from triton_pipelines.controllers.pipeline.state import PipelineState
from triton_pipelines.controllers.pipeline.surge_room import UNSCHEDULABLE_GRACE
from triton_pipelines.controllers.pipeline.tls_trust import deployed_tls

START = dt.datetime(2026, 1, 1, 12, 0, tzinfo=dt.UTC)
IDLE_SECONDS = 24 * 3600.0
QUIET_SECONDS = 1.5 * UNSCHEDULABLE_GRACE.total_seconds()
GOOD, BAD, DUMB, STIFF, GONE = "good", "bad", "dumb", "stiff", "gone"
# What a preflight does: it passes although pods may fail (as by a fault that only a GPU shows),
# fails as the pods of its revision do, waits for a node, starts, loads for ever, or has loaded but
# a sidecar keeps its pod running.
PASSES, FAILS, UNPLACED, STARTS, LOADS = "passes", "fails", "unplaced", "starts", "loads"
SIDECAR = "sidecar"
# What happened to its pod.
DELETING, ENDED, REMOVED = "deleting", "ended", "removed"


_STARTED: dict[tuple[type, bytes], bytes] = {}
"""A new world → the same world once settled, both pickled."""


@functools.cache
def _hash_of(template: str) -> str:
    """The hash that a Deployment's controller puts on pods of a template in JSON."""
    return ownership.template_hash(_parsed(template))


@functools.lru_cache(maxsize=1000)
def _parsed(template: str) -> Object:
    """A pod template in JSON, to be read only: pods share what a resize does not change."""
    parsed: Object = json.loads(template)
    return parsed


def rfc3339(now: dt.datetime) -> str:
    """A time as the API server writes it."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class ModelPod:
    """A pod of the model.

    ``created`` is its creation time, ``away`` whether it is being terminated. ``loaded`` is what
    its unpinned source resolved to. ``asked`` and ``given`` are limits and requests of its server
    after a resize.
    """

    name: str
    revision: str
    template: str
    created: dt.datetime
    phase: str = "Pending"  # Pending | Unschedulable | Loading | Failing | Ready
    since: dt.datetime = START
    away: bool = False
    left: dt.datetime | None = None  # when it is gone
    loaded: str = ""
    asked: Object | None = None  # resources of the server by a resize
    given: Object | None = None  # and those in force

    @property
    def serving(self) -> bool:
        """Whether it takes requests."""
        return self.phase == "Ready" and not self.away


@dataclass
class World:
    """One pipeline in its world.

    Args:
        document: the pipeline as a user writes it.
        room: how many pods fit onto the nodes; ``None``: any number.
        verdicts: revision → ``good`` (becomes ready), ``bad`` (the loader says that the model does
            not fit) or ``dumb`` (becomes ready but fails inferences) or ``gone`` (so, since a
            process of a model is gone) or ``stiff`` (its file takes no ragged batches); good where
            not named.
        scheduler: its words where there is no room.
        latencies: what is known of the latency of revisions.
        defaults: whether the API server writes the CRD's defaults into the spec, as each real one
            does.
        rendered: a cache of what specs come to, shared by worlds of one name; rendering is most of
            a plan's time.
    """

    document: Object = field(default_factory=builders.document)
    room: int | None = None
    options: Options = field(default_factory=builders.options)
    verdicts: dict[str, str] = field(default_factory=dict)
    scheduler: str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    linger: float = 0.0  # seconds that pods which are being terminated keep their room
    load: float = 0.0  # least seconds that pods load
    may_roll: bool = True
    now: dt.datetime = START
    children: dict[tuple[str, str], Object] = field(default_factory=dict)
    secrets: dict[str, Object] = field(default_factory=dict)
    pods: list[ModelPod] = field(default_factory=list)
    nodes: tuple[Object, ...] | None = None
    log: list[Plan] = field(default_factory=list)
    rendered: dict[str, CompiledPipeline | list[SpecFinding]] | None = None
    missing_sources: dict[str, str] = field(default_factory=dict)
    load_failure: tuple[LoadFinding, int] | None = (
        None  # what failing pods report, and the loader's exit code; by default a mismatch
    )
    load_restarts: int = 1  # of the loader in failing pods
    digests: dict[str, str] = field(default_factory=dict)
    kubelet: dict[str, str] = field(
        default_factory=dict
    )  # pod → Deferred or Infeasible: what its node says to a resize
    managed: dict[str, list[Object]] = field(
        default_factory=dict
    )  # pod → managedFields that others left
    latencies: Latencies | None = None
    defaults: bool = False
    certificate: ServerCertificate | None = None
    certificate_problem: str = ""
    other_certificates: tuple[ServerCertificate, ...] = ()  # in Secrets that the spec does not name
    preflight: str = PASSES
    preflight_pod: str = ""  # what happened to the pod of the preflight; empty: nothing
    preflight_pod_created: dt.datetime | None = None  # None: with its Job
    preflight_rejection: str = ""
    _accepted: str = ""
    _looks: dict[str, Probe] = field(default_factory=dict)  # of the last pass, by pod uid
    _idle: tuple[bytes, dt.datetime, bool] | None = None  # seen, due, and whether that was named
    _serial: int = 0
    _progress: dt.datetime = START
    _templates: set[str] = field(default_factory=set)  # that have a ReplicaSet
    _replica_sets: dict[str, Object] = field(default_factory=dict)  # by template

    def __post_init__(self) -> None:
        self.document = stored(self.document) if self.defaults else copied(self.document)
        self.document["metadata"].setdefault("generation", 1)

    # --- what is seen -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return str(self.document["metadata"]["name"])

    @property
    def status(self) -> Object:
        """The pipeline's status."""
        return dict(self.document.get("status") or {})

    @property
    def deployment(self) -> Object:
        """The pipeline's Deployment."""
        return self.children["Deployment", self.name]

    @property
    def deployed(self) -> str:
        """Revision of the Deployment's template."""
        return str(self.deployment["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION])

    @property
    def serving(self) -> list[ModelPod]:
        """Pods that take requests."""
        return [pod for pod in self.pods if pod.serving]

    @property
    def state(self) -> PipelineState:
        """State of the policies."""
        return self.observed().state()

    def condition(self, kind: str) -> Object:
        """A condition of the pipeline, or an empty one."""
        return next(
            (item for item in self.status.get("conditions", []) if item["type"] == kind), {}
        )

    def reasons(self) -> dict[str, str]:
        """Conditions in short: type → ``status reason``."""
        return {
            item["type"]: f"{item['status']} {item['reason']}"
            for item in self.status.get("conditions", [])
        }

    def observed(self) -> Snapshot:
        """What the operator sees. Secrets are not among it."""
        pods = tuple(Pod.of(self._raw(pod)) for pod in self.pods)
        probes = {}
        for pod in self.pods:
            if pod.serving:
                state = ModelState("model", "READY")
                verdict = self.verdicts.get(pod.revision, GOOD)
                error = {DUMB: "NaN in the answer", GONE: "a process is gone"}.get(verdict, "")
                look = Probe(
                    self.now,
                    True,
                    (state,),
                    inference_error=error,
                    dead=(self.now,) if verdict == GONE else (),
                )
                probes[f"uid-{pod.name}"] = look.merged_with(self._looks.get(f"uid-{pod.name}"))
        document = copied(self.document)
        seen = (self.digests, self.missing_sources, self.nodes)
        snapshot = Snapshot(
            document,
            self.children,
            pods,
            probes,
            *seen,
            latencies=self.latencies,
            last_good_in_memory=self._accepted,
            certificate=self.certificate,
            certificate_problem=self.certificate_problem,
            preflight_pods=tuple(
                Pod.of(self._checking(job))
                for job in self.preflights
                if self.preflight_pod != REMOVED
            ),
            preflight_rejection=self.preflight_rejection,
        )
        tls = deployed_tls(snapshot)
        usable = (self.certificate, *self.other_certificates)
        found = [one for one in usable if one and tls and one.secret == tls.secret_name]
        return replace(snapshot, deployed_certificate=found[0] if found else None)

    @property
    def preflights(self) -> list[Object]:
        """Jobs of preflights."""
        return [item for item in self.children.values() if is_preflight(item)]

    def _checking(self, job: Object) -> Object:
        """The pod of a preflight's Job."""
        revision = job["metadata"]["labels"][names.LABEL_REVISION]
        placed: Object = {
            "type": "PodScheduled",
            "status": "False" if self.preflight == UNPLACED else "True",
        }
        if self.preflight == UNPLACED:
            placed |= {
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient cpu.",
            }
        loader: Object = {"name": names.CONTAINER_LOADER, "state": {"waiting": {}}}
        if self.preflight == FAILS:
            loader |= self._failed_loader(revision)
        if self.preflight == LOADS:
            loader["state"] = {"running": {"startedAt": rfc3339(self.now)}}
        if self.preflight == SIDECAR:
            loader["state"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        name = f"{job['metadata']['name']}-x"
        created = job["metadata"]["creationTimestamp"]
        if self.preflight_pod_created is not None:
            created = rfc3339(self.preflight_pod_created)
        deleted = {"deletionTimestamp": rfc3339(self.now)} if self.preflight_pod == DELETING else {}
        return {
            "metadata": {
                "name": name,
                "creationTimestamp": created,
                **deleted,
                "uid": f"uid-{name}",
                "labels": job["spec"]["template"]["metadata"]["labels"],
                "ownerReferences": ownership.controlled_by(job),
            },
            "spec": job["spec"]["template"]["spec"],
            "status": {
                "phase": "Failed" if self.preflight_pod == ENDED else "Pending",
                "conditions": [placed],
                "containerStatuses": [loader] if self.preflight != UNPLACED else [],
            },
        }

    @property
    def replica_sets(self) -> list[Object]:
        """The ReplicaSets that have pods."""
        return [self.replica_set(template) for template in {pod.template for pod in self.pods}]

    def replica_set(self, template: str) -> Object:
        """The Deployment's ReplicaSet of a template in JSON."""
        if template not in self._replica_sets:
            hashed = _hash_of(template)
            self._replica_sets[template] = ownership.replica_set(self.deployment, hashed)
        return self._replica_sets[template]

    def _raw(self, pod: ModelPod) -> Object:
        ready, scheduled = pod.phase == "Ready", pod.phase not in ("Pending", "Unschedulable")
        placed: Object = {
            "type": "PodScheduled",
            "status": "True" if scheduled else "False",
            "lastTransitionTime": rfc3339(pod.since),
        }
        if pod.phase == "Unschedulable":
            placed |= {"reason": "Unschedulable", "message": self.scheduler}
        source = ReportSource(
            step="model", uri="s3://models/sentiment/model.onnx", resolved_revision=pod.loaded
        )
        report = LoadReport(ok=True, revision=pod.revision, sources=(source,))
        loader: Object = {
            "name": names.CONTAINER_LOADER,
            "state": {"waiting": {"reason": "PodInitializing"}},
        }
        server: Object = {
            "name": names.CONTAINER_SERVER,
            "ready": ready,
            "state": {"waiting": {"reason": "PodInitializing"}},
        }
        if pod.phase == "Failing":
            loader |= self._failed_loader(pod.revision)
        elif scheduled:
            loader["state"] = {
                "terminated": {"exitCode": 0, "reason": "Completed", "message": report.to_json()}
            }
            server["state"] = {"running": {"startedAt": rfc3339(pod.since)}}
        metadata: Object = {
            "name": pod.name,
            "uid": f"uid-{pod.name}",
            "labels": {
                **names.labels(self.name),
                names.LABEL_REVISION: pod.revision,
                "pod-template-hash": _hash_of(pod.template),
            },
            "annotations": _parsed(pod.template)["metadata"].get("annotations") or {},
            "creationTimestamp": rfc3339(pod.created),
            "ownerReferences": ownership.controlled_by(self.replica_set(pod.template)),
        }
        if pod.away:
            left = pod.left if pod.left is not None else self.now
            metadata["deletionTimestamp"] = rfc3339(left)
        if pod.name in self.managed:
            metadata["managedFields"] = self.managed[pod.name]
        status: Object = {
            "phase": "Running" if ready else "Pending",
            "podIP": "10.0.0.1" if scheduled else "",
            "conditions": [placed, {"type": "Ready", "status": "True" if ready else "False"}],
            "initContainerStatuses": [loader],
            "containerStatuses": [server],
        }
        template = _parsed(pod.template)["spec"]
        first, *others = template["containers"]
        resources = first["resources"]
        if scheduled:
            server["resources"] = builders.merge(resources, pod.given or {})
        asked = {**first, "resources": builders.merge(resources, pod.asked or {})}
        spec = template | {"nodeName": "node-1", "containers": [asked, *others]}
        if pod.asked != pod.given and pod.name in self.kubelet:
            status["conditions"].append(
                {
                    "type": "PodResizePending",
                    "status": "True",
                    "reason": self.kubelet[pod.name],
                    "message": "Node didn't have enough resource: cpu",
                }
            )
        return {"metadata": metadata, "spec": spec, "status": status}

    def _failed_loader(self, revision: str) -> Object:
        """Status of a loader that failed and waits for its next attempt."""
        finding = LoadFinding(
            step="model",
            reason=LoadReason.MODEL_MISMATCH,
            message="output logits is FP16, but the spec declares FP32",
            field="spec.model",
        )
        if self.verdicts.get(revision) == STIFF:
            finding = LoadFinding(
                step="model",
                reason=LoadReason.RAGGED_UNSUPPORTED,
                message="axis 1 of input_ids is 128",
                field="spec.tokenizer.padding",
            )
        code = 2
        if self.load_failure is not None:
            finding, code = self.load_failure
        failed = LoadReport(ok=False, revision=revision, findings=(finding,))
        ended = {"exitCode": code, "reason": "Error", "message": failed.to_json()}
        return {
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": ended},
            "restartCount": self.load_restarts,
        }

    # --- what people do ---------------------------------------------------------------------------

    def change(self, **spec: Any) -> Self:
        """The user changes the spec: a new generation."""
        changed = builders.merge(self.document, {"spec": spec})
        self.document = stored(changed) if self.defaults else changed
        self.document["metadata"]["generation"] += 1
        return self

    def edit(self, kind: str, path: Sequence[str | int], value: Any) -> Object:
        """Edit the child that has the pipeline's name; return its previous content."""
        key = (kind, self.name)
        before = self.children[key]
        edited: Any = copied(before)
        self.children[key] = edited
        for part in path[:-1]:
            edited = edited[part]
        edited[path[-1]] = value
        return before

    # --- the operator -----------------------------------------------------------------------------

    def think(self) -> Plan:
        """A plan that is not carried out."""
        return self._planned(self.observed())

    def _planned(self, observed: Snapshot) -> Plan:
        """Return the plan; the last one again if it was empty, nothing changed and none is due.

        The operator's process skips such an iteration as well.
        """
        seen = self._seen()
        if self._idle and seen == self._idle[0] and self.now < self._idle[1]:
            seconds = (self._idle[1] - self.now).total_seconds()
            return Plan(requeue_after=seconds if self._idle[2] else None)
        decided, self._idle = self._decided(observed), None
        if decided.is_empty and seen is not None:
            due = self.now + dt.timedelta(seconds=decided.requeue_after or IDLE_SECONDS)
            self._idle = (seen, due, decided.requeue_after is not None)
        return decided

    def _seen(self) -> bytes | None:
        """All that a plan depends on, but for the clock; ``None`` while probes report a fault.

        Each probe that reports one adds to what is known of the pod.
        """
        if any(self.verdicts.get(pod.revision) in (DUMB, GONE) for pod in self.serving):
            return None
        unseen = {"now", "log", "rendered", "_idle", "_looks"}
        return pickle.dumps([item for item in vars(self).items() if item[0] not in unseen])

    def _decided(self, observed: Snapshot) -> Plan:
        context = Context(
            self.options, lambda uid, revision: f"key of {uid} {revision}", self.may_roll
        )
        compiled = self.wanted(observed)
        decided = plan(observed, context, self.now, compiled)
        if decided.is_empty:
            # The reconciler skips iterations until then: each policy names its own due time.
            seconds = min(decided.requeue_after or 0.0, IDLE_SECONDS) - 0.001
            if decided.requeue_after is None:
                seconds = IDLE_SECONDS
            later = self.now + dt.timedelta(seconds=max(seconds, 0.0))
            again = plan(observed, context, later, compiled)
            assert again.is_empty, f"due {seconds} s after an iteration that did not name it"
        return decided

    def wanted(self, observed: Snapshot) -> CompiledPipeline | list[SpecFinding] | None:
        """Return the compiled spec from the cache.

        ``None`` if it is not there; the planner then compiles it.
        """
        if self.rendered is None:
            return None
        state = observed.state()
        image = (
            (observed.revision_record(state.revision.desired) or {}).get("serverImage")
            if state.revision.generation == observed.generation
            else None
        )
        # The effect of a measured padding depends on its stored measurement, and on what was rolled
        # back.
        known = [
            padding_choices.data(padding_choices.recorded(observed)),
            state.rollout.failed_revision,
            state.rollout.failed_spec,
            state.rollout.restored,
        ]
        key = json.dumps(
            [
                self.document["spec"],
                repr(self.options),
                self.digests,
                image,
                known,
            ],
            sort_keys=True,
        )
        if key not in self.rendered:
            self.rendered[key] = resolve(observed, self.options)
        return self.rendered[key]

    def step(self, writes: int | None = None) -> Plan:
        """Run one reconcile of the operator, killed after ``writes`` writes if given.

        Everything written is checked against its schema.
        """
        decided = self._planned(observed := self.observed())
        self._looks = dict(observed.probes)
        self._accepted = last_good_after(observed, decided.apply)  # as the operator's process does
        left = (
            writes
            if writes is not None
            else len(decided.clear)
            + len(decided.apply)
            + len(decided.delete)
            + 1
            + len(decided.preflight_objects)
            + len(decided.tuning_objects)
        )
        turn: list[Object | Deletion] = [
            *decided.apply[: decided.apply_before_clear],
            *decided.clear,
            *decided.apply[decided.apply_before_clear :],
        ]
        for done in turn[: max(left, 0)]:
            if isinstance(done, Deletion):
                assert done.uid == self.children.pop((done.kind, done.name))["metadata"]["uid"]
            else:
                self.take(done)
        left -= len(decided.clear) + len(decided.apply)
        for deletion in decided.delete[: max(left, 0)]:
            if deletion.kind == "Secret":
                self.secrets.pop(deletion.name, None)
            elif deletion.kind == "Pod":
                (pod,) = [pod for pod in self.pods if pod.name == deletion.name]
                assert deletion.uid == f"uid-{pod.name}"
                pod.away = True
            else:
                gone = self.children.pop((deletion.kind, deletion.name))
                assert deletion.uid == gone["metadata"]["uid"]
        left -= len(decided.delete)
        if left > 0:
            self.resize(decided)
        if left > 0 and decided.status is not None:
            check_status(decided.status)
            self.document["status"] = copied(decided.status)
        optional = (*decided.preflight_objects, *decided.tuning_objects)
        for item in optional[: max(left - 1, 0)]:
            self.take(item)
        self.log.append(decided)
        return decided

    def forget(self) -> None:
        """Restart the operator's process."""
        self._accepted, self._looks = "", {}

    def resize(self, decided: Plan) -> None:
        """A patch of a pod's resize subresource."""
        if decided.resize is not None:
            (pod,) = [pod for pod in self.pods if pod.name == decided.resize.pod]
            assert decided.resize.uid == f"uid-{pod.name}"
            self.managed.pop(pod.name, None)  # what is written is its writer's
            pod.asked = decided.resize.patch["spec"]["containers"][0]["resources"]

    def take(self, item: Object) -> None:
        """The API server takes an object."""
        check_object(item)
        key = (item["kind"], item["metadata"]["name"])
        stored = copied(item)
        if item["kind"] == "Secret":
            self.secrets[item["metadata"]["name"]] = stored
            return
        before = self.children.get(key)
        if before is None:
            self._serial += 1
            stored["metadata"] |= {
                "uid": f"uid-{self._serial}",
                "generation": 1,
                "creationTimestamp": rfc3339(self.now),
            }
        else:
            assert not (before.get("immutable") and before["data"] != item["data"]), (
                "an immutable ConfigMap is changed"
            )
            kept = {"uid", "generation", "creationTimestamp"}
            stored["metadata"] |= {field: before["metadata"][field] for field in kept}
            # Fields that others added next to ours remain.
            stored["metadata"]["annotations"] = {
                **before["metadata"].get("annotations", {}),
                **stored["metadata"].get("annotations", {}),
            }
            if item["kind"] == "Deployment":
                template = stored["spec"]["template"]["metadata"]
                theirs = before["spec"]["template"]["metadata"].get("annotations", {})
                merged = {
                    key: value
                    for key, value in theirs.items()
                    if key != names.ANNOTATION_CERTIFICATE
                } | template.get("annotations", {})
                if merged:
                    template["annotations"] = merged
                stored["status"] = before.get("status", {})
                if "replicas" not in stored["spec"]:
                    stored["spec"]["replicas"] = before["spec"]["replicas"]  # another's
                if before["spec"] != stored["spec"]:
                    stored["metadata"]["generation"] += 1
        self.children[key] = stored

    # --- Deployment controller, scheduler, kubelet ------------------------------------------------

    def control(self) -> Self:
        """One sync of the Deployment controller."""
        if ("Deployment", self.name) not in self.children:
            return self
        spec = self.deployment["spec"]
        wanted, template = int(spec["replicas"]), json.dumps(spec["template"], sort_keys=True)
        live = [pod for pod in self.pods if not pod.away]
        new = [pod for pod in live if pod.template == template]
        old = [pod for pod in live if pod.template != template]
        seen = Counted(len(live), len(new), sum(pod.serving for pod in live))
        if spec["strategy"]["type"] == "Recreate":
            for pod in old:
                pod.away = True
            if not any(pod.template != template for pod in self.pods):
                self._create(wanted - len(new), template)
        else:
            rolling = spec["strategy"]["rollingUpdate"]
            self._create(min(wanted - len(new), wanted + rolling["maxSurge"] - len(live)), template)
            self._scale_down_old(wanted - rolling["maxUnavailable"], new, old)
        for pod in sorted(new, key=lambda pod: pod.serving)[: max(len(new) - wanted, 0)]:
            pod.away = True
        self._tell(wanted, template, seen)
        return self

    def _create(self, count: int, template: str) -> None:
        for _ in range(max(count, 0)):
            self._serial += 1
            revision = _parsed(template)["metadata"]["labels"][names.LABEL_REVISION]
            self.pods.append(
                ModelPod(f"pod-{self._serial}", revision, template, self.now, since=self.now)
            )

    def _scale_down_old(self, least: int, new: list[ModelPod], old: list[ModelPod]) -> None:
        """Scale down as in reconcileOldReplicaSets.

        Unhealthy pods of old ReplicaSets go first, then available ones above the minimum.
        """
        unavailable_new = sum(not pod.serving for pod in new)
        most = len(new) + len(old) - least - unavailable_new
        for pod in [pod for pod in old if not pod.serving][: max(most, 0)]:
            pod.away = True
        available = sum(pod.serving for pod in (*new, *old))
        for pod in [pod for pod in old if pod.serving][: max(available - least, 0)]:
            pod.away = True

    def _tell(self, wanted: int, template: str, seen: Counted) -> None:
        """Report the pods as they were ``seen``, before this sync created or removed any.

        ReplicaSets report later.
        """
        status = self.deployment.get("status") or {}
        deadline = self.now - self._progress > dt.timedelta(
            seconds=self.deployment["spec"]["progressDeadlineSeconds"]
        )
        reason, moved = progressing(
            status, seen, wanted, fresh=template not in self._templates, late=deadline
        )
        self._templates.add(template)
        self._progress = self.now if moved else self._progress
        condition = {
            "type": "Progressing",
            "status": "False" if "Deadline" in reason else "True",
            "reason": reason,
        }
        reported = {
            "observedGeneration": self.deployment["metadata"]["generation"],
            **seen.status(),
            "conditions": [condition],
        }
        self.children["Deployment", self.name] = {**self.deployment, "status": reported}

    def run_pods(self) -> Self:
        """Scheduler and kubelet: each pod takes one step, those on their way out are gone."""
        for pod in self.pods:
            if pod.away and pod.left is None:
                is_placed = pod.phase not in ("Pending", "Unschedulable")
                pod.left = self.now + dt.timedelta(seconds=self.linger * is_placed)
        self.pods = [pod for pod in self.pods if pod.left is None or self.now < pod.left]
        for job in self.preflights:
            reported: Object = {"failed": 1} if self.preflight_pod == REMOVED else {"active": 1}
            if self.preflight == PASSES:
                reported = {"conditions": [{"type": "Complete", "status": "True"}]}
            self.children[job["kind"], job["metadata"]["name"]] = {**job, "status": reported}
        for index, pod in enumerate(self.pods):
            if pod.name not in self.kubelet:
                pod.given = pod.asked
            placed = sum(other.phase not in ("Pending", "Unschedulable") for other in self.pods)
            if pod.away:
                continue
            if pod.phase in ("Pending", "Unschedulable"):
                if self.room is None or placed < self.room:
                    pod.phase, pod.since, pod.loaded = "Loading", self.now, self._fetch(pod)
                elif pod.phase == "Pending":
                    pod.phase, pod.since = "Unschedulable", self.now
            elif pod.phase in ("Loading", "Failing") and self._has_loaded(pod):
                ends = "Failing" if self.verdicts.get(pod.revision) in (BAD, STIFF) else "Ready"
                self.pods[index] = replace(pod, phase=ends, since=self.now)
        return self

    def _has_loaded(self, pod: ModelPod) -> bool:
        return (self.now - pod.since).total_seconds() >= self.load

    def _fetch(self, pod: ModelPod) -> str:
        """Act as the loader.

        It loads what is recorded for the revision, else the current content of the source, which
        differs for each pod.
        """
        live = self.children.get(("ConfigMap", names.live_name(self.name)), {}).get("data", {})
        recorded = (
            json.loads(live.get(names.KEY_RESOLVED, "{}")).get(pod.revision, {}).get("model", {})
        )
        return str(recorded.get("revision") or f"etag-of-{pod.name}")

    def pass_time(self, seconds: float) -> Self:
        """The clock goes on."""
        self.now += dt.timedelta(seconds=seconds)
        return self

    def started(self) -> Self:
        """Settle a new world; worlds that equal it start from a copy of the result.

        Many tests start from the same few worlds, and settling takes most of their time. Use
        ``settle`` in a test that replaces a part of the planner.
        """
        assert not self.children, "it has been settled already"
        start = (type(self), pickle.dumps(self._content(), pickle.HIGHEST_PROTOCOL))
        if start not in _STARTED:
            self.settle()
            _STARTED[start] = pickle.dumps(self._content(), pickle.HIGHEST_PROTOCOL)
        vars(self).update(pickle.loads(_STARTED[start]))
        return self

    def _content(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "rendered"}

    def settle(self, rounds: int = 100, seconds: float = 5.0) -> Self:
        """Run all parts until nothing has happened for longer than the operator's timeout.

        The timeout is how long the operator waits on its clock before it gives an old pod up.
        """
        quiet = 0
        for _ in range(rounds):
            before = self._essence()
            self.pass_time(seconds).control().run_pods()
            decided = self.step()
            quiet = quiet + 1 if decided.is_empty and self._essence() == before else 0
            if quiet * seconds > QUIET_SECONDS:
                return self
        raise AssertionError(f"no fixpoint after {rounds} rounds: {self.reasons()}, {self.pods}")

    def _essence(self) -> str:
        moved = [(pod.name, pod.phase, pod.away, pod.asked, pod.given) for pod in self.pods]
        return json.dumps(
            [
                moved,
                sorted(map(list, self.children)),
                sorted(self.secrets),
                self.children.get(("Deployment", self.name)),
            ],
            sort_keys=True,
        )
