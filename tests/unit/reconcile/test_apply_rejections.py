"""Test a reconcile whose writes admission, quota or RBAC rejects permanently.

The status reports it to the user, and the write is retried.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of, stored
from tests.support.worldchecks import check_status
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Forbidden
from triton_pipelines.cluster.impersonation import PermissionDenied
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


async def test_a_child_that_admission_rejects_is_reported_and_retried() -> None:
    client, store = RefusingClient(), Store()
    store.put(INFERENCE_PIPELINES, stored())
    with pytest.raises(Forbidden):  # the queue backs off by it
        await reconciler_of(client, store).reconcile(KEY)
    (status,) = client.statuses
    check_status(status)
    reported = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert reported["Ready"] == ("False", "APIError")
    assert reported["Reconciling"] == ("True", "APIError")
    assert WORDS in status["conditions"][0]["message"]
    assert status["observedGeneration"] == 0


class DenyingClient(AcceptingClient):
    """A fake API server that grants the account ``writer`` nothing."""

    def acting_as(self, user: str) -> DenyingClient:
        assert user == "system:serviceaccount:nlp:writer"
        return self

    async def apply(self, obj: Object, **_: Any) -> Object:
        raise Forbidden(403, "Forbidden", WORDS)

    async def create(self, obj: Object, **_: Any) -> Object:
        is_review = obj["kind"] == "SelfSubjectAccessReview"
        return {"status": {"allowed": False}} if is_review else await super().create(obj)


async def test_a_missing_permission_is_reported_with_its_remedy(messages: Messages) -> None:
    client, store = DenyingClient(), Store()
    store.put(INFERENCE_PIPELINES, stored())
    options = builders.options(default_account="writer", impersonated_accounts=("writer",))
    reconciler = reconciler_of(client, store, options=options)
    with pytest.raises(PermissionDenied):  # the queue backs off by it
        await reconciler.reconcile(KEY)
    (status,) = client.statuses
    check_status(status)
    reported = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert reported["Ready"] == ("False", "PermissionDenied")
    message = status["conditions"][0]["message"]
    assert message.startswith("ConfigMap sentiment-")
    assert "nlp/writer" in message
    messages.check(message)
