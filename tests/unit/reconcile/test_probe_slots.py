"""Slots of probes: each namespace gets a bounded number."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Awaitable, Callable

import pytest

from tests.support.reconcilers import KEY, reconciler_of, stored
from tests.support.worlds import START
from tests.unit.reconcile.test_pod_probes import TakingClient
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph import Graph
from triton_pipelines.compile.graph.example_request import ExampleRequest, example_of
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.probe_slots import (
    LARGE_SLOTS,
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


async def test_few_large_probes_run_at_a_time_and_delay_no_others() -> None:
    slots, started, end = ProbeSlots(), list[str](), asyncio.Event()
    namespaces = [name for name in "abcdef" for _ in range(3)]

    def late(namespace: str) -> Callable[[], Awaitable[Probe]]:
        async def probe() -> Probe:
            started.append(namespace)
            await end.wait()
            return Probe(START, True)

        return probe

    async def answers() -> Probe:
        return Probe(START, True)

    large = [
        asyncio.create_task(slots.run(name, late(name), has_hung=number % 2 == 0, is_large=True))
        for number, name in enumerate(namespaces)
    ]
    try:
        for _ in range(3):
            await asyncio.sleep(0)
        assert started == list("ab")
        assert len(started) == LARGE_SLOTS
        await asyncio.wait_for(slots.run("a", answers, has_hung=False), 5)
        assert started == list("ab")
    finally:
        end.set()
        await asyncio.gather(*large)
    assert sorted(started) == namespaces


async def test_the_example_of_a_probe_that_waits_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built, end = list[ExampleRequest | None](), asyncio.Event()

    def counted(pipeline: InferencePipeline, graph: Graph) -> ExampleRequest | None:
        built.append(example_of(pipeline, graph))
        return built[-1]

    async def probe(target: ProbeTarget, now: dt.datetime) -> Probe:
        assert target.example is built[-1]
        await end.wait()
        return Probe(now, True, inference_error="")

    monkeypatch.setattr("triton_pipelines.controllers.pipeline.pod_probes.example_of", counted)
    document = stored(
        tokenizer=None,
        postprocess=None,
        model={
            "platform": "python",
            "python": {"code": {"inline": "class TritonPythonModel: ..."}},
            "source": None,
            "inputs": [{"name": "X", "dataType": "FP32", "dims": [-1]}],
            "outputs": [{"name": "Y", "dataType": "FP32", "dims": [-1]}],
        },
        health={"inputs": [{"name": "X", "shape": [1, 100_000], "data": ["0"]}]},
    )
    client, store = TakingClient(document), Store()
    store.put(INFERENCE_PIPELINES, document)
    reconciler = reconciler_of(client, store, prober=probe, clock=lambda: START)
    await reconciler.reconcile(KEY)
    for name in ("a", "b", "c"):
        pod = client.pod
        pod["metadata"] |= {"name": name, "uid": name}
        store.put(PODS, pod)
    try:
        assert (await reconciler.reconcile(KEY)).outcome == "probing"
        assert [example is not None for example in built] == [True]
    finally:
        end.set()
    while (await reconciler.reconcile(KEY)).outcome == "probing":  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert len(built) == 3
