"""HTTP client for the metrics pages of pods: bounded in time, size and number of connections.

Pods control the content of their pages. All pages that are read at the same time take at most
:data:`AT_ONCE` · :data:`LARGE_BYTES` + :data:`LARGE_AT_ONCE` · :data:`PAGE_BYTES_MAX` bytes, and
pages of ordinary size never wait for large ones.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import httpx

from .metrics_page import MetricsPageError

TIMEOUT_SECONDS: Final = 3.0
"""Of one connection or read; a whole page may take twice as long."""
PAGE_BYTES_MAX: Final = 2 * 1024**2
"""Size of the largest page: a model has about 11 KB, with and without its GPU's label."""
LARGE_BYTES: Final = 256 * 1024
"""A page that is longer waits for one of a few places."""
AT_ONCE: Final = 64
"""Pages that are read at the same time."""
LARGE_AT_ONCE: Final = 4
"""How many of them may be longer than :data:`LARGE_BYTES`."""
# A compressed page of 2 KB can unpack to 2 GB.
_HEADERS: Final = {"Accept-Encoding": "identity"}


class MetricsClient:
    """Reads metrics pages. Does not retry: the next tick reads again."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._client = httpx.AsyncClient(
            headers=_HEADERS,
            timeout=timeout,
            trust_env=False,
            limits=httpx.Limits(max_connections=AT_ONCE),
        )
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._page_seconds = 2 * timeout

    async def page(self, address: str) -> str:
        """Return the metrics page of the pod at ``host:port``.

        Raises:
            TimeoutError: the page is not complete in time.
            httpx.HTTPError: it cannot be read.
            MetricsPageError: it is too large or compressed.
        """
        async with self._slots, asyncio.timeout(self._page_seconds):
            data = await self._read(f"http://{address}/metrics")
        return data.decode("utf-8", errors="replace")

    async def _read(self, url: str) -> bytes:
        data = bytearray()
        async with AsyncExitStack() as places:
            response = await places.enter_async_context(self._client.stream("GET", url))
            response.raise_for_status()
            if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                raise MetricsPageError("is compressed, which the operator does not accept")
            is_large = False
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > PAGE_BYTES_MAX:
                    raise MetricsPageError(f"is longer than {PAGE_BYTES_MAX} bytes")
                if len(data) > LARGE_BYTES and not is_large:
                    is_large = True
                    await places.enter_async_context(self._large)
        return bytes(data)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
