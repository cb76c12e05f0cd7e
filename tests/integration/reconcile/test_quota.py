"""Namespaces whose ResourceQuotas have no room: reported there, and nothing anywhere else."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.support.operators import apply_any, eventually, make_namespace, operator, patch
from tests.support.tenants import Place, Tenants
from triton_pipelines.cluster import work_queue
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import EVENTS, INFERENCE_PIPELINES, Resource
from triton_pipelines.cluster.work_queue import TRANSIENT
from triton_pipelines.controllers.autoscaler import pipeline_state

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
KINDS = ("count/configmaps", "count/secrets", "services", "count/deployments.apps")
PIPELINES = 12
"""More than the operator has workers."""
RETRIES = 3


async def without_room(tenants: Tenants, kind: str) -> None:
    """Create a quota of 0 for a kind, with the status that its controller would write."""
    metadata = {"name": "zero", "namespace": tenants.hostile}
    hard = {kind: "0"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": hard},
    }
    await apply_any(tenants.admin, QUOTAS, quota)
    status = {"status": {"hard": hard, "used": {kind: "0"}}}
    await patch(tenants.admin, QUOTAS, tenants.hostile, "zero", status, "status")


async def test_a_quota_without_room_is_reported_and_delays_no_other_namespace(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind has a namespace of its own. All cases run at once, since they mostly wait."""
    # Until then, a new process does not report that the load is unknown.
    monkeypatch.setattr(pipeline_state, "SETTLING_SECONDS", 2.0)
    # Attempts follow soon, and there are more of them.
    monkeypatch.setattr(work_queue, "TRANSIENT", dataclasses.replace(TRANSIENT, maximum=4.0))
    hostile = [
        await make_namespace(place.admin, f"{place.hostile}-{number}")
        for number in range(len(KINDS))
    ]
    async with operator(place.proxy, place.folder, *hostile, place.other) as running:
        async with asyncio.TaskGroup() as cases:
            for namespace, kind in zip(hostile, KINDS, strict=True):
                tenants = Tenants(place.admin, running, namespace, place.other)
                cases.create_task(is_reported_and_delays_no_other(place, tenants, kind))
        assert tenants.errors() == 0


async def is_reported_and_delays_no_other(place: Place, tenants: Tenants, kind: str) -> None:
    await without_room(tenants, kind)
    created = [f"p{number:02d}" for number in range(PIPELINES)]
    for name in created:
        await tenants.create(tenants.hostile, name)

    async def are_reported() -> bool:
        return all(
            "exceeded quota: zero" in str(item.get("message"))
            and "raise the ResourceQuota" in str(item.get("message"))
            for item in [await tenants.condition("Ready", name) for name in created]
        )

    await eventually(f"the quota of {kind} is in every status", are_reported, every=0.5)
    await tenants.others_are_served(f"beside-{KINDS.index(kind)}")

    async def have_scaling() -> bool:
        found = [await tenants.condition("ScalingActive", name) for name in created]
        return all(found)

    await eventually("the first scaling decision is in every status", have_scaling, every=0.5)
    failed = refused(place, tenants)
    before = await versions(tenants)
    await eventually(
        "more attempts", lambda: refused(place, tenants) >= failed + RETRIES * PIPELINES, 120
    )
    assert await versions(tenants) == before, "an attempt that fails again writes no status"
    assert await warnings(tenants) == dict.fromkeys(created, 1)
    await tenants.admin.delete(QUOTAS, tenants.hostile, "zero")
    await eventually(
        "the objects once there is room", lambda: tenants.is_applied(tenants.hostile, "p00"), 120
    )


def refused(place: Place, tenants: Tenants) -> int:
    """Return the number of the operator's requests for a namespace that were answered with 403."""
    path = f"/namespaces/{tenants.hostile}/"
    return sum(seen.status == 403 and path in seen.target for seen in place.proxy.requests)


async def versions(tenants: Tenants) -> dict[str, str]:
    found = (await tenants.admin.list(INFERENCE_PIPELINES, tenants.hostile)).items
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found}


async def warnings(tenants: Tenants) -> dict[str, int]:
    """Return the number of warnings on each pipeline."""
    found: list[Object] = (await tenants.admin.list(EVENTS, tenants.hostile)).items
    counts: dict[str, int] = {}
    for item in found:
        if item["type"] == "Warning" and item["reason"] == "APIError":
            name = item["regarding"]["name"]
            counts[name] = counts.get(name, 0) + 1
    return counts
