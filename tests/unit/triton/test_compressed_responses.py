"""A pod whose small responses unpack to large ones, over a hand-written HTTP/2 server on loopback.

A library for servers would compress only for clients that accept it; a hostile pod does so anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator

from tests.support.loopback import listening
from tests.support.peakmemory import MIB, peak_growth

UNPACKED = 60 * MIB
"""Packed, it fits into the first flow-control window of HTTP/2 (64 KiB)."""
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE_BYTES = 24
FRAME_MAX = 16_384
PROBE = """
from triton_pipelines.triton.probe import probe

async def main(address):
    found = await probe(address, "m", "key", None)
    assert found.error, found
"""


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    head = len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + content


def header(name: bytes, value: bytes) -> bytes:
    """A literal header field that is not indexed."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def packed_zeros() -> bytes:
    """A gRPC message whose flag says that it is compressed."""
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(bytes(MIB)) for _ in range(UNPACKED // MIB)]
    packed = b"".join([*parts, packer.flush()])
    assert len(packed) < 64 * 1024
    return b"\1" + len(packed).to_bytes(4, "big") + packed


def response(stream: int, message: bytes) -> bytes:
    begin = b"\x88" + header(b"content-type", b"application/grpc")  # 0x88: status 200
    begin += header(b"grpc-encoding", b"gzip")
    parts = [message[at : at + FRAME_MAX] for at in range(0, len(message), FRAME_MAX)]
    return b"".join(
        [
            frame(HEADERS, END_HEADERS, stream, begin),
            *(frame(DATA, 0, stream, part) for part in parts),
            frame(HEADERS, END_HEADERS | END_STREAM, stream, header(b"grpc-status", b"0")),
        ]
    )


@contextlib.asynccontextmanager
async def pod(message: bytes) -> AsyncIterator[str]:
    """A server that answers every request with this message."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(PREFACE_BYTES)
        writer.write(frame(SETTINGS, 0, 0))
        while True:
            head = await reader.readexactly(9)
            content = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind in (SETTINGS, PING) and not flags & ACK:
                writer.write(frame(kind, ACK, 0, content if kind == PING else b""))
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                writer.write(response(stream, message))
            await writer.drain()

    async with listening(serve) as address:
        yield address


async def test_the_unpacked_size_of_a_compressed_response_is_limited() -> None:
    async with pod(packed_zeros()) as address:
        growth = await asyncio.to_thread(peak_growth, PROBE, address)
    assert growth < UNPACKED // 2
