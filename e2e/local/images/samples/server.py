"""Serve the sample models inside a cluster.

The server simulates a model hub, plain files, and the same files from faulty servers.

    /api/models/…             the hub's API (tests.support.hub),
    /<org>/<name>/resolve/…     for ``--source-map hf://=http://HOST:PORT``
    /s3/<bucket>/<key>        a file,
                                for ``--source-map s3://<bucket>/=http://HOST:PORT/s3/<bucket>/``
    /slow/<seconds>/<path>    the file, with a pause of that many seconds in the middle
    /truncated/<path>         the connection ends in the middle every time; no resume is possible
    /flaky/<path>             the connection ends in the middle, but the rest can be requested
    /corrupt/<path>           a file of the same size with one byte changed
    /missing/<path>           404
    /healthz                  200

``python server.py FOLDER [PORT]`` serves ``FOLDER/s3`` and ``FOLDER/hub`` until interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.hub import HubServer
from tests.support.web import LoopbackServer, Request, Response, file_response

LONGEST_PAUSE_SECONDS = 60.0


class Samples:
    """Answers requests from the files below ``root``, each read once and kept."""

    def __init__(self, root: Path) -> None:
        self._root = (root / "s3").resolve()
        self._hub = HubServer(root / "hub")
        self._file = functools.cache(self._read)

    def answer(self, request: Request) -> Response:
        """The answer to one request."""
        first, _, rest = unquote(urlsplit(request.path).path).strip("/").partition("/")
        if first == "healthz":
            return Response(200, {"Content-Type": "text/plain"}, b"ok\n")
        if first == "missing":
            return _not_found(request)
        if first == "s3":
            return self._plain(request, rest)
        if first in ("truncated", "flaky"):
            return self._cut(request, rest, resumable=first == "flaky")
        if first == "corrupt":
            return self._corrupt(request, rest)
        if first == "slow":
            return self._slow(request, rest)
        return self._hub.answer(request)

    def _plain(self, request: Request, path: str, *, ranges: bool = True) -> Response:
        found = self._file(path)
        return (
            _not_found(request)
            if found is None
            else file_response(request, found[0], found[1], ranges=ranges)
        )

    def _cut(self, request: Request, path: str, *, resumable: bool) -> Response:
        response = self._plain(request, path, ranges=resumable)
        if response.status < 300:
            response.cut = (
                (len(response.body) + 1) // 2
                if resumable and "range" not in request.headers
                else None
            )
            if not resumable:
                response.cut = len(response.body) // 2
        return response

    def _corrupt(self, request: Request, path: str) -> Response:
        response = self._plain(request, path, ranges=False)
        if response.status < 300:
            middle = len(response.body) // 2
            response.body = (
                response.body[:middle]
                + bytes([response.body[middle] ^ 0xFF])
                + response.body[middle + 1 :]
            )
        return response

    def _slow(self, request: Request, rest: str) -> Response:
        seconds, _, path = rest.partition("/")
        response = self._plain(request, path)
        if response.status < 300:
            over = threading.Event()
            timer = threading.Timer(min(float(seconds), LONGEST_PAUSE_SECONDS), over.set)
            timer.daemon = True
            timer.start()
            response.hold = (len(response.body) // 2, over)
        return response

    def _read(self, path: str) -> tuple[bytes, str] | None:
        place = (self._root / path).resolve()
        if not place.is_relative_to(self._root) or not place.is_file():
            return None
        data = place.read_bytes()
        return data, f'"{hashlib.sha256(data).hexdigest()}"'


def _not_found(request: Request) -> Response:
    return Response(404, {"Content-Type": "text/plain"}, f"{request.path} is not here\n".encode())


def main(arguments: list[str]) -> int:
    """Serve until interrupted."""
    folder, port = Path(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 8080
    with LoopbackServer(Samples(folder).answer, address=("0.0.0.0", port)) as server:
        print(f"serving {folder} on port {server.port}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
