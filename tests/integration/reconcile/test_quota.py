"""A namespace whose ResourceQuota has no room: reported there, and nothing anywhere else."""

from __future__ import annotations

import pytest

from tests.support.operators import apply_any, eventually, patch
from tests.support.tenants import Place, Tenants
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import EVENTS, INFERENCE_PIPELINES, Resource
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_quota_without_room_is_reported_and_delays_no_other_namespace(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until then, a new process does not report that the load is unknown.
    monkeypatch.setattr(pipeline_state, "SETTLING_SECONDS", 2.0)
    async with place.running() as tenants:
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

        await eventually("the quota is in every status", are_reported)
        await tenants.others_are_served("between")

        async def have_scaling() -> bool:
            found = [await tenants.condition("ScalingActive", name) for name in created]
            return all(found)

        await eventually("the first scaling decision is in every status", have_scaling)
        failed = refused(tenants)
        before = await versions(tenants)
        await eventually(
            "more attempts", lambda: refused(tenants) >= failed + RETRIES * PIPELINES, 120
        )
        assert await versions(tenants) == before, "an attempt that fails again writes no status"
        assert await warnings(tenants) == dict.fromkeys(created, 1)
        assert tenants.errors() == 0
        await tenants.admin.delete(QUOTAS, tenants.hostile, "zero")
        await eventually(
            "the objects once there is room",
            lambda: tenants.is_applied(tenants.hostile, "p00"),
            120,
        )


def refused(tenants: Tenants) -> float:
    """Return the number of the operator's requests that were answered with 403."""
    counts = tenants.running.samples("api_requests_total")
    return sum(count for labels, count in counts.items() if ("code", "403") in labels)


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
