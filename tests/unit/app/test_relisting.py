"""Compare lists with the store: one scope that cannot be listed does not affect the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from triton_pipelines.app import relisting
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.app.relisting import Relisting
from triton_pipelines.cluster.errors import Forbidden
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
