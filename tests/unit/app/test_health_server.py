"""Test what the kubelet's liveness probe receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from triton_pipelines.app.health_server import UnhealthyError, serve_health


def _dead() -> Mapping[str, Any]:
    raise UnhealthyError("no heartbeat for 40 s")


async def test_a_healthy_process_answers_with_its_state() -> None:
    async with (
        serve_health("127.0.0.1", 0, lambda: {"inWork": 2}) as port,
        httpx.AsyncClient() as http,
    ):
        url = f"http://127.0.0.1:{port}"
        healthy, other = await http.get(f"{url}/healthz"), await http.get(url)
    assert (healthy.status_code, healthy.json()) == (200, {"operator": {"inWork": 2}})
    assert other.status_code == 404


async def test_a_process_that_has_to_be_restarted_fails_the_probe() -> None:
    async with serve_health("127.0.0.1", 0, _dead) as port, httpx.AsyncClient() as http:
        failed = await http.get(f"http://127.0.0.1:{port}/healthz")
    assert (failed.status_code, failed.json()) == (503, {"error": "no heartbeat for 40 s"})
