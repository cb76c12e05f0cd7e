"""Thousands of malformed requests among good ones: each fails alone, and the server lives.

The exception is measured, too: a BYTES tensor whose last length field points beyond its data fails
the batch of a custom tokenizer in which it is (docs/user/malformed-requests.md).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import grpc
import httpx
import numpy as np
import pytest

from tests.integration.triton.test_pipeline import check, sentences
from tests.support import pipelines
from tests.support.malformed import BEYOND, EMPTY, GRPC, HTTP, Sender, Target
from tests.support.python_backend import texts
from tests.support.triton import triton_server
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import TritonError
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
COMPANY_US = 5_000
"""The tokenizer waits so long to batch requests."""
MALFORMED, GOOD, AT_ONCE = 2_500, 1_000, 32
GROWTH_MAX_MIB = 64.0
"""Bound on the growth of the server and its processes over a run, after a warm-up."""
SEED = 20_261_123


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    repository = tmp_path_factory.mktemp("repository")
    pipelines.write_pipeline(repository, truncation="Refuse", delay_us=COMPANY_US)
    with triton_server(repository, [pipelines.ENSEMBLE]) as running:
        yield running


def processes(server: LocalTriton) -> list[int]:
    """Return the server's process and the processes of its Python models."""
    assert server._process is not None
    found = [server._process.pid]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def memory_mib(server: LocalTriton) -> float:
    """Return the memory of these processes; what they share counts once."""
    total = 0
    for pid in processes(server):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def short(random: np.random.Generator) -> list[str]:
    rows = sentences(random, int(random.integers(1, 4)))
    return [" ".join(row.split()[:28]) for row in rows]


async def good(client: TritonClient, number: int) -> None:
    rows = short(np.random.default_rng([SEED, number]))
    check(await client.infer(pipelines.ENSEMBLE, {"TEXT": texts(*rows)}), rows)


async def good_over_http(web: httpx.AsyncClient, number: int) -> None:
    rows = short(np.random.default_rng([SEED, number]))
    given = {"name": "TEXT", "datatype": "BYTES", "shape": [len(rows), 1], "data": rows}
    response = await web.post(f"/v2/models/{pipelines.ENSEMBLE}/infer", json={"inputs": [given]})
    assert response.status_code == 200, response.text
    outputs = {item["name"]: item for item in response.json()["outputs"]}
    answer = {
        name: np.array(item["data"], np.float32).reshape(item["shape"])
        for name, item in outputs.items()
        if item["datatype"] != "BYTES"
    }
    labels = np.array([label.encode() for label in outputs["LABEL"]["data"]], np.object_)
    check({**answer, "LABEL": labels.reshape(outputs["LABEL"]["shape"])}, rows)


async def test_malformed_requests_fail_alone(
    server: LocalTriton, record_property: pytest.FixtureRequest
) -> None:
    kinds: dict[str, Sender] = {f"HTTP: {name}": send for name, send in {**HTTP, **EMPTY}.items()}
    kinds |= {f"gRPC: {name}": send for name, send in GRPC.items()}
    sent: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    before = processes(server)
    gate = asyncio.Semaphore(AT_ONCE)
    async with (
        TritonClient(server.grpc_address, deadline_s=30) as client,
        httpx.AsyncClient(base_url=server.http_url, trust_env=False, timeout=30) as web,
        grpc.aio.insecure_channel(server.grpc_address) as channel,
    ):
        target = Target.of(server.http_url, channel)

        async def bad(name: str, number: int) -> None:
            async with gate:
                sent[name] += 1
                if not await kinds[name](target, Random(f"{SEED}/{number}")):
                    answered[name] += 1

        async def fine(number: int) -> None:
            async with gate:
                await (good(client, number) if number % 2 else good_over_http(web, number))

        async def round_of(bad_count: int, good_count: int, number: int) -> None:
            random = Random(f"{SEED}/round/{number}")
            names = [*kinds, *random.choices(sorted(kinds), k=bad_count - len(kinds))]
            work = [bad(name, number * bad_count + place) for place, name in enumerate(names)]
            work += [fine(number * good_count + place) for place in range(good_count)]
            random.shuffle(work)
            await asyncio.gather(*work)

        await round_of(MALFORMED // 5, GOOD // 5, 0)
        used = memory_mib(server)
        for number in range(1, 5):
            await round_of(MALFORMED // 5, GOOD // 5, number)
        growth = memory_mib(server) - used
        await good(client, 0)
        (statistics,) = await client.statistics(pipelines.TOKENIZER)
    assert statistics.inference_count > statistics.execution_count, "no request shared a batch"
    assert processes(server) == before, "a process died"
    empty = {f"HTTP: {name}" for name in EMPTY}
    assert set(answered) <= empty, f"malformed requests were answered: {dict(answered)}"
    assert set(sent) == set(kinds)
    assert sum(sent.values()) == MALFORMED
    assert growth < GROWTH_MAX_MIB
    figures = f"{MALFORMED} malformed of {len(kinds)} kinds, {GOOD} good, {growth:+.1f} MiB"
    record_property("figures", figures)


@pytest.fixture(scope="module", params=["native", "custom", "custom, one request at a time"])
def other_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalTriton, bool]]:
    """A server, and whether a request can fail the others in the batch of its tokenizer."""
    repository = tmp_path_factory.mktemp("other")
    is_custom = request.param != "native"
    pipelines.write_pipeline(repository, truncation="Refuse", delay_us=30_000, is_custom=is_custom)
    if "one request" in request.param:
        config = repository / pipelines.TOKENIZER / "config.pbtxt"
        lines = config.read_text().splitlines(keepends=True)
        config.write_text("".join(line for line in lines if "dynamic_batching" not in line))
    with triton_server(repository, [pipelines.ENSEMBLE]) as running:
        yield running, request.param == "custom"


@pytest.mark.parametrize("kind", BEYOND)
async def test_a_length_field_beyond_the_data_fails_at_most_its_batch(
    other_server: tuple[LocalTriton, bool], kind: str
) -> None:
    server, fails_others = other_server
    before = processes(server)
    lost = 0
    async with (
        TritonClient(server.grpc_address, deadline_s=30) as client,
        grpc.aio.insecure_channel(server.grpc_address) as channel,
    ):
        target = Target.of(server.http_url, channel)
        for number in range(10):
            random = Random(f"{kind}/{number}")
            neighbors = (good(client, 100 * number + place) for place in range(6))
            outcomes = await asyncio.gather(
                BEYOND[kind](target, random), *neighbors, return_exceptions=True
            )
            assert outcomes[0] is True, "the malformed request was answered"
            # An error, never a wrong answer.
            assert all(item is None or isinstance(item, TritonError) for item in outcomes[1:])
            lost += sum(item is not None for item in outcomes[1:])
            # Requests that come later are not affected.
            await asyncio.gather(*(good(client, 1_000 + place) for place in range(6)))
    assert processes(server) == before, "a process died"
    if fails_others:
        assert lost, "Triton checks the length fields: correct docs/user/malformed-requests.md"
    else:
        assert lost == 0
