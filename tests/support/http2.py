"""A server that speaks raw HTTP/2 on loopback, to answer gRPC calls as no library would."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from dataclasses import field as member

from tests.support.loopback import listening

HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY = 0x1, 0x2, 0x3, 0x4, 0x6, 0x7
WINDOW_UPDATE, CONTINUATION = 0x8, 0x9
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
FRAME_BYTES = 16 * 1024
"""Size of the largest frame that a client accepts by default."""
_PREFACE_BYTES = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

Answer = Callable[[asyncio.StreamWriter, int], Awaitable[None]]
"""Answers the call on a stream."""


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def goaway(last: int = 0) -> bytes:
    return frame(GOAWAY, struct.pack(">II", last, 0))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, struct.pack(">I", code), stream=stream)


def field(name: str, value: bytes) -> bytes:
    """A header field of a block, as a literal without indexing."""
    return b"\0" + _text(name.encode()) + _text(value)


def headers(stream: int, *fields: bytes) -> bytes:
    """The only headers of an answer, in as many frames as they need."""
    block = b"\x88" + b"".join(fields)  # :status 200
    parts = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
    frames = [
        frame(
            CONTINUATION if number else HEADERS,
            part,
            flags=(0 if number else END_STREAM) | (END_HEADERS if part is parts[-1] else 0),
            stream=stream,
        )
        for number, part in enumerate(parts)
    ]
    return b"".join(frames)


def _text(value: bytes) -> bytes:
    size = len(value)
    if size < 0x7F:
        return bytes([size]) + value
    prefix, size = bytearray([0x7F]), size - 0x7F
    while size >= 0x80:
        prefix.append(size % 0x80 | 0x80)
        size //= 0x80
    return bytes([*prefix, size]) + value


GRPC = field("content-type", b"application/grpc")
"""The header of every answer to a gRPC call."""


@dataclass
class Pod:
    """A server that answers every call alike."""

    address: str
    connections: int = 0
    calls: int = 0
    open: int = 0
    """Connections that the client has not closed."""
    is_closed: asyncio.Event = member(default_factory=asyncio.Event)
    """Set while there are none, once there was one."""


@contextlib.asynccontextmanager
async def serving(
    answer: Answer, greeting: bytes = frame(SETTINGS), tls: ssl.SSLContext | None = None
) -> AsyncIterator[Pod]:
    """Serve gRPC calls with ``answer``; ``greeting`` is sent on each connection first."""
    pod = Pod("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod.connections += 1
        pod.open += 1
        pod.is_closed.clear()
        answers = set[asyncio.Task[None]]()
        try:
            writer.write(greeting)
            await reader.readexactly(_PREFACE_BYTES)
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                kind, flags, stream = struct.unpack(">BBI", head[3:])
                if kind in (SETTINGS, PING) and not flags & ACK:
                    writer.write(frame(kind, bytes(8 if kind == PING else 0), flags=ACK))
                elif kind == HEADERS:
                    pod.calls += 1
                    answers.add(asyncio.ensure_future(answer(writer, stream)))
        finally:
            pod.open -= 1
            if not pod.open:
                pod.is_closed.set()
            for task in answers:
                task.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    async with listening(serve, tls) as pod.address:
        yield pod
