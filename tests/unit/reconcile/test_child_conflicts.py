"""Another manager undoes each correction of an object of the pipeline."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest

from tests.support.messages import Messages
from tests.support.reconcilers import KEY, VersioningClient, reconciler_of
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Invalid
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, SERVICES, resource_of
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.pipeline.reconciler import Reconciler
from triton_pipelines.controllers.pipeline.status_conflict import UNKNOWN_MANAGER

OTHER = "argocd-controller"


class Server(VersioningClient):
    """It also counts applies of the Service, which another manager edits."""

    applied = 0
    rejects_deployments = False

    async def apply(self, obj: Object, **_: Any) -> Object:
        if obj["kind"] == "Deployment" and self.rejects_deployments:
            raise Invalid(422, "Invalid", "a field of the Deployment is invalid")
        self.applied += (obj["kind"], obj["metadata"]["name"]) == ("Service", KEY[1])
        return self.versioned(obj)

    def edit(self, corrected: str = "2025-01-01T00:00:00Z") -> None:
        """Change the selector of the Service as the other manager.

        ``corrected`` is when the operator last wrote it.
        """
        service = copy.deepcopy(self.store.get(SERVICES, *KEY))
        assert service is not None
        service["spec"]["selector"] = {"forged": "yes"}
        service["metadata"]["managedFields"] = [
            {"manager": manager, "operation": "Apply", "time": time, "fieldsV1": {}}
            for manager, time in (
                (OTHER, "2026-01-01T00:00:00Z"),
                (names.MANAGER_CHILDREN, corrected),
            )
        ]
        self.store.put(resource_of(service), self.versioned(service))

    def delete(self) -> None:
        """Delete the Service."""
        self.store.remove(SERVICES, *KEY)

    def is_corrected(self) -> bool:
        """Return whether the Service is as the operator applies it."""
        service = self.store.get(SERVICES, *KEY)
        return service is not None and "forged" not in service["spec"]["selector"]

    def warnings(self) -> list[str]:
        """Return the messages of the status about objects of the pipeline."""
        found = (self.document.get("status") or {}).get("warnings") or ()
        return [item["message"] for item in found if item["path"] == "metadata.name"]


async def applied() -> tuple[Server, Reconciler]:
    """Return a server with the objects of a pipeline, and the reconciler that applied them."""
    store = Store()
    server = Server(store)
    subject = reconciler_of(server, store, clock=lambda: server.now)
    await subject.reconcile(KEY)
    assert server.applied == 1
    return server, subject


@pytest.mark.parametrize("change", [Server.edit, Server.delete])
async def test_an_object_that_is_changed_after_each_correction_is_corrected_less_often(
    change: Any, messages: Messages
) -> None:
    server, subject = await applied()
    for _ in range(300):  # five minutes
        change(server)
        result = await subject.reconcile(KEY)
        server.now += dt.timedelta(seconds=1)
    assert 10 <= server.applied <= 18
    (message,) = server.warnings()
    messages.check(message)
    assert f"Service {KEY[1]}" in message
    assert names.MANAGER_CHILDREN in message
    assert (OTHER in message) is (change is Server.edit)
    assert result.requeue_after is not None
    assert result.requeue_after <= 30, "the last change is corrected in time"
    server.now += dt.timedelta(seconds=30)
    await subject.reconcile(KEY)
    assert server.is_corrected()
    server.now += dt.timedelta(minutes=11)
    await subject.reconcile(KEY)
    assert server.warnings() == []


async def test_other_objects_and_new_content_are_applied_at_once_during_a_conflict() -> None:
    server, subject = await applied()
    for _ in range(20):
        server.edit()
        await subject.reconcile(KEY)
    count = server.applied
    server.edit()
    server.document["spec"]["server"] = {
        **server.document["spec"].get("server", {}),
        "service": {"annotations": {"new": "yes"}},
    }
    server.document["metadata"] |= {"generation": 2}
    server.store.put(INFERENCE_PIPELINES, server.versioned(server.document))
    await subject.reconcile(KEY)
    assert server.applied == count + 1
    assert server.is_corrected()


async def test_an_object_is_corrected_less_often_while_another_one_is_rejected() -> None:
    store = Store()
    server = Server(store)
    server.rejects_deployments = True
    subject = reconciler_of(server, store, clock=lambda: server.now)
    await subject.reconcile(KEY)
    for _ in range(300):  # five minutes
        server.edit()
        await subject.reconcile(KEY)
        server.now += dt.timedelta(seconds=1)
    assert 10 <= server.applied <= 18


async def test_a_manager_that_wrote_before_the_last_correction_is_not_named() -> None:
    """A manager that removes a field without setting one leaves no trace."""
    server, subject = await applied()
    for _ in range(5):
        server.edit(corrected="2026-01-01T00:00:01Z")
        await subject.reconcile(KEY)
        server.now += dt.timedelta(seconds=1)
    await subject.reconcile(KEY)
    (message,) = server.warnings()
    assert OTHER not in message
    assert UNKNOWN_MANAGER in message


async def test_edits_by_hand_are_corrected_at_once() -> None:
    server, subject = await applied()
    for number in range(5):
        server.edit()
        await subject.reconcile(KEY)
        assert server.is_corrected(), number
        server.now += dt.timedelta(minutes=11)
    assert server.warnings() == []
