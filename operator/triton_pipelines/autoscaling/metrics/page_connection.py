"""Connections to metrics pages that end when a pod sends more than one page.

aiohttp limits the headers of each response. It does not limit how many interim responses precede
one, how many responses follow it while the connection is idle, or what surrounds the data of a
chunk. All of these take the event loop's time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler

MESSAGES_MAX: Final = 4
"""Responses to one request, interim ones included."""
# Data is parsed in parts of this size, so that few messages are parsed before they are counted.
_PART_BYTES: Final = 16 * 1024


class PageConnection(ResponseHandler):
    """A connection whose responses are limited in number and size."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        super().__init__(loop)
        self._bytes_max = bytes_max
        self._bytes = self._messages = 0

    def set_response_params(self, **parameters: Any) -> None:
        """Prepare for the responses to the next request."""
        self._bytes = self._messages = 0
        super().set_response_params(**parameters)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Queue a response."""
        self._messages += 1
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parse what the pod sent; close the connection if that is too much."""
        self._bytes += len(data)
        for start in range(0, max(1, len(data)), _PART_BYTES):
            if self._messages > MESSAGES_MAX or self._bytes > self._bytes_max:
                break
            super().data_received(data[start : start + _PART_BYTES])
        if self.transport is not None and (
            self._messages > MESSAGES_MAX or self._bytes > self._bytes_max
        ):
            self.transport.abort()


def page_connector(connections: int, kept_seconds: float, bytes_max: int) -> aiohttp.TCPConnector:
    """Return a connector for metrics pages; needs a running event loop.

    Args:
        connections: Maximum number of connections.
        kept_seconds: How long an idle connection stays open.
        bytes_max: Maximum size of the responses to one request.
    """
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=kept_seconds)
    # There is no public way to choose the class of connections.
    factory: Any = partial(PageConnection, asyncio.get_running_loop(), bytes_max)
    connector._factory = factory
    return connector
