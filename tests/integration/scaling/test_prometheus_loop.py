"""The scaling loop with a real Prometheus: it scrapes the pods' Triton, and the operator asks it by a named connection. Whatever becomes of Prometheus, no count falls for it and no request fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.faultproxy import Fault, FaultProxy, plain_upstream
from tests.support.nodepages import NodePages
from tests.support.operators import Running, eventually, make_namespace
from tests.support.prometheus import PrometheusServer
from tests.support.scalingworld import NAME, World, ready, until_condition, until_count, until_verdict, world
from triton_pipelines.cluster.client import Client

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(180)]

TOKENIZING: dict[str, float | str] = {"request": 0.02}  # 50 requests/s of one instance
LOW, HIGH = 10.0, 100.0
GOOD_P99 = 0.3
"""Seconds: ten times what an answer takes without a queue."""
CONNECTION = "cluster"
COUNTERS = r"query\?query=%7B__name__"  # the query for counters, as it stands in a URL
STALE_AFTER = 10
SPEC: dict[str, Any] = {"scaling": {"prometheusRef": CONNECTION, "staleAfterSeconds": STALE_AFTER}}


@dataclass
class Scene:
    """A world whose Prometheus the operator asks through a proxy that injects faults."""

    place: World
    prometheus: PrometheusServer
    proxy: FaultProxy
    pages: NodePages
    running: Running
    counts: list[int] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def nothing_falls(self) -> AsyncIterator[None]:
        """Instances as Triton tells them are looked at all the while."""
        self.counts.clear()

        async def look() -> None:
            while True:
                self.counts.append(await self.place.pod.count())
                await asyncio.sleep(0.1)

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
        assert self.counts == sorted(self.counts), "a count fell"

    async def until_no_metrics(self, reason: str, words: str = "") -> str:
        """Condition MetricsAvailable is False for this reason; its message."""
        message = await until_condition(self.place, "MetricsAvailable", reason, words)
        assert (await self.place.condition("MetricsAvailable"))["status"] == "False"
        return message

    async def until_metrics(self) -> None:
        """Metrics are usable, and those of the connection."""
        await until_condition(self.place, "MetricsAvailable", "Succeeded", f'Prometheus connection "{CONNECTION}"')


@contextlib.asynccontextmanager
async def scene(
    client: Client, proxy: FaultProxy, namespace: str, folder: Path, interval: float, **costs: dict[str, float | str]
) -> AsyncIterator[Scene]:
    """Prometheus scrapes every ``interval`` seconds; the operator runs, the pipeline is not applied yet."""
    folder.mkdir(exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        place = await stack.enter_async_context(world(client, proxy, namespace, folder, **costs))
        pages = stack.enter_context(NodePages(place))
        prometheus = PrometheusServer(pages.targets, discovery=[pages.discovery], interval=interval)
        await asyncio.to_thread(prometheus.__enter__)
        stack.push_async_exit(lambda *about: asyncio.to_thread(prometheus.__exit__, *about))
        faults = await stack.enter_async_context(FaultProxy(plain_upstream(prometheus.url, folder / "upstream")))
        connections = folder / "connections.yaml"
        connections.write_text(json.dumps({"connections": [{"name": CONNECTION, "url": faults.url, "timeoutSeconds": 1}]}))
        running = await stack.enter_async_context(place.operator(metrics_connections=connections))
        yield Scene(place, prometheus, faults, pages, running)


@pytest.mark.proves("spec.scaling.prometheusRef", "behaviour")
@pytest.mark.proves("spec.scaling.staleAfterSeconds", "behaviour")
async def test_counts_follow_the_load_and_never_fall_for_want_of_metrics(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """Up; calm, with every fault of Prometheus in turn; down; Prometheus killed; and back with nothing stored. Scraped every 5 s."""
    async with scene(bare, bare_proxy, bare_namespace, tmp_path, 5.0, tokenizer=TOKENIZING) as here:
        place = here.place
        await place.apply(**SPEC)
        await ready(place)
        first = place.pod.stubs("tokenizer")
        with place.load(HIGH) as load:
            grown = await until_count(place, 3, 6)
            await here.until_metrics()
            await eventually("short answers again", lambda: load.p99(3.0) < GOOD_P99)
            assert first < place.pod.stubs("tokenizer"), "what ran goes on running"

            load.rate = LOW
            async with here.nothing_falls():
                await told_of_faults(here)
            assert max(here.counts) <= grown
            await until_count(place, 1, 1, 45)
            assert load.errors == []

            async with here.nothing_falls():
                here.prometheus.kill()
                message = await here.until_no_metrics("PrometheusError", "502")
                assert "Look: 1. does it run" in message
                assert await place.pod.count() == 1, f"for {STALE_AFTER} s the count holds"
                back = await until_count(place, 3, 6)
                assert back >= grown, "what was enough lately"
                await asyncio.to_thread(here.prometheus.start, empty=True)
                await here.until_metrics()
            assert load.errors == []


async def told_of_faults(here: Scene) -> None:
    """503, no answer, an answer that lacks a model: each is told, and over."""
    here.proxy.inject(Fault(path="query", times=None, status=503))
    await here.until_no_metrics("PrometheusError", "HTTP 503")
    here.proxy.clear()
    here.proxy.inject(Fault(path=COUNTERS, times=None, rewrite=without_model))
    await here.until_no_metrics("MetricsPartial", "no series of model model")
    here.proxy.clear()
    release = asyncio.Event()
    here.proxy.inject(Fault(path="query", times=None, release=release))
    await here.until_no_metrics("PrometheusError", "within 1 s")
    here.proxy.clear()
    release.set()


def without_model(body: bytes) -> bytes:
    """The answer without the series of the model, as relabelling rules may make it."""
    answer = json.loads(body)
    answer["data"]["result"] = [one for one in answer["data"]["result"] if one["metric"].get("model") != "model"]
    return json.dumps(answer).encode()


async def test_verdicts_stand_on_what_the_gpu_and_the_cpu_say(bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path) -> None:
    """Two pipelines side by side: one behind a full GPU, whose own figures agree or do not, and one at the end of its CPU."""
    other = await make_namespace(bare, f"{bare_namespace}-cpu")
    await asyncio.gather(
        behind_a_gpu(bare, bare_proxy, bare_namespace, tmp_path / "gpu"),
        at_the_end_of_its_cpu(bare, bare_proxy, other, tmp_path / "cpu"),
    )


async def behind_a_gpu(client: Client, proxy: FaultProxy, namespace: str, folder: Path) -> None:
    """The model takes 0.1 s for four requests at most: 40 requests/s, where the tokenizer can do 500."""
    async with scene(client, proxy, namespace, folder, 1.0, tokenizer={"request": 0.002}, model={"execution": 0.1}) as here:
        place = here.place
        here.pages.gpu = 0.97
        await place.apply(**SPEC, model={"maxBatchSize": 4})
        await ready(place)
        with place.load(70.0) as load:
            await until_verdict(place, "GPUBound")
            await until_condition(place, "ScalingActive", "Succeeded", "the GPU is used 9")
            here.pages.gpu = 0.05
            await until_condition(place, "ScalingActive", "Succeeded", "its time goes into host code", 60)
            assert load.errors == []
        assert await place.pod.count() == 1
        assert await place.events("Scaled") == []


async def at_the_end_of_its_cpu(client: Client, proxy: FaultProxy, namespace: str, folder: Path) -> None:
    """An instance that computes all the time uses half a core, and the container has hardly more."""
    async with scene(client, proxy, namespace, folder, 1.0, tokenizer={"cpu": 0.01, "request": 0.01}) as here:
        place = here.place
        await place.apply(**SPEC, server={"resources": {"limits": {"cpu": "600m"}}})
        await ready(place)
        with place.load(55.0) as load:
            await until_verdict(place, "CPUBound")
            await until_condition(place, "ScalingActive", "Succeeded", "no room for one more: CPU: limit 0.6 cores")
            assert load.errors == []
        assert await place.pod.count() == 1
        assert await place.events("Scaled") == []
