"""A stand-in for an API server that forwards ports of pods, as kubelets do over WebSockets.

The protocol is v4.channel.k8s.io: the first byte of a frame is its channel (0 data, 1 errors), and
the first frame of each channel holds the number of the port.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import WSMsgType, web

PROTOCOL = "v4.channel.k8s.io"


@dataclass
class PortForwarder:
    """Serves objects by path, and forwards each pod's port to an address of this machine."""

    objects: dict[str, Any] = field(default_factory=dict)
    """Objects and lists by path."""
    pods: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Where the port of a pod is; a pod that is not in it refuses connections."""
    forwarded: list[tuple[str, str]] = field(default_factory=list)
    """Pods and ports that were asked for."""
    tokens: set[str] = field(default_factory=set)
    """Authorization headers of the requests for a port-forward."""
    forbidden: bool = False
    """Whether the account has no right to a port-forward."""
    url: str = ""
    """Address, once it is entered."""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get(
            "/api/v1/namespaces/{namespace}/pods/{pod}/portforward", self._port_forward
        )
        app.router.add_get("/{path:.*}", self._object)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _object(self, request: web.Request) -> web.StreamResponse:
        if request.path not in self.objects:
            return web.json_response(
                {"kind": "Status", "reason": "NotFound", "code": 404}, status=404
            )
        return web.json_response(self.objects[request.path])

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        pod, port = request.match_info["pod"], request.query["ports"]
        self.forwarded.append((pod, port))
        self.tokens.add(request.headers.get("Authorization", ""))
        if self.forbidden:
            raise web.HTTPForbidden
        stream = web.WebSocketResponse(protocols=[PROTOCOL])
        await stream.prepare(request)
        assert stream.ws_protocol == PROTOCOL
        for channel in (0, 1):
            await stream.send_bytes(bytes([channel]) + struct.pack("<H", int(port)))
        if pod not in self.pods:
            await stream.send_bytes(b"\x01connection refused")
            await stream.close()
            return stream
        reader, writer = await asyncio.open_connection(*self.pods[pod])
        sending = asyncio.create_task(self._to_pod(stream, writer))
        while data := await reader.read(1000):
            await stream.send_bytes(b"\0" + data)
        await stream.close()
        await sending
        writer.close()
        return stream

    async def _to_pod(self, stream: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
        async for message in stream:
            if message.type is WSMsgType.BINARY and message.data[0] == 0:
                writer.write(message.data[1:])


@dataclass
class MetricsPage:
    """A pod's /metrics on this machine."""

    text: str = ""
    """The page."""
    status: int = 200
    """Its HTTP status."""
    address: tuple[str, int] = ("", 0)
    """Where it is, once entered."""

    async def __aenter__(self) -> Self:
        async def page(_: web.Request) -> web.Response:
            return web.Response(text=self.text, status=self.status)

        app = web.Application()
        app.router.add_get("/metrics", page)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = self._runner.addresses[0][:2]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def pod(name: str, *, ready: bool = True) -> Mapping[str, Any]:
    """Return a pod of a list."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


def counters(model: str, requests: int, busy_seconds: float, pending: int) -> str:
    """Return a metrics page with a model's counters."""
    values = {
        "nv_inference_request_success": requests,
        "nv_inference_request_failure": 0,
        "nv_inference_exec_count": requests,
        "nv_inference_queue_duration_us": 0,
        "nv_inference_compute_input_duration_us": 0,
        "nv_inference_compute_infer_duration_us": round(1e6 * busy_seconds),
        "nv_inference_compute_output_duration_us": 0,
        "nv_inference_pending_request_count": pending,
    }
    return "".join(
        f'{name}{{model="{model}",version="1"}} {value}\n' for name, value in values.items()
    )
