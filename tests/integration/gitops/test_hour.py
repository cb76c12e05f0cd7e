"""An hour of live scaling, replayed on a real API server (goal P1).

A comparison of Git with the cluster finds no difference at any time.
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import httpx
import pytest

from tests.integration.gitops.test_differences import NAMESPACE, connection, kubectl_apply
from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.dryrun import differences
from tests.support.loops import Loop, loop_of
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, resource_of
from triton_pipelines.controllers.pipeline.planner import Plan

pytestmark = pytest.mark.integration
__all__ = ["connection"]

HOUR_SECONDS = 3600
TICK_SECONDS = 10.0
LOOKS = 3
Deployed = dict[str, Any]


async def hour(loop: Loop) -> list[list[Plan]]:
    """Apply a load that swings four times, and return the writes of each third of the hour.

    Decisions and plans are real. Pods and samples are simulated.
    """
    parts = []
    ticks = int(HOUR_SECONDS / TICK_SECONDS)
    for part in range(LOOKS):
        begun = len(loop.plans)
        for tick in range(part * ticks // LOOKS, (part + 1) * ticks // LOOKS):
            rate = 250 + 200 * math.sin(8 * math.pi * tick / ticks)
            loop.flow(rate, service=0.010)
            await loop.tick(TICK_SECONDS)
            await loop.settle()
        parts.append(loop.plans[begun:])
    return parts


def write(
    client: httpx.Client, item: dict[str, Any], manager: str, subresource: str = ""
) -> dict[str, Any]:
    """Server-side apply, as the operator writes."""
    metadata = item["metadata"]
    path = resource_of(item).path(NAMESPACE, metadata["name"], subresource or None)
    query = {"fieldManager": manager, "force": "true"}
    answer = client.patch(
        path,
        params=query,
        headers={"Content-Type": "application/apply-patch+yaml"},
        content=json.dumps(item, ensure_ascii=False).encode(),
    )
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def replay(client: httpx.Client, plans: list[Plan], name: str) -> None:
    """What the passes wrote, in their order."""
    for decided in plans:
        for item in decided.apply:
            write(client, item, names.MANAGER_CHILDREN)
        if decided.status is not None:
            body = {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": name},
                "status": decided.status,
            }
            write(client, body, names.MANAGER_STATUS, "status")


@pytest.fixture
async def scaled(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[World, list[Deployed], Loop, list[list[Plan]]]:
    """The world after its hour, what was deployed before it, and the writes of each third of it."""
    changes: dict[str, Any] = {
        "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 8}},
        "scaling": {"scaleDown": {"stabilizationSeconds": 60}},
    }
    document = builders.document(**changes)
    document["metadata"] |= {"name": "hour", "namespace": NAMESPACE}
    world = World(document, rendered={}).settle()
    deployed = [
        copy.deepcopy(item)
        for item in world.children.values()
        if item["kind"] in ("Deployment", "Service")
    ]
    loop = loop_of(monkeypatch, world)
    return world, deployed, loop, await hour(loop)


def test_an_hour_of_scaling_shows_no_tool_a_difference(
    api_server: ControlPlane,
    connection: httpx.Client,
    scaled: tuple[World, list[Deployed], Loop, list[list[Plan]]],
) -> None:
    world, deployed, loop, parts = scaled
    manifest = {key: copy.deepcopy(world.document[key]) for key in ("apiVersion", "kind", "spec")}
    manifest["metadata"] = {"name": "hour", "namespace": NAMESPACE}
    kubectl_apply(api_server, manifest, "--server-side", "--field-manager=argocd-controller")
    for item in deployed:
        bare = {key: item[key] for key in ("apiVersion", "kind", "spec")}
        write(
            connection,
            bare | {"metadata": {"name": item["metadata"]["name"], "namespace": NAMESPACE}},
            names.MANAGER_CHILDREN,
        )
    deployment = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/hour"
    generation = connection.get(deployment).json()["metadata"]["generation"]

    writes = [decided for part in parts for decided in part if decided.status is not None]
    assert len({count for _, count in loop.tritons.loads}) >= 4, "the count was to move"
    assert len(loop.tritons.loads) >= 8
    # Changes are reported, live figures are not. At most one status a minute comes in addition to
    # the changes (two reconciles each: the intent, then the result).
    assert len(writes) <= HOUR_SECONDS / 60 + 3 * len(loop.tritons.loads)
    assert {item["kind"] for part in parts for decided in part for item in decided.apply} == {
        "ConfigMap"
    }
    for part in parts:
        replay(connection, part, "hour")
        assert differences(api_server.kubeconfig, [manifest]).found() == {}
    live = connection.get(INFERENCE_PIPELINES.path(NAMESPACE, "hour")).json()
    assert live["metadata"]["generation"] == 1
    assert live["spec"]["tokenizer"]["instances"] == manifest["spec"]["tokenizer"]["instances"]
    assert live["status"]["scaling"]["history"]
    assert connection.get(deployment).json()["metadata"]["generation"] == generation
