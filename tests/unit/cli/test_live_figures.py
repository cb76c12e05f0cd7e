"""Test the figures that a watch reads from the pods through a port-forward."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.portforward import MetricsPage, PortForwarder, counters, pod
from tests.unit.cli.conftest import Run, Serve, response
from tests.unit.cli.test_scaling import pipeline
from tests.unit.cli.test_status import kubeconfig
from triton_pipelines.cli.live_figures import LiveFigures
from triton_pipelines.cli.scaling_view import metrics_of, scaled_steps, scaling_of

PODS = "/api/v1/namespaces/nlp/pods"


class Watched:
    """A pipeline with two pods, and a clock that the test turns."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1_800_000_000.0
        self.api = PortForwarder()
        self.pages = {"a": MetricsPage(), "b": MetricsPage()}

    async def __aenter__(self) -> Watched:
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(self.api)
        for name, page in self.pages.items():
            self.api.pods[name] = (await self._stack.enter_async_context(page)).address
        self.list_pods(pod("a"), pod("b"), pod("starting", ready=False))
        file = kubeconfig(self.folder / "config", self.api.url)
        self.live = await self._stack.enter_async_context(
            LiveFigures(file, None, clock=lambda: self.now)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def list_pods(self, *pods: Mapping[str, Any]) -> None:
        self.api.objects[PODS] = {"metadata": {}, "items": list(pods)}

    async def read(self, **pages: tuple[int, float, int]) -> Mapping[str, Any]:
        """Read after four seconds, with these counters of the tokenizer in each pod."""
        self.now += 4
        for name, values in pages.items():
            self.pages[name].text = counters("tok", *values)
        return await self.live.updated(pipeline())


def test_figures_are_those_of_the_pods(tmp_path: Path) -> None:
    async def run() -> None:
        async with Watched(tmp_path) as watched:
            first = await watched.read(a=(0, 0, 0), b=(100, 5, 0))
            assert first == pipeline()
            assert "until the pods have been read twice" in watched.live.note
            second = await watched.read(a=(400, 9, 8), b=(500, 8, 0))
            step = scaled_steps(second)[0]
            # 800 requests in 4 s; 12 busy seconds of 3 instances in each of 2 pods; in the worst
            # pod, a mean of 4 requests wait while 100 complete in a second.
            assert metrics_of(second, step) == {
                "step": "tokenizer",
                "requestsPerSecond": 202,
                "busyPercent": 50,
                "waitMilliseconds": 40,
            }
            assert scaling_of(second)["figuresTime"] == "2027-01-15T08:00:08Z"
            assert scaling_of(second)["bottleneck"] == "GPUBound"
            assert "read from the pods" in watched.live.note
            assert {("a", "8002"), ("b", "8002")} == set(watched.api.forwarded)
            assert watched.api.tokens == {"Bearer secret"}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("refused", "b: connection refused"),
        ("status", "b: returned HTTP status 503"),
        ("page", "b: the page has no nv_inference_* series"),
        ("none", "0 pods are ready"),
        ("forbidden", "the API server returned status 403 for pods/portforward"),
    ],
)
def test_a_pod_that_cannot_be_read_leaves_the_figures_of_the_status(
    broken: str, reason: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with Watched(tmp_path) as watched:
            await watched.read(a=(0, 0, 0), b=(0, 0, 0))
            if broken == "refused":
                del watched.api.pods["b"]
            elif broken == "status":
                watched.pages["b"].status = 503
            elif broken == "none":
                watched.list_pods(pod("a", ready=False))
            watched.api.forbidden = broken == "forbidden"
            watched.pages["b"].text = "" if broken == "page" else watched.pages["b"].text
            assert await watched.read(a=(400, 1, 0)) == pipeline()
            assert watched.live.note.startswith(
                "the pods cannot be read, so the values are from the status: "
            )
            assert reason in watched.live.note

    asyncio.run(run())


def test_a_watch_shows_the_status_where_pods_cannot_be_read(
    tritonpipe: Run, server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server of this test forwards no ports, as without the right to do so."""
    url = server({"GET": response(pipeline())}).partition("/v2")[0]

    async def end(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("triton_pipelines.cli.status.asyncio.sleep", end)
    file = kubeconfig(tmp_path / "config", url)
    ended = tritonpipe("scaling", "sentiment", "--watch", "-o", "json", "--kubeconfig", file)
    assert ended.code == 0
    assert json.loads(ended.out)["scaling"]["figures"][0]["requestsPerSecond"] == 200
    assert "the values are from the status" in ended.err
