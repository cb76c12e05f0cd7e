"""Simulate what a cluster without nodes does not have.

This is a kubelet and, where no controllers run, a Deployment controller.
"""

from __future__ import annotations

import asyncio
import contextlib

from tests.support import ownership
from tests.support.operators import eventually, patch
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadFinding, LoadReport, ReportSource
from triton_pipelines.api.loadreport import EXIT_PERMANENT
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Conflict, NotFound
from triton_pipelines.cluster.resources import DEPLOYMENTS, PODS, REPLICA_SETS
from triton_pipelines.controllers.pipeline.snapshot import LABEL_TEMPLATE_HASH


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
