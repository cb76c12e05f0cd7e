"""Clients, namespaces and proxies for tests of the reconciler on a real API server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operators import make_namespace
from tests.support.tenants import Place
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.login import load_configuration


def _name(request: pytest.FixtureRequest) -> str:
    """A namespace's name made of the test's."""
    return "r-" + "".join(char if char.isalnum() else "-" for char in request.node.name.lower())[
        :50
    ].strip("-")


@pytest.fixture
async def bare(api_server: ControlPlane) -> AsyncIterator[Client]:
    """The administrator of an API server on which nothing acts."""
    async with Client(lambda: load_configuration(str(api_server.kubeconfig))) as client:
        yield client


@pytest.fixture
async def bare_proxy(api_server: ControlPlane) -> AsyncIterator[FaultProxy]:
    """A way to it that counts and can fail."""
    async with FaultProxy(api_server.kubeconfig) as proxy:
        yield proxy


@pytest.fixture
async def bare_namespace(bare: Client, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own there."""
    return await make_namespace(bare, _name(request))


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """The administrator of a control plane with controllers and scheduler."""
    async with Client(lambda: load_configuration(str(control_plane.kubeconfig))) as client:
        yield client


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[FaultProxy]:
    """A way to it that counts and can fail."""
    async with FaultProxy(control_plane.kubeconfig) as proxy:
        yield proxy


@pytest.fixture
async def namespace(admin: Client, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own there."""
    return await make_namespace(admin, _name(request))


@pytest.fixture
async def place(bare: Client, bare_proxy: FaultProxy, tmp_path: Path) -> Place:
    """Namespaces of an attacker and of another team."""
    hostile, other = [
        await make_namespace(bare, f"{kind}-{uuid.uuid4().hex[:12]}")
        for kind in ("hostile", "other")
    ]
    return Place(bare, bare_proxy, hostile, other, tmp_path)
