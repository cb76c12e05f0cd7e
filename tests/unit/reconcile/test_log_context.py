"""Check that concurrent reconciles do not share context variables.

Log lines take the name of their pipeline from these variables.
"""

from __future__ import annotations

import asyncio

import structlog

from triton_pipelines.cluster.work_queue import Key, Result, WorkQueue


async def test_passes_side_by_side_log_under_their_own_names() -> None:
    begun: set[Key] = set()
    both = asyncio.Event()
    found: dict[Key, str] = {}

    async def work(key: Key) -> Result:
        with structlog.contextvars.bound_contextvars(pipeline=key[1]):
            begun.add(key)
            if len(begun) == 2:
                both.set()
            await both.wait()
            found[key] = structlog.contextvars.get_contextvars()["pipeline"]
        if len(found) == 2:
            queue.stop()
        return Result()

    queue = WorkQueue(work, workers=2)
    queue.add(("nlp", "a"))
    queue.add(("nlp", "b"))
    await asyncio.wait_for(queue.run(), 5)
    assert found == {("nlp", "a"): "a", ("nlp", "b"): "b"}
    assert structlog.contextvars.get_contextvars() == {}
