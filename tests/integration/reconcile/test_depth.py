"""Resources that are nested deeper than the schema allows affect only themselves.

The API server is real, and so are the watches, lists and reconciles of the operator.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from e2e.local import api
from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operators import (
    CRDS,
    Running,
    apply_any,
    eventually,
    make_namespace,
    operator,
)
from triton_pipelines.api import crd
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
DEPTHS = (150, 500, 1_000, 5_000, 9_990)
"""Levels of podTemplate. The API server reads at most 10 000 levels, its own list included."""
TENANT, OTHER = "deep", "served"


def open_definition() -> Object:
    """Return the definition of an earlier release, with a podTemplate of any depth."""
    definition = copy.deepcopy(crd.definition())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    server = schema["properties"]["spec"]["properties"]["server"]["properties"]
    server["podTemplate"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return definition


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server whose definition each test chooses."""
    file = tmp_path_factory.mktemp("crds") / "open.yaml"
    file.write_text(json.dumps(open_definition()), encoding="utf-8")
    with ControlPlane(crds=(file,)) as running:
        yield running


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    async with Client(lambda: load_configuration(str(plane.kubeconfig))) as client:
        for namespace in (TENANT, OTHER):
            await make_namespace(client, namespace)
        yield client


@pytest.fixture
async def proxy(plane: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(plane.kubeconfig) as proxy:
        yield proxy


@pytest.fixture
def connection(plane: ControlPlane) -> Iterator[httpx.Client]:
    with api.client(plane.kubeconfig) as connection:
        yield connection


def deep_text(name: str, depth: int) -> str:
    """Return a pipeline as JSON whose podTemplate has ``depth`` levels.

    As text: ``json`` cannot write it.
    """
    document = builders.document(name=name, namespace=TENANT)
    document["metadata"].pop("uid")
    document["spec"]["server"] = {"podTemplate": {"marker": 0}}
    nested = '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)
    return json.dumps(document).replace('{"marker": 0}', nested)


def create_deep(connection: httpx.Client, depth: int) -> httpx.Response:
    path = INFERENCE_PIPELINES.path(TENANT)
    return connection.post(
        path,
        content=deep_text(f"deep-{depth}", depth),
        headers={"Content-Type": "application/json"},
        timeout=60.0,
    )


async def serves(client: Client, running: Running, name: str, *, replicas: int) -> None:
    """Wait until the other tenant's pipeline has a Deployment with these replicas."""
    document = builders.document(name=name, namespace=OTHER, replicas=replicas)
    document["metadata"].pop("uid")
    await apply_any(client, INFERENCE_PIPELINES, document)

    async def is_applied() -> bool:
        found = await client.get(DEPLOYMENTS, OTHER, name)
        return bool(found["spec"]["replicas"] == replicas)

    await eventually(f"{OTHER}/{name} with {replicas} replicas", is_applied)


async def invalid_message(client: Client, name: str) -> str:
    """Wait for the condition that reports an invalid spec, and return its message."""

    async def message() -> str:
        found = await client.get(INFERENCE_PIPELINES, TENANT, name)
        conditions = (found.get("status") or {}).get("conditions", ())
        return next((item["message"] for item in conditions if item["type"] == "Stalled"), "")

    return str(await eventually(f"status of {name}", message))


async def test_deep_resources_affect_only_themselves(
    client: Client, proxy: FaultProxy, connection: httpx.Client, tmp_path: Path
) -> None:
    async with operator(proxy, tmp_path) as running:
        await serves(client, running, "watched", replicas=1)
        for depth in DEPTHS:
            answer = create_deep(connection, depth)
            assert answer.status_code == 201, (depth, answer.text[:500])
            await serves(client, running, "watched", replicas=2 + depth % 7)
            message = await invalid_message(client, f"deep-{depth}")
            assert message.startswith("spec.server.podTemplate"), message
        assert sum(running.samples("objects_too_deep_total").values()) >= len(DEPTHS)
    # A restart lists them, and so does every periodic list.
    async with operator(proxy, tmp_path, relist_seconds=1) as running:
        await serves(client, running, "after-restart", replicas=1)
        lists = len(proxy.requests)
        await eventually("another list", lambda: len(proxy.requests) > lists + 10)
        await serves(client, running, "after-restart", replicas=2)
        # The upgrade of the definition leaves them stored.
        await apply_any(client, CRDS, crd.definition())
        await serves(client, running, "after-upgrade", replicas=1)


@pytest.mark.parametrize("depth", [64, *DEPTHS])
async def test_the_definition_rejects_deep_resources(
    client: Client, connection: httpx.Client, depth: int
) -> None:
    await apply_any(client, CRDS, crd.definition())

    async def is_rejected() -> bool:
        answer = create_deep(connection, depth)
        if answer.status_code == 201:  # The new definition is not in force yet.
            await client.delete(INFERENCE_PIPELINES, TENANT, f"deep-{depth}")
        return answer.status_code == 422 and "podTemplate" in answer.text

    await eventually("rejection", is_rejected)
