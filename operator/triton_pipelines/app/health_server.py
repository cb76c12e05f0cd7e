"""Serve ``/healthz`` for the kubelet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from triton_pipelines.app.http_server import Application, serve

PATH: Final = "/healthz"


class UnhealthyError(Exception):
    """The process has to be restarted."""


def serve_health(
    host: str, port: int, check: Callable[[], Mapping[str, Any]]
) -> AbstractAsyncContextManager[int]:
    """Serve the result of a check until the context ends; the context is the port.

    Args:
        host: address on which to listen.
        port: port on which to listen.
        check: called in other threads; raises ``UnhealthyError``.
    """
    return serve(host, port, _application(check))


def _application(check: Callable[[], Mapping[str, Any]]) -> Application:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, document = "200 OK", dict[str, Any]()
        if environ.get("PATH_INFO") != PATH:
            status = "404 Not Found"
        else:
            try:
                document = {"operator": check()}
            except UnhealthyError as error:
                status, document = "503 Service Unavailable", {"error": str(error)}
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(document).encode()]

    return answer
