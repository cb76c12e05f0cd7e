"""A forward proxy on loopback that tunnels (CONNECT) and keeps a list of where to."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.listener import Listener


class ConnectProxy(Listener):
    """A proxy that tunnels to any address.

    With ``authorization``, only clients that present this header value may use it.
    """

    def __init__(self, authorization: str | None = None) -> None:
        super().__init__()
        self._authorization = authorization
        self.targets: list[str] = []

    def serve(self, client: socket.socket) -> None:
        """Tunnel one connection."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = client.recv(4096)
            if not data:
                return
            head += data
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        presented = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }.get("proxy-authorization")
        if method != "CONNECT" or (
            self._authorization is not None and presented != self._authorization
        ):
            client.sendall(
                b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic "
                b"realm=p\r\nContent-Length: 0\r\n\r\n"
            )
            client.close()
            return
        self.targets.append(target)
        host, _, port = target.rpartition(":")
        server = socket.create_connection((host, int(port)))
        self._open.append(server)
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        threading.Thread(target=_copy, args=(client, server), daemon=True).start()
        _copy(server, client)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
