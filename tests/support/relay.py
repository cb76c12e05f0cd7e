"""A TCP relay that cuts or holds connections, in front of a server with TLS."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Relay:
    """A TCP relay before the server that stops each connection after so many bytes: it stands still, or breaks it off."""

    def __init__(self, url: str, stop_after: int | None, *, breaks: bool = False) -> None:
        self.stop_after, self._breaks, self._target = stop_after, breaks, urlsplit(url)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for end in (self._socket, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                server = socket.create_connection((self._target.hostname, self._target.port))
                self._open += [client, server]
                threading.Thread(target=self._copy, args=(client, server, None), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, self.stop_after), daemon=True).start()

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
