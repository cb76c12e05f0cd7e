"""Metrics pages and Prometheus responses of servers that try to exhaust the operator's memory.

The clients run in a process of their own, whose peak memory is measured, against real servers on
loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import Metric

from tests.support.loopback import listening
from tests.support.peakmemory import MIB, peak_growth
from tests.unit.metrics.test_direct_reader import page
from tests.unit.metrics.test_metrics_page import PAGE
from triton_pipelines.autoscaling.metrics import metrics_page
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.latency_reader import latency_of
from triton_pipelines.autoscaling.metrics.metrics_client import (
    AT_ONCE,
    LARGE_AT_ONCE,
    LARGE_BYTES,
    PAGE_BYTES_MAX,
)
from triton_pipelines.autoscaling.metrics.metrics_page import (
    LINE_CHARACTERS_MAX,
    LINES_MAX,
    MetricsPageError,
    metric_families,
    parse_metrics_page,
)
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    PipelineSample,
)

MODELS = frozenset({"tokenizer", "model"})
READ_PODS = """
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.samples import ExpectedPods

async def main(address, pods):
    expected = {f"pod-{number}": address for number in range(int(pods))}
    async with DirectReader() as reader:
        found = await reader.collect({("n", "p"): ExpectedPods("n", expected, {"model"}, 60.0)})
    assert "longer" in str(found) or "compressed" in str(found), found
"""
QUERY = """
import time
from triton_pipelines.autoscaling.metrics.connection import Connection
from triton_pipelines.autoscaling.metrics.prometheus_client import Prometheus
from triton_pipelines.autoscaling.metrics.prometheus_response import PrometheusError

async def main(address):
    client = Prometheus(Connection(name="test", url=f"http://{address}"))
    try:
        client.query("up", time.monotonic() + 30.0)
    except PrometheusError as error:
        assert "compressed" in str(error) or "longer" in str(error), error
    else:
        raise AssertionError("the response is accepted")
"""


def doubly_compressed(size: int) -> bytes:
    """A response of about 1 KB that unpacks to ``size`` bytes."""
    body = gzip.compress(gzip.compress(b"#" * size))
    assert len(body) < size // 10_000
    head = f"Content-Encoding: gzip, gzip\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(answer: bytes, *, repeat: bool = False) -> AsyncIterator[str]:
    """A server that answers every request with these bytes, once or until it is disconnected."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            writer.write(answer)
            await writer.drain()
            while repeat:
                writer.write(b"#" * 65536)
                await writer.drain()
        writer.close()

    async with listening(serve) as address:
        yield address


@pytest.mark.parametrize("code", [(READ_PODS, "1"), (QUERY,)], ids=["page", "Prometheus"])
async def test_compressed_answers_are_refused_before_they_are_unpacked(code: list[str]) -> None:
    async with serving(doubly_compressed(128 * MIB)) as address:
        growth = await asyncio.to_thread(peak_growth, code[0], address, *code[1:])
    assert growth < 24 * MIB


async def test_a_prometheus_answer_without_an_end_takes_a_bounded_part_of_the_memory() -> None:
    """The chart gives the operator 512 MiB."""
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    async with serving(head, repeat=True) as address:
        growth = await asyncio.to_thread(peak_growth, QUERY, address)
    assert growth < 96 * MIB


async def test_all_pods_together_have_a_budget_for_their_pages() -> None:
    """Each of 200 pods sends a page without an end."""
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    async with serving(head, repeat=True) as address:
        growth = await asyncio.to_thread(peak_growth, READ_PODS, address, "200")
    budget = AT_ONCE * LARGE_BYTES + LARGE_AT_ONCE * PAGE_BYTES_MAX
    assert growth < budget + AT_ONCE * MIB, "pages, and buffers of the connections"


async def test_ordinary_pages_do_not_wait_for_large_ones() -> None:
    """Pods that send large pages slowly take all places of such, and no others."""
    large = f"HTTP/1.1 200 OK\r\nContent-Length: {LARGE_BYTES + 2}\r\n\r\n".encode()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(large + b"#" * (LARGE_BYTES + 1))
        await reader.read()
        writer.close()

    async with (
        listening(stall) as stalling,
        serving(page(PAGE)) as ordinary,
        DirectReader(timeout=1.0) as reader,
    ):
        hostile = {f"pod-{number}": stalling for number in range(2 * LARGE_AT_ONCE)}
        found = await reader.collect(
            {
                ("n", "hostile"): ExpectedPods("n", hostile, MODELS, 60.0),
                ("n", "good"): ExpectedPods("n", {"good": ordinary}, MODELS, 60.0),
            }
        )
    assert isinstance(found["n", "good"], PipelineSample)
    assert isinstance(found["n", "hostile"], MetricsFailure)


def test_only_expected_models_are_kept() -> None:
    invented = "".join(
        f'nv_inference_request_success{{model="invented-{number}",version="1"}} 1\n'
        for number in range(LINES_MAX // 2)
    )
    scrape, _ = parse_metrics_page(PAGE + invented, 1.0, MODELS)
    assert set(scrape.models) == MODELS
    # The page is Triton's, without the expected models: the note says so.
    assert parse_metrics_page(invented, 1.0, MODELS)[0].models == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a 1\n" * (LINES_MAX + 1), "lines"),
        ("a{" + 'b="",' * LINE_CHARACTERS_MAX + "} 1\n", "characters"),
    ],
)
def test_pages_that_take_long_to_parse_are_refused(text: str, problem: str) -> None:
    with pytest.raises(MetricsPageError, match=problem):
        list(metric_families(text))


def _largest(line: Callable[[int], str]) -> str:
    lines, size = [], 0
    for number in range(LINES_MAX):
        lines.append(line(number))
        size += len(lines[-1]) + 1
        if size > PAGE_BYTES_MAX:
            return "\n".join(lines[:-1]) + "\n"
    return "\n".join(lines) + "\n"


LARGEST = pytest.mark.parametrize(
    "line",
    [
        lambda number: f"a{number} 1",
        lambda number: f'nv_inference_exec_count{{model="invented-{number}",version="1"}} 1',
        lambda number: "a{" + 'b="",' * ((LINE_CHARACTERS_MAX - 10) // 5) + "} 1",
    ],
    ids=["many metrics", "many models", "many labels"],
)


@LARGEST
def test_the_largest_page_blocks_the_event_loop_briefly(line: Callable[[int], str]) -> None:
    text = _largest(line)
    began = time.process_time()
    with contextlib.suppress(MetricsPageError):
        parse_metrics_page(text, 1.0, MODELS)
    assert time.process_time() - began < 3.0


@LARGEST
def test_few_lines_of_the_largest_page_reach_the_slow_parser(
    line: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take seconds for all of them, during which nothing else runs."""
    parsed: list[int] = []

    def count(text: str) -> list[Metric]:
        parsed.append(len(text))
        return []

    monkeypatch.setattr(metrics_page, "text_string_to_metric_families", count)
    text = _largest(line)
    with contextlib.suppress(MetricsPageError):
        parse_metrics_page(text, 1.0, MODELS)
    latency_of(text, "model")
    assert parsed
    assert max(parsed) <= 16 * 1024
