"""The SLO guard after a rollout, over a restart of the operator.

It runs on a real API server with its controllers.

Stand-ins: the kubelet, and the reader of the pods' metrics pages; its clock runs faster, since a
figure takes more than a minute.
"""

from __future__ import annotations

import datetime as dt
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import Running, apply_any, eventually, operator, repeated
from tests.support.simulated_nodes import serve_pods
from triton_pipelines.api import names
from triton_pipelines.app import composition
from triton_pipelines.autoscaling.metrics.latency_reader import ModelLatency
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS
from triton_pipelines.controllers.pipeline.policies import slo_guard
from triton_pipelines.controllers.slo_latency import SloLatencyMonitor

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
]
DEADLINE_SECONDS = 90.0
FASTER = 200.0


class Reader:
    """Return a p99 for pods of each revision, in order of appearance, at 50 requests/s.

    A pod is identified through the operator's cache.
    """

    def __init__(self, running: Running, *p99: float) -> None:
        self.running, self.p99 = running, p99
        self.revisions: list[str] = []
        self.begin = dt.datetime.now(dt.UTC)

    def clock(self) -> dt.datetime:
        return self.begin + (dt.datetime.now(dt.UTC) - self.begin) * FASTER

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None: ...

    async def read(self, address: str, model: str, namespace: str) -> ModelLatency | str:
        # All pods have one address here. While both revisions exist, both report the newer one's
        # figure.
        present = {
            item["metadata"]["labels"][names.LABEL_REVISION]
            for item in self.running.store.all(PODS)
        }
        self.revisions += sorted(present - set(self.revisions))
        index = max(self.revisions.index(revision) for revision in present)
        return ModelLatency(
            self.p99[min(index, len(self.p99) - 1)],
            (self.clock() - self.begin).total_seconds() * 50,
        )


def instrument(running: Running, *p99: float) -> Reader:
    assert running.watch is not None
    reader = Reader(running, *p99)
    running.watch.reader, running.watch.clock = reader, reader.clock
    return reader


async def status_of(client: Client, namespace: str) -> dict[str, Any]:
    return dict((await client.get(INFERENCE_PIPELINES, namespace, "p")).get("status") or {})


def ready_of(status: dict[str, Any]) -> dict[str, Any]:
    return next((item for item in status.get("conditions", ()) if item["type"] == "Ready"), {})


async def is_reported(client: Client, namespace: str, reason: str, generation: int) -> Any:
    status = await status_of(client, namespace)
    return (
        ready_of(status).get("reason") == reason
        and status["observedGeneration"] == generation
        and status
    )


async def apply(client: Client, namespace: str, length: int, p99: int = 100) -> None:
    document = builders.document(
        name="p", namespace=namespace, slo={"p99Milliseconds": p99}, tokenizer={"maxLength": length}
    )
    document["metadata"].pop("uid")
    await apply_any(client, INFERENCE_PIPELINES, document)


async def test_a_slow_revision_is_taken_back_by_the_next_operator(
    admin: Client,
    proxy: FaultProxy,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first operator measures the predecessor and rolls out.

    The second one finds that the new revision violates the SLO.
    """
    # Pods are probed as often as the faster clock requires, and the planner reads the figures as
    # often as they can change.
    monkeypatch.setattr(
        composition, "SloLatencyMonitor", partial(SloLatencyMonitor, tick_seconds=0.075)
    )
    monkeypatch.setattr(slo_guard, "RECHECK_SECONDS", 1.0)
    cluster = partial(serve_pods, admin, namespace)
    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace) as first,
        repeated(cluster),
    ):
        instrument(first, 30.0)
        await apply(admin, namespace, 64)
        status = await eventually(
            "served", lambda: is_reported(admin, namespace, "Succeeded", 1), DEADLINE_SECONDS
        )
        old = status["revision"]
        assert first.watch is not None
        watch = first.watch
        await eventually(
            "measured",
            lambda: (
                (known := watch.handover.latencies.get((namespace, "p"))) is not None
                and old in known.figures
            ),
            DEADLINE_SECONDS,
        )
        await apply(admin, namespace, 128)
        await eventually(
            "rolled out", lambda: is_reported(admin, namespace, "Succeeded", 2), DEADLINE_SECONDS
        )
    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace) as second,
        repeated(cluster),
    ):
        instrument(second, 150.0)
        status = await eventually(
            "rolled back", lambda: is_reported(admin, namespace, "RolledBack", 2), DEADLINE_SECONDS
        )
        said = ready_of(status)["message"]
        assert "150.0 ms" in said
        assert "at most 30.0 ms" in said
        assert "spec.slo allows 95 ms" in said
        await eventually(
            "the old revision alone serves",
            lambda: serving(admin, namespace, old),
            DEADLINE_SECONDS,
        )
        await eventually(
            "and status says so", lambda: said_serving(admin, namespace, old), DEADLINE_SECONDS
        )
    # A promise that holds: the same revision again, and it stays.
    async with (
        operator(proxy, tmp_path, namespace, operator_namespace=namespace) as third,
        repeated(cluster),
    ):
        instrument(third, 150.0)
        await apply(admin, namespace, 128, p99=500)
        status = await eventually(
            "tried again", lambda: is_reported(admin, namespace, "Succeeded", 3), DEADLINE_SECONDS
        )
        assert status["revision"] != old


async def said_serving(client: Client, namespace: str, revision: str) -> bool:
    return (await status_of(client, namespace)).get("servingRevision") == revision


async def serving(client: Client, namespace: str, revision: str) -> bool:
    pods = (await client.list(PODS, namespace, label_selector=names.MANAGED_SELECTOR)).items
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            await client.delete(
                PODS, namespace, pod["metadata"]["name"], grace_seconds=0
            )  # the kubelet's part
    return {pod["metadata"]["labels"][names.LABEL_REVISION] for pod in pods} == {revision}
