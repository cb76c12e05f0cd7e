"""A TCP listener on loopback that serves each connection in a thread.

When it ends, it ends all of them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Listener:
    """Accept connections while the context is open.

    ``serve`` gets each connection. Everything in ``_open`` is closed at the end.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._socket, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def serve(self, client: socket.socket) -> None:
        """Serve one connection, in a thread of its own; an OSError ends it."""
        raise NotImplementedError

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self._open.append(client)
                threading.Thread(target=self._served, args=(client,), daemon=True).start()

    def _served(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.serve(client)
