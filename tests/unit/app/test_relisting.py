"""Compare lists with the store: one scope that cannot be listed does not affect the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from triton_pipelines.app import relisting
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.app.relisting import Relisting
from triton_pipelines.cluster.errors import Forbidden
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS, Resource
from triton_pipelines.cluster.store import Key, Store
from triton_pipelines.cluster.watches import WATCHED


async def test_a_namespace_that_cannot_be_listed_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed: list[str] = []
    is_complete = asyncio.Event()

    async def relist(*_: Any, namespace: str, **__: Any) -> set[Key]:
        listed.append(namespace)
        if len(listed) == len(WATCHED) * len(scopes):
            is_complete.set()
        if namespace == "b":
            raise Forbidden(403, "Forbidden", "its RoleBinding is gone")
        return {(namespace, "p")}

    monkeypatch.setattr(relisting, "relist", relist)
    due: set[Key] = set()
    scopes = ("a", "b", "c")
    client: Any = None
    enqueue: Callable[[Key], None] = due.add
    subject = Relisting(client, Store(), scopes, 0.01, OperatorMetrics(), enqueue)
    running = asyncio.create_task(subject.run())
    await asyncio.wait_for(is_complete.wait(), 5)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert due == {("a", "p"), ("c", "p")}
    assert set(listed) == set(scopes)


async def test_a_scope_that_is_not_listed_has_no_pipelines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pipelines of a new leader are not reconciled with outdated objects."""
    is_permitted = False

    async def relist(_: Any, store: Store, resource: Resource, **__: Any) -> set[Key]:
        if resource == PODS and not is_permitted:
            raise Forbidden(403, "Forbidden", "its RoleBinding is gone")
        if resource == INFERENCE_PIPELINES:
            store.put(resource, pipeline)
            return {("a", "p")}
        return set()

    monkeypatch.setattr(relisting, "relist", relist)
    pipeline = {"metadata": {"namespace": "a", "name": "p", "uid": "1", "resourceVersion": "1"}}
    store, due, client = Store(), set[Key](), cast(Any, None)
    store.put(INFERENCE_PIPELINES, pipeline)
    subject = Relisting(client, store, ("a",), 0.01, OperatorMetrics(), due.add)
    with pytest.raises(Forbidden):
        await subject.restart("a")
    assert list(store.pipelines()) == []
    await subject._compare("a")
    assert list(store.pipelines()) == []
    is_permitted = True
    await subject._compare("a")
    assert due == set(store.pipelines()) == {("a", "p")}
    is_permitted = False
    await subject._compare("a")
    assert list(store.pipelines()) == [("a", "p")], "later, the watches keep it up to date"
