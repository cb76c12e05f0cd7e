"""The scaling loop with a real Prometheus.

Prometheus scrapes the pods' Triton, and the operator queries it through a named connection.
Whatever happens to Prometheus, no count falls because of it and no request fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.faultproxy import Fault, FaultProxy, plain_upstream
from tests.support.nodepages import NodePages
from tests.support.operators import Running, eventually, make_namespace
from tests.support.prometheus import PrometheusServer
from tests.support.scalingworld import (
    World,
    ready,
    until_condition,
    until_count,
    until_verdict,
    world,
)
from triton_pipelines.cluster.client import Client
from triton_pipelines.controllers.autoscaler import controller

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

TOKENIZING: dict[str, float | str] = {"request": 0.02}  # 50 requests/s of one instance
LOW, HIGH = 10.0, 100.0
GOOD_P99 = 0.3
"""Seconds: ten times what an answer takes without a queue."""
CONNECTION = "cluster"
COUNTERS = r"query\?query=%7B__name__"  # the query for counters, as it stands in a URL
STALE_AFTER = 10
DEADLINE = 90.0
"""Seconds, for machines that are busy with other things; each of these takes some ten or twenty."""
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
        await until_condition(
            self.place, "MetricsAvailable", "Succeeded", f'Prometheus connection "{CONNECTION}"'
        )


@contextlib.asynccontextmanager
async def scene(
    folder: Path, interval: float, place: World, *beside: World
) -> AsyncIterator[Scene]:
    """Run a Prometheus that scrapes every ``interval`` seconds, and the operator.

    No pipeline is applied yet.
    """
    async with contextlib.AsyncExitStack() as stack:
        pages = stack.enter_context(NodePages(place, *beside))
        prometheus = PrometheusServer(pages.targets, discovery=[pages.discovery], interval=interval)
        await asyncio.to_thread(prometheus.__enter__)
        stack.push_async_exit(lambda *about: asyncio.to_thread(prometheus.__exit__, *about))
        faults = await stack.enter_async_context(
            FaultProxy(plain_upstream(prometheus.url, folder / "upstream"))
        )
        connections = folder / "connections.yaml"
        connections.write_text(
            json.dumps(
                {"connections": [{"name": CONNECTION, "url": faults.url, "timeoutSeconds": 1}]}
            )
        )
        running = await stack.enter_async_context(
            place.operator(*beside, metrics_connections=connections)
        )
        yield Scene(place, prometheus, faults, pages, running)


@pytest.mark.proves("spec.scaling.prometheusRef", "behaviour")
@pytest.mark.proves("spec.scaling.staleAfterSeconds", "behaviour")
async def test_counts_follow_the_load_and_never_fall_for_want_of_metrics(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """Scale up, inject every fault of Prometheus in turn, scale down, kill Prometheus.

    The faults come during calm load. Prometheus then returns with nothing stored. It scrapes every
    5 s.
    """
    async with (
        world(bare, bare_proxy, bare_namespace, tmp_path, tokenizer=TOKENIZING) as place,
        scene(tmp_path, 5.0, place) as here,
    ):
        await place.apply(**SPEC)
        await ready(place)
        first = place.pod.stubs("tokenizer")
        with place.load(HIGH) as load:
            grown = await until_count(place, 3, 6, DEADLINE)
            assert first < place.pod.stubs("tokenizer"), "what ran goes on running"
            await here.until_metrics()
            await eventually("short answers again", lambda: load.p99(3.0) < GOOD_P99)

            load.rate = LOW
            async with here.nothing_falls():
                await report_faults(here)
            # The backlog of the rise may have asked for more until it was worked off; no fault did.
            assert here.counts[-1] <= max(grown, here.counts[0])
            await until_count(place, 1, 1, DEADLINE)
            assert load.errors == []

            async with here.nothing_falls():
                here.prometheus.kill()
                message = await here.until_no_metrics("PrometheusError", "502")
                assert "Check that (1) Prometheus is running" in message
                await until_count(place, 3, 6, DEADLINE)  # what was enough lately
                held = await eventually("its reason", lambda: dark_for(place), DEADLINE)
                assert held >= STALE_AFTER, "until then the count holds"
                await asyncio.to_thread(here.prometheus.start, empty=True)
                await here.until_metrics()
            assert load.errors == []


async def dark_for(place: World) -> int:
    """Return the seconds without metrics after which the last change was made.

    The source is the history. 0 if it does not say.
    """
    history = ((await place.status()).get("scaling") or {}).get("history") or [{"reason": ""}]
    found = re.search(
        "PrometheusError for (\\d+) s: the count was increased to \\d+ \\(RecentMax\\)",
        history[0]["reason"],
    )
    return int(found[1]) if found else 0


async def report_faults(here: Scene) -> None:
    """503, no answer, an answer without one model: each is reported and then resolved."""
    here.proxy.inject(Fault(path="query", times=None, status=503))
    await here.until_no_metrics("PrometheusError", "HTTP 503")
    here.proxy.clear()
    here.proxy.inject(Fault(path=COUNTERS, times=None, rewrite=without_model))
    await here.until_no_metrics("MetricsPartial", "no series for model 'model'")
    here.proxy.clear()
    release = threading.Event()
    here.proxy.inject(Fault(path="query", times=None, release=release))
    await here.until_no_metrics("PrometheusError", "within 1 s")
    here.proxy.clear()
    release.set()


def without_model(body: bytes) -> bytes:
    """The answer without the series of the model, as relabelling rules may make it."""
    answer = json.loads(body)
    answer["data"]["result"] = [
        one for one in answer["data"]["result"] if one["metric"].get("model") != "model"
    ]
    return json.dumps(answer).encode()


async def test_verdicts_stand_on_what_the_gpu_and_the_cpu_say(
    bare: Client,
    bare_proxy: FaultProxy,
    bare_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two pipelines next to each other.

    One is behind a full GPU, whose own figures agree or not. The other is at its CPU limit.
    """
    monkeypatch.setattr(controller, "STATUS_SECONDS", 1.0)
    other = await make_namespace(bare, f"{bare_namespace}-cpu")
    slow: dict[str, float | str] = {
        "execution": 0.1
    }  # for four requests at most: 40 requests/s, where the tokenizer can do 500
    part: dict[str, float | str] = {
        "cpu": 0.003,
        "request": 0.012,
    }  # an instance that is busy all the time uses a fifth of a core
    async with (
        world(
            bare,
            bare_proxy,
            bare_namespace,
            tmp_path / "gpu",
            tokenizer={"request": 0.002},
            model=slow,
        ) as full,
        world(bare, bare_proxy, other, tmp_path / "cpu", tokenizer=part) as capped,
        scene(tmp_path, 1.0, full, capped) as here,
    ):
        here.pages.gpu = 0.97
        await full.apply(**SPEC, model={"maxBatchSize": 4})
        await capped.apply(**SPEC, server={"resources": {"limits": {"cpu": "150m"}}})
        await asyncio.gather(ready(full), ready(capped))
        with full.load(70.0) as requests, capped.load(80.0) as more:
            await asyncio.gather(
                until_verdict(full, "GPUBound", DEADLINE),
                until_verdict(capped, "CPUBound", DEADLINE),
            )
            await until_condition(full, "ScalingActive", "Succeeded", "the GPU is 9", DEADLINE)
            await until_condition(
                capped,
                "ScalingActive",
                "Succeeded",
                "no room for another instance, because only",
                DEADLINE,
            )
            here.pages.gpu = 0.05
            await until_condition(
                full,
                "ScalingActive",
                "Succeeded",
                "the step probably spends its time in CPU code",
                DEADLINE,
            )
            assert requests.errors == more.errors == []
        assert await full.pod.count() == 1
        assert await full.events("Scaled") == []
        # How many fit depends on what this machine gives an instance; none came when none fitted.
        grown = [note for note in await capped.events("Scaled") if grows(note)]
        assert all(": TokenizerBound" in note for note in grown), grown


def grows(note: str) -> bool:
    """Whether an event tells of a growth."""
    before, after = re.findall(r"from (\d+) to (\d+)", note)[0]
    return int(after) > int(before)
