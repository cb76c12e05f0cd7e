"""Writes that the API server rejects for ever, while events make the pipeline due all the time."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import builders
from tests.support.reconcilers import KEY, VersioningClient, reconciler_of
from tests.support.worlds import START
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    Unavailable,
)
from triton_pipelines.cluster.impersonation import PermissionDenied
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.pipeline.owner_references import FormerChild, NameTaken
from triton_pipelines.controllers.pipeline.reconciler import Reconciler
from triton_pipelines.controllers.rejected_writes import WRITES_MAX, RejectedWrites

EVENT_SECONDS = 5
FORBIDDEN = Forbidden(403, "Forbidden", "exceeded quota: team")
INVALID = Invalid(422, "Invalid", "spec.selector: field is immutable")
WEBHOOK = Unavailable(500, "InternalError", "failed calling webhook")
HANG = Unavailable(0, "Timeout", "no response within 30 s")


@dataclass(frozen=True)
class Case:
    """Which requests fail, and how."""

    verb: str
    kind: str
    error: Exception
    requests: int = 1
    """Requests of one attempt."""
    account: str = ""


CASES = {
    "a quota": Case("apply", "Service", FORBIDDEN),
    "an admission policy": Case("apply", "ConfigMap", FORBIDDEN),
    "an invalid object": Case("apply", "Deployment", INVALID),
    "a Secret": Case("apply", "Secret", FORBIDDEN),
    "a webhook that fails": Case("apply", "ConfigMap", WEBHOOK),
    "a webhook that hangs": Case("apply", "Deployment", HANG),
    "a name that is taken": Case("apply", "Service", Conflict(409, "Conflict", ""), requests=2),
    "a lack of permissions": Case("apply", "ConfigMap", FORBIDDEN, requests=5, account="writer"),
    "the deletion of an object": Case("delete", "PodDisruptionBudget", FORBIDDEN),
    "a status": Case("apply", "InferencePipeline", FORBIDDEN),
    "an invalid status": Case("apply", "InferencePipeline", INVALID, requests=2),
}


class Server(VersioningClient):
    """A fake API server that rejects some writes, and counts all requests."""

    def __init__(self, store: Store, case: Case) -> None:
        super().__init__(store)
        self.case: Case | None = case
        self.requests: list[tuple[dt.datetime, str, str]] = []

    def acting_as(self, user: str) -> Server:
        return self

    def judge(self, verb: str, kind: str) -> None:
        """Record a request; raise if it is rejected."""
        self.requests.append((self.now, verb, kind))
        if self.case is not None and (self.case.verb, self.case.kind) == (verb, kind):
            raise self.case.error

    async def apply(self, obj: Object, **_: Any) -> Object:
        self.judge("apply", obj["kind"])
        return self.versioned(obj)

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        self.judge("apply", obj["kind"])
        return self.store_status(obj["status"])

    async def create(self, obj: Object, **_: Any) -> Object:
        self.judge("create", obj["kind"])
        return {"status": {"allowed": False}}

    async def delete(self, resource: Resource, *_: Any, **__: Any) -> bool:
        self.judge("delete", resource.kind)
        return True

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        self.judge("get", resource.kind)
        owner = {"kind": "Other", "apiVersion": "v1", "name": "other", "uid": "other"}
        metadata = {"name": name, "namespace": namespace, "uid": "foreign"}
        return {"metadata": {**metadata, "ownerReferences": [owner]}}

    def edit(self, **spec: Any) -> None:
        """Change the spec, as a user."""
        self.document = {**self.document, "spec": {**self.document["spec"], **spec}}
        metadata = self.document["metadata"]
        self.document["metadata"] = {**metadata, "generation": metadata["generation"] + 1}
        self.touch()

    def touch(self) -> None:
        """Change an annotation of the pipeline, as a user."""
        self.document = self.versioned(self.document)
        self.store.put(INFERENCE_PIPELINES, self.document)

    def attempts(self) -> int:
        """Return how often the write was sent that is rejected."""
        assert self.case is not None
        return self.requests_of(self.case.verb, self.case.kind)

    def requests_of(self, verb: str, kind: str) -> int:
        """Return the number of requests of a verb for a kind."""
        return sum((verb, kind) == found[1:] for found in self.requests)


def rejecting(case: Case) -> tuple[Server, Reconciler]:
    store = Store()
    server = Server(store, case)
    options = builders.options(
        default_account=case.account, impersonated_accounts=(case.account,) if case.account else ()
    )
    subject = reconciler_of(server, store, clock=lambda: server.now, options=options)
    return server, subject


async def reconciled(server: Server, subject: Reconciler) -> None:
    """Reconcile once after an event."""
    server.touch()
    with contextlib.suppress(ClusterError):
        await subject.reconcile(KEY)


async def after_churn(case: Case, minutes: int) -> tuple[Server, Reconciler]:
    """Return the state after an event in every five seconds."""
    server, subject = rejecting(case)
    if case.verb == "delete":
        server.case = None
        server.edit(replicas=2)
        await reconciled(server, subject)
        server.edit(replicas=1)
        server.case = case
    for _ in range(60 * minutes // EVENT_SECONDS):
        await reconciled(server, subject)
        server.now += dt.timedelta(seconds=EVENT_SECONDS)
    return server, subject


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_events_do_not_repeat_a_rejected_write(case: Case) -> None:
    server, _ = await after_churn(case, 15)
    last = [found for found in server.requests if found[0] >= START + dt.timedelta(minutes=10)]
    assert 8 * case.requests <= len(last) <= 10 * case.requests, "twice a minute at most"
    assert server.attempts() <= 40 * case.requests


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_an_edit_of_the_spec_is_tried_at_once(case: Case) -> None:
    server, subject = await after_churn(case, 2)
    await reconciled(server, subject)
    before = server.attempts()
    await reconciled(server, subject)
    assert server.attempts() == before
    server.edit(server={"service": {"annotations": {"new": "yes"}}})
    await reconciled(server, subject)
    assert server.attempts() > before


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_write_is_repeated_soon_after_its_cause_has_gone(case: Case) -> None:
    server, subject = await after_churn(case, 2)
    server.case, before = None, server.requests_of(case.verb, case.kind)
    for _ in range(30 // EVENT_SECONDS + 1):
        await reconciled(server, subject)
        server.now += dt.timedelta(seconds=EVENT_SECONDS)
    assert server.requests_of(case.verb, case.kind) > before


def send(
    context: AbstractContextManager[None], sent: list[str], text: str, error: Exception
) -> None:
    """Send a write that fails, and record that it was sent."""
    with context:
        sent.append(text)
        raise error


def test_other_content_is_written_at_once() -> None:
    writes = RejectedWrites(lambda: START)
    attempt, sent = writes.of(KEY, builders.document()), list[str]()
    for content in ("a", "a", "b", "b", "a"):
        with pytest.raises(Forbidden):
            send(attempt(("apply", "Service", "a"), content), sent, content, FORBIDDEN)
    assert sent == ["a", "b", "a"]


@pytest.mark.parametrize(
    "error",
    [
        FORBIDDEN,
        INVALID,
        WEBHOOK,
        PermissionDenied("the service account is not allowed to create services"),
        NameTaken("Service a exists"),
    ],
)
def test_the_last_error_is_raised_again_without_its_traceback(error: Exception) -> None:
    writes = RejectedWrites(lambda: START)
    attempt, name = writes.of(KEY, builders.document()), ("apply", "Service", "a")
    with pytest.raises(type(error)), attempt(name, ""):
        raise error
    depths = []
    for _ in range(3):
        with pytest.raises(type(error)) as found, attempt(name, ""):
            pytest.fail("it was sent again")
        assert str(found.value) == str(error)
        depths.append(len(found.traceback))
    assert len(set(depths)) == 1


@pytest.mark.parametrize(
    "error",
    [
        Conflict(409, "Conflict", "changed"),
        Unavailable(503, "ServiceUnavailable", "starting"),
        Unavailable(0, "ConnectFailed", "connection refused"),
        NamespaceTerminating(403, "Forbidden", "terminating"),
        FormerChild("Service a"),
    ],
)
def test_what_may_pass_at_any_time_is_not_remembered(error: Exception) -> None:
    writes = RejectedWrites(lambda: START)
    attempt, sent = writes.of(KEY, builders.document()), list[str]()
    name = ("apply", "Service", "a")
    for number in range(3):
        with pytest.raises(type(error)):
            send(attempt(name, ""), sent, str(number), error)
    assert len(sent) == 3


def remembered(writes: RejectedWrites, names: Callable[[int], str], number: int) -> int:
    attempt, sent = writes.of(KEY, builders.document()), list[str]()
    for index in range(number):
        with pytest.raises(Forbidden):
            send(attempt(("apply", "ConfigMap", names(index)), ""), sent, str(index), FORBIDDEN)
    return number - len(sent)


def test_a_bounded_number_of_writes_is_remembered() -> None:
    writes = RejectedWrites(lambda: START)
    count = 3 * WRITES_MAX
    assert remembered(writes, str, count) == 0
    assert remembered(writes, lambda index: str(count - 1 - index), count) == WRITES_MAX
    writes.forget(KEY)
    assert remembered(writes, str, WRITES_MAX) == 0
