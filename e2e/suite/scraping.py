"""A real Prometheus next to a local cluster, on the host's end of its link.

It scrapes pods and, on request, the kubelet's cAdvisor.

Debian's Prometheus is built without discovery through an API server; here a file tells it of the
pods.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.local.cluster import Cluster
from e2e.suite.installation import NAMESPACE
from e2e.suite.kube import Kube
from tests.support.prometheus import PrometheusServer
from triton_pipelines.api import names

KUBELET_PORT = 10250
ACCOUNT = "e2e-prometheus"
TOKEN_SECONDS = 3600


class Scraper:
    """Prometheus, and the pods that it scrapes."""

    def __init__(self, server: PrometheusServer, file: Path) -> None:
        self._server, self._file = server, file

    @property
    def url(self) -> str:
        """Where pods reach it."""
        return self._server.url

    def watch(self, kube: Kube, namespace: str) -> None:
        """Scrape the namespace's current Triton pods.

        Their series have the same labels as those of a PodMonitor.
        """
        pods = [
            pod
            for pod in kube.objects("Pod", namespace, names.LABEL_PIPELINE)
            if (pod.get("status") or {}).get("podIP")
        ]
        targets = [
            {
                "targets": [f"{pod['status']['podIP']}:{names.PORT_METRICS}"],
                "labels": {
                    "namespace": namespace,
                    "pod": pod["metadata"]["name"],
                    "pipeline": pod["metadata"]["labels"][names.LABEL_PIPELINE],
                },
            }
            for pod in pods
        ]
        made = self._file.with_suffix(".new")
        made.write_text(json.dumps(targets))
        made.replace(self._file)

    def query(self, text: str) -> list[dict[str, Any]]:
        """Result of an instant query."""
        return self._server.query(text)

    def kill(self) -> None:
        """End it at once."""
        self._server.kill()

    def restart_empty(self) -> None:
        """Start it with nothing stored."""
        self._server.start(empty=True)


@contextlib.contextmanager
def scraper(cluster: Cluster, interval: float, kubelet_token: str = "") -> Iterator[Scraper]:
    """Run Prometheus for the duration of the context.

    ``interval`` is in seconds between scrapes. With a token it also scrapes cAdvisor.
    """
    with tempfile.TemporaryDirectory(prefix="tritonpipe-scraping-") as folder:
        file = Path(folder) / "pods.json"
        file.write_text("[]")
        discovery: list[dict[str, Any]] = [
            {
                "job_name": "pods",
                "honor_labels": True,
                "file_sd_configs": [{"files": [str(file)], "refresh_interval": "1s"}],
            }
        ]
        if kubelet_token:
            token = Path(folder) / "token"
            token.touch(0o600)
            token.write_text(kubelet_token)
            discovery.append(_cadvisor(cluster, token))
        with PrometheusServer(
            discovery=discovery, interval=interval, address=cluster.subnets.host_address
        ) as server:
            yield Scraper(server, file)


def _cadvisor(cluster: Cluster, token: Path) -> dict[str, Any]:
    # The kubelet's certificate is its own; its series name namespace, pod and container themselves.
    return {
        "job_name": "cadvisor",
        "scheme": "https",
        "metrics_path": "/metrics/cadvisor",
        "honor_labels": True,
        "tls_config": {"insecure_skip_verify": True},
        "authorization": {"credentials_file": str(token)},
        "static_configs": [{"targets": [f"{cluster.subnets.node_address}:{KUBELET_PORT}"]}],
    }


@contextlib.contextmanager
def kubelet_reader(kube: Kube) -> Iterator[str]:
    """A token that may read the kubelet's metrics, and nothing else."""
    rules = [{"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": ACCOUNT},
        "rules": rules,
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": ACCOUNT,
        },
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": NAMESPACE},
    }
    made = yaml.safe_dump_all([account, role, binding])
    kube.kubectl("apply", "--filename=-", input=made)
    try:
        yield kube.kubectl(
            "create", "token", ACCOUNT, f"--namespace={NAMESPACE}", f"--duration={TOKEN_SECONDS}s"
        ).strip()
    finally:
        kube.kubectl("delete", "--filename=-", "--ignore-not-found", "--wait=false", input=made)
