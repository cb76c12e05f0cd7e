"""Anyone who reaches the operator's ports opens more connections than it can have open files."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from e2e.local.processes import free_port
from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operatorprocess import OperatorProcess, start_operator
from tests.support.operators import apply_any, eventually, make_namespace
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
OPEN_FILES = 256
CONNECTIONS = 400
ROUNDS = 5
PROBES = 10
# As the chart configures the kubelet's liveness probe.
PROBE_SECONDS = 10
FAILURES_MAX = 3
UNFINISHED = b"GET /metrics HTTP/1.1\r\nHost: operator\r\n"


@contextlib.asynccontextmanager
async def flooded(port: int, connections: int = CONNECTIONS) -> AsyncIterator[None]:
    """Keep connections open whose requests never end: each sends another byte now and then.

    One that is closed or not accepted is opened again.
    """
    moved = asyncio.Semaphore(0)

    async def hold() -> None:
        while True:
            with contextlib.suppress(OSError):
                # Not wait_for, which may lose a cancellation.
                try:
                    async with asyncio.timeout(1):
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                finally:
                    moved.release()
                try:
                    writer.write(UNFINISHED)
                    while not reader.at_eof():
                        writer.write(b"X")
                        moved.release()
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.5):
                                await reader.read(1)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(hold()) for _ in range(connections)]
    # Until then, most connections were accepted, or rejected more than once.
    for _ in range(ROUNDS * connections):
        await moved.acquire()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@dataclass(frozen=True, slots=True)
class _Scene:
    """An operator process with a limit of open files."""

    admin: Client
    proxy: FaultProxy
    namespace: str
    process: OperatorProcess
    metrics_port: int


@contextlib.asynccontextmanager
async def _limited_operator(
    api_server: ControlPlane, folder: Path, open_files: int
) -> AsyncIterator[_Scene]:
    """An operator that leads, and then may open only so many files."""
    metrics_port = free_port()
    async with (
        Client(lambda: load_configuration(str(api_server.kubeconfig))) as admin,
        FaultProxy(api_server.kubeconfig) as proxy,
    ):
        namespace = await make_namespace(admin, f"flood-{uuid.uuid4().hex[:12]}")
        settings = {"METRICS_PORT": str(metrics_port)}
        process = await start_operator("one", proxy, folder, namespace, **settings)
        try:
            await eventually("leader", process.leads)
            resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, (open_files, open_files))
            yield _Scene(admin, proxy, namespace, process, metrics_port)
        finally:
            await process.end()


async def test_a_flood_of_connections_affects_no_reconcile(
    api_server: ControlPlane, tmp_path: Path
) -> None:
    async with (
        _limited_operator(api_server, tmp_path / "one", OPEN_FILES) as scene,
        httpx.AsyncClient(timeout=30) as http,
    ):
        async with flooded(scene.metrics_port):
            # Watches, and connections to the API server, have to be opened again.
            scene.proxy.cut_streams()
            document = builders.document(name="p", namespace=scene.namespace)
            document["metadata"].pop("uid")
            await apply_any(scene.admin, INFERENCE_PIPELINES, document)
            await eventually(
                "its Deployment", lambda: scene.admin.get(DEPLOYMENTS, scene.namespace, "p")
            )
            assert scene.process.is_running()
            assert _open_files(scene.process.process.pid) < OPEN_FILES / 2
        assert (await http.get(scene.process.health_url)).status_code == 200
        url = f"http://127.0.0.1:{scene.metrics_port}/metrics"
        assert "tritonpipe_leading 1.0" in (await http.get(url)).text


async def test_a_flood_of_both_ports_does_not_fail_the_liveness_probe(
    api_server: ControlPlane, tmp_path: Path
) -> None:
    async with _limited_operator(api_server, tmp_path / "one", OPEN_FILES // 2) as scene:
        health_port = httpx.URL(scene.process.health_url).port
        assert health_port is not None
        async with flooded(scene.metrics_port, 100), flooded(health_port, 100):
            failures = 0
            for _ in range(PROBES):
                failures = 0 if await _is_alive(scene.process.health_url) else failures + 1
                assert failures < FAILURES_MAX, "the kubelet would restart the operator"
        assert scene.process.is_running()


async def _is_alive(url: str) -> bool:
    """Probe as the kubelet does, with a new connection from an address of its own."""
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with httpx.AsyncClient(timeout=PROBE_SECONDS, transport=transport) as http:
        try:
            return (await http.get(url)).status_code == 200
        except httpx.HTTPError:
            return False
