"""Kopf's HTTP session, with bounded decoding and without listed objects.

Kopf decodes answers with ``json``, which fails at about a thousand levels of nesting, and a failed
watch ends the operator. Answers are therefore cut at :data:`.decoding.MAX_DEPTH` before Kopf reads
them. Listed objects are taken over by :mod:`.watch_lists`, which also learns which requests fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Final, cast
from urllib.parse import urlsplit

import aiohttp
import kopf

from triton_pipelines.cluster import decoding
from triton_pipelines.cluster.watch_lists import WatchLists

_ERROR_STATUS: Final = 400
# The API server compresses long answers, which costs more CPU time on both sides than the network
# between them.
_UNCOMPRESSED: Final = {"Accept-Encoding": "identity"}


class _BoundedLines:
    """Body of a watch: the same lines, of bounded depth.

    Only ``iter_chunked`` changes; everything else is that of the wrapped stream.
    """

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole lines, in pieces of the stream's own size."""
        pending: list[bytes] = []
        async for chunk in self._stream.iter_chunked(size):
            head, newline, tail = chunk.rpartition(b"\n")
            if not newline:
                pending.append(chunk)
                continue
            lines = b"".join((*pending, head)).split(b"\n")
            pending = [tail] if tail else []
            yield b"".join(decoding.bounded(line) + b"\n" for line in lines)
        if pending:
            yield decoding.bounded(b"".join(pending))


class BoundedResponse(aiohttp.ClientResponse):
    """An answer of the API server, decoded with a bounded depth."""

    lists: ClassVar[WatchLists] = WatchLists((), (), lambda *_: None)
    """What takes over listed objects; by default they are left to Kopf."""
    root: ClassVar[str] = ""
    """Path of the API server's URL."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Begin to read the answer."""
        await super().start(connection)
        self.content = cast(aiohttp.StreamReader, _BoundedLines(self.content))
        return self

    async def json(self, **_: Any) -> Any:
        """Return the decoded body."""
        document = decoding.loads(await self.read())
        return self.lists.take_page(self.url.path.removeprefix(self.root), document)


def bounded_session(info: kopf.ConnectionInfo, lists: WatchLists) -> kopf.AiohttpSession:
    """Return the credentials with a session like the one that Kopf would open for them.

    Args:
        info: the credentials.
        lists: takes over listed objects.
    """
    root = urlsplit(info.server).path.rstrip("/")
    response_class = type("Response", (BoundedResponse,), {"lists": lists, "root": root})
    return kopf.AiohttpSession(
        server=info.server,
        default_namespace=info.default_namespace,
        priority=info.priority,
        expiration=info.expiration,
        aiohttp_session=aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers={**info.as_http_headers(), **_UNCOMPRESSED},
            proxy=info.proxy_url,
            trust_env=bool(info.trust_env),
            response_class=response_class,
            trace_configs=[_observing(lists, root)],
        ),
    )


def _observing(lists: WatchLists, root: str) -> aiohttp.TraceConfig:
    """Return what reports the outcome of each request."""
    trace = aiohttp.TraceConfig()

    async def on_end(_: Any, __: Any, ended: aiohttp.TraceRequestEndParams) -> None:
        status = ended.response.status
        path = ended.url.path.removeprefix(root)
        lists.observe(path, f"HTTP status {status}" if status >= _ERROR_STATUS else "")

    async def on_exception(_: Any, __: Any, failed: aiohttp.TraceRequestExceptionParams) -> None:
        error = failed.exception
        if not isinstance(error, asyncio.CancelledError):
            lists.observe(failed.url.path.removeprefix(root), repr(error))

    trace.on_request_end.append(on_end)
    trace.on_request_exception.append(on_exception)
    return trace
