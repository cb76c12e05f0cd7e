"""A user with all permissions of one namespace attacks the operator and other namespaces.

Each attack goes through a real API server. It must not reach beyond the attacker's namespace, and
the pipeline of another namespace must still be reconciled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import Running, apply_any, eventually, make_namespace, operator, patch
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    PODS,
    SERVICES,
    Resource,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas", namespaced=True)
LARGE = "x" * 900_000


class Tenants:
    """The namespace of the attacker with a pipeline ``p``, and another one."""

    def __init__(self, admin: Client, running: Running, hostile: str, other: str) -> None:
        self.admin, self.running, self.hostile, self.other = admin, running, hostile, other

    async def create(self, namespace: str, name: str) -> None:
        document = builders.document(name=name, namespace=namespace)
        document["metadata"].pop("uid")
        await apply_any(self.admin, INFERENCE_PIPELINES, document)

    async def is_applied(self, namespace: str, name: str) -> bool:
        return bool(await self.admin.get(DEPLOYMENTS, namespace, name))

    async def others_are_served(self, name: str) -> None:
        """Assert that another namespace is reconciled, and that the process lives."""
        await self.create(self.other, name)
        await eventually(f"{name} is applied", lambda: self.is_applied(self.other, name))
        async with httpx.AsyncClient(timeout=30) as probes:
            url = f"http://127.0.0.1:{self.running.config.liveness_port}/healthz"
            assert (await probes.get(url)).status_code == 200

    async def condition(self, kind: str) -> Object:
        found = await self.admin.get(INFERENCE_PIPELINES, self.hostile, "p")
        conditions = (found.get("status") or {}).get("conditions", ())
        return next((item for item in conditions if item["type"] == kind), {})

    async def revision(self) -> str:
        found = await self.admin.get(DEPLOYMENTS, self.hostile, "p")
        labels = found["spec"]["template"]["metadata"]["labels"]
        return str(labels[names.LABEL_REVISION])

    def errors(self) -> float:
        """Return the number of reconciles that ended with an unexpected error."""
        counts = self.running.samples("reconciles_total")
        return sum(count for labels, count in counts.items() if ("outcome", "bug") in labels)


@pytest.fixture
async def tenants(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> AsyncIterator[Tenants]:
    other = await make_namespace(bare, f"{bare_namespace[:50]}-other")
    async with operator(bare_proxy, tmp_path, bare_namespace, other) as running:
        made = Tenants(bare, running, bare_namespace, other)
        await made.create(bare_namespace, "p")
        await eventually("the first objects", lambda: made.is_applied(bare_namespace, "p"))
        yield made


async def test_a_replaced_pod_template_of_a_revision_is_not_applied(tenants: Tenants) -> None:
    """ConfigMaps may be all that a user can write, besides pipelines."""
    revision = await tenants.revision()
    name = names.revision_name("p", revision)
    record = await tenants.admin.get(CONFIG_MAPS, tenants.hostile, name)
    content = json.loads(record["data"][names.KEY_TEMPLATE])
    content["template"]["spec"]["volumes"].append({"name": "node", "hostPath": {"path": "/"}})
    record["data"][names.KEY_TEMPLATE] = json.dumps(content)
    for field in ("resourceVersion", "uid", "managedFields", "creationTimestamp"):
        record["metadata"].pop(field, None)
    await tenants.admin.delete(CONFIG_MAPS, tenants.hostile, name)
    await create_in_place_of(tenants.admin, record)
    await touch(tenants)

    async def message() -> str:
        found = await tenants.condition("Stalled")
        text = str(found.get("message", ""))
        return text if "hostPath" in text else ""

    assert "delete the ConfigMaps" in await eventually("the refusal", message)
    found = await tenants.admin.get(DEPLOYMENTS, tenants.hostile, "p")
    volumes = found["spec"]["template"]["spec"]["volumes"]
    assert not [volume for volume in volumes if "hostPath" in volume]
    await tenants.others_are_served("after-template")


async def create_in_place_of(client: Client, item: Object) -> None:
    """Create an object even if the operator has written one of the name meanwhile."""
    namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
    for _ in range(20):
        try:
            await client.create(item)
        except Exception:
            await client.delete(CONFIG_MAPS, namespace, name)
        else:
            return
    raise AssertionError(f"{name} could not be created")


async def touch(tenants: Tenants) -> None:
    """Change the pipeline so that its Deployment would be applied again."""
    await tenants.admin.delete(DEPLOYMENTS, tenants.hostile, "p")


GARBAGE = {
    "deep": "[" * 100_000,
    "large": LARGE,
    "infinite": '{"version": 1e999, "steps": NaN, "revision": -Infinity}',
    "digits": '{"version": ' + "9" * 5_000 + "}",
    "types": '{"rollout": [], "replicas": 7, "slo_guard": {"since": 5}, "spec": [], "digests": 1}',
    "times": json.dumps(
        {
            policy: {"since": moment, "until": moment, "at": moment, "started": moment}
            for policy, moment in (
                ("slo_guard", "9999-12-31T23:59:59+00:00"),
                ("pod_repair", "0001-01-01T00:00:00-23:59"),
                ("replicas", "9999-12-31T23:59:59-23:59"),
            )
        }
    ),
    "surrogates": '"\\ud800\\u0000"',
}


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_in_the_live_config_map_affects_nothing(tenants: Tenants, kind: str) -> None:
    live = names.live_name("p")
    found = await tenants.admin.get(CONFIG_MAPS, tenants.hostile, live)
    keys = {*found["data"], names.KEY_ACCEPTED, names.KEY_MEMORY, "scaling"}
    # The API server stores at most 1 MiB in a ConfigMap.
    text = dict.fromkeys(sorted(keys)[:1] if kind == "large" else keys, GARBAGE[kind])
    await patch(tenants.admin, CONFIG_MAPS, tenants.hostile, live, {"data": text})

    async def is_repaired() -> bool:
        now = await tenants.admin.get(CONFIG_MAPS, tenants.hostile, live)
        return GARBAGE[kind] not in [now["data"].get(key) for key in found["data"]]

    await eventually("repair", is_repaired)
    assert tenants.errors() == 0
    await tenants.others_are_served(f"after-{kind}")


async def test_many_foreign_objects_with_the_labels_of_a_pipeline_change_nothing(
    tenants: Tenants,
) -> None:
    """Deployments, Services and pods with its labels, long names and large annotations."""
    pipeline = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "p")
    before = pipeline["metadata"]["resourceVersion"]
    template = (await tenants.admin.get(DEPLOYMENTS, tenants.hostile, "p"))["spec"]
    created = []
    for number in range(60):
        metadata = {
            "name": f"{'n' * 240}-{number}",
            "namespace": tenants.hostile,
            "labels": names.labels("p" if number % 2 else f"no-such-{number}"),
            "annotations": {"large": "x" * 200_000},
        }
        created.append(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": template}
        )
        pod = {**metadata, "ownerReferences": [owner_of(pipeline)]}
        containers = [{"name": "c", "image": "i"}]
        created.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": pod,
                "spec": {"containers": containers, "automountServiceAccountToken": False},
            }
        )
    await asyncio.gather(*(tenants.admin.create(item) for item in created))
    await eventually("the pods are seen", lambda: tenants.running.store.count(PODS) >= 60)
    await tenants.others_are_served("after-objects")
    assert tenants.errors() == 0
    for item in created:
        kind = DEPLOYMENTS if item["kind"] == "Deployment" else PODS
        assert await tenants.admin.get(kind, tenants.hostile, item["metadata"]["name"])
    now = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "p")
    assert (now.get("status") or {}).get("replicas", 0) == 0, before


def owner_of(pipeline: Object) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": pipeline["metadata"]["name"],
        "uid": pipeline["metadata"]["uid"],
    }


async def test_objects_that_are_created_in_advance_or_cannot_be_deleted(tenants: Tenants) -> None:
    """A Service under a pipeline's name, and a finalizer that nobody removes."""
    await tenants.admin.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "q", "namespace": tenants.hostile, "labels": names.labels("q")},
            "spec": {"selector": {"app": "bank"}, "ports": [{"port": 80}]},
        }
    )
    await tenants.create(tenants.hostile, "q")
    finalizers = {"metadata": {"finalizers": ["tenant.example/never"]}}
    for resource in (DEPLOYMENTS, INFERENCE_PIPELINES):
        await patch(tenants.admin, resource, tenants.hostile, "p", finalizers)
        await tenants.admin.delete(resource, tenants.hostile, "p")

    async def is_reported() -> bool:
        found = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "q")
        conditions = (found.get("status") or {}).get("conditions", ())
        return any(item["reason"] == "NameConflict" for item in conditions)

    await eventually("the conflict", is_reported)
    service = await tenants.admin.get(SERVICES, tenants.hostile, "q")
    assert service["spec"]["selector"] == {"app": "bank"}
    await tenants.others_are_served("after-finalizers")
    assert tenants.errors() == 0
    for resource in (DEPLOYMENTS, INFERENCE_PIPELINES):
        body = {"metadata": {"finalizers": None}}
        try:
            await patch(tenants.admin, resource, tenants.hostile, "p", body)
        except NotFound:
            continue


async def test_a_quota_of_zero_is_reported(tenants: Tenants) -> None:
    hard = {f"count/{kind}": "0" for kind in ("configmaps", "secrets", "events.events.k8s.io")}
    await apply_any(
        tenants.admin,
        QUOTAS,
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none", "namespace": tenants.hostile},
            "spec": {"hard": hard},
        },
    )
    await tenants.create(tenants.hostile, "q")

    async def is_reported() -> bool:
        found = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "q")
        conditions = (found.get("status") or {}).get("conditions", ())
        return any("quota" in item["message"] for item in conditions)

    await eventually("the quota", is_reported)
    await tenants.others_are_served("after-quota")


STATUSES: dict[str, Object] = {
    "numbers": {"replicas": 2**31 - 1, "readyReplicas": -5, "observedGeneration": 2**62},
    "history": {
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Forged",
                "message": "x" * 30_000,
                "lastTransitionTime": "9999-12-31T23:59:59Z",
            }
        ]
    },
    "empty": {"conditions": [], "steps": [], "warnings": []},
}


@pytest.mark.parametrize("kind", STATUSES)
async def test_a_forged_status_is_corrected(tenants: Tenants, kind: str) -> None:
    async def has_status() -> bool:
        return bool(await tenants.condition("Ready"))

    await eventually("a status", has_status)
    body = {"status": STATUSES[kind]}
    await patch(tenants.admin, INFERENCE_PIPELINES, tenants.hostile, "p", body, "status")

    async def is_corrected() -> bool:
        ready = await tenants.condition("Ready")
        return bool(ready) and ready["reason"] != "Forged"

    await eventually("correction", is_corrected)
    await tenants.others_are_served(f"after-{kind}")
    assert tenants.errors() == 0
    assert tenants.running.samples("pipeline_pods")
