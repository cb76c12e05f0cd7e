"""The page on dashboards: its commands, unchanged, on a real API server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator

import httpx
import pytest

from e2e.local import api, binaries
from hack import monitoring
from tests.support.controlplane import ControlPlane
from tests.support.monitoringcrds import served
from tests.unit.docs import markdown
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.login import load_configuration

pytestmark = pytest.mark.integration

PAGE = markdown.ROOT / "docs/user/dashboards.md"
NAMESPACE = "triton-pipelines"
HELM, KUSTOMIZE = (fence.text for fence in markdown.fences(PAGE) if fence.language == "sh")


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    """An API server with the kinds of the Prometheus operator and the namespace."""
    with ControlPlane() as plane:
        async with (
            Client(lambda: load_configuration(str(plane.kubeconfig))) as client,
            served(client),
        ):
            with api.client(plane.kubeconfig) as connection:
                metadata = {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": NAMESPACE},
                }
                api.apply(connection, f"/api/v1/namespaces/{NAMESPACE}", metadata)
            yield plane


def run(plane: ControlPlane, command: str) -> None:
    """Run a command in the root of the checkout, with Helm and kubectl on the path."""
    folders = [str(binaries.path_of(name).parent) for name in ("helm", "kubectl")]
    path = os.pathsep.join([*folders, os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=markdown.ROOT,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(plane.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def config_maps(connection: httpx.Client) -> dict[str, str]:
    """Return the files that Grafana's sidecar finds, by name."""
    found = connection.get(
        f"/api/v1/namespaces/{NAMESPACE}/configmaps",
        params={"labelSelector": "grafana_dashboard=1"},
    ).json()["items"]
    return {name: text for item in found for name, text in item["data"].items()}


EXPECTED = {
    f"triton-pipelines-{path.name}": path.read_text(encoding="utf-8")
    for path in (monitoring.FOLDER / "dashboards").iterdir()
}


def test_the_chart_installs_both_dashboards(plane: ControlPlane) -> None:
    run(plane, f"helm install triton-pipelines charts/triton-pipelines --namespace {NAMESPACE}")
    with api.client(plane.kubeconfig) as connection:
        assert config_maps(connection) == {}
        run(plane, HELM)
        assert config_maps(connection) == EXPECTED


def test_kustomize_installs_both_dashboards(plane: ControlPlane) -> None:
    run(plane, KUSTOMIZE)
    with api.client(plane.kubeconfig) as connection:
        assert config_maps(connection) == EXPECTED
