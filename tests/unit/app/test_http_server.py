"""Which connections the operator's HTTP server closes when there are too many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from triton_pipelines.app.http_server import CONNECTIONS_MAX, serve

KUBELET, CLIENT = "127.0.0.2", "127.0.0.1"


def _application(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"fine"]


async def test_a_client_with_many_connections_closes_none_of_another_address() -> None:
    async with serve("127.0.0.1", 0, _application) as port, contextlib.AsyncExitStack() as stack:

        async def connect(
            address: str,
        ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            opened = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            stack.callback(opened[1].transport.abort)
            return opened

        reader, writer = await connect(KUBELET)
        others = [await connect(CLIENT) for _ in range(CONNECTIONS_MAX + 1)]
        for closed, _ in others[:2]:
            assert await closed.read() == b""
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.0 200 OK")
    assert answer.endswith(b"fine")
