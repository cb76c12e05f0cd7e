"""The native tokenizer reports its busy time and CPU time on Triton's metrics page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.triton.test_native_tokenizer import IDS, Steps
from tests.support import pipelines, tinymodel
from tests.support.operators import eventually
from tests.support.python_backend import texts
from triton_pipelines.autoscaling.metrics.metrics_page import parse_metrics_page
from triton_pipelines.autoscaling.metrics.samples import ModelCounters
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
WORDS = "the quick fox " * 2_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    with pipelines.native_tokenizer_server(tmp_path_factory.mktemp("repository")) as running:
        yield running


def counters(server: LocalTriton, model: str) -> ModelCounters:
    page = httpx.get(server.metrics_url).text
    scrape, _ = parse_metrics_page(page, time.time())
    return scrape.models[model]


async def counted(server: LocalTriton, model: str, before: float = 0.0) -> ModelCounters:
    """Return the counters once they have more CPU time than ``before``, in microseconds.

    A response is sent before its execution ends.
    """
    await eventually("CPU time", lambda: counters(server, model).cpu_us > before)
    return counters(server, model)


async def test_a_batch_counts_once_and_cpu_time_is_part_of_it(server: LocalTriton) -> None:
    steps = Steps(server, tinymodel.tokenizer(), IDS, {"max_length": "12"}, delay_us=20_000)
    async with TritonClient(server.grpc_address, deadline_s=30) as client:
        assert await steps.load(client) is None
        before = counters(server, steps.name)
        assert (before.busy_us, before.cpu_us) == (0.0, 0.0)
        inputs = {"TEXT": texts(WORDS)}
        await asyncio.gather(*(client.infer(steps.name, inputs) for _ in range(8)))
        found = await counted(server, steps.name)
    assert found.success > found.execs, "nothing was batched"
    assert 0 < found.cpu_us <= found.busy_us * 1.05
    compute_us = found.compute_input_us + found.compute_infer_us + found.compute_output_us
    assert found.busy_us < compute_us, "Triton adds the time once for each request"


async def test_counters_of_another_model_survive_an_unload(server: LocalTriton) -> None:
    kept, gone = (Steps(server, tinymodel.tokenizer(), IDS, {"max_length": "12"}) for _ in range(2))
    async with TritonClient(server.grpc_address, deadline_s=30) as client:
        for steps in (kept, gone):
            assert await steps.load(client) is None
            await client.infer(steps.name, {"TEXT": texts("the fox")})
            await counted(server, steps.name)
        address = f"{server.http_url}/v2/repository/models/{gone.name}/unload"
        async with httpx.AsyncClient() as http:
            (await http.post(address)).raise_for_status()
        before = counters(server, kept.name)
        await client.infer(kept.name, {"TEXT": texts("the fox")})
        await counted(server, kept.name, before.cpu_us)
        assert await gone.load(client) is None
        await client.infer(gone.name, {"TEXT": texts("the fox")})
        await counted(server, gone.name)
