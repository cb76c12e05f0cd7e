"""A simulated Triton HTTP API in one event loop.

It answers inference after a delay that the test sets, and counts requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tests.support.loopback import listening

Behaviour = Callable[[int], tuple[float, int, bytes]]
"""Number of the request → seconds until its answer, status, body."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class Stand:
    """What the stand-in saw."""

    url: str = ""
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    most_under_way: int = 0
    under_way: int = 0


@contextlib.asynccontextmanager
async def kserve(
    behave: Behaviour = lambda _: (0.0, 200, b"{}"), *, chunked: bool = False
) -> AsyncIterator[Stand]:
    """Serve on a free port of loopback."""
    stand = Stand()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stand.connections += 1
        with (
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
            contextlib.closing(writer),
        ):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                body = await reader.readexactly(int(found[1]) if found else 0)
                if b"/infer" not in head.partition(b"\r\n")[0]:
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                number = len(stand.requests)
                stand.requests.append(head + body)
                stand.under_way += 1
                stand.most_under_way = max(stand.most_under_way, stand.under_way)
                seconds, status, answer = behave(number)
                if seconds:
                    await asyncio.sleep(seconds)
                stand.under_way -= 1
                if status == 0:
                    return
                framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer), answer) if chunked else answer
                how = (
                    b"Transfer-Encoding: chunked"
                    if chunked
                    else b"Content-Length: %d" % len(answer)
                )
                writer.write(b"HTTP/1.1 %d Reason\r\n%s\r\n\r\n%s" % (status, how, framed))

    async with listening(serve) as address:
        stand.url = f"http://{address}"
        yield stand
