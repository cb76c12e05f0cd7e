"""Fixtures that bring real parts up once per test session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane import ControlPlane


@pytest.fixture(scope="session")
def api_server() -> Iterator[ControlPlane]:
    """A real API server with etcd: validation, defaulting, server-side apply, conflicts; nothing acts on objects."""
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane with controllers and scheduler but without nodes; writes are in its audit log."""
    audit_log: Path = tmp_path_factory.mktemp("audit") / "audit.log"
    with ControlPlane(controllers=True, scheduler=True, audit_log=audit_log) as plane:
        yield plane
