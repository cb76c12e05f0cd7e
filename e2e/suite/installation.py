"""Puts the product and the server of its samples into a cluster, and takes both out again."""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.local import binaries
from e2e.suite.access import Images
from e2e.suite.kube import Kube, Object, wait_for

CHART = Path(__file__).resolve().parents[2] / "charts" / "triton-pipelines"
NAMESPACE = "triton-pipelines"
RELEASE = "triton-pipelines"
SAMPLES_NAMESPACE = "e2e-samples"
SAMPLES = "samples"
SAMPLES_PORT = 8080
BAD_SERVERS = ("slow", "truncated", "flaky", "corrupt", "missing")
"""Paths of the samples' server that misbehave.

For example, `s3://truncated/models/…` is the sample's file, cut off (see e2e/local/images/samples).
"""

CRD = "inferencepipelines.tritonpipelines.io"
LABEL = "tritonpipelines.io/e2e"
HELM_SECONDS = 120
READY_SECONDS = 120.0
GONE_SECONDS = 120.0


def namespace(name: str) -> Object:
    """Return a namespace that enforces the restricted Pod Security Standard.

    A label marks it as the suite's.
    """
    security = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {LABEL: "true", **security}},
    }


class Installation:
    """The operator, installed by helm, and the samples' server in one cluster.

    Args:
        kube: the cluster.
        images: what to install.
        build: what tells this build of the operator's image from another of the same name; empty
            where the name is enough.
    """

    def __init__(self, kube: Kube, images: Images, *, build: str = "") -> None:
        self.kube = kube
        self.images = images
        self.build = build
        self.samples_url = ""

    def install(self, changes: Mapping[str, Any] | None = None) -> None:
        """Install or update both, and return when the operator is ready.

        `changes` override the chart's values.
        """
        self.kube.apply(namespace(SAMPLES_NAMESPACE))
        self.kube.apply(namespace(NAMESPACE))
        self.samples_url = self._serve_samples()
        self.helm_install(changes)

    def helm_install(self, changes: Mapping[str, Any] | None = None) -> None:
        """`helm upgrade --install --wait` with the suite's values and `changes` over them."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "values.yaml"
            file.write_text(yaml.safe_dump(_merged(self.values(), changes or {})))
            self.helm(
                "upgrade",
                "--install",
                RELEASE,
                str(CHART),
                f"--values={file}",
                "--wait",
                f"--timeout={HELM_SECONDS}s",
            )

    def uninstall(self) -> None:
        """Remove everything.

        Pipelines and their namespaces go first, then release, CRD and samples.
        """
        remove_namespaces(self.kube)
        self.helm(
            "uninstall", RELEASE, "--wait", f"--timeout={HELM_SECONDS}s", "--ignore-not-found"
        )
        for name in (NAMESPACE, SAMPLES_NAMESPACE):
            self.kube.delete("Namespace", None, name)
        for name in (NAMESPACE, SAMPLES_NAMESPACE):
            self.kube.wait_gone("Namespace", None, name, GONE_SECONDS)
        self.kube.wait_gone("CustomResourceDefinition", None, CRD)

    def values(self) -> dict[str, Any]:
        """The chart's values for the run."""
        repository, _, tag = self.images.operator.rpartition(":")
        mapped = [f"hf://={self.samples_url}", f"s3://models/={self.samples_url}/s3/models/"]
        mapped += [
            f"s3://{name}/={self.samples_url}/{name}/{'10/' if name == 'slow' else ''}"
            for name in BAD_SERVERS
        ]
        # The same name may denote a different build than in an earlier run whose installation was
        # kept.
        built = {f"{LABEL}-build": self.build} if self.build else {}
        return {
            "podAnnotations": built,
            "image": {"repository": repository, "tag": tag},
            "server": {"image": self.images.triton},
            # Test servers without a GPU lack Triton's ONNX Runtime backend.
            "operator": {
                "substituteRunner": ["onnxruntime_onnx"],
                "sourceMap": mapped,
                "logLevel": "debug",
            },
            "resources": {
                "requests": {"cpu": "50m", "memory": "128Mi"},
                "limits": {"memory": "512Mi"},
            },
            "crds": {"keep": False},
        }

    def helm(self, *arguments: str) -> str:
        """What helm prints.

        Raises:
            AssertionError: it failed; with its message.
        """
        command = [
            str(binaries.path_of("helm")),
            f"--kubeconfig={self.kube.kubeconfig}",
            f"--kube-context={self.kube.context}",
        ]
        command += [f"--namespace={NAMESPACE}", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=HELM_SECONDS + 60, check=False
        )
        if done.returncode != 0:
            raise AssertionError(
                f"helm {' '.join(arguments[:2])} ended with {done.returncode}: "
                f"{done.stderr.strip()}"
            )
        return done.stdout

    def operator_pods(self) -> list[Object]:
        """The operator's pods."""
        return list(self.kube.objects("Pod", NAMESPACE, "app.kubernetes.io/component=operator"))

    def operator_log(self, lines: int = 2000) -> str:
        """The end of the operator's log."""
        return self.kube.kubectl(
            "logs",
            f"--namespace={NAMESPACE}",
            "--selector=app.kubernetes.io/component=operator",
            f"--tail={lines}",
            check=False,
        )

    def _serve_samples(self) -> str:
        """Deploy the samples' server; its URL, by address, since a local cluster has no DNS."""
        for document in _samples(self.images.samples):
            self.kube.apply(document, namespace=SAMPLES_NAMESPACE)
        self.kube.wait(
            "Deployment", SAMPLES_NAMESPACE, SAMPLES, _rolled_out, "rolled out", READY_SECONDS
        )
        address = self.kube.get("Service", SAMPLES_NAMESPACE, SAMPLES)["spec"]["clusterIP"]
        return f"http://{address}:{SAMPLES_PORT}"


def remove_namespaces(kube: Kube, deadline: float = GONE_SECONDS) -> None:
    """Delete the tests' namespaces and wait until they are gone.

    They may be from this run or from one that was interrupted.
    """

    def left() -> list[str]:
        found = (
            item["metadata"]["name"] for item in kube.objects("Namespace", selector=f"{LABEL}=true")
        )
        return [name for name in found if name not in (NAMESPACE, SAMPLES_NAMESPACE)]

    for name in left():
        kube.delete("Namespace", None, name)
    wait_for("namespaces of tests gone", left, lambda names: not names, deadline)


def _rolled_out(deployment: Object | None) -> bool:
    if deployment is None:
        return False
    status = deployment.get("status") or {}
    current = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return bool(
        current
        and status.get("updatedReplicas")
        == status.get("availableReplicas")
        == status.get("replicas")
        == 1
    )


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        result[key] = (
            _merged(result[key], value)
            if isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            else value
        )
    return result


def _samples(image: str) -> list[Object]:
    labels = {"app.kubernetes.io/name": SAMPLES}
    container = {
        "name": "server",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": "http", "containerPort": SAMPLES_PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "20m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": SAMPLES},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": SAMPLES},
            "spec": {
                "selector": labels,
                "ports": [
                    {"name": "http", "port": SAMPLES_PORT, "targetPort": "http", "protocol": "TCP"}
                ],
            },
        },
    ]
