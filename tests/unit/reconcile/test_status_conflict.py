"""Another controller overwrites the status again after each correction."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest

from tests.support.reconcilers import KEY, VersioningClient, reconciler_of
from tests.support.worlds import START, World
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.pipeline.field_managers import AlternatingManagers
from triton_pipelines.controllers.pipeline.reconciler import Reconciler
from triton_pipelines.controllers.pipeline.status_conflict import UNKNOWN_MANAGER, WrittenStatus
from triton_pipelines.controllers.pipeline.status_writer import STATUS_CONFLICT

OTHER = "argocd-controller"


class Server(VersioningClient):
    """Another manager also writes its status."""

    def overwrite(self, **fields: Any) -> None:
        """Write fields of the status as the other manager."""
        status = {**copy.deepcopy(self.document["status"]), **fields}
        self.store.put(INFERENCE_PIPELINES, self.store_status(status))

    def change_spec(self) -> None:
        """Change the spec of the pipeline."""
        generation = self.document["metadata"]["generation"] + 1
        self.document["metadata"] |= {"generation": generation}
        self.store_status(self.document["status"])
        self.store.put(INFERENCE_PIPELINES, self.document)


OVERWRITES: dict[str, Object] = {
    "a stripped condition": {"conditions": []},
    "another value": {"replicas": 7},
}


async def observed() -> tuple[Server, Reconciler]:
    """Return a server with a status, and the reconciler that wrote it."""
    store = Store()
    server = Server(store)
    subject = reconciler_of(server, store, clock=lambda: server.now)
    await subject.reconcile(KEY)
    return server, subject


@pytest.mark.parametrize("fields", OVERWRITES.values(), ids=OVERWRITES)
async def test_a_status_that_is_overwritten_all_the_time_is_corrected_less_often(
    fields: Object,
) -> None:
    server, subject = await observed()
    assert len(server.statuses) == 1
    for _ in range(300):  # five minutes
        server.overwrite(**fields)
        result = await subject.reconcile(KEY)
        server.now += dt.timedelta(seconds=1)
    assert 10 <= len(server.statuses) <= 18
    conflicts = [event for event in server.events if event["reason"] == STATUS_CONFLICT]
    assert len(conflicts) == 1, "it is reported once"
    assert names.MANAGER_STATUS in conflicts[0]["note"]
    assert result.requeue_after is not None
    assert result.requeue_after <= 30, "the last overwrite is corrected in time"
    server.now += dt.timedelta(seconds=30)
    written = len(server.statuses)
    await subject.reconcile(KEY)
    assert len(server.statuses) == written + 1
    assert server.document["status"] == server.statuses[-1]


async def test_news_are_written_at_once_during_a_conflict() -> None:
    server, subject = await observed()
    for _ in range(20):
        server.overwrite(replicas=7)
        await subject.reconcile(KEY)
    written = len(server.statuses)
    server.overwrite(replicas=8)
    server.change_spec()
    await subject.reconcile(KEY)
    assert len(server.statuses) == written + 1


async def test_edits_by_hand_are_corrected_at_once() -> None:
    server, subject = await observed()
    for number in range(5):
        server.overwrite(replicas=7)
        await subject.reconcile(KEY)
        assert len(server.statuses) == 2 + number
        server.now += dt.timedelta(minutes=11)
    assert not [event for event in server.events if event["reason"] == STATUS_CONFLICT]


def test_the_manager_is_named() -> None:
    def entry(manager: str, second: int, subresource: str = "status") -> Object:
        time = f"2026-01-01T00:00:{second:02d}Z"
        return {"manager": manager, "subresource": subresource, "time": time}

    fields = [
        entry("first", 1),
        entry(names.MANAGER_STATUS, 2),
        entry("kubectl", 4, ""),
        {"subresource": "status"},
        entry(OTHER, 2),
    ]
    after = WrittenStatus().with_correction({"metadata": {"managedFields": fields}}, START)
    assert after.managers.managers == tuple(sorted((OTHER, names.MANAGER_STATUS)))
    for others in ([], fields[:-1]):
        unknown = WrittenStatus().with_correction({"metadata": {"managedFields": others}}, START)
        assert UNKNOWN_MANAGER in unknown.managers.managers


def test_the_delay_doubles_and_is_bounded() -> None:
    managers, delays = AlternatingManagers(), []
    for _ in range(8):
        managers = managers.with_manager(OTHER, START).with_manager("ours", START)
        delays.append(managers.correction_due_in(START))
    assert delays == [None, 1.0, 4.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert managers.correction_due_in(START + dt.timedelta(seconds=30)) is None
    assert managers.correction_due_in(START + dt.timedelta(minutes=20)) is None


@pytest.mark.parametrize("request_", [None, "forged"])
def test_a_tuning_run_that_never_was_is_not_believed(request_: str | None) -> None:
    """Neither is its result shown, nor does a requested run count as done."""
    tuning = {} if request_ is None else {"tuning": {"request": request_}}
    world = World().change(slo={"p99Milliseconds": 900}, **tuning).settle()
    world.document["status"]["tuning"] = {
        "request": "forged",
        "state": "Succeeded",
        "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "9999-12-31T23:59:59Z",
        "message": "advice of an attacker",
    }
    world.step()
    assert "attacker" not in str(world.status)
    assert world.status.get("tuning", {}).get("state") != "Succeeded"
