"""Test that a signal changes the log level of the operator's own process."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from e2e.local.processes import free_port
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operatorprocess import start_operator
from tests.support.operators import eventually, make_namespace
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.login import load_configuration

pytestmark = pytest.mark.integration
START_SECONDS = 120.0


def records(log: Path) -> list[dict[str, Any]]:
    """Return the records of a log; the line that is being written is left out."""
    lines = log.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line.startswith("{")]


def break_request(port: int) -> None:
    """Reset a connection in the middle of a request for metrics, which is logged at debug."""
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_a_signal_switches_debug_on_and_off(
    api_server: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(
            Client(lambda: load_configuration(str(api_server.kubeconfig)))
        )
        namespace = await make_namespace(admin, f"ll-{zlib.crc32(request.node.name.encode()):08x}")
        proxy = await stack.enter_async_context(FaultProxy(api_server.kubeconfig))
        port = free_port()
        operator = await start_operator(
            "a", proxy, tmp_path / "a", namespace, METRICS_PORT=str(port)
        )
        stack.push_async_callback(operator.end)

        def levels() -> list[str]:
            return [item["log_level"] for item in records(operator.log) if "log_level" in item]

        def debugged() -> bool:
            break_request(port)
            return any(item["level"] == "debug" for item in records(operator.log))

        await eventually("a leader", operator.leads, START_SECONDS)
        assert not debugged()  # also not by what a start logs
        operator.process.send_signal(signal.SIGUSR1)
        await eventually("debug", lambda: levels() == ["debug"], START_SECONDS)
        await eventually("a record of that level", debugged, START_SECONDS)
        operator.process.send_signal(signal.SIGUSR1)
        await eventually("info", lambda: levels() == ["debug", "info"], START_SECONDS)
        assert operator.is_running()
