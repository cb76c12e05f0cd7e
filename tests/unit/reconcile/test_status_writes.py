"""Test writing the status.

Covered are fields that other managers add, a status that the API server rejects, and a pipeline
that is deleted meanwhile.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of, stored
from tests.support.worldchecks import check_status
from tests.support.worlds import START, World
from triton_pipelines.api import names
from triton_pipelines.api.conditions import Condition, ConditionType, Reason, merge
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Cause, Invalid, NotFound
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.pipeline import status as statuses
from triton_pipelines.controllers.pipeline.foreign_status import foreign_fields
from triton_pipelines.controllers.pipeline.reconciler import Reconciler
from triton_pipelines.controllers.pipeline.status_writer import TOO_MANY

WORDS = 'InferencePipeline "sentiment" is invalid: status.steps[0].role: Unsupported value: "Model"'


class Server(AcceptingClient):
    """A fake API server that keeps only what it was sent; ``judge`` may reject a status."""

    def __init__(self, judge: Callable[[Object], None] = lambda status: None) -> None:
        super().__init__()
        self.judge = judge
        self.version = 1
        self.now = START

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        self.statuses.append(obj["status"])
        self.judge(obj["status"])
        self.version += 1
        document = stored()
        return {
            **document,
            "status": obj["status"],
            "metadata": {**document["metadata"], "resourceVersion": str(self.version)},
        }


def reconciler(server: Server, store: Store) -> Reconciler:
    """The reconciler on a server and caches of the test's, without pods."""
    store.put(INFERENCE_PIPELINES, stored())
    return reconciler_of(server, store, clock=lambda: server.now)


def full_only(status: Object) -> None:
    """Refuse a status that says anything of steps."""
    check_status(status)
    if "steps" in status:
        raise Invalid(422, "Invalid", WORDS)


async def test_a_rejected_status_is_reported_once_in_conditions_and_an_event() -> None:
    server, store = Server(full_only), Store()
    subject = reconciler(server, store)
    result = await subject.reconcile(KEY)
    assert result.outcome == "stalled"
    assert result.requeue_after
    full, reported = server.statuses
    assert "steps" in full
    conditions = {item["type"]: item for item in reported["conditions"]}
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "APIError")
    assert (conditions["Stalled"]["status"], conditions["Stalled"]["reason"]) == (
        "True",
        "APIError",
    )
    assert WORDS in conditions["Stalled"]["message"]
    (event,) = server.events
    assert (event["type"], event["reason"]) == ("Warning", "APIError")
    assert WORDS in event["note"]
    # A later pass tries the whole status again, and has nothing new to tell of its failure.
    await subject.reconcile(KEY)
    assert len(server.statuses) == 2
    server.now += dt.timedelta(minutes=1)
    await subject.reconcile(KEY)
    assert len(server.statuses) == 3
    assert len(server.events) == 1


async def test_a_server_that_takes_no_status_at_all_still_gets_one_event() -> None:
    def nothing(status: Object) -> None:
        raise Invalid(422, "Invalid", WORDS)

    server, store = Server(nothing), Store()
    subject = reconciler(server, store)
    for _ in range(3):
        assert (await subject.reconcile(KEY)).outcome == "stalled"
        server.now += dt.timedelta(minutes=1)
    assert len(server.events) == 1


async def test_a_pipeline_that_goes_while_its_status_is_written_stays_gone() -> None:
    store = Store()

    def deleted(status: Object) -> None:
        store.remove(
            INFERENCE_PIPELINES, *KEY
        )  # the watch's news come before the answer to the write

    server = Server(deleted)
    await reconciler(server, store).reconcile(KEY)
    assert server.statuses
    assert store.get(INFERENCE_PIPELINES, *KEY) is None


async def test_a_pipeline_that_the_server_does_not_know_is_forgotten() -> None:
    def gone(status: Object) -> None:
        raise NotFound(404, "NotFound", "sentiment")

    server, store = Server(gone), Store()
    subject = reconciler(server, store)
    await subject.reconcile(KEY)
    assert store.get(INFERENCE_PIPELINES, *KEY) is None
    await subject.reconcile(KEY)
    assert len(server.statuses) == 1


# --- what others write ----------------------------------------------------------------------------


def fields(value: Any) -> Any:
    """Return a value's fields in the API server's ownership format (fieldsV1).

    Lists use the merge keys of this status.
    """
    if isinstance(value, dict):
        return {f"f:{key}": owned(key, item) for key, item in value.items()}
    return {}


def owned(key: str, item: Any) -> Any:
    merge = {"conditions": "type", "steps": "name", "sources": "step"}.get(key)
    if merge is None or not isinstance(item, list):
        return fields(item)
    return {f'k:{{"{merge}":"{entry[merge]}"}}': {".": {}, **fields(entry)} for entry in item}


def served() -> Object:
    """A pipeline that is served, as an API server holds it: with who owns what."""
    # A short SLO gives the status warnings.
    document = World().change(slo={"p99Milliseconds": 5}).settle().document
    managed = {
        "manager": names.MANAGER_STATUS,
        "operation": "Apply",
        "subresource": "status",
        "fieldsV1": fields({"status": document["status"]}),
    }
    document["metadata"]["managedFields"] = [managed]
    return dict(document)


def condition(kind: str, **fields: Any) -> Object:
    """Return a condition that another manager wrote."""
    return {
        "type": kind,
        "status": "True",
        "reason": "Forged",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        **fields,
    }


def with_foreign(document: Object, foreign: Object) -> Object:
    """Return the pipeline with further fields and list items in its status."""
    result = copy.deepcopy(document)
    for key, value in foreign.items():
        before = result["status"].get(key)
        result["status"][key] = (
            [*(before or []), *value]
            if isinstance(value, list)
            else {**before, **value}
            if isinstance(before, dict)
            else value
        )
    return result


def test_conditions_of_other_types_lead_to_no_write() -> None:
    document = served()
    foreign = with_foreign(document, {"conditions": [condition("Audited")]})
    assert not statuses.differs(foreign, document["status"])


def remove(document: Any, pointer: str) -> None:
    """Remove what a JSON pointer names, as the API server does."""
    *parents, last = pointer.removeprefix("/").split("/")
    for part in parents:
        document = document[int(part) if isinstance(document, list) else part]
    del document[int(last) if isinstance(document, list) else last]


FORGED = {
    "a condition that the operator does not report": {"conditions": [condition("Stalled")]},
    "so many conditions that the list is full": {
        "conditions": [condition(f"Other{number}") for number in range(16)]
    },
    "steps": {"steps": [{"name": "a"}, {"name": "b"}]},
    "a source": {"sources": [{"step": "other", "uri": "s3://a/b"}]},
    "a field of an object": {"endpoints": {"extra": "http://elsewhere"}},
    "a whole field": {"tuning": {"state": "Running", "request": "never"}},
}


@pytest.mark.parametrize("foreign", FORGED.values(), ids=FORGED)
async def test_what_others_put_into_the_status_is_removed(foreign: Object) -> None:
    document = served()
    ours = copy.deepcopy(document["status"])
    forged = with_foreign(document, foreign)
    assert statuses.differs(forged, ours)
    pointers = foreign_fields(forged["status"], ours)
    for pointer in pointers:
        remove(forged, pointer)
    assert forged["status"] == ours


class Merging(Server):
    """A fake API server on which fields of another manager survive every apply.

    Like a real one, it accepts no more than 16 conditions.
    """

    def __init__(self, foreign: Object) -> None:
        super().__init__()
        self.foreign = foreign
        self.patches: list[list[Object]] = []

    async def apply_status(self, obj: Object, **arguments: Any) -> Object:
        applied = with_foreign(await super().apply_status(obj, **arguments), self.foreign)
        if len(applied["status"]["conditions"]) > 16:
            text = "Too many: 17: must have at most 16 items"
            cause = Cause("status.conditions", text, TOO_MANY)
            raise Invalid(422, "Invalid", f"status.conditions: {text}", causes=(cause,))
        return applied

    async def json_patch(
        self, resource: Resource, namespace: str | None, name: str, operations: Any, **_: Any
    ) -> Object:
        assert operations[0]["op"] == "test"
        self.patches.append(operations)
        self.foreign = {}
        document = stored()
        metadata = {**document["metadata"], "resourceVersion": str(self.version + 1)}
        return {**document, "metadata": metadata, "status": self.statuses[-1]}


def test_outdated_conditions_of_the_operator_take_no_room_from_others() -> None:
    ours = [condition(kind.value) for kind in ConditionType][:6]
    outdated = [condition(kind.value) for kind in ConditionType][len(ours) :]
    foreign = [condition(f"Other{number}") for number in range(16 - len(ours))]
    live = {"conditions": [*ours, *outdated, *foreign]}
    removed = foreign_fields(live, {"conditions": ours})
    assert len(removed) == len(outdated)


class Busy(Merging):
    """Another manager writes before each removal."""

    async def json_patch(self, *_: Any, **__: Any) -> Object:
        raise Invalid(422, "Invalid", "testing value /metadata/resourceVersion failed")


async def test_a_removal_that_comes_too_late_is_no_rejection() -> None:
    foreign = FORGED["so many conditions that the list is full"]
    server, store = Busy(foreign), Store()
    store.put(INFERENCE_PIPELINES, with_foreign({**stored(), "status": {}}, foreign))
    assert (await reconciler_of(server, store).reconcile(KEY)).outcome == "ok"
    assert not [event for event in server.events if "rejects" in str(event)]


@pytest.mark.parametrize("foreign", FORGED.values(), ids=FORGED)
async def test_a_forged_status_does_not_outlive_the_next_write(foreign: Object) -> None:
    server, store = Merging(foreign), Store()
    subject = reconciler_of(server, store)
    store.put(INFERENCE_PIPELINES, with_foreign({**stored(), "status": {}}, foreign))
    assert (await subject.reconcile(KEY)).outcome == "ok"
    assert len(server.patches) == 1
    kept = store.get(INFERENCE_PIPELINES, *KEY)
    assert kept is not None
    assert kept["status"] == server.statuses[-1]


@pytest.mark.parametrize(
    ("reported", "kept"),
    [
        ("2026-01-01T11:00:00Z", True),
        ("2026-01-01T12:00:30Z", True),
        ("9999-12-31T23:59:59Z", False),
        ("0000-01-01T00:00:00Z", False),
        ("never", False),
        ("", False),
    ],
)
def test_a_transition_time_in_the_future_is_corrected(reported: str, kept: bool) -> None:
    now = "2026-01-01T12:00:00Z"
    before = [condition("Ready", lastTransitionTime=reported)]
    (merged,) = merge(before, [Condition(ConditionType.READY, True, Reason.SERVING, "")], 1, now)
    assert merged["lastTransitionTime"] == (reported if kept else now)


def test_what_we_said_and_say_no_longer_is_taken_back() -> None:
    document = served()
    ours = copy.deepcopy(document["status"])
    del ours["warnings"]
    assert statuses.differs(document, ours)


def test_what_others_change_of_ours_is_put_right() -> None:
    document = served()
    ours = copy.deepcopy(document["status"])
    document["status"]["readyReplicas"] = 7
    assert statuses.differs(document, ours)
