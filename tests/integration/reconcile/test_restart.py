"""Nothing changed means no write: many pipelines over a restart of the operator."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support import builders
from tests.support.faultproxy import MUTATING, FaultProxy
from tests.support.operators import Running, apply_any, eventually, healthy, operator, repeated
from tests.support.simulated_nodes import control_deployments, serve_pods
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_PIPELINES
from triton_pipelines.controllers.pipeline.pod_probes import Prober, ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import Probe

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(900),
]
PIPELINES = 80
SETTLED_SECONDS = 240.0
CPU_SECONDS = 30.0
"""Bound of a restart in seconds of CPU time, which other load of the machine does not change."""


def settled(item: Object) -> bool:
    """Whether the pipeline serves, and nothing is reported later only because time passes.

    The simulated pods have no metrics, which is reported after 30 s.
    """
    status = item.get("status") or {}
    found = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    is_reported = found.get("Ready") == "True" and found.get("ScalingActive") == "False"
    return is_reported and bool(status["observedGeneration"] == item["metadata"]["generation"])


async def all_ready(client: Client, namespace: str) -> bool:
    found = (await client.list(INFERENCE_PIPELINES, namespace)).items
    return len(found) == PIPELINES and all(settled(item) for item in found)


async def versions(client: Client, namespace: str) -> dict[tuple[str, str], str]:
    kinds = (INFERENCE_PIPELINES, CONFIG_MAPS, DEPLOYMENTS)
    listed = [item for kind in kinds for item in (await client.list(kind, namespace)).items]
    return {
        (item["kind"], item["metadata"]["name"]): item["metadata"]["resourceVersion"]
        for item in listed
    }


async def test_a_restart_with_many_pipelines_writes_nothing(
    bare: Client,
    bare_proxy: FaultProxy,
    tmp_path: Path,
    bare_namespace: str,
    record_property: pytest.FixtureRequest,
) -> None:
    documents = [
        builders.document(name=f"p{number:03d}", namespace=bare_namespace)
        for number in range(PIPELINES)
    ]
    for item in documents:
        item["metadata"].pop("uid")
    begin = time.monotonic()
    await asyncio.gather(*(apply_any(bare, INFERENCE_PIPELINES, item) for item in documents))
    cluster = (
        partial(control_deployments, bare, bare_namespace),
        partial(serve_pods, bare, bare_namespace),
    )
    async with operator(bare_proxy, tmp_path, bare_namespace) as first:
        # Lists of hundreds of objects cost more than the operator does, so they are requested only
        # occasionally.
        async with repeated(*cluster, every=1.0):
            await eventually(
                "all are served", lambda: all_ready(bare, bare_namespace), 300, every=1.0
            )
        await eventually("quiet", lambda: quiet(first, bare_proxy))
        built = time.monotonic() - begin
        assert passed(first) >= PIPELINES
    before = await versions(bare, bare_namespace)
    bare_proxy.requests.clear()
    begin = time.process_time()
    prober = first_probes_late()
    async with operator(bare_proxy, tmp_path, bare_namespace, prober=prober) as second:
        await eventually(
            "every pipeline was looked at", lambda: passed(second) >= PIPELINES, SETTLED_SECONDS
        )
        seconds = time.process_time() - begin
        assert second.services is not None
        # Another round, now with probes that are known.
        for item in documents:
            second.services.enqueue((bare_namespace, item["metadata"]["name"]))
        await eventually("and once more", lambda: passed(second) >= 2 * PIPELINES, SETTLED_SECONDS)
    writes = [seen for seen in bare_proxy.requests if seen.method in MUTATING]
    assert writes == [], "events among them"
    assert await versions(bare, bare_namespace) == before
    assert seconds < CPU_SECONDS
    print(
        f"\n{PIPELINES} pipelines: built in {built:.1f} s; after a restart settled in "
        f"{seconds:.1f} s of CPU time, {len(bare_proxy.requests)} requests, 0 writes"
    )
    # The count is of the one thing that writes: a change is seen by it.
    changed = documents[0]
    async with operator(bare_proxy, tmp_path, bare_namespace) as third:
        await eventually("passes", lambda: passed(third) >= PIPELINES, SETTLED_SECONDS)
        changed["spec"]["server"] = {"service": {"annotations": {"a": "b"}}}
        await apply_any(bare, INFERENCE_PIPELINES, changed)
        await eventually(
            "the Service is written",
            lambda: [
                seen
                for seen in bare_proxy.mutating
                if f"services/{changed['metadata']['name']}" in seen.target
            ],
        )
    touched = {seen.target.partition("?")[0] for seen in bare_proxy.mutating}
    service = f"/api/v1/namespaces/{bare_namespace}/services/p000"
    live = f"/api/v1/namespaces/{bare_namespace}/configmaps/{names.live_name('p000')}"
    status = INFERENCE_PIPELINES.path(bare_namespace, "p000", "status")
    assert service in touched <= {service, live, status}


def first_probes_late() -> Prober:
    """Return a prober whose first probe of each pod brings no response, as on a busy machine."""
    probed = set[str]()

    async def probe(target: ProbeTarget, now: dt.datetime) -> Probe:
        if target.pod.uid in probed:
            return await healthy(target, now)
        probed.add(target.pod.uid)
        return Probe(now, ensemble_ready=False, error="no response before the deadline")

    return probe


def passed(running: Running) -> float:
    return running.samples("reconciles_total").get((("result", "ok"),), 0.0)


async def quiet(running: Running, proxy: FaultProxy) -> bool:
    """No write within half a second, and no pipeline is due or being reconciled after it."""
    before = len(proxy.mutating)
    await asyncio.sleep(0.5)
    is_idle = not any(
        value
        for name in ("queue_depth", "queue_in_work")
        for value in running.samples(name).values()
    )
    return is_idle and len(proxy.mutating) == before
