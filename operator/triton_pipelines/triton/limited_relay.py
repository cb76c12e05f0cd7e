"""Limit what a pod can send over a gRPC connection.

gRPC limits the size of messages and headers. Of other frames it reads any number, which takes most
of a core per connection and can fill the memory. It has no option to limit them, and its sockets
cannot be replaced. So it connects to a relay in this process. The relay connects to the pod,
forwards what both send, and closes the connections if the pod sends too much.

gRPC takes 2 ms to 34 ms for a MiB of such frames (PRIORITY to RST_STREAM, gRPC 1.85).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
from typing import Final, cast

OVERHEAD_BYTES: Final = 128 * 1024
"""What a pod may send besides a message: settings, headers, certificates, and what is under way of
a stream that was canceled (at most 64 KiB: RFC 9113, 6.9.2)."""
# Of the headers of frames and of TLS records, one per 16 KiB or less.
_FRAMING_SHARE: Final = 1 / 64
# What a read counts for at least. Each takes up to 0.1 ms, so a pod that sends its bytes one at a
# time would take seconds.
READ_BYTES_MIN: Final = 1024
# Of a request: for each frame of 16 KiB, a server may extend the window of the stream and that of
# the connection, which are two reads.
_REQUEST_SHARE: Final = 2 * READ_BYTES_MIN / (16 * 1024)
CONNECTION_BYTES: Final = 16 * 1024
"""What another connection during a call counts for, which takes 2 ms."""
CLOSED: Final = "the connection was closed"
"""Why a call fails whose client is closed."""
# Process, user and group of the peer, see SO_PEERCRED in unix(7).
_PEER: Final = struct.Struct("3i")


def limit_with_overhead(message_bytes: int) -> int:
    """Return how many bytes a pod may send for a response of this size."""
    return message_bytes + int(message_bytes * _FRAMING_SHARE) + OVERHEAD_BYTES


class LimitedRelay:
    """Relays the connections of one gRPC channel to a pod."""

    def __init__(self, address: str, bytes_max: int) -> None:
        """Create the relay, which connects when it is first needed.

        Args:
            address: ``host:port`` of the pod, with an IPv6 address in brackets.
            bytes_max: how many bytes the pod may send from the start of one call to the next, in
                addition to those of :meth:`extend`.
        """
        self._host, _, self._port = address.rpartition(":")
        self.bytes_max = self._bytes_left = bytes_max
        self._socket_name = f"triton-pipelines-{secrets.token_hex(16)}"
        self._listener: asyncio.Server | None = None
        self._connecting = asyncio.Lock()
        self._ends: set[_End] = set()
        self._unused: _PodEnd | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._is_idle = asyncio.Event()
        self._is_closed = False
        self.received = 0
        """Bytes that the pod has sent, at least :data:`READ_BYTES_MIN` per read."""
        self.is_exceeded = False
        """Whether the connections were closed because the pod sent too much."""

    @property
    def target(self) -> str:
        """The address to which gRPC connects: an abstract socket, which is not a file."""
        return f"unix-abstract:{self._socket_name}"

    def renew(self) -> bool:
        """Allow the pod to send :attr:`bytes_max` bytes more; return whether it is connected."""
        self._bytes_left, self.is_exceeded = self.bytes_max, False
        return any(isinstance(end, _PodEnd) and not end.is_closed for end in self._ends)

    def extend(self, request_bytes: int) -> None:
        """Allow the pod to send what it needs to receive a request of this size."""
        self._bytes_left += int(request_bytes * _REQUEST_SHARE)

    async def connect(self) -> None:
        """Connect to the pod, and accept connections of this process.

        gRPC connects by itself when a call begins, and again when a server has sent ``GOAWAY`` but
        has not ended the calls yet.

        Raises:
            OSError: the pod cannot be reached, or the relay is closed.
        """
        async with self._connecting:
            if self._is_closed:
                raise ConnectionAbortedError(CLOSED)
            if self.renew():
                return
            if self._listener is None:
                # Without listening, this does not wait, so that no cancellation loses the listener.
                self._listener = await asyncio.get_running_loop().create_unix_server(
                    lambda: _GrpcEnd(self), f"\0{self._socket_name}", start_serving=False
                )
                await self._listener.start_serving()
            pod = await self._connect_to_pod()
            if self._is_closed:
                pod.abort()
                raise ConnectionAbortedError(CLOSED)
            self._unused = pod

    async def _connect_to_pod(self) -> _PodEnd:
        loop = asyncio.get_running_loop()
        host = self._host.removeprefix("[").removesuffix("]")
        _, pod = await loop.create_connection(lambda: _PodEnd(self), host, int(self._port))
        return pod

    def accept(self, grpc: _GrpcEnd) -> None:
        """Relay a connection of gRPC."""
        pod, self._unused = self._unused, None
        if self._listener is None:
            grpc.abort()
        elif pod is not None:
            grpc.link(pod)
        elif self.count(CONNECTION_BYTES):
            task = asyncio.ensure_future(self._link(grpc))
            self._links.add(task)
            task.add_done_callback(self._links.discard)
        else:
            self.abort()

    async def _link(self, grpc: _GrpcEnd) -> None:
        try:
            grpc.link(await self._connect_to_pod())
        except OSError:
            grpc.close()

    def count(self, size: int) -> bool:
        """Count the bytes of a read from the pod; return whether they may be forwarded."""
        counted = max(size, READ_BYTES_MIN)
        self.received += counted
        self._bytes_left -= counted
        self.is_exceeded = self._bytes_left < 0
        return not self.is_exceeded

    def opened(self, end: _End) -> None:
        """Note an open connection."""
        self._ends.add(end)
        self._is_idle.clear()

    def closed(self, end: _End) -> None:
        """Note that a connection has been closed."""
        self._ends.discard(end)
        if not self._ends:
            self._is_idle.set()

    def abort(self) -> None:
        """Close all connections at once, whatever has not been forwarded."""
        for end in tuple(self._ends):
            end.abort()

    async def close(self) -> None:
        """Close all connections, and accept and open no more."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for task in self._links:
            task.cancel()
        self.abort()
        if self._ends:
            await self._is_idle.wait()


class _End(asyncio.Protocol):
    """One of the two connections of a link; forwards what it receives to the other one."""

    def __init__(self, relay: LimitedRelay) -> None:
        self._relay = relay
        self._early = b""
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None

    @property
    def is_closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._relay.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        elif self.transport is not None:
            # There is no connection yet to forward to. In Python 3.11.2, reading cannot be paused
            # before the first data.
            self._early += data
            self.transport.pause_reading()

    def link(self, other: _End) -> None:
        """Forward what both ends have received, and what they receive from now on."""
        self.other, other.other = other, self
        for end in (self, other):
            early, end._early = end._early, b""
            if early and end.other is not None and end.other.transport is not None:
                end.other.transport.write(early)
            if end.transport is not None and not end.is_closed:
                end.transport.resume_reading()
        if self.is_closed or other.is_closed:
            self.close()

    def pause_writing(self) -> None:
        self._pause_other(is_paused=True)

    def resume_writing(self) -> None:
        self._pause_other(is_paused=False)

    def _pause_other(self, *, is_paused: bool) -> None:
        if self.other is None or self.other.transport is None or self.other.is_closed:
            return
        if is_paused:
            self.other.transport.pause_reading()
        else:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.closed(self)
        self.close()

    def close(self) -> None:
        """Close both connections, after what was received has been forwarded."""
        for end in (self, self.other):
            if end is not None and end.transport is not None:
                end.transport.close()

    def abort(self) -> None:
        """Close both connections at once, whatever has not been forwarded."""
        for end in (self, self.other):
            if end is not None and end.transport is not None:
                end.transport.abort()


class _PodEnd(_End):
    """A connection to the pod."""

    def data_received(self, data: bytes) -> None:
        if self._relay.count(len(data)):
            super().data_received(data)
        else:
            self._relay.abort()


class _GrpcEnd(_End):
    """A connection from gRPC."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if _is_own(transport.get_extra_info("socket")):
            self._relay.accept(self)
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # Nothing is of use to the pod any more, and one that does not read would never be closed.
        self.abort()


def _is_own(peer: socket.socket) -> bool:
    """Return whether this process is the peer: every process of the pod sees the socket's name."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(credentials)[0] == os.getpid())
