"""The operator as Helm installs it on a real API server, run as a process of the test.

Its settings come from the chart's pod, and its rights from its own account.
"""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from e2e.local import api, binaries
from e2e.local.processes import Process, reserved_ports
from hack import chart
from tests.support.chart import account_kubeconfig, environment
from tests.support.controlplane import ControlPlane

DEADLINE_SECONDS = 60


@dataclass
class InstalledOperator:
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
def installed_operator(
    cluster: ControlPlane, folder: Path, namespace: str, *settings: str
) -> Iterator[InstalledOperator]:
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
            yield InstalledOperator(connection, metrics_port, log)
