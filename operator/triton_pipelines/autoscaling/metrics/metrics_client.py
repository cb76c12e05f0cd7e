"""HTTP client for the metrics pages of pods: bounded in time, size and number of connections."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from .metrics_page import MetricsPageError

TIMEOUT_SECONDS: Final = 3.0
"""Of one connection or read; a whole page may take twice as long."""
PAGE_BYTES_MAX: Final = 4 * 1024**2
AT_ONCE: Final = 64
"""Pages that are read at the same time."""


class MetricsClient:
    """Reads metrics pages. Does not retry: the next tick reads again."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._client = httpx.AsyncClient(
            timeout=timeout, trust_env=False, limits=httpx.Limits(max_connections=AT_ONCE)
        )
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._page_seconds = 2 * timeout

    async def page(self, address: str) -> str:
        """Return the metrics page of the pod at ``host:port``.

        Raises:
            TimeoutError: the page is not complete in time.
            httpx.HTTPError: it cannot be read.
            MetricsPageError: it is too large.
        """
        async with self._slots, asyncio.timeout(self._page_seconds):
            data = await self._read(f"http://{address}/metrics")
        return data.decode("utf-8", errors="replace")

    async def _read(self, url: str) -> bytes:
        data = bytearray()
        async with self._client.stream("GET", url) as response:
            response.raise_for_status()
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > PAGE_BYTES_MAX:
                    raise MetricsPageError(f"is longer than {PAGE_BYTES_MAX} bytes")
        return bytes(data)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
