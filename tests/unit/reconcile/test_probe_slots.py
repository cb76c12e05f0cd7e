"""Slots of probes: each namespace gets a bounded number."""

from __future__ import annotations

import asyncio
import contextlib

from tests.support.worlds import START
from triton_pipelines.controllers.pipeline.probe_slots import (
    SLOTS,
    SLOTS_PER_NAMESPACE,
    ProbeSlots,
)
from triton_pipelines.controllers.pipeline.snapshot import Probe


async def test_probes_of_one_namespace_leave_slots_to_others() -> None:
    slots, started, end = ProbeSlots(), list[str](), asyncio.Event()

    async def answers_late() -> Probe:
        started.append("a")
        await end.wait()
        return Probe(START, True)

    async def answers() -> Probe:
        return Probe(START, True)

    late = [asyncio.create_task(slots.run("a", answers_late, has_hung=False)) for _ in range(SLOTS)]
    try:
        # Every task runs until it waits for a slot or for its answer.
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(started) == SLOTS_PER_NAMESPACE
        other = asyncio.create_task(slots.run("b", answers, has_hung=False))
        while not other.done() and len(started) == SLOTS_PER_NAMESPACE:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert other.done()
    finally:
        end.set()
        await asyncio.gather(*late)


async def test_a_canceled_run_ends_after_its_probe() -> None:
    started, has_ended = asyncio.Event(), False

    async def probe() -> Probe:
        nonlocal has_ended
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            has_ended = True
        raise AssertionError

    run = asyncio.create_task(ProbeSlots().run("a", probe, has_hung=False))
    await started.wait()
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    assert run.cancelled()
    assert has_ended
