"""A reconcile in a terminating namespace ends quietly, without an error event or a retry."""

from __future__ import annotations

from typing import Any

import structlog

from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of, stored
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import NamespaceTerminating
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store

TERMINATING = NamespaceTerminating(403, "Forbidden", "namespace nlp is being terminated")
MESSAGE = "namespace is terminating; nothing is applied"


class TerminatingClient(AcceptingClient):
    """A fake API server whose namespace is terminating."""

    def __init__(self) -> None:
        super().__init__()
        self.terminating = True
        self.applied: list[str] = []

    async def apply(self, obj: Object, **_: Any) -> Object:
        if self.terminating:
            raise TERMINATING
        self.applied.append(obj["kind"])
        return obj


async def test_nothing_is_retried_or_reported_and_a_later_reconcile_starts_again() -> None:
    client, store = TerminatingClient(), Store()
    store.put(INFERENCE_PIPELINES, stored())
    reconciler = reconciler_of(client, store)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            result = await reconciler.reconcile(KEY)
            assert (result.outcome, result.requeue_after) == ("terminating", None)
    assert [entry["log_level"] for entry in logs if entry["event"] == MESSAGE] == ["info"]
    assert (client.statuses, client.events) == ([], [])
    client.terminating = False
    assert (await reconciler.reconcile(KEY)).outcome == "ok"
    assert "Deployment" in client.applied
