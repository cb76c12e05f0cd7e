"""Test a reconcile whose writes admission, quota or RBAC rejects permanently.

The status reports it to the user, and the write is retried.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.support import builders
from tests.support.worlds import status_validator
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Forbidden, NotFound
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.reconciler import ProbeTarget, Reconciler
from triton_pipelines.controllers.pipeline.snapshot import Probe

WORDS = (
    'services "sentiment" is forbidden: exceeded quota: team, requested: services=1, used: '
    "services=5, limited: services=5"
)


class RefusingClient(Client):
    """A fake API server whose quota rejects every Service; it accepts all other writes."""

    def __init__(self) -> None:
        self.told: list[Object] = []

    async def apply(self, obj: Object, **_: Any) -> Object:
        if obj["kind"] == "Service":
            raise Forbidden(403, "Forbidden", WORDS)
        return obj

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        status_validator().validate(obj["status"])
        self.told.append(obj["status"])
        return obj

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        raise NotFound(404, "NotFound", name)

    async def create(self, obj: Object) -> Object:
        return obj


async def unasked(target: ProbeTarget, now: dt.datetime) -> Probe:
    raise AssertionError("there is no pod to ask")


async def test_a_child_that_admission_refuses_is_told_of_and_tried_again() -> None:
    client, store = RefusingClient(), Store()
    document = builders.document()
    document["metadata"] |= {"generation": 1, "resourceVersion": "1"}
    store.put(INFERENCE_PIPELINES, document)
    clock = lambda: dt.datetime(2030, 1, 1, tzinfo=dt.UTC)  # noqa: E731
    reconciler = Reconciler(
        client,
        store,
        builders.options(),
        lambda uid, revision: "key",
        unasked,
        clock,
        "test",
        Handover(),
    )
    with pytest.raises(Forbidden):  # the queue backs off by it
        await reconciler.reconcile(
            (document["metadata"]["namespace"], document["metadata"]["name"])
        )
    (status,) = client.told
    told = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert told["Ready"] == ("False", "APIError")
    assert told["Reconciling"] == ("True", "APIError")
    assert WORDS in status["conditions"][0]["message"]
    assert status["observedGeneration"] == 0
