"""A reconcile in a terminating namespace ends quietly, without an error event or a retry."""

from __future__ import annotations

import datetime as dt
from typing import Any

import structlog

from tests.support import builders
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NamespaceTerminating, NotFound
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.reconciler import ProbeTarget, Reconciler
from triton_pipelines.controllers.pipeline.snapshot import Probe

TERMINATING = NamespaceTerminating(403, "Forbidden", "namespace nlp is being terminated")
MESSAGE = "namespace is terminating; nothing is applied"


class TerminatingClient(Client):
    """Stands in for an API server whose namespace is terminating."""

    def __init__(self) -> None:
        self.terminating = True
        self.applied: list[str] = []
        self.statuses: list[Object] = []
        self.events: list[Object] = []

    async def apply(self, obj: Object, **_: Any) -> Object:
        if self.terminating:
            raise TERMINATING
        self.applied.append(obj["kind"])
        return obj

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        self.statuses.append(obj["status"])
        return obj

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        raise NotFound(404, "NotFound", name)

    async def create(self, obj: Object) -> Object:
        self.events.append(obj)
        return obj


async def no_probe(target: ProbeTarget, now: dt.datetime) -> Probe:
    raise AssertionError("there is no pod")


async def test_nothing_is_retried_or_reported_and_a_later_reconcile_starts_again() -> None:
    client, store = TerminatingClient(), Store()
    document = builders.document()
    document["metadata"] |= {"generation": 1, "resourceVersion": "1"}
    store.put(INFERENCE_PIPELINES, document)
    key = (document["metadata"]["namespace"], document["metadata"]["name"])
    reconciler = Reconciler(
        client,
        store,
        builders.options(),
        lambda uid, revision: "key",
        no_probe,
        lambda: dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
        "test",
        Handover(),
    )
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            result = await reconciler.reconcile(key)
            assert (result.outcome, result.requeue_after) == ("terminating", None)
    assert [entry["log_level"] for entry in logs if entry["event"] == MESSAGE] == ["info"]
    assert (client.statuses, client.events) == ([], [])
    client.terminating = False
    assert (await reconciler.reconcile(key)).outcome == "ok"
    assert "Deployment" in client.applied
