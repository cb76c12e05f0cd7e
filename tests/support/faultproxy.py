"""A reverse proxy that injects faults and counts requests.

It runs in front of a real API server or any other HTTP server.

Everything that no fault names passes through unchanged, watches included, so what a test sees is
the real server's behaviour plus the one fault.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import AddrInfoType, web
from kubernetes.aio.client import ApiClient

from triton_pipelines.cluster.login import load_configuration

MUTATING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_POLL_SECONDS = 0.02
_CLOSE_SECONDS = 5.0
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "host",
        "content-length",
        "content-encoding",
    }
)


@dataclass(slots=True)
class Fault:
    """What to do to requests whose method and path (with query) match.

    Exactly what is set happens, in this order: wait ``delay`` seconds; wait until ``release`` is
    set (a stall); answer ``status`` instead of the server; drop the connection before (``drop``) or
    after the server did its work (``drop_after_effect``); send a watch's ``ERROR`` event with code
    410 (``expire_watch``); cut the answer's stream after ``cut_after`` bytes; send the answer's
    body one byte every ``drip`` seconds; replace the body by what ``rewrite`` makes of it.

    Attributes:
        times: how many matching requests are hit; None: all of them.
        hits: how many were.
    """

    method: str = ".*"
    path: str = ".*"
    times: int | None = 1
    delay: float = 0.0
    release: threading.Event | None = None
    status: int | None = None
    reason: str = ""
    retry_after: int | None = None
    drop: bool = False
    drop_after_effect: bool = False
    expire_watch: bool = False
    cut_after: int | None = None
    drip: float = 0.0
    rewrite: Callable[[bytes], bytes] | None = None
    hits: int = 0

    def takes(self, method: str, target: str) -> bool:
        """Whether this request is hit; counts it."""
        if self.times is not None and self.hits >= self.times:
            return False
        if not (re.fullmatch(self.method, method) and re.search(self.path, target)):
            return False
        self.hits += 1
        return True


@dataclass(slots=True)
class Seen:
    """One request that reached the proxy."""

    method: str
    """HTTP method."""
    target: str
    """Path and query."""
    agent: str
    """User agent, which distinguishes the operator's client from Kopf and kubectl."""
    at: float = field(default_factory=time.monotonic)
    """When it arrived (monotonic seconds)."""
    answered: float | None = None
    """When the server had answered it; None if it has not."""
    status: int | None = None
    """Status of the server's answer; None if the request did not reach the server."""


def plain_upstream(url: str, path: Path) -> Path:
    """Write a kubeconfig that points to any HTTP server, and return its path.

    It is for servers that are not API servers.
    """
    path.write_text(_kubeconfig("plain", url))
    return path


@dataclass(slots=True)
class FaultProxy:
    """The proxy, as async context manager. Clients talk plain HTTP to it; it holds the credentials.

    It runs in a thread with a loop of its own: Kopf takes every task of its loop for its own, and
    would wait seconds for the proxy's connections to end before it ended them.

    Args:
        upstream: kubeconfig of the real server.

    Attributes:
        frozen: while set, answers in progress deliver nothing, and their connections stay open.
    """

    upstream: Path
    faults: list[Fault] = field(default_factory=list)
    requests: list[Seen] = field(default_factory=list)
    url: str = ""
    frozen: bool = False
    _port: int = 0
    _server: str = ""
    _headers: dict[str, str] = field(default_factory=dict)
    _session: aiohttp.ClientSession | None = None
    _runner: web.AppRunner | None = None
    _sockets: weakref.WeakSet[socket.socket] = field(default_factory=weakref.WeakSet)
    _streams: list[web.Request] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="fault proxy", daemon=True
        )
        self._thread.start()
        try:
            await self._there(self._start())
        except BaseException:
            await self._end_thread()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for fault in self.faults:
            if fault.release is not None:
                fault.release.set()
        await self._there(self._stop())
        await self._end_thread()

    async def _there(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the proxy's loop, and wait for it."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _end_thread(self) -> None:
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def _start(self) -> None:
        configuration = await load_configuration(str(self.upstream))
        context = ApiClient(
            configuration
        ).rest_client.ssl_context  # made of the kubeconfig, client certificate included
        token = await configuration.get_api_key_with_prefix("BearerToken")
        self._headers = {"Authorization": token} if token else {}
        self._server = configuration.host
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0, socket_factory=self._open),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = int(self._runner.addresses[0][1])
        self.url = f"http://127.0.0.1:{self._port}"

    async def _stop(self) -> None:
        assert self._runner is not None
        assert self._session is not None
        await self._cut_streams()
        await self._runner.cleanup()
        await self._session.close()
        await self._wait_for_closed_sockets()

    def _open(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    async def _wait_for_closed_sockets(self) -> None:
        """Wait until the server has confirmed the end of TLS on all connections.

        A loop that ends earlier would leave the sockets of running watches open.
        """
        end = time.monotonic() + _CLOSE_SECONDS
        while any(opened.fileno() != -1 for opened in self._sockets):
            if time.monotonic() > end:
                break
            await asyncio.sleep(_POLL_SECONDS)

    async def refuse_connections(self) -> None:
        """End all connections and refuse new ones."""
        await self._there(self._stop())

    async def accept_connections(self) -> None:
        """Accept connections again, at the same address."""
        await self._there(self._start())

    def inject(self, fault: Fault) -> Fault:
        """Adds a fault; earlier ones are asked first."""
        self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Takes all faults away; requests that stall stay so until released."""
        self.faults.clear()

    def is_streaming(self, path: str) -> bool:
        """Whether an answer to such a request is in progress; only these are cut."""
        return any(re.search(path, request.path_qs) for request in tuple(self._streams))

    def cut_streams(self) -> None:
        """Drops the connections of all answers in progress: running watches."""
        asyncio.run_coroutine_threadsafe(self._cut_streams(), self._loop).result()

    async def _cut_streams(self) -> None:
        for request in tuple(self._streams):
            if request.transport is not None:
                request.transport.abort()

    @property
    def mutating(self) -> list[Seen]:
        """Requests that could have changed something, events excepted."""
        return [
            seen
            for seen in self.requests
            if seen.method in MUTATING and "/events.k8s.io/" not in seen.target
        ]

    def count(self, method: str, path: str) -> int:
        """Requests seen whose method and path match."""
        return sum(
            1
            for seen in self.requests
            if re.fullmatch(method, seen.method) and re.search(path, seen.target)
        )

    def write_kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig that leads to the proxy."""
        path.write_text(_kubeconfig("proxy", self.url))
        return path

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        target = request.path_qs
        seen = Seen(request.method, target, request.headers.get("User-Agent", ""))
        self.requests.append(seen)
        fault = next(
            (fault for fault in self.faults if fault.takes(request.method, target)), Fault()
        )
        body = await request.read()
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.release is not None:
            while not fault.release.is_set():  # noqa: ASYNC110 it is set in another thread
                await asyncio.sleep(_POLL_SECONDS)
        if fault.status is not None:
            return _status(fault)
        if fault.drop:
            return _dropped(request)
        assert self._session is not None
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _HOP_BY_HOP
        }
        if fault.rewrite is not None:
            headers["Accept-Encoding"] = "identity"
        sent = self._session.request(
            request.method,
            self._server + target,
            data=body or None,
            headers=headers | self._headers,
            allow_redirects=False,
        )
        try:
            answer = await sent
        except aiohttp.ClientConnectorError:
            return web.Response(status=502, text="the server behind the proxy cannot be reached")
        except aiohttp.ClientError:
            return _dropped(request)  # the server was killed
        seen.answered, seen.status = time.monotonic(), answer.status
        async with answer:
            if fault.drop_after_effect:
                await answer.read()
                return _dropped(request)
            if fault.rewrite is not None:
                return web.Response(
                    status=answer.status,
                    body=fault.rewrite(await answer.read()),
                    content_type="application/json",
                )
            return await self._pass_on(request, answer, fault)

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse, fault: Fault
    ) -> web.StreamResponse:
        kept = {
            name: value
            for name, value in answer.headers.items()
            if name.lower() not in _HOP_BY_HOP - {"content-encoding"}
        }
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=kept)
        self._streams.append(request)
        try:
            await response.prepare(request)
            if fault.expire_watch:
                expired = {
                    "kind": "Status",
                    "code": 410,
                    "reason": "Expired",
                    "message": "too old resource version",
                }
                await response.write(
                    json.dumps({"type": "ERROR", "object": expired}).encode() + b"\n"
                )
                await response.write_eof()
                return response
            left = fault.cut_after
            async for chunk in answer.content.iter_any():
                while self.frozen:  # noqa: ASYNC110 it is reset in another thread
                    await asyncio.sleep(_POLL_SECONDS)
                if fault.drip:
                    for byte in chunk:
                        await response.write(bytes([byte]))
                        await asyncio.sleep(fault.drip)
                    continue
                if left is not None and len(chunk) >= left:
                    await response.write(chunk[:left])
                    return _dropped(request)
                left = None if left is None else left - len(chunk)
                await response.write(chunk)
            await response.write_eof()
        except (ConnectionError, aiohttp.ClientError):
            pass  # the client went away, or the server's watch ended: nobody to tell
        finally:
            self._streams.remove(request)
        return response


def _kubeconfig(name: str, url: str) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(content)


def _status(fault: Fault) -> web.Response:
    headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after is not None else None
    content = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": fault.status,
        "reason": fault.reason,
        "message": "injected",
    }
    return web.json_response(content, status=fault.status or 500, headers=headers)


def _dropped(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
