"""Send HTTP/1.1 requests that were encoded beforehand, and report whether they were answered.

Ordinary clients build each request and read each response: 0.2 to 1 ms of CPU, more than many
servers need for it. A load generator must not be what is measured, so this one writes bytes, finds
the end of the response and calls back.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections import deque
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from triton_pipelines.tools.loadgen.load_spec import LoadGeneratorError
from triton_pipelines.tools.loadgen.request_failure import (
    OnRequestEnd,
    RequestFailure,
    error_response,
    rejected,
    timed_out,
)

_END_OF_HEAD: Final = b"\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_CLOSE: Final = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_OK: Final = b"200"
_SHOWN_CHARACTERS: Final = 200
_SWEEP_S: Final = 0.1
_KEPT_BYTES: Final = 64 * 1024


def trusted_authorities() -> ssl.SSLContext:
    """Return a TLS context that trusts the system's authorities and certifi's.

    If the environment sets ``SSL_CERT_FILE``, it trusts those of that file instead.
    """
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


class HttpTransport:
    """Connections to one server; at most ``connections``, further requests wait for one.

    Args:
        url: the server's address.
        connections: most connections.
        timeout_s: seconds after which a request is given up.
    """

    def __init__(self, url: str, connections: int, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = trusted_authorities() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._secured: dict[str, Any] = (
            {"ssl": self._tls, "ssl_handshake_timeout": timeout_s} if self._tls else {}
        )
        self._max_connections = connections
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()
        self._opening = 0
        self._waiting: deque[tuple[bytes, OnRequestEnd, float]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self, connections: int) -> None:
        """Open this number of connections before the load begins.

        Raises:
            LoadError: the server cannot be reached.
        """
        self._loop = asyncio.get_running_loop()
        try:
            for _ in range(min(connections, self._max_connections)):
                self._idle.append(await self._connect())
        except OSError as error:
            await self.close()
            place, cause = f"{self._host}:{self._port}", _describe_error(error)
            raise LoadGeneratorError(
                f"cannot connect to {place}: {cause}"
                if isinstance(error, ssl.SSLError)
                else f"cannot connect to {place} ({cause}); check that the address is correct and "
                "the server is running"
            ) from error
        self._task(self._sweep())

    def send(self, payload: bytes, done: OnRequestEnd) -> None:
        """Send now, or as soon as a connection is free."""
        now = self._loop.time()
        if self._idle:
            self._idle.pop().send(payload, done, now)
            return
        self._waiting.append((payload, done, now))
        if len(self._connections) + self._opening < self._max_connections and self._opening < len(
            self._waiting
        ):
            self._opening += 1
            self._task(self._add())

    async def close(self) -> None:
        """Close all connections; requests in flight end with an error."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
        while self._waiting:
            self._waiting.popleft()[1](rejected("not sent before the end of the load"))
        await asyncio.sleep(0)  # lets transports call connection_lost

    # --- inside -----------------------------------------------------------------------------------
    def freed(self, connection: _Connection) -> None:
        """Reuse a connection whose request has ended: for a waiting request, or as idle."""
        if self._waiting:
            # The time of a request begins when it is submitted, not when a connection is free.
            connection.send(*self._waiting.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """Remove a closed connection; open another one if requests wait."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if (
            self._waiting
            and not self._closed
            and len(self._connections) + self._opening < self._max_connections
        ):
            self._opening += 1
            self._task(self._add())

    async def _connect(self) -> _Connection:
        _, connection = await self._loop.create_connection(
            lambda: _Connection(self), self._host, self._port, **self._secured
        )
        self._connections.add(connection)
        return connection

    async def _add(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connect()
        except (OSError, TimeoutError) as error:
            if self._waiting:
                failure = RequestFailure(f"cannot connect: {_describe_error(error)}")
                self._waiting.popleft()[1](failure)
        else:
            self.freed(connection)
        finally:
            self._opening -= 1

    async def _sweep(self) -> None:
        """End requests that have exceeded their timeout."""
        no_answer = timed_out(f"no response within {self._timeout_s:g} s")
        no_connection = timed_out(f"no free connection within {self._timeout_s:g} s")
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._timeout_s / 4))
            before = self._loop.time() - self._timeout_s
            for connection in [
                item for item in self._connections if item.done is not None and item.began < before
            ]:
                connection.give_up(no_answer)
            while self._waiting and self._waiting[0][2] < before:
                self._waiting.popleft()[1](no_connection)

    def _task(self, work: object) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Connection(asyncio.Protocol):
    """One connection; carries one request at a time."""

    def __init__(self, owner: HttpTransport) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self.done: OnRequestEnd | None = None
        self.began = 0.0
        self._head = b""
        self._in_body = self._chunked = self._close = False
        self._left = 0  # bytes of the body still to come
        self._status = b""
        self._error_body = b""  # the end of a chunked body, the beginning of an error's

    def send(self, payload: bytes, done: OnRequestEnd, now: float) -> None:
        self.done, self.began = done, now
        self._head = self._error_body = b""
        self._in_body = False
        if self._transport is not None:
            self._transport.write(payload)

    def give_up(self, failure: RequestFailure) -> None:
        self._end(failure)
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        reason = _describe_error(error) if error else "closed by the server"
        self._end(RequestFailure(f"the connection was lost: {reason}"))
        self._owner.lost(self)

    def data_received(self, data: bytes) -> None:
        if self.done is None:
            self.abort()  # no request is in flight
            return
        if not self._in_body:
            self._head = self._head + data if self._head else data
            end = self._head.find(_END_OF_HEAD)
            if end < 0:
                return
            head, data = self._head[: end + 2], self._head[end + 4 :]
            length = _LENGTH.search(head)
            self._in_body, self._status, self._close = (
                True,
                head[9 : head.find(b"\r\n")],
                _CLOSE.search(head) is not None,
            )
            self._chunked = length is None and _CHUNKED.search(head) is not None
            if length is None and not self._chunked:
                self.give_up(RequestFailure("the response has no length"))
                return
            self._left = int(length[1]) if length else 0
        if self._chunked:
            self._error_body += data if len(self._error_body) < _KEPT_BYTES else b""
            complete = data.endswith(_LAST_CHUNK) or self._error_body.endswith(_LAST_CHUNK)
        else:
            self._left -= len(data)
            complete = self._left <= 0
            if not self._status.startswith(_OK) and len(self._error_body) < _KEPT_BYTES:
                self._error_body += data
        if complete:
            self._answered()

    def _answered(self) -> None:
        done, self.done = self.done, None
        if done is None:
            return
        failure = None
        if not self._status.startswith(_OK):
            failure = error_response(_reason(self._status, self._error_body))
        if (self._close or self._left < 0) and self._transport is not None:
            self._transport.close()
        else:
            self._owner.freed(self)
        done(failure)

    def _end(self, failure: RequestFailure) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(failure)


def _describe_error(error: Exception) -> str:
    """Return the system's message for a connection error.

    It does not contain the address, so that errors of the same kind have the same text.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate was rejected ({error.verify_message}); set SSL_CERT_FILE to a "
            "PEM file with the trusted certificate authorities"
        )
    if isinstance(error, ssl.SSLError):  # its number is not an errno
        return f"TLS failed ({error.reason}); if the server does not use TLS, use http://HOST:PORT"
    number = error.errno if isinstance(error, OSError) else None
    return (
        os.strerror(number)
        if number and number > 0
        else str(error) or "the connection was not established in time"
    )


def _reason(status: bytes, body: bytes) -> str:
    """Return the status of an error response and the server's message."""
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace")
    return f"{status.decode(errors='replace')}: {' '.join(text.split())[:_SHOWN_CHARACTERS]}"
