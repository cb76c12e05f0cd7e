"""Metrics pages of pods that answer with more than a page, in every way that HTTP permits."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from tests.support.loopback import Handler, listening
from tests.unit.metrics.test_direct_reader import page, pages
from tests.unit.metrics.test_metrics_page import PAGE
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.metrics_client import PAGE_BYTES_MAX, MetricsClient
from triton_pipelines.autoscaling.metrics.metrics_page import MetricsPageError
from triton_pipelines.autoscaling.metrics.samples import ExpectedPods, MetricsFailure

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
KEPT = OK + b"Content-Length: 5\r\n\r\na 1\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n" * 2000
ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "interim responses": (b"", INTERIM),
    "empty responses": (b"", EMPTY),
    "blank lines": (b"", b"\r\n" * 20_000),
    "headers": (OK, b"A: b\r\n" * 10_000),
    "one header": (OK + b"A: ", b"b" * 65536),
    "status line": (b"HTTP/1.1 200 ", b"b" * 65536),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"A: b\r\n" * 10_000),
    "extension of a chunk": (CHUNKED + b"1;", b"b" * 65536),
    "size of a chunk": (CHUNKED, b"0" * 65536),
    "chunks of one byte": (CHUNKED, b"1\r\na\r\n" * 10_000),
    "another protocol": (
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"b" * 65536,
    ),
}


def endless(start: bytes, block: bytes) -> Handler:
    """A server that does not stop answering until it is disconnected."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        while True:
            writer.write(block)
            await writer.drain()
            await asyncio.sleep(0)

    return serve


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes and messages that aiohttp has parsed."""
    found: Counter[str] = Counter()
    feed, receive = ResponseHandler.feed_data, ResponseHandler.data_received

    def count_message(handler: ResponseHandler, *arguments: Any) -> None:
        found["messages"] += 1
        feed(handler, *arguments)

    def count_bytes(handler: ResponseHandler, data: bytes) -> None:
        found["bytes"] += len(data)
        receive(handler, data)

    monkeypatch.setattr(ResponseHandler, "feed_data", count_message)
    monkeypatch.setattr(ResponseHandler, "data_received", count_bytes)
    return found


@pytest.mark.parametrize("case", ENDLESS)
async def test_little_of_an_endless_answer_is_parsed(case: str, parsed: Counter[str]) -> None:
    client = MetricsClient(timeout=1.0)
    async with listening(endless(*ENDLESS[case])) as hostile, pages(page(PAGE)) as good:
        reading = asyncio.create_task(client.page(hostile, "hostile"))
        assert await client.page(good, "other") == PAGE
        with pytest.raises((TimeoutError, aiohttp.ClientError, MetricsPageError)):
            await reading
        await client.close()
    # The client repeats a request once if its connection breaks.
    assert parsed["bytes"] < 4 * PAGE_BYTES_MAX
    assert parsed["messages"] < 2 * 16 * 1024 / 20


@pytest.mark.parametrize("block", [INTERIM, EMPTY, b"b" * 65536], ids=["interim", "empty", "junk"])
async def test_an_idle_connection_does_not_read_on(block: bytes, parsed: Counter[str]) -> None:
    """The page is read every few seconds; in between, the connection stays open."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(KEPT)
        await writer.drain()
        await may_flood.wait()
        try:
            while True:
                writer.write(block)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            ended.set()

    may_flood = asyncio.Event()
    client = MetricsClient(timeout=30.0)
    async with listening(serve) as address:
        assert await client.page(address, "hostile") == "a 1\r\n"
        may_flood.set()
        await ended.wait()
        await client.close()
    assert parsed["bytes"] < PAGE_BYTES_MAX
    assert parsed["messages"] < 16 * 1024 / 20


async def test_what_a_pod_sent_is_not_kept_in_a_message() -> None:
    """The client's error contains the headers of a response that ended early."""
    headers = b"".join(b"A%d: %s\r\n" % (number, b"b" * 8000) for number in range(100))
    async with pages(OK + headers) as hostile, DirectReader() as reader:
        pods = ExpectedPods("hostile", {"a": hostile}, frozenset({"model"}), 60.0)
        found = (await reader.collect({("hostile", "p"): pods}))["hostile", "p"]
    assert isinstance(found, MetricsFailure)
    assert "ServerDisconnectedError" in found.message
    assert len(found.message) < 1000
