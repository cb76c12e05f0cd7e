"""Test how often a serving pod is probed.

Probes are ``health.periodSeconds`` apart, on a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import builders, ownership
from tests.support.reconcilers import KEY, AcceptingClient, ready_pod, reconciler_of, stored
from tests.support.worlds import START
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import Probe


class TakingClient(AcceptingClient):
    """A fake API server that keeps the last Deployment."""

    def __init__(self, document: Object) -> None:
        super().__init__()
        self.document = document
        self.deployment: Object = {}

    async def apply(self, obj: Object, **_: Any) -> Object:
        if obj["kind"] == "Deployment":
            metadata = {**obj["metadata"], "uid": "deployment", "resourceVersion": "1"}
            self.deployment = {**obj, "metadata": metadata}
            hashed = ownership.template_hash(obj["spec"]["template"])
            self.replica_sets.append(ownership.replica_set(self.deployment, hashed))
            return self.deployment
        return obj

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        self.statuses.append(obj["status"])
        return {**self.document, "status": obj["status"]}

    @property
    def pod(self) -> Object:
        """A ready pod of the Deployment."""
        return ready_pod(self.deployment)


async def looks_at(period: int, moments: Sequence[float], mismatch: str = "") -> list[float]:
    """When a pod that answers (with a ``mismatch``) is asked, in passes at these seconds."""
    store, looks = Store(), list[float]()
    elapsed = 0.0

    async def look(target: ProbeTarget, now: dt.datetime) -> Probe:
        looks.append((now - START).total_seconds())
        return Probe(now, ensemble_ready=True, inference_error="", mismatch=mismatch)

    document = stored(health={"periodSeconds": period})
    client = TakingClient(document)
    store.put(INFERENCE_PIPELINES, document)
    reconciler = reconciler_of(
        client, store, prober=look, clock=lambda: START + dt.timedelta(seconds=elapsed)
    )
    await reconciler.reconcile(KEY)
    store.put(PODS, client.pod)
    for elapsed in moments:  # noqa: B007 - the clock reads it
        await reconciler.reconcile(KEY)
    return looks


@pytest.mark.proves("spec.health.periodSeconds", "behaviour")
@pytest.mark.parametrize("period", [7, 90])
async def test_a_good_pod_is_asked_again_when_its_period_is_over(period: int) -> None:
    moments = (0.0, period - 1.0, period + 1.0, 2.0 * period, 2.0 * period + 2.0)
    assert await looks_at(period, moments) == [0.0, period + 1.0, 2.0 * period + 2.0]


async def test_an_answer_otherwise_than_declared_is_soon_looked_at_again_once() -> None:
    """Probe again soon, once, after an output mismatch.

    A new revision is judged by two probes, and old pods leave meanwhile. A pod that has long served
    with the mismatch is probed no more often than others.
    """
    assert await looks_at(90, (0.0, 6.0, 12.0, 95.0, 97.0), "output A is INT64, declared FP32") == [
        0.0,
        6.0,
        97.0,
    ]


async def test_pods_of_the_revision_that_is_kept_are_asked_by_its_own_spec() -> None:
    """Probe pods of the last good spec with that spec's own request.

    The new spec, whose source is missing, names other models and inputs. Its inferences would
    report a good pod as dead.
    """
    store, asked = Store(), list[tuple[str, list[str]]]()

    async def look(target: ProbeTarget, now: dt.datetime) -> Probe:
        asked.append((target.graph.model_name, [entry.name for entry in target.graph.inputs]))
        return Probe(now, ensemble_ready=True, inference_error="")

    document = stored()
    client = TakingClient(document)
    store.put(INFERENCE_PIPELINES, document)
    reconciler = reconciler_of(client, store, prober=look)
    await reconciler.reconcile(KEY)
    pod = client.pod
    source = {"uri": "configmap://weights/model.onnx"}
    change = builders.merge(
        document,
        {"spec": {"model": {"source": source}, "tokenizer": {"inputs": {"text": "QUERY"}}}},
    )
    change = builders.merge(
        change,
        {
            "metadata": {"generation": 2, "resourceVersion": "3"},
            "spec": {"ensemble": {"modelName": "other"}},
        },
    )
    client.document = change
    store.put(INFERENCE_PIPELINES, change)
    store.put(PODS, pod)
    await reconciler.reconcile(KEY)
    ready = next(item for item in client.statuses[-1]["conditions"] if item["type"] == "Ready")
    assert ready["reason"] == "SourceUnavailable"
    assert asked == [("sentiment", ["TEXT"])]


@pytest.mark.parametrize("is_deleted", [False, True], ids=["pod", "pipeline"])
async def test_the_connection_to_a_pod_that_is_gone_is_closed(is_deleted: bool) -> None:
    store, closed = Store(), list[str]()

    async def look(target: ProbeTarget, now: dt.datetime) -> Probe:
        return Probe(now, ensemble_ready=True, inference_error="")

    document = stored()
    client = TakingClient(document)
    store.put(INFERENCE_PIPELINES, document)
    reconciler = reconciler_of(client, store, prober=look)
    reconciler._probes.release = closed.append
    await reconciler.reconcile(KEY)
    store.put(PODS, client.pod)
    await reconciler.reconcile(KEY)
    assert closed == []
    if is_deleted:
        store.remove(INFERENCE_PIPELINES, *KEY)
    else:
        store.remove(PODS, KEY[0], client.pod["metadata"]["name"])
    await reconciler.reconcile(KEY)
    assert closed == [client.pod["metadata"]["uid"]]


@pytest.mark.parametrize("is_deleted", [False, True], ids=["pod", "pipeline"])
async def test_the_connection_to_a_pod_that_is_gone_is_closed_after_its_probe(
    is_deleted: bool,
) -> None:
    store, events, is_closed = Store(), list[str](), asyncio.Event()

    async def look(*_: object) -> Probe:
        try:
            await asyncio.Event().wait()
        finally:
            events.append("probe ended")
        raise AssertionError

    def close(_: str) -> None:
        events.append("connection closed")
        is_closed.set()

    document = stored()
    client = TakingClient(document)
    store.put(INFERENCE_PIPELINES, document)
    reconciler = reconciler_of(client, store, prober=look)
    reconciler._probes.release = close
    await reconciler.reconcile(KEY)
    store.put(PODS, client.pod)
    await reconciler.reconcile(KEY)
    assert events == []
    if is_deleted:
        store.remove(INFERENCE_PIPELINES, *KEY)
    else:
        store.remove(PODS, KEY[0], client.pod["metadata"]["name"])
    await reconciler.reconcile(KEY)
    await is_closed.wait()
    assert events == ["probe ended", "connection closed"]
