"""The operator in this process, on a real API server.

The module simulates what a cluster without nodes does not have: a kubelet and, where no controllers
run, a Deployment controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support import ownership
from tests.support.faultproxy import FaultProxy
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadFinding, LoadReport, ReportSource
from triton_pipelines.api.loadreport import EXIT_PERMANENT
from triton_pipelines.app import composition
from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.main import run_operator
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.app.services import Build, Reconcile, Services
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError, Conflict, NotFound
from triton_pipelines.cluster.resources import DEPLOYMENTS, PODS, REPLICA_SETS, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.autoscaler.controller import Autoscaler
from triton_pipelines.controllers.pipeline.pod_probes import Prober, ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import (
    LABEL_TEMPLATE_HASH,
    ModelState,
    Probe,
)
from triton_pipelines.controllers.slo_latency import SloLatencyMonitor

DEADLINE_SECONDS = 60.0
"""For what takes a second or two, on a machine that is busy with other things."""
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)
CRD_FILE = Path(__file__).parents[2] / "crds" / f"{names.PLURAL}.{names.GROUP}.yaml"
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


async def eventually(
    what: str,
    condition: Callable[[], Any],
    deadline: float = DEADLINE_SECONDS,
    *,
    every: float = 0.05,
) -> Any:
    """Wait until a condition returns something true, and return that.

    The condition is a function, awaited if necessary. ``every`` is the interval between checks in
    seconds.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline
    while True:
        with contextlib.suppress(NotFound, httpx.ConnectError):
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
        assert loop.time() < end, f"not within {deadline} s: {what}"
        await asyncio.sleep(every)


def free_port() -> int:
    """Return a TCP port of loopback on which no process is listening."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def apply_any(
    client: Client, resource: Resource, item: Object, manager: str = "test"
) -> Object:
    """Server-side apply of a kind that the operator itself never writes."""
    path = resource.path(item["metadata"].get("namespace"), item["metadata"]["name"])
    query = {"fieldManager": manager, "force": "true"}
    return await client._transport.send(
        "apply",
        "PATCH",
        resource,
        path,
        query=query,
        body=item,
        content_type=APPLY,
        repeatable=True,
    )


async def patch(
    client: Client,
    resource: Resource,
    namespace: str,
    name: str,
    body: Mapping[str, Any],
    subresource: str | None = None,
) -> Object:
    """JSON merge patch, as by hand."""
    path = resource.path(namespace, name, subresource)
    return await client._transport.send(
        "patch", "PATCH", resource, path, body=dict(body), content_type=MERGE, repeatable=True
    )


async def make_namespace(client: Client, name: str) -> str:
    """A namespace."""
    await apply_any(
        client, NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    return name


# --- the operator ---------------------------------------------------------------------------------


async def healthy(target: ProbeTarget, now: Any) -> Probe:
    """A simulated prober for which every pod answers well."""
    states = tuple(ModelState(step.model_name, "READY") for step in target.graph.steps)
    return Probe(now, True, states, inference_error=None if target.example is None else "")


@dataclass
class Running:
    """A running operator, with what it counted."""

    config: OperatorConfig
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    prober: Prober = healthy
    services: Services | None = None
    scaler: Autoscaler | None = None
    watch: SloLatencyMonitor | None = None

    @property
    def store(self) -> Store:
        """The operator's caches."""
        assert self.services is not None
        return self.services.store

    def build(self, services: Services) -> Reconcile:
        """The product's own wiring but for the prober, since no Triton runs here."""
        self.services = services
        parts = composition.build_parts(services, self.prober)
        self.scaler = parts.autoscaler
        self.watch = parts.latency_monitor
        return composition.start(parts, services)

    def samples(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Samples of one metric, by sorted labels."""
        found = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == f"tritonpipe_{name}":
                    found[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def passes(self) -> float:
        """Passes so far, however they ended."""
        return sum(self.samples("reconciles_total").values())


@contextlib.asynccontextmanager
async def operator(
    proxy: FaultProxy,
    folder: Path,
    *namespaces: str,
    prober: Prober = healthy,
    build: Build | None = None,
    **options: Any,
) -> AsyncIterator[Running]:
    """The operator behind a proxy, up and with its caches filled; ended gracefully.

    Args:
        proxy: its way to the API server.
        folder: for its key and kubeconfig.
        namespaces: where it works; none: everywhere.
        prober: stands in for the one that asks Triton.
        build: instead of the product's wiring.
        options: of ``OperatorConfig``.
    """
    key_file = folder / "key"
    key_file.write_text("k" * 64)
    defaults = {
        "kubeconfig": str(proxy.write_kubeconfig(folder / "kubeconfig")),
        "namespaces": namespaces,
        "metrics_host": "127.0.0.1",
        "metrics_port": 0,
        "liveness_host": "127.0.0.1",
        "liveness_port": free_port(),
        "operator_key_file": key_file,
        "shutdown_seconds": 5,
    }
    running = Running(OperatorConfig(**(defaults | options)), prober=prober)
    task = asyncio.create_task(
        run_operator(
            running.config,
            build or running.build,
            classify=composition.classify,
            stop=running.stop,
            ready=running.ready,
            metrics=running.metrics,
        )
    )
    waiting = asyncio.create_task(running.ready.wait())
    try:
        await asyncio.wait(
            {task, waiting}, timeout=DEADLINE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        assert running.ready.is_set(), "the operator did not get ready"
        yield running
    finally:
        waiting.cancel()
        running.stop.set()
        await asyncio.wait_for(task, DEADLINE_SECONDS)


# --- stand-ins ------------------------------------------------------------------------------------


def ready_status(pod: Object) -> Object:
    """Status of a pod whose loader is done and whose Triton serves."""
    revision = pod["metadata"]["labels"][names.LABEL_REVISION]
    source = ReportSource(
        step="model", uri="s3://models/sentiment/model.onnx", resolved_revision="etag"
    )
    message = LoadReport(ok=True, revision=revision, sources=(source,)).to_json()
    ended = {"exitCode": 0, "reason": "Completed", "message": message}
    common: Object = {"restartCount": 0, "imageID": "image", "containerID": "containerd://c"}
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [{"type": kind, "status": "True"} for kind in conditions],
        "initContainerStatuses": [
            {
                **common,
                "name": names.CONTAINER_LOADER,
                "image": "i",
                "ready": True,
                "state": {"terminated": ended},
            }
        ],
        "containerStatuses": [
            {
                **common,
                "name": names.CONTAINER_SERVER,
                "image": "i",
                "ready": True,
                "state": {"running": {"startedAt": "2026-01-01T12:00:00Z"}},
            }
        ],
    }


def checked_status(pod: Object, finding: LoadFinding | None = None) -> Object:
    """Status of a preflight's pod: its loader is done, or waits for another attempt."""
    revision = pod["metadata"]["labels"][names.LABEL_REVISION]
    findings = (finding,) if finding is not None else ()
    report = LoadReport(ok=finding is None, revision=revision, findings=findings)
    ended = {
        "exitCode": EXIT_PERMANENT if findings else 0,
        "reason": "Error" if findings else "Completed",
        "message": report.to_json(),
    }
    waits = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 1}
    loader: Object = (
        {**waits, "lastState": {"terminated": ended}}
        if findings
        else {"state": {"terminated": ended}, "restartCount": 0}
    )
    names_of_image = {"name": names.CONTAINER_LOADER, "image": "i", "imageID": "i"}
    return {
        "phase": "Running" if findings else "Succeeded",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{**names_of_image, "ready": False, **loader}],
    }


def is_checking(pod: Object) -> bool:
    """Whether the pod is a preflight's."""
    found: bool = pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_PREFLIGHT
    return found


async def serve_pods(client: Client, namespace: str) -> bool:
    """The kubelet's part, once: every pod of ours becomes ready, or passes. Whether any had to."""
    pods = (await client.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items
    # A tuning run's Job has pods without Triton, and without a revision.
    ours = [pod for pod in pods if names.LABEL_REVISION in pod["metadata"]["labels"]]
    waiting = [
        pod
        for pod in ours
        if not pod["metadata"].get("deletionTimestamp")
        and not is_ready(pod)
        and pod["status"].get("phase") != "Succeeded"
    ]
    await asyncio.gather(*(_serve(client, pod) for pod in waiting))
    return bool(waiting)


async def _serve(client: Client, pod: Object) -> None:
    with contextlib.suppress(NotFound):
        await patch(
            client,
            PODS,
            pod["metadata"]["namespace"],
            pod["metadata"]["name"],
            {"status": checked_status(pod) if is_checking(pod) else ready_status(pod)},
            "status",
        )


def server_of(containers: list[Object]) -> Object:
    """Triton's container, or its status, out of a pod's."""
    return next(item for item in containers if item["name"] == names.CONTAINER_SERVER)


async def grant_cpu(client: Client, namespace: str) -> None:
    """The kubelet's part in a resize, once: what the spec asks for is put into force."""
    for pod in (await client.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items:
        known = (pod.get("status") or {}).get("containerStatuses") or ()
        if not is_ready(pod) or not known:
            continue
        asked = server_of(pod["spec"]["containers"])["resources"]
        if server_of(list(known)).get("resources") != asked:
            status = ready_status(pod)
            server_of(status["containerStatuses"])["resources"] = asked
            await patch(
                client, PODS, namespace, pod["metadata"]["name"], {"status": status}, "status"
            )


async def resize_by_hand(client: Client, pod: Object, cpu: str, manager: str) -> None:
    """Resize a pod in place as another controller, such as a Vertical Pod Autoscaler, does.

    API servers refuse to resize a running container whose resources its kubelet has not reported:
    they take the node for one that cannot resize. So ``grant_cpu`` has to run beside this.
    """
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]

    async def resources_are_reported() -> bool:
        status = (await client.get(PODS, namespace, name))["status"]
        return "resources" in server_of(status["containerStatuses"])

    await eventually(f"the resources of {name} are reported", resources_are_reported)
    resources = {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}
    body = {"spec": {"containers": [{"name": names.CONTAINER_SERVER, "resources": resources}]}}
    await client.resize_pod(namespace, name, body, manager=manager)


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is True."""
    return any(
        item["type"] == "Ready" and item["status"] == "True"
        for item in (pod.get("status") or {}).get("conditions") or ()
    )


async def control_deployments(client: Client, namespace: str) -> None:
    """Act once as a simplified Deployment controller.

    It keeps as many pods of the current template as desired, and no others.
    """
    deployments = (
        await client.list(DEPLOYMENTS, namespace, label_selector=names.MANAGED_SELECTOR)
    ).items
    pods = (await client.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items
    await asyncio.gather(*(_control(client, deployment, pods) for deployment in deployments))


async def _control(client: Client, deployment: Object, pods: list[Object]) -> None:
    metadata, spec = deployment["metadata"], deployment["spec"]
    namespace, name, template = metadata["namespace"], metadata["name"], spec["template"]
    replica_set = await _replica_set(client, deployment)
    hashed = replica_set["metadata"]["labels"][LABEL_TEMPLATE_HASH]
    labels = {**template["metadata"]["labels"], LABEL_TEMPLATE_HASH: hashed}
    wanted = {f"{name}-{labels[names.LABEL_REVISION]}-{index}" for index in range(spec["replicas"])}
    mine = {
        pod["metadata"]["name"]
        for pod in pods
        if pod["metadata"]["labels"][names.LABEL_PIPELINE] == name
    }
    for missing in sorted(wanted - mine):
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": missing,
                "namespace": namespace,
                "labels": labels,
                "ownerReferences": ownership.controlled_by(replica_set),
            },
            "spec": template["spec"],
        }
        with contextlib.suppress(Conflict):
            await client.create(body)
    for left in sorted(mine - wanted):
        await client.delete(PODS, namespace, left, grace_seconds=0)
    done = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    status = {
        "observedGeneration": metadata["generation"],
        "replicas": len(wanted),
        "updatedReplicas": len(wanted),
        "conditions": [done],
    }
    if (deployment.get("status") or {}).get("observedGeneration") != metadata["generation"]:
        await patch(client, DEPLOYMENTS, namespace, name, {"status": status}, "status")


async def _replica_set(client: Client, deployment: Object) -> Object:
    """The ReplicaSet of the present template, created if there is none."""
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    hashed = ownership.template_hash(template)
    made = ownership.replica_set(deployment, hashed)
    made["metadata"] |= {"namespace": metadata["namespace"]}
    del made["metadata"]["uid"]
    labels = {**template["metadata"]["labels"], LABEL_TEMPLATE_HASH: hashed}
    made["spec"] = {
        "selector": {"matchLabels": labels},
        "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
    }
    with contextlib.suppress(Conflict):
        await client.create(made)
    stored = await client.get(REPLICA_SETS, metadata["namespace"], made["metadata"]["name"])
    return {**made, "metadata": stored["metadata"]}


@contextlib.asynccontextmanager
async def repeated(
    *steps: Callable[[], Awaitable[object]], every: float = 0.1
) -> AsyncIterator[None]:
    """Run steps repeatedly next to the body, with pauses of ``every`` seconds.

    An error in a step fails the body.
    """

    async def loop() -> None:
        while True:
            for step in steps:
                with contextlib.suppress(ClusterError):
                    await step()
            await asyncio.sleep(every)

    task = asyncio.create_task(loop())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- comparison -----------------------------------------------------------------------------------


def essence(items: list[Object], **replaced: str) -> dict[tuple[str, str], Object]:
    """Return objects by kind and name, without server and clock fields.

    Placeholders replace the texts in ``replaced``.

    Args:
        items: raw objects.
        replaced: placeholder → the text that it stands for (revisions, namespaces, UIDs).
    """
    found: dict[tuple[str, str], Object] = {}
    for item in items:
        metadata = item["metadata"]
        kept = {
            key: metadata[key]
            for key in ("name", "labels", "annotations", "ownerReferences")
            if key in metadata
        }
        text = json.dumps(
            {**{key: value for key, value in item.items() if key != "status"}, "metadata": kept},
            sort_keys=True,
        )
        for placeholder, word in replaced.items():
            text = text.replace(word, placeholder)
        result = json.loads(text)
        for given in ("clusterIP", "clusterIPs"):
            result.get("spec", {}).pop(given, None)
        found[item["kind"], result["metadata"]["name"]] = result
    return found


def without_clock(status: Mapping[str, Any]) -> Object:
    """A status without its times."""
    conditions = [
        {key: value for key, value in item.items() if key != "lastTransitionTime"}
        for item in status.get("conditions", [])
    ]
    return {**status, "conditions": conditions}
