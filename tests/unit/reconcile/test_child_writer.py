"""Objects that nothing orders are applied at the same time, all others in their order.

New objects are not read first.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.support.builders import options
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Conflict, Invalid, NotFound
from triton_pipelines.cluster.impersonation import Writer
from triton_pipelines.cluster.resources import CONFIG_MAPS, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.controllers.pipeline.child_writer import ChildWriter
from triton_pipelines.controllers.pipeline.owner_references import NameTaken, UnsafeTemplate

VERSIONS = {"Deployment": "apps/v1", "Job": "batch/v1", "NetworkPolicy": "networking.k8s.io/v1"}


def child(kind: str, name: str) -> Object:
    metadata = {"name": name, "namespace": "n", "labels": {names.LABEL_PIPELINE: "p"}}
    return {"apiVersion": VERSIONS.get(kind, "v1"), "kind": kind, "metadata": metadata}


class FakeClient:
    """A fake API server that answers the applies of Services when all of them have come."""

    def __init__(self, rejected: str = "") -> None:
        self.rejected = rejected
        self.applied: list[str] = []
        self.unordered = asyncio.Barrier(3)

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        raise NotFound(404, "NotFound", name)

    async def apply(self, obj: Object, **_: Any) -> Object:
        if obj["kind"] in ("Service", "NetworkPolicy"):
            await self.unordered.wait()
        name = obj["metadata"]["name"]
        if name == self.rejected:
            raise Invalid(422, "Invalid", name)
        self.applied.append(name)
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}


ITEMS = (
    child("ConfigMap", "first"),
    child("ConfigMap", "second"),
    child("Service", "service"),
    child("Service", "headless"),
    child("NetworkPolicy", "policy"),
    child("Deployment", "last"),
)


async def apply(client: FakeClient) -> None:
    real = cast(Client, client)
    writer = ChildWriter(
        real, Writer.of(real, "n", ""), Store(), "n", options(pod_template=PodTemplateMode.ALLOW)
    )
    async with asyncio.timeout(10):
        await writer.apply_all(ITEMS, "uid")


async def test_only_objects_that_nothing_orders_are_applied_at_the_same_time() -> None:
    client = FakeClient()
    await apply(client)
    assert client.applied[:2] == ["first", "second"]
    assert set(client.applied[2:5]) == {"service", "headless", "policy"}
    assert client.applied[5:] == ["last"]


async def test_a_rejected_object_stops_those_after_it_and_none_beside_it() -> None:
    client = FakeClient(rejected="service")
    with pytest.raises(Invalid):
        await apply(client)
    assert set(client.applied) == {"first", "second", "headless", "policy"}


class StoringClient:
    """A fake API server with one object that the caches do not know."""

    def __init__(self, existing: Object | None) -> None:
        self.existing = existing
        self.requests: list[str] = []

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        self.requests.append("get")
        assert self.existing is not None
        return self.existing

    async def apply(self, obj: Object, *, dry_run: bool = False, **_: Any) -> Object:
        self.requests.append("dry run" if dry_run else "apply")
        if dry_run and self.existing is not None:
            return self.existing
        if self.existing is not None and "resourceVersion" in obj["metadata"]:
            raise Conflict(409, "Conflict", obj["metadata"]["name"])
        self.existing = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "8"}}
        return self.existing


def existing(kind: str, uid: str) -> Object:
    item = child(kind, "a")
    item["metadata"] |= {"resourceVersion": "7", "ownerReferences": [{"uid": uid}]}
    return item


async def apply_one(client: StoringClient, kind: str) -> Store:
    real, store = cast(Client, client), Store()
    writer = ChildWriter(real, Writer.of(real, "n", ""), store, "n", options())
    await writer.apply(child(kind, "a"), "ours")
    return store


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
@pytest.mark.parametrize("exists", [True, False])
async def test_a_workload_with_an_unsafe_template_is_neither_created_nor_changed(
    kind: str, exists: bool
) -> None:
    """This one has a token of its service account, since it does not say otherwise."""
    client = StoringClient(existing(kind, "ours") if exists else None)
    with pytest.raises(UnsafeTemplate, match="automountServiceAccountToken"):
        await apply_one(client, kind)
    assert client.requests == []


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
async def test_a_new_object_takes_one_request(kind: str) -> None:
    client = StoringClient(None)
    await apply_one(client, kind)
    assert client.requests == ["apply"]


@pytest.mark.parametrize(("kind", "read"), [("ConfigMap", "get"), ("Secret", "dry run")])
async def test_an_object_of_another_owner_is_not_changed(kind: str, read: str) -> None:
    found = existing(kind, "theirs")
    client = StoringClient(found)
    with pytest.raises(NameTaken):
        await apply_one(client, kind)
    assert client.requests == ["apply", read]
    assert client.existing is found


async def test_an_own_object_that_the_caches_do_not_know_is_applied_over() -> None:
    client = StoringClient(existing("ConfigMap", "ours"))
    store = await apply_one(client, "ConfigMap")
    assert client.requests == ["apply", "get", "apply"]
    assert store.get(CONFIG_MAPS, "n", "a") == client.existing
