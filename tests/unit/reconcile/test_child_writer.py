"""Objects that nothing orders are applied at the same time, all others in their order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.support.builders import options
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Invalid, NotFound
from triton_pipelines.cluster.impersonation import Writer
from triton_pipelines.cluster.resources import Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.controllers.pipeline.child_writer import ChildWriter

VERSIONS = {"Deployment": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1"}


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
