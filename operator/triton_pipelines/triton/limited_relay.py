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
# Process, user and group of the peer, see SO_PEERCRED in unix(7).
_PEER: Final = struct.Struct("3i")


def limit_with_overhead(message_bytes: int) -> int:
    """Return how many bytes a pod may send for a response of this size."""
    return message_bytes + int(message_bytes * _FRAMING_SHARE) + OVERHEAD_BYTES


class LimitedRelay:
    """Relays a gRPC connection to a pod."""

    def __init__(self, address: str, bytes_max: int) -> None:
        """Create the relay, which connects when it is first needed.

        Args:
            address: ``host:port`` of the pod, with an IPv6 address in brackets.
            bytes_max: how many bytes the pod may send from the start of one call to the next.
        """
        self._host, _, self._port = address.rpartition(":")
        self.bytes_max = self._bytes_left = bytes_max
        self._socket_name = f"triton-pipelines-{secrets.token_hex(16)}"
        self._pod: _PodEnd | None = None
        self._listener: asyncio.Server | None = None
        self._connecting = asyncio.Lock()
        self.received = 0
        """Bytes that the pod has sent, at least :data:`READ_BYTES_MIN` per read."""
        self.is_exceeded = False
        """Whether the connection was closed because the pod sent too much."""

    @property
    def target(self) -> str:
        """The address to which gRPC connects: an abstract socket, which is not a file."""
        return f"unix-abstract:{self._socket_name}"

    def renew(self) -> bool:
        """Allow the pod to send :attr:`bytes_max` bytes more; return whether it is connected."""
        self._bytes_left, self.is_exceeded = self.bytes_max, False
        return self._pod is not None and not self._pod.is_closed

    async def connect(self) -> None:
        """Connect to the pod, and accept a connection of this process.

        Raises:
            OSError: the pod cannot be reached.
        """
        async with self._connecting:
            if self.renew():
                return
            self.close()
            loop = asyncio.get_running_loop()
            host = self._host.removeprefix("[").removesuffix("]")
            _, pod = await loop.create_connection(lambda: _PodEnd(self), host, int(self._port))
            try:
                # Without listening, this does not wait, so that no cancellation loses the listener.
                self._listener = await loop.create_unix_server(
                    lambda: _GrpcEnd(self, pod), f"\0{self._socket_name}", start_serving=False
                )
                await self._listener.start_serving()
            except BaseException:
                pod.abort()
                self.accepted()
                raise
            self._pod = pod

    def accepted(self) -> None:
        """End listening: gRPC has connected."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def count(self, size: int) -> bool:
        """Count the bytes of a read from the pod; return whether they may be forwarded."""
        counted = max(size, READ_BYTES_MIN)
        self.received += counted
        self._bytes_left -= counted
        self.is_exceeded = self._bytes_left < 0
        return not self.is_exceeded

    def close(self) -> None:
        """Close all connections."""
        self.accepted()
        if self._pod is not None:
            self._pod.close()
            self._pod = None


class _End(asyncio.Protocol):
    """One of the two connections of a relay; forwards what it receives to the other one."""

    def __init__(self, other: _End | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.other = other

    @property
    def is_closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

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
    """The connection to the pod."""

    def __init__(self, relay: LimitedRelay) -> None:
        super().__init__()
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Until there is a connection to forward to.
        cast("asyncio.Transport", transport).pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._relay.count(len(data)):
            super().data_received(data)
        else:
            self.abort()


class _GrpcEnd(_End):
    """The connection from gRPC."""

    def __init__(self, relay: LimitedRelay, pod: _PodEnd) -> None:
        super().__init__()
        self._relay = relay
        self._pod = pod

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._pod.other is not None or not _is_own(transport.get_extra_info("socket")):
            transport.close()
            return
        self._relay.accepted()
        self.other, self._pod.other = self._pod, self
        if self._pod.is_closed:
            self.close()
        elif self._pod.transport is not None:
            self._pod.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # Nothing is of use to the pod any more, and one that does not read would never be closed.
        self.abort()


def _is_own(peer: socket.socket) -> bool:
    """Return whether this process is the peer: every process of the pod sees the socket's name."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(credentials)[0] == os.getpid())
