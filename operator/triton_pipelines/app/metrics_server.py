"""Serve ``/metrics`` in threads: optionally with TLS, and for permitted tokens only."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.http_server import Application, serve
from triton_pipelines.app.metrics_access import Access, MetricsAccess
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.transport import Login, RequestObserver

# File names in a Secret of type kubernetes.io/tls.
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
_REVIEW_SECONDS: Final = 10.0
_REVIEWS_IN_FLIGHT: Final = 2
_STATUS: Final = {
    Access.UNAUTHENTICATED: "401 Unauthorized",
    Access.FORBIDDEN: "403 Forbidden",
    Access.UNKNOWN: "503 Service Unavailable",
}
_BODY: Final = {
    Access.UNAUTHENTICATED: b"send a bearer token that the API server accepts\n",
    Access.FORBIDDEN: b"the token's user may not get the non-resource URL /metrics\n",
    Access.UNKNOWN: b"the API server did not review the token; try again later\n",
}
Authorize = Callable[[str], Access]
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class MetricsCertificate:
    """Certificate and key of a folder, read again when the files change."""

    folder: Path
    """Contains ``tls.crt`` and ``tls.key``."""
    _version: tuple[int, ...] = ()
    _context: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self._version, self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings for the next connection.

        If new files cannot be read, the previous certificate stays in use.
        """
        try:
            if self._current_version() != self._version:
                self._version, self._context = self._read()
        except (OSError, ValueError) as error:
            _log.warning("metrics certificate not reloaded", error=str(error))
        return self._context

    def _current_version(self) -> tuple[int, ...]:
        stats = [(self.folder / name).stat() for name in (CERTIFICATE_FILE, KEY_FILE)]
        return tuple(part for stat in stats for part in (stat.st_mtime_ns, stat.st_ino))

    def _read(self) -> tuple[tuple[int, ...], ssl.SSLContext]:
        version = self._current_version()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)
        return version, context


@asynccontextmanager
async def serve_metrics(
    registry: CollectorRegistry, config: OperatorConfig, login: Login, observe: RequestObserver
) -> AsyncIterator[None]:
    """Serve the metrics until the context ends.

    Args:
        registry: the metrics.
        config: the operator's options.
        login: returns the API server's address and credentials.
        observe: called once per attempt of a request, for metrics.
    """
    folder = config.metrics_tls_folder
    certificate = await asyncio.to_thread(MetricsCertificate, folder) if folder else None
    async with AsyncExitStack() as stack:
        app: Application = make_wsgi_app(registry)
        if config.metrics_authentication == "token":
            options = ClientOptions(
                timeout_seconds=_REVIEW_SECONDS / 2, max_in_flight=_REVIEWS_IN_FLIGHT, attempts=1
            )
            client = await stack.enter_async_context(Client(login, options, observe))
            app = guarded(app, _in_loop(MetricsAccess(client)))
        tls = certificate.context if certificate is not None else None
        port = await stack.enter_async_context(
            serve(config.metrics_host, config.metrics_port, app, tls)
        )
        await _log.ainfo("metrics are served", port=port, tls=tls is not None)
        yield


def guarded(app: Application, authorize: Authorize) -> Application:
    """Return the application for permitted bearer tokens only."""

    def guard(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        access = authorize(token.strip() if scheme.lower() == "bearer" else "")
        if access is Access.ALLOWED:
            return app(environ, start_response)
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        if access is Access.UNAUTHENTICATED:
            headers.append(("WWW-Authenticate", "Bearer"))
        start_response(_STATUS[access], headers)
        return [_BODY[access]]

    return guard


def _in_loop(access: MetricsAccess) -> Authorize:
    """Return a function for other threads that lets the running event loop decide."""
    loop = asyncio.get_running_loop()

    def authorize(token: str) -> Access:
        future = asyncio.run_coroutine_threadsafe(access.check(token), loop)
        try:
            return future.result(_REVIEW_SECONDS)
        except (TimeoutError, CancelledError):
            future.cancel()
            return Access.UNKNOWN

    return authorize
