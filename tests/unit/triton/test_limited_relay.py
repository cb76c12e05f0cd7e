"""The relay with pods that keep to the protocol, and clients that are closed during a call."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support import http2
from tests.support.http2 import GRPC, field, frame, headers
from tests.support.loopback import listening
from triton_pipelines.triton.client import UNLIMITED_BYTES, TritonClient
from triton_pipelines.triton.errors import FloodError, RejectedError, UnreachableError
from triton_pipelines.triton.limited_relay import LimitedRelay, limit_with_overhead
from triton_pipelines.triton.probe import SMALL_RESPONSE_BYTES

SECONDS = 20.0
DATA = 0
_PREFACE_BYTES = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


async def serve_frame_by_frame(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reject calls, and extend both windows after each frame of a request, as some proxies do."""
    writer.write(frame(http2.SETTINGS))
    await reader.readexactly(_PREFACE_BYTES)
    while True:
        head = await reader.readexactly(9)
        size = int.from_bytes(head[:3])
        await reader.readexactly(size)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        if kind == http2.SETTINGS and not flags & http2.ACK:
            writer.write(frame(http2.SETTINGS, flags=http2.ACK))
        elif kind == DATA and flags & http2.END_STREAM:
            writer.write(headers(stream, GRPC, field("grpc-status", b"5")))
        elif kind == DATA:
            for window in (0, stream):
                writer.write(frame(http2.WINDOW_UPDATE, struct.pack(">I", size), stream=window))
                # The relay reads each frame by itself, as over a slow network.
                await asyncio.sleep(0)
                await asyncio.sleep(0)


async def test_a_large_request_to_a_server_that_reads_it_in_small_parts_is_no_flood() -> None:
    rows = {"X": np.zeros((8, 1024, 256), np.float32)}  # 8 MiB
    limit = limit_with_overhead(SMALL_RESPONSE_BYTES)
    async with (
        listening(serve_frame_by_frame) as address,
        TritonClient(address, max_response_bytes=SMALL_RESPONSE_BYTES) as client,
    ):
        with pytest.raises(RejectedError, match="NOT_FOUND"):
            await client.infer("m", rows, deadline_s=SECONDS)
        assert client.received_bytes > limit


async def test_a_large_request_permits_no_flood_during_the_next_call() -> None:
    rows = {"X": np.zeros((8, 1024, 256), np.float32)}  # 8 MiB
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(serve_frame_by_frame(reader, writer))
        await is_over.wait()
        serving.cancel()
        while True:
            writer.write(frame(0x77) * 1000)
            await writer.drain()
            await asyncio.sleep(0)

    async with (
        listening(serve) as address,
        TritonClient(address, max_response_bytes=SMALL_RESPONSE_BYTES) as client,
    ):
        with pytest.raises(RejectedError, match="NOT_FOUND"):
            await client.infer("m", rows, deadline_s=SECONDS)
        before = client.received_bytes
        call = asyncio.create_task(client.repository_index(SECONDS))
        await asyncio.sleep(0)
        is_over.set()
        with pytest.raises(FloodError):
            await call
        assert client.received_bytes - before <= limit_with_overhead(SMALL_RESPONSE_BYTES) + 2**18


@pytest.fixture
def silent_pod() -> Iterator[str]:
    """A pod that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


async def test_a_client_that_is_closed_while_it_connects_ends_its_call(silent_pod: str) -> None:
    """Then gRPC must not use the closed channel."""
    for iterations in range(100):
        client = TritonClient(silent_pod)
        call = asyncio.create_task(client.repository_index(SECONDS))
        for _ in range(iterations):
            await asyncio.sleep(0)
        relay = client._relay
        assert relay is not None
        is_connected = relay._unused is not None
        if is_connected:
            await is_accepted(relay)
        await client.close()
        with pytest.raises(UnreachableError, match="the connection was closed"):
            await call
        await is_closed(relay)
        if is_connected:
            break
    assert iterations > 1


async def is_accepted(relay: LimitedRelay) -> None:
    """Wait until gRPC has connected to the relay."""
    async with asyncio.timeout(SECONDS):
        while True:
            if len(relay._ends) == 2:
                break
            await asyncio.sleep(0)


async def is_closed(relay: LimitedRelay) -> None:
    assert relay._listener is None
    if relay._ends:
        await asyncio.wait_for(relay._is_idle.wait(), SECONDS)
    assert not relay._ends


@pytest.mark.parametrize("bytes_max", [SMALL_RESPONSE_BYTES, UNLIMITED_BYTES])
async def test_a_closed_client_calls_no_more(bytes_max: int) -> None:
    """With an unlimited size of responses, there is no relay that refuses the call."""
    client = TritonClient("127.0.0.1:1", max_response_bytes=bytes_max)
    await client.close()
    with pytest.raises(UnreachableError, match="the connection was closed"):
        await client.repository_index()


async def test_a_relay_that_is_closed_while_it_connects_keeps_no_connection(
    silent_pod: str,
) -> None:
    for iterations in range(100):
        relay = LimitedRelay(silent_pod, 1024)
        connecting = asyncio.create_task(relay.connect())
        for _ in range(iterations):
            await asyncio.sleep(0)
        is_connected = connecting.done()
        await relay.close()
        await asyncio.wait({connecting})
        await is_closed(relay)
        if is_connected:
            break
        assert isinstance(connecting.exception(), ConnectionAbortedError)
    assert iterations > 1
