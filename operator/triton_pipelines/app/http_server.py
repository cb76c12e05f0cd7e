"""An HTTP server in threads, with a bounded number of connections.

Anyone who reaches its port can open connections. More of them than the process can have open files
would keep it from connecting to the API server.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from socketserver import ThreadingMixIn
from ssl import SSLContext
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog

CONNECTIONS_MAX: Final = 32
"""Open connections per server. A further one closes the oldest of the address that has the most,
so that the kubelet is answered while another client opens connections all the time."""
# Time for the handshake, and for each read and write.
_CONNECTION_SECONDS: Final = 10.0
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_log = structlog.get_logger(__name__)


class _Server(ThreadingMixIn, WSGIServer):
    """One thread per connection."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, app: Application, tls: Callable[[], SSLContext] | None
    ) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._tls = tls
        self._open: dict[socket.socket, str] = {}
        self._lock = threading.Lock()
        super().__init__((host, port), _Handler)
        self.set_app(app)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; its own thread does the handshake."""
        connection, address = super().get_request()
        connection.settimeout(_CONNECTION_SECONDS)
        if self._tls is not None:
            connection = self._tls().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; end another one if there are too many."""
        with self._lock:
            self._open[request] = client_address[0]
            if len(self._open) > CONNECTIONS_MAX:
                excess = _excess(self._open)
                del self._open[excess]
                with contextlib.suppress(OSError):
                    # Its thread closes it. Not the method of a TLS socket, which that thread uses.
                    socket.socket.shutdown(excess, socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection at its end."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection; nothing else depends on it."""
        _log.debug("request failed", exc_info=True)


def _excess(addresses: Mapping[socket.socket, str]) -> socket.socket:
    """Return the oldest connection of the address that has the most."""
    counts = Counter(addresses.values())
    most = max(counts.values())
    return next(found for found, address in addresses.items() if counts[address] == most)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing per request."""


@asynccontextmanager
async def serve(
    host: str, port: int, app: Application, tls: Callable[[], SSLContext] | None = None
) -> AsyncIterator[int]:
    """Serve a WSGI application in threads until the context ends; yield the port.

    Args:
        host: address on which to listen.
        port: port on which to listen; 0 for any.
        app: the application.
        tls: returns the TLS settings of the next connection; ``None`` for plain HTTP.
    """
    server = _Server(host, port, app, tls)
    thread = threading.Thread(target=server.serve_forever, name=f"http {port}", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
