"""Test a reconcile whose writes admission, quota or RBAC rejects permanently.

The status reports it to the user, and the write is retried.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of, stored
from tests.support.worldchecks import check_status
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Forbidden
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store

WORDS = (
    'services "sentiment" is forbidden: exceeded quota: team, requested: services=1, used: '
    "services=5, limited: services=5"
)


class RefusingClient(AcceptingClient):
    """A fake API server whose quota rejects every Service; it accepts all other writes."""

    async def apply(self, obj: Object, **_: Any) -> Object:
        if obj["kind"] == "Service":
            raise Forbidden(403, "Forbidden", WORDS)
        return obj


async def test_a_child_that_admission_refuses_is_told_of_and_tried_again() -> None:
    client, store = RefusingClient(), Store()
    store.put(INFERENCE_PIPELINES, stored())
    with pytest.raises(Forbidden):  # the queue backs off by it
        await reconciler_of(client, store).reconcile(KEY)
    (status,) = client.statuses
    check_status(status)
    told = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert told["Ready"] == ("False", "APIError")
    assert told["Reconciling"] == ("True", "APIError")
    assert WORDS in status["conditions"][0]["message"]
    assert status["observedGeneration"] == 0
