"""A pipeline's life through every kind of write, under the permissions that the chart grants."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from hack import chart
from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operators import Running, apply_any, eventually, make_namespace, patch
from tests.support.simulated_nodes import resize_by_hand, server_of
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

RBAC = {
    kind: Resource(
        "rbac.authorization.k8s.io",
        "v1",
        kind,
        kind.lower() + "s",
        namespaced=not kind.startswith("Cluster"),
    )
    for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
}
POLICIES = {
    kind: Resource("admissionregistration.k8s.io", "v1", kind, plural, namespaced=False)
    for kind, plural in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    )
}
ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
DEADLINE_SECONDS = 60.0
VERBS = {
    ("services", "replace"),
    ("services", "patch"),
    ("configmaps", "get"),
    ("replicasets", "get"),
    ("secrets", "delete"),
    ("networkpolicies", "delete"),
    ("jobs", "apply"),
    ("jobs", "delete"),
    ("pods", "resize"),
}
"""What the operator does in `everything_it_does`, at least, by resource and verb."""


async def rights_of_the_chart(admin: Client, release: str, *values: str) -> None:
    await make_namespace(admin, release)
    for item in chart.render(
        "--set", "crds.enabled=false", *values, release=release, namespace=release
    ):
        kinds = {"ServiceAccount": ACCOUNTS, **RBAC, **POLICIES}
        resource = kinds.get(item["kind"])
        if resource is not None:
            await apply_any(admin, resource, item)


async def everything_it_does(admin: Client, namespace: str) -> None:
    """A pipeline's life through every kind of write."""
    await apply_any(admin, CONFIG_MAPS, config_map(namespace, "YQ=="))
    document = builders.document(
        name="p",
        namespace=namespace,
        model={"source": {"uri": "configmap://weights/model.onnx"}},
        replicas=2,
    )
    document["metadata"].pop("uid")
    document["spec"]["rollout"] = {"revisionHistoryLimit": 1}
    document["spec"]["tokenizer"]["instances"] = {"initial": 1, "min": 1, "max": 4}
    document["spec"]["scaling"] = {"cpuResize": "InPlace"}
    await apply_any(admin, INFERENCE_PIPELINES, document)
    await served(admin, namespace, 1)
    # Another controller's resize of a pod is reverted through the same subresource.
    pod = (await running_pods(admin, namespace))[0]
    start = cpu_of(pod)
    await resize_by_hand(admin, pod, "3", "somebody")
    await eventually("the pod has its CPU again", lambda: have_cpu(admin, namespace, start))
    del document["spec"]["scaling"], document["spec"]["tokenizer"]["instances"]
    # A manual change that apply alone cannot revert: its own port would be added next to the edited
    # one with the same name.
    service = await admin.get(SERVICES, namespace, "p")
    service["spec"]["ports"][0]["port"] = 9000
    await patch(admin, SERVICES, namespace, "p", {"spec": {"ports": service["spec"]["ports"]}})
    await eventually("the Service is mended", lambda: service_is_corrected(admin, namespace))
    for generation, length in ((2, 32), (3, 64), (4, 96)):
        document["spec"]["tokenizer"]["maxLength"] = length
        document["spec"]["server"] = {"networkPolicy": {"mode": "Disabled"}}
        await apply_any(admin, INFERENCE_PIPELINES, document)
        await served(admin, namespace, generation)
    document["spec"] |= {"tuning": {"request": "monday"}, "slo": {"p99Milliseconds": 100}}
    await apply_any(admin, INFERENCE_PIPELINES, document)
    await eventually("a tuning run has its Job", lambda: jobs(admin, namespace), DEADLINE_SECONDS)
    # With its promise goes the watch, which keeps the revision before and its Secret.
    del document["spec"]["tuning"], document["spec"]["slo"]
    await apply_any(admin, INFERENCE_PIPELINES, document)
    await eventually("and loses it", lambda: no_jobs(admin, namespace), DEADLINE_SECONDS)
    await eventually(
        "the NetworkPolicy goes", lambda: gone(admin, NETWORK_POLICIES, namespace, "p")
    )
    await eventually("old Secrets go", lambda: secrets(admin, namespace, 2))
    await admin.delete(INFERENCE_PIPELINES, namespace, "p")
    await eventually(
        "the children go", lambda: gone(admin, DEPLOYMENTS, namespace, "p"), 2 * DEADLINE_SECONDS
    )


def assert_nothing_is_refused(
    running: Running,
    proxy: FaultProxy,
    control_plane: ControlPlane,
    account: str,
    *,
    except_for: Set[str] = frozenset(),
) -> None:
    """Assert that the operator wrote every kind of object, and that no request was refused.

    Args:
        running: the operator, after `everything_it_does`.
        proxy: its way to the API server.
        control_plane: the API server, with an audit log.
        account: name of its service account and of the account's namespace.
        except_for: resources whose reads the account may be refused.
    """
    codes = running.samples("api_requests_total")
    refused = {
        labels["resource"]
        for key, _ in codes.items()
        if (labels := dict(key))["code"] in ("401", "403")
    }
    assert refused <= except_for
    verbs = {(dict(key)["resource"], dict(key)["verb"]) for key in codes}
    assert verbs >= VERBS
    assert {verb for resource, verb in verbs if resource == "secrets"} == {
        "create",
        "apply",
        "delete",
    }
    assert {verb for resource, verb in verbs if resource == "replicasets"} == {"get"}
    reads = [
        seen
        for seen in proxy.requests
        if "/secrets" in seen.target and seen.method in ("GET", "HEAD")
    ]
    assert reads == [], "no Secret is ever read"
    user = f"system:serviceaccount:{account}:{account}"
    audited = [item for item in control_plane.audit_events() if item["user"]["username"] == user]
    assert audited
    assert [
        item["objectRef"] for item in audited if item["responseStatus"]["code"] in (401, 403)
    ] == []


async def running_pods(admin: Client, namespace: str) -> list[Object]:
    return (await admin.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items


def cpu_of(pod: Object) -> str:
    return str(server_of(pod["spec"]["containers"])["resources"]["limits"]["cpu"])


async def have_cpu(admin: Client, namespace: str, cpu: str) -> bool:
    return {cpu_of(pod) for pod in await running_pods(admin, namespace)} == {cpu}


def config_map(namespace: str, content: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "weights", "namespace": namespace},
        "binaryData": {"model.onnx": content},
    }


async def served(admin: Client, namespace: str, generation: int) -> None:
    async def reached() -> bool:
        status = (await admin.get(INFERENCE_PIPELINES, namespace, "p")).get("status") or {}
        conditions: dict[str, Any] = {
            item["type"]: item["status"] for item in status.get("conditions", ())
        }
        return conditions.get("Ready") == "True" and status["observedGeneration"] == generation

    await eventually(f"generation {generation} is served", reached, DEADLINE_SECONDS)


async def service_is_corrected(admin: Client, namespace: str) -> bool:
    service = await admin.get(SERVICES, namespace, "p")
    managers = {entry["manager"] for entry in service["metadata"]["managedFields"]}
    return [item["port"] for item in service["spec"]["ports"]] == [8000, 8001, 8002] and not any(
        name.endswith("-repair") for name in managers
    )


async def gone(admin: Client, resource: Resource, namespace: str, name: str) -> bool:
    try:
        await admin.get(resource, namespace, name)
    except NotFound:
        return True
    return False


async def jobs(admin: Client, namespace: str) -> bool:
    return bool((await admin.list(JOBS, namespace, label_selector=names.MANAGED_SELECTOR)).items)


async def no_jobs(admin: Client, namespace: str) -> bool:
    return not await jobs(admin, namespace)


async def secrets(admin: Client, namespace: str, count: int) -> bool:
    found = (await admin.list(SECRETS, namespace, label_selector=names.MANAGED_SELECTOR)).items
    return len(found) == count
