"""A user with all permissions of one namespace edits the objects of a pipeline.

What is edited is corrected or ignored. Nothing else changes, and no other namespace waits.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from typing import Any

import pytest

from tests.support.operators import eventually, patch, repeated
from tests.support.tenants import Place, Tenants
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    INFERENCE_PIPELINES,
    NETWORK_POLICIES,
    SERVICES,
    Resource,
)
from triton_pipelines.controllers.pipeline.status_writer import STATUS_CONFLICT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
CHILDREN = ((DEPLOYMENTS, "p"), (SERVICES, "p"), (NETWORK_POLICIES, "p"), (CONFIG_MAPS, "p-live"))
REVISION = "f" * 10
ODD_FIELDS: Object = {
    "f:metadata": {"f:labels": {"f:forged": {}, ".": {}}},
    "f:spec": {
        "f:ports": {'k:{"port":{"a":[1]}}': {".": {}}, "i:-1": {}, 'v:{"a":1}': {}},
        "f:template": {"f:spec": {"f:containers": {'k:{"name":null}': {"f:image": {}}}}},
        "f:replicas": {},
    },
    "f:data": {"f:spec.json": {}, "v:1": {}},
}


def managed_by(manager: str, operation: str) -> Object:
    return {
        "manager": manager,
        "operation": operation,
        "apiVersion": "v1",
        "time": "9999-12-31T23:59:59Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": ODD_FIELDS,
    }


MANAGERS = (names.MANAGER_CHILDREN, f"{names.MANAGER_CHILDREN}-repair", "kubectl")
METADATA: dict[str, Object] = {
    "annotations": {
        "annotations": {
            names.ANNOTATION_BEFORE: REVISION,
            names.ANNOTATION_CERTIFICATE: "forged",
            names.ANNOTATION_PAUSED: "true",
            "large": "x" * 200_000,
        }
    },
    "labels": {
        "labels": {
            names.LABEL_REVISION: REVISION,
            names.LABEL_INSTANCE: "other",
            names.LABEL_COMPONENT: names.COMPONENT_PREFLIGHT,
        }
    },
    "owners of fields": {
        "managedFields": [
            managed_by(manager, operation)
            for manager in MANAGERS
            for operation in ("Apply", "Update")
        ]
    },
    "no owners of fields": {"managedFields": [{}]},
    "finalizers": {"finalizers": ["example.com/never"]},
}


async def shape(tenants: Tenants) -> Object:
    """Return what the pods of the attacker's pipeline are made from."""
    found = await tenants.admin.get(DEPLOYMENTS, tenants.hostile, "p")
    spec: Object = found["spec"]
    return spec


@pytest.mark.parametrize("kind", METADATA)
async def test_forged_metadata_of_children_change_no_pod(place: Place, kind: str) -> None:
    async with place.tenants() as tenants:
        before = await shape(tenants)
        for resource, name in CHILDREN:
            body = {"metadata": METADATA[kind]}
            await patch(tenants.admin, resource, tenants.hostile, name, body)
            if kind == "finalizers":
                await tenants.admin.delete(resource, tenants.hostile, name)
        await tenants.others_are_served(f"after-{kind.replace(' ', '-')}")
        writes = len(place.proxy.mutating)
        passes = tenants.running.passes()
        await touch(tenants)
        await eventually("another reconcile", lambda: tenants.running.passes() > passes)
        assert tenants.errors() == 0
        assert await shape(tenants) == before
        assert len(place.proxy.mutating) - writes < 20, "no correction is repeated"


async def touch(tenants: Tenants) -> None:
    """Make the attacker's pipeline due."""
    body = {"metadata": {"labels": {"touched": "yes"}}}
    await patch(tenants.admin, INFERENCE_PIPELINES, tenants.hostile, "p", body)


@pytest.mark.parametrize(
    "text", ["{{{", "[" * 20_000, '{"started": "9999-12-31"}', "null", '{"spec": 5}']
)
async def test_annotations_of_the_watch_library_do_not_matter(place: Place, text: str) -> None:
    """The library keeps its own state in such annotations where it has handlers with state."""
    prefixes = ("kopf.zalando.org", "kopf.dev", names.GROUP)
    keys = ("last-handled-configuration", "touch-dummy", "on_event", "KopfFinalizerMarker")
    annotations = {f"{prefix}/{key}": text for prefix in prefixes for key in keys}
    async with place.tenants() as tenants:
        body = {"metadata": {"annotations": annotations}, "spec": {"replicas": 3}}
        await patch(tenants.admin, INFERENCE_PIPELINES, tenants.hostile, "p", body)

        async def is_scaled() -> bool:
            return bool((await shape(tenants))["replicas"] == 3)

        await eventually("the change of the spec", is_scaled)
        await tenants.others_are_served("after-annotations")
        assert tenants.errors() == 0


async def test_a_user_who_edits_all_the_time_delays_no_other_namespace(place: Place) -> None:
    """Statuses, children and labels of more pipelines than the operator has workers."""
    async with place.running() as tenants:
        created = [f"p{number:02d}" for number in range(12)]
        for name in created:
            await tenants.create(tenants.hostile, name)
        for name in created:
            await eventually(
                name,
                lambda name=name: tenants.is_applied(tenants.hostile, name),  # type: ignore[misc]
            )
        before = {name: await edited_fields(tenants, name) for name in created}
        edits: Counter[tuple[str, str]] = Counter()
        rounds = itertools.count(1)

        async def edit() -> None:
            number = next(rounds)
            await asyncio.gather(*(edit_all(tenants, name, number, edits) for name in created))

        async with repeated(edit, every=0.01):
            for number in range(5):
                await tenants.others_are_served(f"while-{number}")
        kinds = (INFERENCE_PIPELINES, SERVICES, DEPLOYMENTS)
        expected = {(resource.kind, name) for resource in kinds for name in created}
        assert {key for key, count in edits.items() if count > 5} == expected, edits
        assert tenants.errors() == 0
        await eventually("the corrections", lambda: are_corrected(tenants, before))


async def edit_all(
    tenants: Tenants, name: str, counter: int, edits: Counter[tuple[str, str]]
) -> None:
    """Edit the status, the Service and the Deployment of a pipeline; count each edit."""
    condition = {"type": "Ready", "status": "True", "reason": f"Forged{counter}", "message": ""}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    bodies: list[tuple[Resource, Object, str | None]] = [
        (INFERENCE_PIPELINES, {"status": {"conditions": [condition]}}, "status"),
        (SERVICES, {"spec": {"selector": {names.LABEL_PIPELINE: f"forged-{counter}"}}}, None),
        (DEPLOYMENTS, {"spec": {"replicas": 2 + counter % 7}}, None),
    ]
    for resource, body, subresource in bodies:
        await patch(tenants.admin, resource, tenants.hostile, name, body, subresource)
        edits[resource.kind, name] += 1


async def edited_fields(tenants: Tenants, name: str) -> tuple[Object, int]:
    """Return the selector of a pipeline's Service and the replicas of its Deployment."""
    service: Any = await tenants.admin.get(SERVICES, tenants.hostile, name)
    deployment: Any = await tenants.admin.get(DEPLOYMENTS, tenants.hostile, name)
    return service["spec"]["selector"], deployment["spec"]["replicas"]


async def are_corrected(tenants: Tenants, before: dict[str, tuple[Object, int]]) -> bool:
    for name, fields in before.items():
        found: Any = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, name)
        if "Forged" in json.dumps(found["status"]):
            return False
        if await edited_fields(tenants, name) != fields:
            return False
    return True


async def test_a_controller_that_overwrites_each_status_causes_no_endless_exchange(
    place: Place,
) -> None:
    async with place.tenants() as tenants:

        async def get_status() -> Object:
            found = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "p")
            status: Object = found.get("status") or {}
            return status

        async def is_reported() -> bool:
            return "Ready" in str(await get_status())

        def writes() -> int:
            return place.proxy.count("PATCH", "/p/status")

        await eventually("a status", is_reported)
        rounds = 0

        async def strip() -> None:
            """Remove the conditions as soon as they are there."""
            nonlocal rounds
            if await is_reported():
                body: Object = {"status": {"conditions": None}}
                await patch(
                    tenants.admin, INFERENCE_PIPELINES, tenants.hostile, "p", body, "status"
                )
                rounds += 1

        before = writes()
        async with repeated(strip, every=0.01):
            await eventually("corrections with a delay", lambda: rounds >= 4)
            for number in range(5):
                await tenants.others_are_served(f"meanwhile-{number}")
        assert writes() - before < 12
        events = (await tenants.admin.list(EVENTS, tenants.hostile)).items
        conflicts = [item for item in events if item["reason"] == STATUS_CONFLICT]
        assert len(conflicts) == 1
        await eventually("the last correction", is_reported)
        assert tenants.errors() == 0
