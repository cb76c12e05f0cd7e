"""Pods that answer as slowly as they may: the pods of other namespaces do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.support import builders
from tests.support.loopback import listening
from tests.support.operators import eventually
from tests.unit.metrics.test_direct_reader import page, pages
from tests.unit.metrics.test_metrics_page import PAGE
from triton_pipelines.api.parse import parse
from triton_pipelines.autoscaling.metrics import metrics_client
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.metrics_client import (
    AT_ONCE,
    AT_ONCE_PER_NAMESPACE,
    SLOW_AT_ONCE,
    MetricsClient,
)
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    PipelineSample,
)
from triton_pipelines.cluster.store import Key
from triton_pipelines.compile.graph import build
from triton_pipelines.controllers.autoscaler.pipeline_state import (
    PipelineScalingState,
    PodCounts,
    server_start_id,
)
from triton_pipelines.controllers.autoscaler.pod_counts import (
    COUNTS_AT_ONCE,
    POD_SECONDS,
    RECOUNT_SECONDS,
    count_calls,
    count_slots,
    due_queries,
)
from triton_pipelines.controllers.pipeline.snapshot import Pod
from triton_pipelines.pod_calls import NamespaceSlots, PendingCalls, PodSlots

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


async def test_slow_pods_of_many_namespaces_delay_no_fast_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, client = Stalling(), MetricsClient(timeout=30.0)
    namespaces = 2 * AT_ONCE // AT_ONCE_PER_NAMESPACE
    async with server.listening() as stalling, pages(page(PAGE)) as good:
        server.may_answer.set()
        with monkeypatch.context() as patch:
            patch.setattr(metrics_client, "SLOW_SECONDS", 0.0)
            await client.page(stalling, "hostile")
        server.may_answer.clear()
        slow = [
            asyncio.create_task(client.page(stalling, f"hostile-{number % namespaces}"))
            for number in range(2 * AT_ONCE)
        ]
        await eventually("slow pods are read", lambda: server.asked == 1 + SLOW_AT_ONCE)
        assert await client.page(good, "other")
        assert not any(task.done() for task in slow)
        assert server.asked == 1 + SLOW_AT_ONCE
        server.may_answer.set()
        await asyncio.wait(slow)
        await client.page(stalling, "hostile")
        assert not client._slow, "it is fast again"
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


KEY = ("nlp", "sentiment")
RANGE = {"initial": 1, "min": 1, "max": 2}


class Control:
    """Reports one instance of each model, immediately or later."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def count(self, model: str) -> int:
        self.is_asked.set()
        await asyncio.sleep(self.seconds)
        await self.may_answer.wait()
        return 1


def pod(name: str) -> Pod:
    return Pod.of({"metadata": {"name": name, "uid": name}})


def scaled(*pods: str, namespace: str = KEY[0], **spec: Any) -> PipelineScalingState:
    """Return the state of a pipeline with these pods."""
    own = builders.merge({"tokenizer": {"instances": RANGE}}, spec)
    pipeline, findings = parse(builders.document(namespace=namespace, **own))
    assert pipeline is not None, findings
    state = PipelineScalingState(pipeline, build(pipeline, builders.options()), 0.0)
    state.pods = tuple(map(pod, pods))
    return state


async def query(
    states: Mapping[Key, PipelineScalingState],
    controls: Mapping[str, Control],
    calls: PendingCalls[tuple[Key, str], None],
    slots: PodSlots,
    now: float = 0.0,
) -> None:
    """Query the counts of pods as a tick does."""

    def control(_: PipelineScalingState, pod: Pod) -> Control:
        return controls[pod.name]

    queries = due_queries(states, control, now, slots)  # type: ignore[arg-type]
    results = await calls.results(queries)
    assert set(results.values()) <= {None}


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
            "instances": RANGE,
        }
        for number in range(8)
    ]
    outputs = [{"name": f"y{number}", "from": f"step-{number}.y"} for number in range(8)]
    state = scaled("a", steps=steps, ensemble={"outputs": outputs})
    assert len(state.steps) >= 8
    calls = PendingCalls[tuple[Key, str], None](2 * POD_SECONDS)
    await query({KEY: state}, {"a": Control(1.9)}, calls, count_slots())
    assert asyncio.get_running_loop().time() == pytest.approx(POD_SECONDS)
    assert state.pod_counts == {}
    assert set(state.unanswered) == {"a"}


@pytest.mark.looptime(start=0)
async def test_a_pod_that_hangs_does_not_delay_the_counts_of_another() -> None:
    state, calls, slots = scaled("a", "b"), count_calls(), count_slots()
    controls = {"a": Control(), "b": Control(POD_SECONDS / 2)}
    await query({KEY: state}, controls, calls, slots)
    assert set(state.pod_counts) == {"a"}
    state.pods += (pod("new"),)
    controls["new"] = Control()
    await query({KEY: state}, controls, calls, slots)
    assert "new" in state.pod_counts
    await query({KEY: state}, controls, calls, slots)
    assert set(state.pod_counts) == {"a", "b", "new"}


async def test_a_late_response_does_not_replace_a_count_that_was_changed_since() -> None:
    state, calls, control = scaled("a"), count_calls(), Control()
    (step,) = (step.name for step in state.steps)
    state.pod_counts["a"] = PodCounts(0.0, server_start_id(state.pods[0]), {step: 1})
    control.may_answer.clear()
    calls.patience = 0.01
    now = RECOUNT_SECONDS
    await query({KEY: state}, {"a": control}, calls, count_slots(), now)
    assert control.is_asked.is_set()
    state.set_count("a", step, 2)
    control.may_answer.set()
    calls.patience = 10.0
    await query({KEY: state}, {"a": control}, calls, count_slots(), now)
    assert state.counts() == {step: {"a": 2}}


async def test_counts_are_queried_after_the_clock_was_set_back() -> None:
    known, silent = scaled("a"), scaled("b")
    (step,) = (step.name for step in known.steps)
    start = server_start_id(known.pods[0])
    known.pod_counts["a"] = PodCounts(3600.0, start, {step: 7})
    silent.unanswered["b"] = (server_start_id(silent.pods[0]), 3600.0)
    for state in (known, silent):
        name = state.pods[0].name
        await query({KEY: state}, {name: Control()}, count_calls(), count_slots(), now=10.0)
        assert state.counts() == {step: {name: 1}}


@pytest.mark.looptime(start=0)
async def test_pods_that_never_report_counts_delay_no_other() -> None:
    slow = {
        (name, "p"): scaled(*(f"{name}-{index}" for index in range(64)), namespace=name)
        for name in (f"hostile-{number}" for number in range(8))
    }
    pods = [pod.name for state in slow.values() for pod in state.pods]
    assert len(pods) > 2 * COUNTS_AT_ONCE
    controls = {name: Control(3600.0) for name in pods} | {"good": Control()}
    calls, slots, now = count_calls(), count_slots(), 0.0
    while calls._tasks or not now:
        await query(slow, controls, calls, slots)
        now += 2.0
    assert all(
        state.unanswered.keys() == {pod.uid for pod in state.pods} for state in slow.values()
    )
    other = scaled("good")
    await query({**slow, KEY: other}, controls, calls, slots, now=3600.0)
    assert "good" in other.pod_counts
    calls.cancel()


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
