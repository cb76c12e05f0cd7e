"""Objects of a former pipeline of the same name that are not deleted."""

from __future__ import annotations

import datetime as dt
from typing import Any

from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of, stored
from tests.support.worlds import START
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import CONFIG_MAPS, INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.timestamps import rfc3339


def former_child() -> Object:
    """The live ConfigMap of a former pipeline, which a finalizer may keep forever."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": KEY[1], "uid": "former"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.live_name(KEY[1]),
            "namespace": KEY[0],
            "uid": "live",
            "resourceVersion": "1",
            "labels": names.labels(KEY[1]),
            "ownerReferences": [owner],
            "finalizers": ["example.com/never"],
            "deletionTimestamp": rfc3339(START),
        },
    }


class Server(AcceptingClient):
    """A fake API server whose pipeline has the time of its creation."""

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        self.statuses.append(obj["status"])
        return {**document(str(len(self.statuses) + 1)), "status": obj["status"]}


def document(version: str) -> Object:
    pipeline = stored()
    pipeline["metadata"] |= {"creationTimestamp": rfc3339(START), "resourceVersion": version}
    return pipeline


async def test_former_children_that_never_go_are_waited_for_less_and_less_often() -> None:
    store, client, now = Store(), Server(), START
    store.put(INFERENCE_PIPELINES, document("1"))
    store.put(CONFIG_MAPS, former_child())
    subject = reconciler_of(client, store, clock=lambda: now)
    waits: list[float] = []
    while now < START + dt.timedelta(hours=1):
        result = await subject.reconcile(KEY)
        assert result.outcome == "waiting"
        assert result.requeue_after is not None
        waits.append(result.requeue_after)
        now += dt.timedelta(seconds=result.requeue_after)
    assert waits[:6] == [2, 2, 4, 8, 16, 32]
    assert set(waits[6:]) == {60}
    ready = next(item for item in client.statuses[-1]["conditions"] if item["type"] == "Ready")
    assert names.live_name(KEY[1]) in ready["message"]
