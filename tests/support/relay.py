"""A TCP relay that cuts or holds connections, in front of a server with TLS."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

from tests.support.listener import Listener


class Relay(Listener):
    """A TCP relay that stalls or closes each connection after a number of bytes.

    It runs in front of the server.
    """

    def __init__(self, url: str, stop_after: int | None, *, breaks: bool = False) -> None:
        super().__init__()
        self.stop_after, self._breaks, self._target = stop_after, breaks, urlsplit(url)
        self.url = f"https://127.0.0.1:{self.port}"

    def serve(self, client: socket.socket) -> None:
        """Relay one connection, both ways."""
        server = socket.create_connection((self._target.hostname, self._target.port))
        self._open.append(server)
        threading.Thread(target=self._copy, args=(client, server, None), daemon=True).start()
        self._copy(server, client, self.stop_after)

    def _copy(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while left is None or left > 0:
                data = source.recv(65536 if left is None else min(left, 65536))
                if not data:
                    break
                target.sendall(data)
                left = None if left is None else left - len(data)
            if left is None or self._breaks:
                target.shutdown(socket.SHUT_RDWR)
