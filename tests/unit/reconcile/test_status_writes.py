"""Test writing the status.

Covered are fields that other managers add, a status that the API server rejects, and a pipeline
that is deleted meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of, stored
from tests.support.worldchecks import check_status
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import Invalid, NotFound
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.pipeline import status as statuses
from triton_pipelines.controllers.pipeline.reconciler import Reconciler

WORDS = 'InferencePipeline "sentiment" is invalid: status.steps[0].role: Unsupported value: "Model"'


class Server(AcceptingClient):
    """A fake API server that keeps only what it was sent; ``judge`` may reject a status."""

    def __init__(self, judge: Callable[[Object], None] = lambda status: None) -> None:
        super().__init__()
        self.judge = judge
        self.version = 1

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
    return reconciler_of(server, store)


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
    # The next pass tries the whole status again, and has nothing new to tell of its failure.
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


@pytest.mark.parametrize(
    "foreign",
    [
        {"lastSeenBy": "a script"},
        {
            "conditions": [
                {
                    "type": "Audited",
                    "status": "True",
                    "reason": "Fine",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
        },
        {"steps": [{"name": "more", "modelName": "more", "role": "Step"}]},
    ],
)
def test_what_others_put_into_the_status_leads_to_no_write(foreign: dict[str, Any]) -> None:
    document = served()
    ours = copy.deepcopy(document["status"])
    for key, value in foreign.items():
        document["status"][key] = (
            [*document["status"].get(key, []), *value] if isinstance(value, list) else value
        )
    assert not statuses.differs(document, ours)


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
