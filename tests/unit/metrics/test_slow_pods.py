"""Pods that answer as slowly as they may: the pods of other namespaces do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.support import builders
from tests.support.loopback import listening
from tests.unit.metrics.test_direct_reader import page, pages
from tests.unit.metrics.test_metrics_page import PAGE
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.metrics_client import AT_ONCE, MetricsClient
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    PipelineSample,
)
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState
from triton_pipelines.controllers.autoscaler.pod_counts import (
    POD_SECONDS,
    count_slots,
    query_counts,
)
from triton_pipelines.controllers.pipeline.snapshot import Pod
from triton_pipelines.pod_calls import NamespaceSlots, PendingCalls

MODELS = frozenset({"tokenizer", "model"})
HOSTILE, OTHER = ("hostile", "p"), ("other", "p")


class Stalling:
    """A server that sends its page only once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        self.is_asked.set()
        await self.may_answer.wait()
        writer.write(page(PAGE))
        await writer.drain()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with listening(self.serve) as address:
            yield address


async def test_pages_of_one_namespace_leave_slots_to_others() -> None:
    server, client = Stalling(), MetricsClient(timeout=30.0)
    async with server.listening() as stalling, pages(page(PAGE)) as good:
        slow = [asyncio.create_task(client.page(stalling, "hostile")) for _ in range(2 * AT_ONCE)]
        await server.is_asked.wait()
        assert await client.page(good, "other")
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
        await client.close()


async def test_a_slow_page_delays_no_other_and_counts_once_it_is_read() -> None:
    server = Stalling()
    async with (
        server.listening() as stalling,
        pages(page(PAGE)) as good,
        DirectReader(timeout=30.0) as reader,
    ):
        reader._reads.patience = 0.1
        wanted = {
            HOSTILE: ExpectedPods("hostile", {"a": stalling}, MODELS, 60.0),
            OTHER: ExpectedPods("other", {"b": good}, MODELS, 60.0),
        }
        for _ in range(3):
            found = await reader.collect(wanted)
            assert isinstance(found[HOSTILE], MetricsFailure)
            sample = found[OTHER]
            assert isinstance(sample, PipelineSample)
        assert server.asked == 1, "it is not asked again meanwhile"
        assert len(sample.pods["b"].scrapes) == 3
        server.may_answer.set()
        reader._reads.patience = 10.0
        assert isinstance((await reader.collect(wanted))[HOSTILE], PipelineSample)
        assert server.asked == 1


class LateControl:
    """A pod that reports each count just in time."""

    async def count(self, model: str) -> int:
        await asyncio.sleep(1.9)
        return 1


@pytest.mark.looptime(start=0)
async def test_the_counts_of_all_steps_of_a_pod_have_one_time_limit() -> None:
    python = {"code": {"inline": "class TritonPythonModel:\n    pass\n"}}
    tensor = {"dataType": "FP32", "dims": [1]}
    steps = [
        {
            "name": f"step-{number}",
            "platform": "python",
            "python": python,
            "inputs": [{"name": "x", "from": "model.logits", "dataType": "FP32", "dims": [2]}],
            "outputs": [{"name": "y", **tensor}],
            "instances": {"initial": 1, "min": 1, "max": 2},
        }
        for number in range(8)
    ]
    outputs = [{"name": f"y{number}", "from": f"step-{number}.y"} for number in range(8)]
    made = builders.built(steps=steps, ensemble={"outputs": outputs})
    state = PipelineScalingState(made.pipeline, made.graph, 0.0)
    assert len(state.steps) >= 8
    state.pods = (Pod.of({"metadata": {"name": "a", "uid": "a"}}),)
    await query_counts(state, lambda _: LateControl(), 0.0, count_slots())  # type: ignore[arg-type,return-value]
    assert asyncio.get_running_loop().time() == pytest.approx(POD_SECONDS)
    assert state.pod_counts == {}
    assert set(state.unanswered) == {"a"}


@pytest.mark.looptime(start=0)
async def test_calls_that_take_long_go_on_next_to_later_ones() -> None:
    calls = PendingCalls[str, str](patience=1.0)
    started: list[str] = []

    async def call(name: str, seconds: float) -> str:
        started.append(name)
        await asyncio.sleep(seconds)
        return name

    slow, fast = partial(call, "slow", 2.5), partial(call, "fast", 0.1)

    async def failing() -> str:
        raise ValueError("a bug")

    found = await calls.results({"slow": slow, "fast": fast, "failing": failing})
    assert found.pop("fast") == "fast"
    assert isinstance(found.pop("failing"), ValueError)
    assert found == {}
    assert await calls.results({"slow": slow, "fast": fast}) == {"fast": "fast"}
    assert await calls.results({"slow": slow}) == {"slow": "slow"}
    assert started == ["slow", "fast", "fast"]
    assert asyncio.get_running_loop().time() == pytest.approx(2.5)
    assert await calls.results({"slow": slow}) == {}
    assert await calls.results({}) == {}
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1, "a call that is not wanted any more is canceled"


async def test_a_namespace_may_not_hold_all_slots() -> None:
    slots = NamespaceSlots(total=3, per_namespace=2)
    async with slots.hold("hostile"), slots.hold("hostile"):
        waiting = asyncio.create_task(slots.hold("hostile").__aenter__())
        await asyncio.sleep(0)
        async with slots.hold("other"):
            assert not waiting.done()
        waiting.cancel()
