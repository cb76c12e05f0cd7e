"""A threaded HTTP(S) server on loopback with answers written by a test.

It supports files with ranges, delays, cuts and refusals.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

BLOCK = 64 * 1024


@dataclass(frozen=True)
class Request:
    """What a client asked; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass
class Response:
    """An answer.

    ``cut`` closes the connection after that many bytes of the body. ``hold`` is (bytes, event):
    wait for the event after that many bytes.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    hold: tuple[int, threading.Event] | None = None


def file_response(request: Request, data: bytes, etag: str, *, ranges: bool = True) -> Response:
    """Return a file as a real web server does.

    It has a strong ETag, ``Range`` with ``If-Range``, and 416 (RFC 9110, sections 13 and 14).
    """
    headers = {"ETag": etag, "Content-Type": "application/octet-stream"}
    if not ranges:
        return Response(200, headers, data)
    headers["Accept-Ranges"] = "bytes"
    asked = request.headers.get("range", "")
    if not asked or request.headers.get("if-range", etag) != etag:
        return Response(200, headers, data)
    start = int(asked.removeprefix("bytes=").partition("-")[0])
    if start >= len(data):
        return Response(416, headers | {"Content-Range": f"bytes */{len(data)}"})
    return Response(
        206, headers | {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, data[start:]
    )


class LoopbackServer:
    """Serve ``answer`` on a free port of 127.0.0.1 (or at ``address``).

    ``requests`` records all requests.

    Without ``length`` no Content-Length is sent: the answer says itself where its body ends.
    """

    def __init__(
        self,
        answer: Callable[[Request], Response],
        tls: ssl.SSLContext | None = None,
        *,
        length: bool = True,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.requests: list[Request] = []
        self.log = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(
                    self.command,
                    self.path,
                    {key.lower(): value for key, value in self.headers.items()},
                    body,
                )
                with outer.log:
                    outer.requests.append(request)
                    outer.log.notify_all()
                self._send(answer(request))

            do_HEAD = do_GET
            do_POST = do_GET

            def _send(self, response: Response) -> None:
                self.send_response(response.status)
                announced = {"Content-Length": str(len(response.body))} if length else {}
                for name, value in {**announced, **response.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                end = len(response.body) if response.cut is None else response.cut
                first = end if response.hold is None else response.hold[0]
                try:
                    self._write(response.body[:first])
                    if response.hold is not None:
                        response.hold[1].wait(60)
                        self._write(response.body[first:end])
                except OSError:
                    # The client went away, which is what some tests are about.
                    self.close_connection = True
                if response.cut is not None:
                    self.close_connection = True

            def _write(self, data: bytes) -> None:
                for start in range(0, len(data), BLOCK):
                    self.wfile.write(data[start : start + BLOCK])
                self.wfile.flush()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                # Failed handshakes and dropped connections are part of the tests.
                pass

        self._server = Server(address, Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = (
            f"{'https' if tls else 'http'}://"
            f"{'127.0.0.1' if address[0] == '0.0.0.0' else address[0]}:{self._server.server_port}"
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def wait_for(self, count: int, seconds: float = 20.0) -> None:
        """Return when ``count`` requests have come; :class:`TimeoutError` after ``seconds``."""
        with self.log:
            if not self.log.wait_for(lambda: len(self.requests) >= count, seconds):
                raise TimeoutError(
                    f"{len(self.requests)} of {count} requests came within {seconds} s"
                )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
