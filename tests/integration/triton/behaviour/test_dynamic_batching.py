"""Dynamic batching: which requests share an execution, and in which order answers leave."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.recorder import Asker, Workbench, until

pytestmark = pytest.mark.integration
# Longer than any test: a request that waits for it waits forever.
NEVER_US = 3_600_000_000


async def test_requests_that_wait_share_a_batch(triton: Workbench, client: Asker) -> None:
    model = await triton.deploy("together", "dynamic_batching { }", max_batch_size=4)
    model.hold(0)
    # Triton counts a request as pending a moment before its queue has it: the last of them has the
    # time of another execution to get there.
    model.hold(1)
    first = client.ask(model, 0)
    await model.until_executing(0)
    others = await client.line_up(model, *range(1, 7))
    model.release(0)
    await model.until_executing(1)
    model.release(1)
    answers = await asyncio.gather(first, *others)
    assert [answer["Y"] for answer in answers] == [[[value + 1]] for value in range(7)]
    assert model.batches() == [[0], [1, 2, 3, 4], [5, 6]]


@pytest.mark.proves("spec.model.dynamicBatching.mode", "behaviour")
async def test_without_dynamic_batching_every_request_runs_alone(
    triton: Workbench, client: Asker
) -> None:
    model = await triton.deploy("alone", max_batch_size=4)
    model.hold(0)
    first = client.ask(model, 0)
    await model.until_executing(0)
    others = await client.line_up(model, 1, 2, 3)
    model.release(0)
    await asyncio.gather(first, *others)
    assert model.batches() == [[0], [1], [2], [3]]


@pytest.mark.proves("spec.model.dynamicBatching.preferredBatchSizes", "behaviour")
async def test_a_preferred_size_ends_the_wait(triton: Workbench, client: Asker) -> None:
    """Three requests wait forever, four run at once, and the fifth waits for three more.

    A batch could hold eight.
    """
    scheduling = (
        f"dynamic_batching {{ preferred_batch_size: [ 4 ] max_queue_delay_microseconds: "
        f"{NEVER_US} }}"
    )
    model = await triton.deploy("preferred", scheduling, max_batch_size=8)
    first = await client.line_up(model, 1, 2, 3)
    assert model.batches() == []
    await asyncio.gather(*first, client.ask(model, 4))
    second = await client.line_up(model, 5, 6, 7)
    assert model.batches() == [[1, 2, 3, 4]]
    await asyncio.gather(*second, client.ask(model, 8))
    assert model.batches() == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.proves("spec.model.dynamicBatching.maxQueueDelayMicroseconds", "behaviour")
async def test_the_delay_waits_for_a_full_batch(triton: Workbench, client: Asker) -> None:
    model = await triton.deploy(
        "full", f"dynamic_batching {{ max_queue_delay_microseconds: {NEVER_US} }}", max_batch_size=3
    )
    waiting = await client.line_up(model, 1, 2)
    assert model.batches() == []
    await asyncio.gather(*waiting, client.ask(model, 3))
    assert model.batches() == [[1, 2, 3]]


@pytest.mark.proves("spec.model.dynamicBatching.maxQueueDelayMicroseconds", "behaviour")
async def test_the_delay_ends(triton: Workbench, client: Asker) -> None:
    delay_s = 0.25
    model = await triton.deploy(
        "delayed", f"dynamic_batching {{ max_queue_delay_microseconds: {int(delay_s * 1e6)} }}"
    )
    sent = time.time()
    await client.ask(model, 1)
    (begin,) = model.events("begin")
    assert begin["at"] - sent >= delay_s
    assert model.batches() == [[1]]


@pytest.mark.proves("spec.model.dynamicBatching.preserveOrdering", "behaviour")
@pytest.mark.parametrize("preserve", [False, True])
async def test_order_of_answers(triton: Workbench, client: Asker, preserve: bool) -> None:
    """Two instances: the second request is done while the first is held."""
    name = f"order_{preserve}".lower()
    scheduling = f"dynamic_batching {{ preserve_ordering: {str(preserve).lower()} }}"
    model = await triton.deploy(
        name, scheduling, max_batch_size=1, instances="count: 2 kind: KIND_CPU"
    )
    done: list[int] = []
    model.hold(1)
    first = client.ask(model, 1)
    await model.until_executing(1)
    second = client.ask(model, 2)
    for number, task in ((1, first), (2, second)):
        task.add_done_callback(lambda _, number=number: done.append(number))
    await until(lambda: len(model.events("end")) == 1, "the second request is computed")
    if not preserve:
        await second
        assert not first.done()
    model.release(1)
    await asyncio.gather(first, second)
    assert done == ([1, 2] if preserve else [2, 1])
