"""The operator uses every permission that the chart grants it cluster-wide, and no other.

A pipeline goes through all that the operator does for it, manual edits and faults included. The
permissions that the API server checks for these requests are compared with the rules of the chart.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from e2e.local import api
from hack import chart
from tests.support import builders
from tests.support.chart import account_kubeconfig
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import Fault, FaultProxy
from tests.support.monitoringcrds import served as monitoring_is_served
from tests.support.operators import (
    apply_any,
    eventually,
    healthy,
    make_namespace,
    operator,
    patch,
    repeated,
)
from tests.support.permissions import (
    assert_nothing_is_refused,
    everything_it_does,
    gone,
    jobs,
    rights_of_the_chart,
    served,
)
from tests.support.simulated_nodes import grant_cpu, serve_pods
from tests.support.used_permissions import Permission, granted, used
from triton_pipelines.api import names
from triton_pipelines.app import composition
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    POD_MONITORS,
    PODS,
    PROMETHEUS_RULES,
    SERVICES,
    Resource,
)
from triton_pipelines.controllers.monitoring_objects import MonitoringObjects
from triton_pipelines.controllers.pipeline.owner_references import owned
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import Probe

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(400),
]
RELEASE = "least-triton-pipelines"
# Permissions without a request of their own.
NOT_REQUESTED = {
    # Checked by the admission plugin OwnerReferencesPermissionEnforcement.
    Permission(names.GROUP, "inferencepipelines/finalizers", "update"),
}
# Only to read a pod again of which a list shows a newer state than the watch has reported yet.
SELDOM = {Permission("", "pods", "get")}
# What every account may do.
OF_EVERYONE = {Permission("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
WATCHED = {
    DEPLOYMENTS: "p",
    SERVICES: "p",
    CONFIG_MAPS: names.live_name("p"),
    NETWORK_POLICIES: "p",
    POD_DISRUPTION_BUDGETS: "p",
}
MONITORING = (POD_MONITORS, PROMETHEUS_RULES)


def rules_of_the_chart() -> list[Object]:
    """Return the rules of all roles that the chart binds to the operator's account."""
    objects = chart.render("--set", "crds.enabled=false", release=RELEASE, namespace=RELEASE)
    bound = {
        item["roleRef"]["name"]
        for item in objects
        if item["kind"] in ("RoleBinding", "ClusterRoleBinding")
    }
    return [
        rule
        for item in objects
        if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] in bound
        for rule in item["rules"]
    ]


async def test_every_granted_permission_is_used(
    admin: Client,
    control_plane: ControlPlane,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        composition, "MonitoringObjects", partial(MonitoringObjects, round_seconds=0.5)
    )
    await rights_of_the_chart(admin, RELEASE)
    with api.client(control_plane.kubeconfig) as connection:
        kubeconfig = account_kubeconfig(
            connection, control_plane.kubeconfig, tmp_path / "account", RELEASE, RELEASE
        )
    dead: set[str] = set()
    options = {
        "operator_namespace": RELEASE,
        "operator_key_file": tmp_path / "new",
        "leader_elect": True,
        "leader_elect_lease": RELEASE,
    }
    async with (
        monitoring_is_served(admin),
        FaultProxy(kubeconfig) as proxy,
        operator(proxy, tmp_path, prober=partial(look, dead), **options) as running,
    ):
        # In a namespace of its own: the garbage collector looks for new kinds every 30 s only, and
        # would have to delete the monitoring objects of the first pipeline before.
        edited = await make_namespace(admin, f"{namespace}-edited")
        async with repeated(
            *(partial(serve_pods, admin, place) for place in (namespace, edited)),
            *(partial(grant_cpu, admin, place) for place in (namespace, edited)),
        ):
            await everything_it_does(admin, namespace)
            assert_nothing_is_refused(running, proxy, control_plane, RELEASE)
            await edited_and_broken(admin, proxy, edited, dead)
        denied = {(seen.method, seen.target) for seen in proxy.requests if seen.status == 403}
    assert denied == set()
    allowed, needed = granted(rules_of_the_chart()), used(proxy.requests) - OF_EVERYONE
    assert needed - allowed == set(), "used, but not granted"
    assert allowed - needed - SELDOM == NOT_REQUESTED, "granted, but not used"


async def look(dead: set[str], target: ProbeTarget, now: dt.datetime) -> Probe:
    """Probe a pod, of whose processes one has died if the pod is in ``dead``."""
    good = await healthy(target, now)
    if target.pod.name not in dead or target.example is None:
        return good
    return replace(good, inference_error="Stub process 'tokenizer_0_0' is gone", dead=(now,))


async def edited_and_broken(
    admin: Client, proxy: FaultProxy, namespace: str, dead: set[str]
) -> None:
    """Let the operator correct manual edits of every kind of object, and replace a pod."""
    document = builders.document(
        name="p",
        namespace=namespace,
        replicas=2,
        observability={"podMonitor": "Enabled", "prometheusRule": "Enabled"},
        health={"periodSeconds": 5},
    )
    document["metadata"].pop("uid")
    created = await apply_any(admin, INFERENCE_PIPELINES, document)
    await served(admin, namespace, 1)
    for resource in MONITORING:
        await eventually(resource.kind, partial(belongs_to, admin, resource, created), 120)
    for resource, name in [*WATCHED.items(), *((kind, "p") for kind in MONITORING)]:
        await without_its_label(admin, resource, namespace, name)
        await that_no_apply_corrects(admin, proxy, resource, namespace, name)
    for resource, name in WATCHED.items():
        await superfluous(admin, resource, namespace, name, created)
    document["spec"]["observability"] = {"podMonitor": "Disabled", "prometheusRule": "Disabled"}
    await apply_any(admin, INFERENCE_PIPELINES, document)
    for resource in MONITORING:
        await eventually(f"no {resource.kind}", partial(gone, admin, resource, namespace, "p"))
    await with_a_conflict(admin, proxy, namespace, document)
    await eventually("a pod is replaced", partial(is_replaced, admin, namespace, dead), 120)


async def belongs_to(admin: Client, resource: Resource, pipeline: Object) -> bool:
    """Return whether an object is not that of an earlier pipeline of the name."""
    metadata = pipeline["metadata"]
    found = await admin.get(resource, metadata["namespace"], metadata["name"])
    return owned(found, metadata["uid"])


async def has_its_label(
    admin: Client, resource: Resource, namespace: str, name: str, label: str, value: str
) -> bool:
    found = await admin.get(resource, namespace, name)
    return (found["metadata"].get("labels") or {}).get(label) == value


async def without_its_label(admin: Client, resource: Resource, namespace: str, name: str) -> None:
    """Take an object out of the operator's caches: without the label it is not watched."""
    body = {"metadata": {"labels": {names.LABEL_MANAGED_BY: None}}}
    await patch(admin, resource, namespace, name, body)
    await eventually(
        f"the label of {resource.kind} {name} is restored",
        partial(
            has_its_label,
            admin,
            resource,
            namespace,
            name,
            names.LABEL_MANAGED_BY,
            names.MANAGED_BY,
        ),
    )


async def that_no_apply_corrects(
    admin: Client, proxy: FaultProxy, resource: Resource, namespace: str, name: str
) -> None:
    """Edit an object so that the operator has to replace it: its first apply is invalid."""
    path = resource.path(namespace, name)
    proxy.inject(Fault(method="PATCH", path=f"{path}\\?", status=422, reason="Invalid"))
    body = {"metadata": {"labels": {names.LABEL_INSTANCE: "edited"}}}
    await patch(admin, resource, namespace, name, body)
    await eventually(
        f"{resource.kind} {name} is corrected",
        partial(has_its_label, admin, resource, namespace, name, names.LABEL_INSTANCE, "p"),
    )


async def superfluous(
    admin: Client, resource: Resource, namespace: str, name: str, owner: Object
) -> None:
    """Create another object of the pipeline, which the operator deletes."""
    found = await admin.get(resource, namespace, name)
    metadata = found["metadata"]
    item = {key: found[key] for key in ("apiVersion", "kind", "spec", "data") if key in found}
    if resource == SERVICES:
        item["spec"] = {"ports": [{"port": 80}]}
    item["metadata"] = {
        "name": "superfluous",
        "namespace": namespace,
        "labels": metadata["labels"],
        "ownerReferences": metadata["ownerReferences"],
    }
    await admin.create(item)
    await eventually(
        f"superfluous {resource.kind} is deleted",
        partial(gone, admin, resource, namespace, "superfluous"),
    )


async def with_a_conflict(
    admin: Client, proxy: FaultProxy, namespace: str, document: Object
) -> None:
    """Request a tuning run, as if there was a Job of its name, which the operator then reads."""
    fault = proxy.inject(Fault(method="PATCH", path="/jobs/", status=409, reason="Conflict"))
    document["spec"] |= {"tuning": {"request": "tuesday"}, "slo": {"p99Milliseconds": 100}}
    await apply_any(admin, INFERENCE_PIPELINES, document)
    await eventually("a tuning run has its Job", partial(jobs, admin, namespace), 120)
    assert fault.hits == 1


async def is_replaced(admin: Client, namespace: str, dead: set[str]) -> bool:
    """Break a pod, and return whether it is gone."""
    pods = (await admin.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items
    serving = [
        pod["metadata"]["name"]
        for pod in pods
        if pod["metadata"]["labels"].get(names.LABEL_COMPONENT) == names.COMPONENT_SERVER
    ]
    if not dead and serving:
        dead.add(serving[0])
    return bool(dead) and not dead & set(serving)
