"""A user with all permissions of one namespace attacks the operator and other namespaces.

Each attack goes through a real API server. It must not reach beyond the attacker's namespace, and
the pipeline of another namespace must still be reconciled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import Running, apply_any, eventually, make_namespace, operator, patch
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    PODS,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
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

    def errors(self) -> float:
        """Return the number of reconciles that ended with an unexpected error."""
        counts = self.running.samples("reconciles_total")
        return sum(count for labels, count in counts.items() if ("outcome", "bug") in labels)


@dataclass(frozen=True)
class Place:
    """Where the attacks happen."""

    admin: Client
    proxy: FaultProxy
    hostile: str
    other: str
    folder: Path

    @contextlib.asynccontextmanager
    async def tenants(self) -> AsyncIterator[Tenants]:
        """Run the operator, with the first objects of the attacker's pipeline."""
        async with operator(self.proxy, self.folder, self.hostile, self.other) as running:
            made = Tenants(self.admin, running, self.hostile, self.other)
            await made.create(self.hostile, "p")
            await eventually("the first objects", lambda: made.is_applied(self.hostile, "p"))
            yield made


@pytest.fixture
async def place(bare: Client, bare_proxy: FaultProxy, tmp_path: Path) -> Place:
    hostile, other = [
        await make_namespace(bare, f"{kind}-{uuid.uuid4().hex[:12]}")
        for kind in ("hostile", "other")
    ]
    return Place(bare, bare_proxy, hostile, other, tmp_path)


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
async def test_garbage_in_the_live_config_map_affects_nothing(place: Place, kind: str) -> None:
    async with place.tenants() as tenants:
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
    place: Place,
) -> None:
    """Deployments, Services and pods with its labels, long names and large annotations."""
    async with place.tenants() as tenants:
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
                {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "metadata": metadata,
                    "spec": template,
                }
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


STATUSES: dict[str, Object] = {
    "empty": {"conditions": [], "steps": [], "warnings": []},
}


@pytest.mark.parametrize("kind", STATUSES)
async def test_a_forged_status_is_corrected(place: Place, kind: str) -> None:
    async with place.tenants() as tenants:

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
