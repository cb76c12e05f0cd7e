"""Pods that send HTTP/2 frames without end, which gRPC reads without a limit."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support import http2
from tests.support.certificates import HOST, Authority
from tests.support.http2 import GRPC, Pod, field, frame, headers, serving
from tests.support.loopback import listening
from triton_pipelines.triton import client as client_module
from triton_pipelines.triton.client import RESPONSE_BYTES_MAX, TritonClient
from triton_pipelines.triton.errors import (
    DeadlineError,
    FloodError,
    RejectedError,
    TritonError,
    UnreachableError,
)
from triton_pipelines.triton.limited_relay import (
    OVERHEAD_BYTES,
    READ_BYTES_MIN,
    LimitedRelay,
    _PodEnd,
    limit_with_overhead,
)
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import SMALL_RESPONSE_BYTES
from triton_pipelines.triton.probe_connections import PodEndpoint, ProbeConnections
from triton_pipelines.triton.tls import TlsIdentity, accepted_identity

SECONDS = 20.0
REQUEST = ProbeRequest({"X": np.zeros((1, 1), np.float32)})
LIMIT = limit_with_overhead(SMALL_RESPONSE_BYTES)
FLOODS = {
    "priority": frame(http2.PRIORITY, bytes(4) + b"\1", stream=1),
    "window": frame(http2.WINDOW_UPDATE, bytes(3) + b"\1"),
    "unknown": frame(0x77),
    "ping": frame(http2.PING, bytes(8)),
    "settings": frame(http2.SETTINGS),
    "reset": http2.reset(99, 0),
}
AUTHORITY = Authority(dt.datetime.now(dt.UTC))


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of everything that was forwarded to gRPC."""
    sizes: list[int] = []
    count = LimitedRelay.count

    def counted(relay: LimitedRelay, size: int) -> bool:
        is_forwarded = count(relay, size)
        sizes.append(size if is_forwarded else 0)
        return is_forwarded

    monkeypatch.setattr(LimitedRelay, "count", counted)
    return sizes


async def flood(writer: asyncio.StreamWriter, frames: bytes) -> None:
    """Send frames until the client disconnects."""
    block = frames * (64 * 1024 // len(frames))
    while True:
        writer.write(block)
        await writer.drain()
        await asyncio.sleep(0)


@asynccontextmanager
async def flooding(kind: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Pod]:
    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        await flood(writer, FLOODS[kind])

    async with serving(answer, tls=tls) as pod:
        yield pod


def tls_of(directory: Path, host: str = HOST) -> ssl.SSLContext:
    """Return what a server with a new certificate of the authority needs."""
    for name, content in AUTHORITY.secret(host).items():
        (directory / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    context.set_alpn_protocols(["h2"])
    return context


async def relay_ends(client: TritonClient) -> tuple[asyncio.Transport, asyncio.Transport]:
    """The relay's connections to the pod and from gRPC, once there are both."""
    async with asyncio.timeout(SECONDS):
        while True:
            for pod in client._relay._ends if client._relay is not None else ():
                grpc = pod.other
                if isinstance(pod, _PodEnd) and grpc and pod.transport and grpc.transport:
                    return pod.transport, grpc.transport
            await asyncio.sleep(0)


async def is_closed(pod: Pod) -> None:
    async with asyncio.timeout(SECONDS):
        await pod.is_closed.wait()


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_ends_the_probe_and_little_of_it_is_read(
    kind: str, received: list[int]
) -> None:
    connections = ProbeConnections()
    async with flooding(kind) as pod:
        endpoint = PodEndpoint("nlp", pod.address, "m", "key")
        found = await connections.probe("uid", endpoint, REQUEST, SECONDS)
        assert f"the pod sent more than {LIMIT // 1024} KiB in response to one call" in str(
            found.error
        )
        await is_closed(pod)
        assert pod.connections == 1
    assert sum(received) <= LIMIT
    assert len(connections) == 0


async def test_a_flood_over_tls_ends_the_probe(tmp_path: Path, received: list[int]) -> None:
    identity = TlsIdentity(AUTHORITY.certificate, HOST)
    connections = ProbeConnections()
    async with flooding("priority", tls_of(tmp_path)) as pod:
        endpoint = PodEndpoint("nlp", pod.address, "m", "key", identity)
        found = await connections.probe("uid", endpoint, REQUEST, SECONDS)
        assert "the pod sent more than" in str(found.error)
        await is_closed(pod)
    assert sum(received) <= LIMIT


async def test_a_flood_ends_the_choice_of_an_identity(tmp_path: Path, received: list[int]) -> None:
    """A pod that accepts the identity, and does not say so."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await flood(writer, FLOODS["priority"])

    identity = TlsIdentity(AUTHORITY.certificate, HOST)
    tls = TlsIdentity(AUTHORITY.certificate, HOST, alternatives=(identity,))
    async with listening(serve, tls_of(tmp_path)) as address:
        assert await accepted_identity(address, tls, SECONDS) is tls
    assert 0 < sum(received) <= 2 * OVERHEAD_BYTES


async def test_a_server_that_ends_a_connection_after_its_calls_gets_further_calls() -> None:
    """A server does so at the maximum age of connections, also while a call never ends."""

    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        if pod.calls == 1:
            writer.write(http2.goaway(stream))
        else:
            writer.write(headers(stream, GRPC, field("grpc-status", b"5")))

    async with serving(answer) as pod, TritonClient(pod.address) as client:
        with pytest.raises(DeadlineError):
            await client.statistics("m", 1.0)
        with pytest.raises(RejectedError, match="NOT_FOUND"):
            await client.statistics("m", SECONDS)
        assert pod.connections == 2


async def test_connections_without_end_are_a_flood(received: list[int]) -> None:
    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        writer.write(http2.goaway())

    async with serving(answer) as pod, TritonClient(pod.address) as client:
        with pytest.raises(TritonError):
            await client.repository_index(SECONDS)
        relay = client._relay
        assert relay is not None
        relay.renew()
        name = relay.target.removeprefix("unix-abstract:")
        async with asyncio.timeout(SECONDS):
            while not relay.is_exceeded:
                reader, writer = await asyncio.open_unix_connection("\0" + name)
                writer.write(b"x")
                await asyncio.wait({asyncio.ensure_future(reader.read(1))})
                writer.close()
    assert sum(received) <= limit_with_overhead(RESPONSE_BYTES_MAX)


async def test_a_flood_between_calls_closes_the_connection(received: list[int]) -> None:
    is_answered = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        writer.write(headers(stream, GRPC, field("grpc-status", b"5")))
        await is_answered.wait()
        await flood(writer, FLOODS["priority"])

    async with serving(answer) as pod, TritonClient(pod.address, max_response_bytes=1) as client:
        with pytest.raises(RejectedError, match="NOT_FOUND"):
            await client.repository_index()
        is_answered.set()
        await is_closed(pod)
    assert 0 < sum(received) <= limit_with_overhead(1)


async def test_a_pod_that_sends_first_is_limited_too(received: list[int]) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(http2.SETTINGS))
        await flood(writer, FLOODS["unknown"])

    async with listening(serve) as address, TritonClient(address, deadline_s=SECONDS) as client:
        with pytest.raises(FloodError):
            await client.repository_index()
    assert sum(received) <= limit_with_overhead(RESPONSE_BYTES_MAX)


async def test_each_call_may_receive_as_much(received: list[int]) -> None:
    """Together, the calls receive more than one may."""
    message = b"x" * 7_000

    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        fields = (GRPC, field("grpc-status", b"2"), field("grpc-message", message))
        writer.write(headers(stream, *fields))

    async with serving(answer) as pod, TritonClient(pod.address, max_response_bytes=1) as client:
        while sum(received) <= 2 * limit_with_overhead(1):
            with pytest.raises(TritonError, match="xxx"):
                await client.repository_index()
        assert pod.connections == 1


async def test_a_request_that_is_not_read_does_not_fill_the_relay() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        largest_windows = struct.pack(">HI", 4, 2**31 - 1), struct.pack(">I", 2**31 - 2**16)
        writer.write(frame(http2.SETTINGS, largest_windows[0]))
        writer.write(frame(http2.WINDOW_UPDATE, largest_windows[1]))
        await asyncio.Event().wait()

    rows = {"X": np.zeros((64, 1024, 256), np.float32)}  # 64 MiB
    async with listening(serve) as address:
        async with TritonClient(address, deadline_s=SECONDS) as client:
            call = asyncio.create_task(client.infer("m", rows))
            ends = await relay_ends(client)
            async with asyncio.timeout(SECONDS):
                while ends[1].is_reading():
                    assert ends[0].get_write_buffer_size() < 1024**2
                    await asyncio.sleep(0)
            assert ends[0].get_write_buffer_size() > 0
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        # The connection does not wait until the pod reads.
        async with asyncio.timeout(SECONDS):
            while True:
                if not ends[0].get_write_buffer_size():
                    break
                await asyncio.sleep(0)


async def test_a_deadline_holds_though_the_pod_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "_DEADLINE_GRACE_S", 0.1)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(http2.SETTINGS, struct.pack(">HI", 4, 2**31 - 1)))
        writer.write(frame(http2.WINDOW_UPDATE, struct.pack(">I", 2**31 - 2**16)))
        await asyncio.Event().wait()

    rows = {"X": np.zeros((64, 1024, 256), np.float32)}  # 64 MiB
    async with (
        listening(serve) as address,
        TritonClient(address) as client,
        asyncio.timeout(SECONDS),
    ):
        with pytest.raises(DeadlineError):
            await client.infer("m", rows, deadline_s=1.0)


async def test_many_small_reads_count_as_larger_ones() -> None:
    """Each read takes about as long as forwarding some KiB."""
    relay = LimitedRelay("pod:1", 10 * READ_BYTES_MIN)
    assert [relay.count(1) for _ in range(11)] == [True] * 10 + [False]
    assert relay.received == 11 * READ_BYTES_MIN


async def test_a_connect_that_is_canceled_anywhere_leaves_nothing_behind() -> None:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(serve) as address:
        for iterations in range(100):
            relay = LimitedRelay(address, 1024)
            connecting = asyncio.ensure_future(relay.connect())
            for _ in range(iterations):
                await asyncio.sleep(0)
            if connecting.done():
                break
            connecting.cancel()
            await asyncio.wait({connecting})
            await relay.connect()
            await relay.close()
        assert connecting.done()
        await connecting
        await relay.close()
        assert iterations > 1


async def test_an_error_names_the_pod_and_not_the_relay() -> None:
    """The relay's name differs from probe to probe, and would make each error a new one."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listening(serve) as address, TritonClient(address) as client:
        with pytest.raises(UnreachableError) as caught:
            await client.repository_index()
        assert f"last error: UNAVAILABLE: {address}: " in str(caught.value)


async def test_what_a_pod_sends_before_grpc_connects_is_forwarded() -> None:
    """Servers send their settings at once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"early ")
        await reader.readexactly(1)
        writer.write(b"late")
        writer.close()

    async with listening(serve) as address:
        relay = LimitedRelay(address, 10 * READ_BYTES_MIN)
        await relay.connect()
        async with asyncio.timeout(SECONDS):
            while True:
                if relay.received:
                    break
                await asyncio.sleep(0)
            name = relay.target.removeprefix("unix-abstract:")
            reader, writer = await asyncio.open_unix_connection("\0" + name)
            writer.write(b"x")
            assert await reader.read() == b"early late"
        writer.close()
        await relay.close()


async def test_a_client_is_closed_once_its_connections_are() -> None:
    """Connections that close later would outlive the event loop when the operator ends."""

    async def answer(writer: asyncio.StreamWriter, stream: int) -> None:
        writer.write(headers(stream, GRPC, field("grpc-status", b"5")))

    async with serving(answer) as pod:
        async with TritonClient(pod.address) as client:
            with pytest.raises(RejectedError, match="NOT_FOUND"):
                await client.repository_index()
            relay = client._relay
            assert relay is not None
            assert len(relay._ends) == 2
        assert not relay._ends


async def test_only_this_process_reaches_the_pod() -> None:
    is_reached = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        is_reached.set()

    async with listening(serve) as address:
        relay = LimitedRelay(address, 1024)
        await relay.connect()
        name = relay.target.removeprefix("unix-abstract:")
        code = (
            "import socket; own = socket.socket(socket.AF_UNIX); own.connect('\\0' + "
            f"{name!r}); own.settimeout({SECONDS}); assert not own.recv(1)"
        )
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        assert await asyncio.wait_for(other.wait(), SECONDS) == 0
        assert not is_reached.is_set()
        _, writer = await asyncio.open_unix_connection("\0" + name)
        writer.write(b"x")
        await asyncio.wait_for(is_reached.wait(), SECONDS)
        writer.close()
        await relay.close()


async def test_a_pod_that_does_not_listen_cannot_be_reached() -> None:
    async with listening(lambda *_: asyncio.sleep(0)) as address:
        pass
    async with TritonClient(address) as client:
        with pytest.raises(UnreachableError, match=r"cannot be reached \(Connection refused\)"):
            await client.repository_index()
