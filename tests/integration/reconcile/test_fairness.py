"""Expensive resources of one namespace do not delay the pipelines of another."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import apply_any, eventually, make_namespace, operator
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(400),
]
VARIABLES = 1_000
BOUND_SECONDS = 15.0
"""Seconds of CPU time of this process, which other load does not change; about two when idle."""
WORKERS = 8


def expensive(name: str, namespace: str) -> Object:
    env = [{"name": f"VARIABLE_{number}", "value": name} for number in range(VARIABLES)]
    containers = [{"name": "triton", "env": env}]
    document = builders.document(
        name=name,
        namespace=namespace,
        server={"podTemplate": {"spec": {"containers": containers}}},
    )
    document["metadata"].pop("uid")
    return document


@pytest.mark.parametrize(("namespaces", "each"), [(1, 40), (20, 5)])
async def test_expensive_resources_do_not_delay_another_namespace(
    bare: Client,
    bare_proxy: FaultProxy,
    tmp_path: Path,
    namespaces: int,
    each: int,
    record_property: Callable[[str, object], None],
) -> None:
    prefix = f"fair-{uuid.uuid4().hex[:12]}"
    other = await make_namespace(bare, f"{prefix}-other")
    hostile = [await make_namespace(bare, f"{prefix}-{number}") for number in range(namespaces)]
    names = [(namespace, f"e{number:02d}") for number in range(each) for namespace in hostile]
    async with (
        operator(bare_proxy, tmp_path, *hostile, other) as running,
        httpx.AsyncClient(timeout=60) as probes,
    ):

        def handled() -> int:
            """Return the number of expensive resources that have a Deployment."""
            known = running.store.all(DEPLOYMENTS)
            return sum(item["metadata"]["namespace"] != other for item in known)

        await asyncio.gather(
            *(
                apply_any(bare, INFERENCE_PIPELINES, expensive(name, namespace))
                for namespace, name in names
            )
        )
        begin, before = time.process_time(), handled()
        document = builders.document(name="small", namespace=other)
        document["metadata"].pop("uid")
        await apply_any(bare, INFERENCE_PIPELINES, document)
        await eventually(
            "Deployment of the other namespace",
            lambda: bare.get(DEPLOYMENTS, other, "small"),
            deadline=300.0,
        )
        seconds, meanwhile = time.process_time() - begin, handled() - before
        url = f"http://127.0.0.1:{running.config.liveness_port}/healthz"
        assert (await probes.get(url)).status_code == 200
        record_property(
            "figures",
            f"{seconds:.1f} s of CPU time next to {len(names)} expensive resources,"
            f" {meanwhile} of which were handled meanwhile",
        )
        assert seconds < BOUND_SECONDS
        # Each namespace has a turn before the other one's, and one while that is handled.
        assert meanwhile <= 2 * namespaces + WORKERS
        # Deleted pipelines leave nothing in the queue.
        for namespace, name in names:
            await bare.delete(INFERENCE_PIPELINES, namespace, name)
        await bare.delete(INFERENCE_PIPELINES, other, "small")
        await eventually(
            "empty queue", lambda: running.samples("queue_delayed")[()] == 0, deadline=120.0
        )
