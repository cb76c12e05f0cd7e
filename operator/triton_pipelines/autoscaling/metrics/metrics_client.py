"""HTTP client for the metrics pages of pods: bounded in time, size and number of connections.

Pods control the content of their pages. All pages that are read at the same time take at most
:data:`AT_ONCE` · :data:`LARGE_BYTES` + :data:`LARGE_AT_ONCE` · :data:`PAGE_BYTES_MAX` bytes, and
pages of ordinary size never wait for large ones.
"""

from __future__ import annotations

import asyncio
import http
from contextlib import AsyncExitStack
from typing import Final

import aiohttp

from triton_pipelines.pod_calls import NamespaceSlots

from .metrics_page import MetricsPageError
from .page_connection import page_connector

TIMEOUT_SECONDS: Final = 3.0
"""Of one connection or read; a whole page may take twice as long."""
PAGE_BYTES_MAX: Final = 2 * 1024**2
"""Size of the largest page: a model has about 11 KB, with and without its GPU's label."""
RESPONSE_BYTES_MAX: Final = PAGE_BYTES_MAX + 1024**2
"""The same with headers, and with what surrounds the data of chunks."""
LARGE_BYTES: Final = 256 * 1024
"""A page that is longer waits for one of a few places."""
AT_ONCE: Final = 64
"""Pages that are read at the same time."""
AT_ONCE_PER_NAMESPACE: Final = 16
"""The same of one namespace: its pods must not delay those of others."""
KEPT_SECONDS: Final = 6.0
"""How long an idle connection stays open: pages are read every 2 s."""
LARGE_AT_ONCE: Final = 4
"""How many of them may be longer than :data:`LARGE_BYTES`."""
# A connection is read ahead by twice as much.
_BUFFER_BYTES: Final = 16 * 1024
# A compressed page of 2 KB can unpack to 2 GB.
_HEADERS: Final = {"Accept-Encoding": "identity"}


class MetricsClient:
    """Reads metrics pages. Does not retry: the next tick reads again."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._timeout = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._slots = NamespaceSlots(AT_ONCE, AT_ONCE_PER_NAMESPACE)
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._page_seconds = 2 * timeout

    async def page(self, address: str, namespace: str) -> str:
        """Return the metrics page of the pod at ``host:port`` in a namespace.

        Raises:
            TimeoutError: the page is not complete in time.
            aiohttp.ClientError: it cannot be read.
            MetricsPageError: it is too large, compressed or elsewhere.
        """
        async with self._slots.hold(namespace), asyncio.timeout(self._page_seconds):
            data = await self._read(f"http://{address}/metrics")
        return data.decode("utf-8", errors="replace")

    async def _read(self, url: str) -> bytes:
        data = bytearray()
        async with AsyncExitStack() as places:
            request = self._opened().get(url, allow_redirects=False)
            response = await places.enter_async_context(request)
            response.raise_for_status()
            if response.status != http.HTTPStatus.OK:
                raise MetricsPageError(f"HTTP {response.status}")
            if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                raise MetricsPageError(
                    "the page is compressed, which the operator does not support"
                )
            is_large = False
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > PAGE_BYTES_MAX:
                    raise MetricsPageError(
                        f"the page is longer than {PAGE_BYTES_MAX // 1024**2} MiB"
                    )
                if len(data) > LARGE_BYTES and not is_large:
                    is_large = True
                    await places.enter_async_context(self._large)
        return bytes(data)

    def _opened(self) -> aiohttp.ClientSession:
        """Return the session, which needs a running event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=_HEADERS,
                timeout=self._timeout,
                auto_decompress=False,
                read_bufsize=_BUFFER_BYTES,
                cookie_jar=aiohttp.DummyCookieJar(),
                # The connection to each pod is kept for its next pages: opening another one costs
                # as much CPU as the rest of the request.
                connector=page_connector(AT_ONCE, KEPT_SECONDS, RESPONSE_BYTES_MAX),
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
