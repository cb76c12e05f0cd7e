"""Input of a reconcile iteration: caches and probe results, as plain values. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.conditions import condition_of
from triton_pipelines.api.loadplan import LoadReport
from triton_pipelines.controllers.handover import ScalingIntent, ScalingView

from .latency_figures import Latencies
from .probe_record import ModelState as ModelState
from .probe_record import Probe as Probe
from .resize_rejections import ResizeRejection, with_quota_advice
from .server_certificate import ServerCertificate
from .state import PipelineState, RolloutState, json_object
from .text_cache import TextCache

Object = dict[str, Any]
# Put on pods by the Deployment's controller (apps/v1 DefaultDeploymentUniqueLabelKey).
LABEL_TEMPLATE_HASH = "pod-template-hash"


# Fields of the spec whose change does not retry a failed revision: the number of pods, which
# autoscalers write, suspension, and tuning requests.
FIELDS_WITHOUT_ROLLOUT = ("replicas", "suspend", "tuning")


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod that decisions depend on."""

    name: str
    uid: str
    revision: str
    ip: str
    ready: bool
    deleting: bool
    raw: Object = field(repr=False)

    @classmethod
    def of(cls, raw: Object) -> Pod:
        """Read a pod as the API server gives it."""
        metadata, status = raw["metadata"], raw.get("status") or {}
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            revision=(metadata.get("labels") or {}).get(names.LABEL_REVISION, ""),
            ip=status.get("podIP") or "",
            ready=condition_of(status, "Ready").get("status") == "True",
            deleting=metadata.get("deletionTimestamp") is not None,
            raw=raw,
        )

    @property
    def template(self) -> str:
        """Hash of its pod template. It changes on a restart; the revision does not."""
        return str((self.raw["metadata"].get("labels") or {}).get(LABEL_TEMPLATE_HASH, ""))

    @property
    def certificate(self) -> str:
        """Hash of the TLS certificate that it was created for; empty without TLS."""
        annotations = self.raw["metadata"].get("annotations") or {}
        return str(annotations.get(names.ANNOTATION_CERTIFICATE, ""))

    def condition(self, kind: str) -> Mapping[str, Any]:
        """Return the pod's condition of that type, or an empty one."""
        return condition_of(self.raw.get("status"), kind)

    def container(self, name: str) -> Mapping[str, Any]:
        """Return the status of a container or init container, or an empty one."""
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
        """Whether it is ready and not being deleted."""
        return self.ready and not self.deleting

    @property
    def server_running(self) -> bool:
        """Whether Triton's process runs, so that it can be probed."""
        return "running" in (self.container(names.CONTAINER_SERVER).get("state") or {}) and bool(
            self.ip
        )

    @property
    def server_restarts(self) -> int:
        """How often Triton's container has been restarted."""
        return int(self.container(names.CONTAINER_SERVER).get("restartCount") or 0)

    @property
    def unhealthy_devices(self) -> tuple[str, ...]:
        """Devices of Triton's container that the kubelet reports as unhealthy, with their resource.

        Empty as well where the cluster does not report it (feature gate ResourceHealthStatus).
        """
        found = self.container(names.CONTAINER_SERVER).get("allocatedResourcesStatus") or ()
        return tuple(
            f"{resource.get('name')} {device.get('resourceID')}"
            for resource in found
            for device in resource.get("resources") or ()
            if device.get("health") == "Unhealthy"
        )

    def termination_messages(self) -> Iterator[str]:
        """Yield what the containers wrote before they ended; the pod chooses these texts."""
        status = self.raw.get("status") or {}
        for kind in ("initContainerStatuses", "containerStatuses"):
            for container in status.get(kind) or ():
                for phase in ("state", "lastState"):
                    ended = (container.get(phase) or {}).get("terminated") or {}
                    yield str(ended.get("message") or "")

    def load_report(self) -> LoadReport | None:
        """Return the last report of the init container, of this run or the one before.

        ``None`` without one.
        """
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
class Snapshot:
    """Everything known about one pipeline at one moment."""

    pipeline: Object
    """The raw resource."""
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    """Cached labeled objects by kind and name."""
    pods: tuple[Pod, ...] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    """By pod uid."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Hashes of ConfigMap sources by step."""
    missing_sources: Mapping[str, str] = field(default_factory=dict)
    """Messages about ConfigMap sources that do not exist, by step."""
    nodes: tuple[Object, ...] | None = None
    """``None`` if they were not needed or may not be read."""
    intent: ScalingIntent | None = None
    """What live scaling wants recorded; ``None`` before its first decision."""
    view: ScalingView | None = None
    """What live scaling reports; ``None`` before its first decision."""
    resize_rejections: Mapping[str, ResizeRejection] = field(default_factory=dict, kw_only=True)
    """Why the API server last rejected another CPU limit of a pod, by pod uid."""
    latencies: Latencies | None = None
    """Latency of revisions, for the SLO; ``None``: not measured yet."""
    tuning_pods: tuple[Pod, ...] = ()
    """Pods of its tuning run, in any phase. They do not serve the pipeline."""
    tuning_rejection: str = ""
    """Why the API server rejected an object of the tuning run."""
    preflight_pods: tuple[Pod, ...] = ()
    """Pods of its preflight, in any phase. They do not serve the pipeline."""
    preflight_rejection: str = ""
    """Why the API server rejected an object of the preflight."""
    monitoring: Sequence[Finding] | None = ()
    """Findings on PodMonitor and PrometheusRule; ``None``: not checked yet."""
    last_good_in_memory: str = ""
    """The last good spec that this process knows, in case its record is gone."""
    acted_spec_hash: str = field(default="", kw_only=True)
    """Hash of the spec that is acted on, if that is not the current one."""
    certificate: ServerCertificate | None = field(default=None, kw_only=True)
    """Content of the TLS Secret that the current spec names; ``None`` without TLS, and while the
    Secret cannot be used."""
    certificate_problem: str = field(default="", kw_only=True)
    """Why that Secret cannot be used; empty if it can, and without TLS."""
    conflicts: tuple[Finding, ...] = field(default=(), kw_only=True)
    """Findings on objects that another manager changes again after each correction."""
    image_problem: str = field(default="", kw_only=True)
    """Why the API server cannot mount the current spec's image sources; empty if it can, and
    without such sources."""
    deployed_certificate: ServerCertificate | None = field(default=None, kw_only=True)
    """The same of the Secret that pods of the deployed revision mount. It is another Secret while
    the current spec cannot be acted on, during its preflight, and after a rollback."""

    @property
    def is_spec_blocked(self) -> bool:
        """Whether something that the spec names cannot be used."""
        return bool(self.missing_sources or self.certificate_problem or self.image_problem)

    @property
    def last_good_document(self) -> str:
        """The recorded last good spec (:mod:`~.policies.last_good_spec`)."""
        return str(self.live_data().get(names.KEY_ACCEPTED) or self.last_good_in_memory)

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
        """Hash of the spec that is acted on, without :data:`FIELDS_WITHOUT_ROLLOUT`.

        It is the hash of the spec as it is stored, with defaults written out. No other form of the
        same spec has it.
        """
        if self.acted_spec_hash:
            return self.acted_spec_hash
        spec = {
            key: value
            for key, value in (self.pipeline.get("spec") or {}).items()
            if key not in FIELDS_WITHOUT_ROLLOUT
        }
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def status(self) -> Mapping[str, Any]:
        """The current status."""
        return self.pipeline.get("status") or {}

    def child(self, kind: str, name: str) -> Object | None:
        """Return a cached child."""
        return self.children.get((kind, name))

    @property
    def deployment(self) -> Object | None:
        """The pipeline's Deployment."""
        return self.child("Deployment", self.name)

    def live_data(self) -> Mapping[str, str]:
        """Content of the live ConfigMap."""
        return (self.child("ConfigMap", names.live_name(self.name)) or {}).get("data") or {}

    def state(self) -> PipelineState:
        """Return the state that the policies keep."""
        return parse_state(self.live_data().get(names.KEY_STATE))

    def rollout_state(self, state: RolloutState, desired: str) -> RolloutState:
        """Return the state without a failure of another spec, or one that cannot be rolled back.

        Args:
            state: The recorded state.
            desired: The revision that the pipeline should run.
        """
        outdated = state.failed_revision != desired or state.failed_spec != self.spec_hash
        if state.failed_revision and (outdated or self.revision_record(state.restored) is None):
            return state.without_failure()
        return state

    def revision_record(self, revision: str) -> Mapping[str, Any] | None:
        """Return what a revision's ConfigMap recorded: pod template, spec hash, server image."""
        found = (
            self.child("ConfigMap", names.revision_name(self.name, revision)) if revision else None
        )
        return _record_of(((found or {}).get("data") or {}).get(names.KEY_TEMPLATE))

    def deployed_revision(self) -> str:
        """Revision of the Deployment's template, empty without one."""
        template = ((self.deployment or {}).get("spec") or {}).get("template") or {}
        return str(
            ((template.get("metadata") or {}).get("labels") or {}).get(names.LABEL_REVISION, "")
        )

    @property
    def deployed_replicas(self) -> int:
        """Pods that the Deployment requests; 0 without one."""
        return int(((self.deployment or {}).get("spec") or {}).get("replicas") or 0)

    def previous_revision(self) -> str:
        """Return the revision that served before the deployed one, as the Deployment records it."""
        found = str(
            ((self.deployment or {}).get("metadata", {}).get("annotations") or {}).get(
                names.ANNOTATION_BEFORE, ""
            )
        )
        return found if names.is_revision(found) else ""

    def deployment_condition(self, kind: str) -> Mapping[str, Any]:
        """Return the Deployment's condition of that type, or an empty one."""
        return condition_of((self.deployment or {}).get("status"), kind)

    @property
    def pods_rejected(self) -> str:
        """The API server's message if it rejects further pods; empty if it does not.

        Causes are a quota, admission or a missing service account.
        """
        return self.pods_rejected_of(self.name)

    def pods_rejected_of(self, deployment: str) -> str:
        """Return :attr:`pods_rejected` of a Deployment by its name."""
        status = (self.child("Deployment", deployment) or {}).get("status")
        condition = condition_of(status, "ReplicaFailure")
        return (
            with_quota_advice(str(condition.get("message") or condition.get("reason", "")))
            if condition.get("status") == "True"
            else ""
        )


def _parse_record(text: str | None) -> Mapping[str, Any] | None:
    record = json_object(text)
    return (
        record
        if isinstance(record.get("template"), dict) and isinstance(record.get("serverImage"), str)
        else None
    )


# An iteration reads the same texts several times. The state of an idle pipeline, 2 KB, is read with
# each probe of its pods: there is room for that of 1,500 pipelines. Each of these texts may have
# 1 MiB, with other content at each edit.
parse_state = TextCache(PipelineState.parse, 3 * 1024**2)
_record_of = TextCache(_parse_record, 3 * 1024**2 // 2)


def is_alive(pod: Object) -> bool:
    """Return whether a raw pod has not ended: ended ones (evicted, node lost) stay listed."""
    return (pod.get("status") or {}).get("phase") not in ("Failed", "Succeeded")
