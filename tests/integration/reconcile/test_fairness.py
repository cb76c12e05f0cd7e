"""Expensive resources of one namespace do not delay the pipelines of another."""

from __future__ import annotations

import asyncio
import time
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
EXPENSIVE = 40
VARIABLES = 1_000
BOUND_SECONDS = 15.0
"""Seconds of CPU time of this process, which other load does not change; about two when idle."""


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


async def test_forty_expensive_resources_do_not_delay_another_namespace(
    bare: Client,
    bare_proxy: FaultProxy,
    tmp_path: Path,
    bare_namespace: str,
    record_property: pytest.FixtureRequest,
) -> None:
    other = await make_namespace(bare, f"{bare_namespace}-other"[:60])
    async with (
        operator(bare_proxy, tmp_path, bare_namespace, other) as running,
        httpx.AsyncClient(timeout=60) as probes,
    ):
        await asyncio.gather(
            *(
                apply_any(bare, INFERENCE_PIPELINES, expensive(f"e{number:02d}", bare_namespace))
                for number in range(EXPENSIVE)
            )
        )
        begin = time.process_time()
        document = builders.document(name="small", namespace=other)
        document["metadata"].pop("uid")
        await apply_any(bare, INFERENCE_PIPELINES, document)
        await eventually(
            "Deployment of the other namespace",
            lambda: bare.get(DEPLOYMENTS, other, "small"),
            deadline=300.0,
        )
        seconds = time.process_time() - begin
        url = f"http://127.0.0.1:{running.config.liveness_port}/healthz"
        assert (await probes.get(url)).status_code == 200
        record_property(
            "figures", f"{seconds:.1f} s of CPU time next to {EXPENSIVE} expensive resources"
        )
        assert seconds < BOUND_SECONDS
        # Deleted pipelines leave nothing in the queue.
        for number in range(EXPENSIVE):
            await bare.delete(INFERENCE_PIPELINES, bare_namespace, f"e{number:02d}")
        await bare.delete(INFERENCE_PIPELINES, other, "small")
        await eventually(
            "empty queue", lambda: running.samples("queue_delayed")[()] == 0, deadline=120.0
        )
