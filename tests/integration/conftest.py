"""Fixtures that bring real parts up once per test session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.operators import CRD_FILE

# Files that wait long for real servers start first, so that no worker is left alone with one at the
# end. Files that load the machine are separated by others. A name is that of a file or a folder.
LONG = (
    "test_loop.py",
    "reconcile",
    "samples",
    "test_prometheus_loop.py",
    "test_api_server.py",
    "cli",
    "test_local_cluster.py",
    "differential",
    "load",
    "models",
    "tuning",
    "gitops",
    "docs",
    "chart",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first, all else in its order."""

    def rank(item: pytest.Item) -> int:
        return next(
            (
                index
                for index, name in enumerate(LONG)
                if name in (item.path.name, item.path.parent.name)
            ),
            len(LONG),
        )

    items.sort(key=rank)


@pytest.fixture(scope="session")
def api_server() -> Iterator[ControlPlane]:
    """Run a real API server with etcd that serves the CRD; nothing acts on objects.

    It provides validation, defaulting, server-side apply and conflicts.
    """
    with ControlPlane(crds=(CRD_FILE,)) as plane:
        yield plane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a real control plane with controllers and scheduler but without nodes.

    It serves the CRD and records writes in its audit log. Autoscalers are synced every second
    instead of every 15 s.
    """
    audit_log: Path = tmp_path_factory.mktemp("audit") / "audit.log"
    flags = ("--horizontal-pod-autoscaler-sync-period=1s",)
    with ControlPlane(
        controllers=True,
        scheduler=True,
        audit_log=audit_log,
        extra_controller_manager_flags=flags,
        crds=(CRD_FILE,),
    ) as plane:
        yield plane
