"""Preflights on a real API server with its controllers.

Stand-in: the kubelet, which decides how the loader of a preflight ends.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import apply_any, eventually, operator, patch, repeated
from tests.support.simulated_nodes import checked_status, is_checking, is_ready, ready_status
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadFinding, LoadReason
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import (
    INFERENCE_PIPELINES,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    Resource,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
DEADLINE_SECONDS = 90.0
MISSING = LoadFinding(
    step="model",
    reason=LoadReason.SOURCE_UNAVAILABLE,
    message="the source has no file model.onnx (404)",
    field="spec.model.source.uri",
)
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
STRATEGIES = ["NoSurge", "Recreate"]
SELECTOR = f"{names.LABEL_COMPONENT}={names.COMPONENT_PREFLIGHT}"


class Kubelet:
    """Act as the kubelet: servers become ready, and deleted pods end."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.finding: LoadFinding | None = None
        self.runs_preflights = True

    async def work(self) -> None:
        listed = await self.client.list(PODS, self.namespace, label_selector=names.MANAGED_SELECTOR)
        for pod in listed.items:
            with contextlib.suppress(NotFound):
                await self._run(pod)

    async def _run(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp"):
            await self.client.delete(PODS, self.namespace, name, grace_seconds=0)
            return
        if is_checking(pod):
            if not self.runs_preflights or pod["status"]["phase"] == "Succeeded":
                return
            status = checked_status(pod, self.finding)
        elif is_ready(pod):
            return
        else:
            status = ready_status(pod)
        await patch(self.client, PODS, self.namespace, name, {"status": status}, "status")


async def apply(client: Client, namespace: str, **spec: Any) -> None:
    document = builders.document(name="p", namespace=namespace, **spec)
    document["metadata"].pop("uid")
    await apply_any(client, INFERENCE_PIPELINES, document)


async def conditions(client: Client, namespace: str) -> dict[str, Object]:
    status = (await client.get(INFERENCE_PIPELINES, namespace, "p")).get("status") or {}
    return {item["type"]: item for item in status.get("conditions", ())}


async def ready(client: Client, namespace: str, reason: str) -> Any:
    """The Ready condition, once the status of the latest spec has this reason."""
    found = (await conditions(client, namespace)).get("Ready") or {}
    pipeline = await client.get(INFERENCE_PIPELINES, namespace, "p")
    is_current = found.get("observedGeneration") == pipeline["metadata"]["generation"]
    return is_current and found.get("reason") == reason and found


async def servers(client: Client, namespace: str) -> dict[str, str]:
    """Uid → revision of the serving pods."""
    selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_SERVER}"
    pods = (await client.list(PODS, namespace, label_selector=selector)).items
    return {
        pod["metadata"]["uid"]: pod["metadata"]["labels"][names.LABEL_REVISION]
        for pod in pods
        if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
    }


async def of_preflights(client: Client, namespace: str) -> list[Object]:
    found = [
        await client.list(kind, namespace, label_selector=SELECTOR)
        for kind in (JOBS, NETWORK_POLICIES, PODS)
    ]
    return [item for listed in found for item in listed.items]


async def jobs(client: Client, namespace: str) -> list[Object]:
    return list((await client.list(JOBS, namespace)).items)


async def nothing_left(client: Client, namespace: str) -> bool:
    return not await of_preflights(client, namespace)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_wrong_edit_keeps_the_pod_until_its_source_is_there(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str, strategy: str
) -> None:
    kubelet, rollout = Kubelet(admin, namespace), {"strategy": strategy}
    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace),
        repeated(kubelet.work),
    ):
        await apply(admin, namespace, rollout=rollout)
        await eventually("served", lambda: ready(admin, namespace, "Succeeded"), DEADLINE_SECONDS)
        before = await servers(admin, namespace)
        assert await nothing_left(admin, namespace), "nothing served before the first revision"
        kubelet.finding = MISSING
        await apply(admin, namespace, rollout=rollout, tokenizer={"maxLength": 64})
        found = await eventually(
            "reported", lambda: ready(admin, namespace, "SourceUnavailable"), DEADLINE_SECONDS
        )
        assert "preflight: pod p-" in found["message"]
        assert "has no file model.onnx (404)" in found["message"]
        assert await servers(admin, namespace) == before
        assert (await conditions(admin, namespace))["Available"]["status"] == "True"
        kinds = sorted(item["kind"] for item in await of_preflights(admin, namespace))
        assert kinds == ["Job", "NetworkPolicy", "Pod"]
        kubelet.finding = None
        await eventually(
            "rolled out", lambda: ready(admin, namespace, "Succeeded"), DEADLINE_SECONDS
        )
        after = await servers(admin, namespace)
        assert set(after.values()).isdisjoint(before.values())
        await eventually("cleaned up", lambda: nothing_left(admin, namespace), DEADLINE_SECONDS)


async def test_a_preflight_outlives_the_operator_but_not_its_pipeline(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    kubelet, rollout = Kubelet(admin, namespace), {"strategy": "NoSurge"}
    kubelet.runs_preflights = False
    async with repeated(kubelet.work):
        async with operator(proxy, tmp_path, namespace, operator_namespace=namespace):
            await apply(admin, namespace, rollout=rollout)
            await eventually(
                "served", lambda: ready(admin, namespace, "Succeeded"), DEADLINE_SECONDS
            )
            await apply(admin, namespace, rollout=rollout, tokenizer={"maxLength": 64})
            await eventually(
                "checks", lambda: ready(admin, namespace, "Preflight"), DEADLINE_SECONDS
            )
            (first,) = await eventually("a Job", lambda: jobs(admin, namespace), DEADLINE_SECONDS)
        before = await servers(admin, namespace)
        async with operator(proxy, tmp_path, namespace, operator_namespace=namespace) as running:
            await eventually("a pass", running.passes, DEADLINE_SECONDS)
            (kept,) = await jobs(admin, namespace)
            assert kept["metadata"]["uid"] == first["metadata"]["uid"]
            await apply(admin, namespace, rollout=rollout, tokenizer={"maxLength": 32})

            async def another() -> Any:
                uids = {item["metadata"]["uid"] for item in await jobs(admin, namespace)}
                return len(uids) == 1 and first["metadata"]["uid"] not in uids

            await eventually("another Job alone", another, DEADLINE_SECONDS)
            assert await servers(admin, namespace) == before
            await admin.delete(INFERENCE_PIPELINES, namespace, "p")
            await eventually("gone", lambda: nothing_left(admin, namespace), DEADLINE_SECONDS)


async def test_a_quota_on_jobs_does_not_block_the_rollout(
    admin: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    kubelet, rollout = Kubelet(admin, namespace), {"strategy": "NoSurge"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": namespace},
        "spec": {"hard": {"count/jobs.batch": "0"}},
    }

    async def counts() -> bool:
        return bool((await admin.get(QUOTAS, namespace, "none")).get("status", {}).get("used"))

    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace),
        repeated(kubelet.work),
    ):
        await apply(admin, namespace, rollout=rollout)
        await eventually("served", lambda: ready(admin, namespace, "Succeeded"), DEADLINE_SECONDS)
        before = await servers(admin, namespace)
        await apply_any(admin, QUOTAS, quota)
        await eventually("the quota counts", counts, DEADLINE_SECONDS)
        await apply(admin, namespace, rollout=rollout, tokenizer={"maxLength": 64})
        await eventually(
            "rolled out", lambda: ready(admin, namespace, "Succeeded"), DEADLINE_SECONDS
        )
        assert set((await servers(admin, namespace)).values()).isdisjoint(before.values())
