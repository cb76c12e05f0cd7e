"""A user with all permissions of one namespace keeps the operator from writing its own objects.

The operator must not repeat its writes without end, must say what is in the way, and must serve
other namespaces.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operators import eventually, patch, repeated
from tests.support.tenants import Place, Tenants
from triton_pipelines.api import names
from triton_pipelines.cluster.resources import (
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    SERVICES,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
RECONCILES = 12


async def test_a_manager_that_undoes_each_correction_causes_no_endless_exchange(
    place: Place,
) -> None:
    """It changes the Service again as soon as the operator has corrected it."""
    async with place.tenants() as tenants:
        selector = {"selector": {names.LABEL_PIPELINE: "forged"}}

        async def undo() -> None:
            found = await tenants.admin.get(SERVICES, tenants.hostile, "p")
            if found["spec"]["selector"][names.LABEL_PIPELINE] != "forged":
                await patch(tenants.admin, SERVICES, tenants.hostile, "p", {"spec": selector})

        def corrections() -> int:
            return place.proxy.count("PATCH", f"/{tenants.hostile}/services/p")

        async with repeated(undo, every=0.01):
            await eventually("the report", lambda: is_reported(tenants))
            before = corrections()
            for number in range(RECONCILES):
                passes = tenants.running.passes()
                annotations = {"metadata": {"annotations": {"number": str(number)}}}
                await patch(tenants.admin, DEPLOYMENTS, tenants.hostile, "p", annotations)
                await eventually("a reconcile", lambda: tenants.running.passes() > passes)  # noqa: B023
            assert corrections() - before < RECONCILES // 2
            await tenants.others_are_served("meanwhile")
        await eventually("the last correction", lambda: is_corrected(tenants))
        assert tenants.errors() == 0


async def is_reported(tenants: Tenants) -> bool:
    found = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "p")
    return "changes of Service p" in str((found.get("status") or {}).get("warnings"))


async def is_corrected(tenants: Tenants) -> bool:
    found: Any = await tenants.admin.get(SERVICES, tenants.hostile, "p")
    return bool(found["spec"]["selector"][names.LABEL_PIPELINE] == "p")
