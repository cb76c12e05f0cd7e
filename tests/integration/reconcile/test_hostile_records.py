"""A user with all permissions of one namespace edits the records of a pipeline in its ConfigMaps.

Whatever they contain, no other namespace waits, and the operator corrects them.
"""

from __future__ import annotations

import json

import pytest

from tests.support.operators import eventually, patch
from tests.support.tenants import Place, Tenants
from triton_pipelines.api import names
from triton_pipelines.api.parse import FINDINGS_MAX
from triton_pipelines.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_PIPELINES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
LIVE = names.live_name("p")


async def make_invalid(tenants: Tenants) -> None:
    """Give the attacker's pipeline a spec that the API server admits, and the operator does not."""
    body = {"spec": {"replicas": 2, "postprocess": {"labels": ["a", "b", "c"]}}}
    await patch(tenants.admin, INFERENCE_PIPELINES, tenants.hostile, "p", body)

    async def is_stalled() -> bool:
        return (await tenants.condition("Stalled")).get("status") == "True"

    await eventually("the finding", is_stalled)


async def test_a_forged_last_good_spec_delays_no_other_namespace(place: Place) -> None:
    """A record of a spec does not pass the API server's schema."""
    async with place.tenants() as tenants:
        await make_invalid(tenants)
        passes = tenants.running.passes()
        fields = {f"unknown{number}": 0 for number in range(150 * FINDINGS_MAX)}
        record = json.dumps({"spec": fields, "digests": {}}, separators=(",", ":"))
        data = {names.KEY_ACCEPTED: record}
        await patch(tenants.admin, CONFIG_MAPS, tenants.hostile, LIVE, {"data": data})
        await eventually("a reconcile", lambda: tenants.running.passes() > passes)
        await tenants.others_are_served("after-forged-record")
        assert tenants.errors() == 0


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00-23:59"])
async def test_times_centuries_away_count_as_none(place: Place, at: str) -> None:
    async with place.tenants() as tenants:
        deployment = await tenants.admin.get(DEPLOYMENTS, tenants.hostile, "p")
        revision = deployment["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION]
        watch = {"revision": revision, "predecessor": "f" * 10, "before": 1.0, "since": at}
        managers = {"managers": ["forged"], "corrected": at}
        alternating = {"last": "forged", "managers": ["forged", "other"], "changes": 5, "at": at}
        state = {
            "slo_guard": watch,
            "replicas": {**managers, "alternating": alternating},
            "cpu_resize": managers,
            "pod_repair": {"repaired": at, "count": 10**6},
        }
        data = {names.KEY_STATE: json.dumps(state)}
        await patch(tenants.admin, CONFIG_MAPS, tenants.hostile, LIVE, {"data": data})

        async def is_corrected() -> bool:
            found = await tenants.admin.get(CONFIG_MAPS, tenants.hostile, LIVE)
            return at not in found["data"][names.KEY_STATE]

        await eventually("the correction", is_corrected)
        assert tenants.errors() == 0
