"""The real operator process with the chart's settings and rights on a real API server.

Nothing that it requests is refused.
"""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.local import api, binaries
from e2e.local.processes import Process, reserved_ports
from hack import chart
from tests.support.chart import account_kubeconfig, environment
from tests.support.controlplane import ControlPlane
from tests.support.operators import CRD_FILE
from triton_pipelines.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_PIPELINES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SAMPLE = yaml.safe_load((chart.MANIFESTS / "samples" / "sentiment.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]
DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    """Start a control plane with a scheduler.

    The scheduler reports, for lack of nodes, that pods do not fit, and the operator then lists the
    nodes. The CRD is installed before the garbage collector starts, which looks for new kinds only
    every 30 s.
    """
    with ControlPlane(controllers=True, scheduler=True, crds=(CRD_FILE,)) as plane:
        yield plane


@dataclass
class Running:
    """An operator process and where its figures and log are."""

    connection: httpx.Client
    metrics_port: int
    log: Path

    def refused(self) -> set[tuple[str, str]]:
        """(verb, resource) of the operator's own requests that were forbidden."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        figures = httpx.get(url, timeout=DEADLINE_SECONDS, trust_env=False).text
        found = re.findall(r"^tritonpipe_api_requests_total\{(.*)\} ", figures, flags=re.MULTILINE)
        assert found, "no requests counted"
        labels = [dict(re.findall(r'(\w+)="([^"]*)"', item)) for item in found]
        return {(item["verb"], item["resource"]) for item in labels if item["code"] == "403"}


@contextlib.contextmanager
def running(
    cluster: ControlPlane, folder: Path, namespace: str, *settings: str
) -> Iterator[Running]:
    """Install the chart and run its operator as this process.

    The process takes the place of the Deployment's pod. Everything is removed at the end.
    """
    release = [
        f"--namespace={namespace}",
        "--set",
        "fullnameOverride=triton-pipelines",
        "--set",
        "crds.enabled=false",
        *settings,
    ]
    helm = [str(binaries.path_of("helm")), f"--kubeconfig={cluster.kubeconfig}"]
    subprocess.run(
        [*helm, "install", "rights", str(chart.CHART), "--create-namespace", *release],
        check=True,
        capture_output=True,
    )
    with (
        api.client(cluster.kubeconfig) as connection,
        reserved_ports(2) as (metrics_port, liveness_port),
    ):
        account_kubeconfig(
            connection, cluster.kubeconfig, folder / "kubeconfig", namespace, "triton-pipelines"
        )
        ports = [
            "--set",
            f"operator.metricsPort={metrics_port}",
            "--set",
            f"operator.livenessPort={liveness_port}",
        ]
        variables = environment(
            chart.render(*settings, *ports, namespace=namespace),
            namespace=namespace,
            pod="operator-0",
        )
        variables |= {
            "TRITONPIPE_KUBECONFIG": str(folder / "kubeconfig"),
            "TRITONPIPE_OPERATOR_KEY_FILE": str(folder / "key"),
        }
        log = folder / "operator.log"
        with contextlib.ExitStack() as stack:
            stack.callback(
                subprocess.run,
                [*helm, "uninstall", "rights", f"--namespace={namespace}"],
                check=True,
                capture_output=True,
            )
            process = Process(
                "operator",
                [sys.executable, "-m", "triton_pipelines.cli.main", "operator"],
                log,
                variables,
            )
            stack.callback(process.stop)
            yield Running(connection, metrics_port, log)


def tell_a_story(operator: Running, namespace: str) -> dict[str, Any]:
    """Create a pipeline, change it, delete one of its children, then delete it.

    The operator reacts to each step. Returns the pipeline's last status.
    """
    connection = operator.connection
    path = INFERENCE_PIPELINES.path(namespace, NAME)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = connection.get(path).json().get("status", {})
        return found

    api.apply(connection, path, SAMPLE)
    api.wait_for(
        "WaitingForGPU or alike",
        lambda: "Waiting" in str(status().get("conditions")),
        DEADLINE_SECONDS,
    )
    revision = status()["revision"]
    changed = {
        **SAMPLE,
        "spec": {**SAMPLE["spec"], "tokenizer": {**SAMPLE["spec"]["tokenizer"], "maxLength": 64}},
    }
    api.apply(connection, path, changed)
    api.wait_for("the next revision", lambda: status()["revision"] != revision, DEADLINE_SECONDS)
    live = CONFIG_MAPS.path(namespace, f"{NAME}-live")
    api.wait_for(
        "the live ConfigMap", lambda: connection.get(live).status_code == 200, DEADLINE_SECONDS
    )
    uid = connection.get(live).json()["metadata"]["uid"]
    connection.delete(live).raise_for_status()
    api.wait_for(
        "its repair",
        lambda: connection.get(live).json().get("metadata", {}).get("uid", uid) != uid,
        DEADLINE_SECONDS,
    )
    last = status()
    connection.delete(path).raise_for_status()
    deployment = DEPLOYMENTS.path(namespace, NAME)
    api.wait_for(
        "children gone", lambda: connection.get(deployment).status_code == 404, DEADLINE_SECONDS
    )
    return last


def test_cluster_wide_operator_is_refused_nothing(cluster: ControlPlane, tmp_path: Path) -> None:
    with running(cluster, tmp_path, "wide") as operator:
        tell_a_story(operator, "default")
        assert operator.refused() == set()
        assert "orbidden" not in operator.log.read_text()


def test_namespaced_operator_is_refused_nodes_alone(cluster: ControlPlane, tmp_path: Path) -> None:
    with api.client(cluster.kubeconfig) as connection:
        api.apply(
            connection,
            "/api/v1/namespaces/team",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
        )
    with running(cluster, tmp_path, "scoped", "--set", "watch.namespaces={team}") as operator:
        tell_a_story(operator, "team")
        assert operator.refused() == {("list", "nodes")}
