"""The NetworkPolicy of a pipeline, enforced: real pods connect to a real Triton, or cannot.

A cluster whose network plugin ignores policies fails these tests. The local cluster's node enforces
them (e2e/local/policy_agent.py).
"""

from collections.abc import Iterator, Mapping

import pytest

from e2e.suite.installation import (
    NAMESPACE,
    SAMPLES,
    SAMPLES_NAMESPACE,
    SAMPLES_PORT,
    Installation,
)
from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.tiny import TinyPipeline, is_ready
from triton_pipelines.api import names

PORTS = (names.PORT_HTTP, names.PORT_GRPC, names.PORT_METRICS)
CLIENT = "client"
SECONDS = 30.0
# Prints a line per port: "open" or "closed".
CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), 3).close()
        print(port, 'open')
    except OSError:
        print(port, 'closed')
"""


def client_pod(image: str) -> Object:
    """Return a pod that does nothing until it is deleted; its image has Python."""
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": CLIENT,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", "import signal; signal.pause()"],
        "securityContext": security,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": CLIENT},
        "spec": {
            "containers": [container],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        },
    }


class Clients:
    """Pods that try to reach a server, by name, each as (namespace, pod)."""

    def __init__(self, kube: Kube, pods: Mapping[str, tuple[str, str]]) -> None:
        self._kube = kube
        self._pods = pods

    def open_ports(self, client: tuple[str, str], address: str, *ports: int) -> set[int]:
        """Return the ports of an address to which a pod can connect."""
        namespace, pod = client
        output = self._kube.kubectl(
            *("exec", f"--namespace={namespace}", pod, "--", "python3", "-c", CONNECT, address),
            *map(str, ports),
        )
        results = dict(line.split() for line in output.splitlines())
        assert set(results) == {str(port) for port in ports}
        return {int(port) for port, result in results.items() if result == "open"}

    def wait_reaching(self, what: str, address: str, expected: Mapping[str, set[int]]) -> None:
        """Wait until each client can connect to exactly these of Triton's ports."""
        wait_for(
            what,
            lambda: {
                name: self.open_ports(pod, address, *PORTS) for name, pod in self._pods.items()
            },
            expected.__eq__,
            SECONDS,
        )


def foreign_pod(kube: Kube) -> Object:
    """Return a pod of another namespace: the server of the samples."""
    (pod, *_) = kube.objects("Pod", SAMPLES_NAMESPACE, f"app.kubernetes.io/name={SAMPLES}")
    return pod


@pytest.fixture(scope="module")
def served(module_tiny: TinyPipeline) -> TinyPipeline:
    """Return a pipeline that serves, for tests that change nothing but its policy."""
    module_tiny.serve("old")
    return module_tiny


@pytest.fixture
def tiny(served: TinyPipeline) -> Iterator[TinyPipeline]:
    """Return the pipeline with the default policy, which it has again afterwards."""
    pods = served.pod_names()
    yield served
    change_policy(served)
    served.wait_ready()
    assert served.pod_names() == pods


@pytest.fixture(scope="module")
def clients(kube: Kube, installation: Installation, served: TinyPipeline) -> Clients:
    """Return a pod of the pipeline's namespace, one of another namespace, and the operator."""
    namespace = served.namespace
    kube.apply(client_pod(installation.images.samples), namespace=namespace)
    kube.wait("Pod", namespace, CLIENT, lambda pod: pod and is_ready(pod), "ready", SECONDS)
    # One of an earlier installation may still be terminating.
    (operator,) = [
        pod
        for pod in installation.operator_pods()
        if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
    ]
    return Clients(
        kube,
        {
            "same namespace": (namespace, CLIENT),
            "other namespace": (SAMPLES_NAMESPACE, foreign_pod(kube)["metadata"]["name"]),
            "operator": (NAMESPACE, operator["metadata"]["name"]),
        },
    )


def change_policy(tiny: TinyPipeline, **policy: object) -> None:
    """Replace `spec.server.networkPolicy`."""
    empty = {"mode": None, "inferenceFrom": None, "egress": None}
    tiny.patch({"spec": {"server": {"networkPolicy": {**empty, **policy}}}})


def test_only_the_namespace_and_the_operator_reach_triton_while_the_policy_exists(
    tiny: TinyPipeline, clients: Clients
) -> None:
    (pod,) = tiny.serving_pods()
    address = pod["status"]["podIP"]
    every = set(PORTS)
    clients.wait_reaching(
        "the policy is enforced",
        address,
        {"same namespace": every, "other namespace": set(), "operator": every},
    )
    # Without the policy, the same pod connects: nothing else kept it out.
    change_policy(tiny, mode="Disabled")
    clients.wait_reaching(
        "everyone is admitted",
        address,
        {"same namespace": every, "other namespace": every, "operator": every},
    )
    namespaces = {"matchLabels": {"kubernetes.io/metadata.name": SAMPLES_NAMESPACE}}
    change_policy(tiny, inferenceFrom=[{"namespaceSelector": namespaces}])
    clients.wait_reaching(
        "declared peers replace the namespace",
        address,
        {
            "same namespace": {names.PORT_METRICS},
            "other namespace": {names.PORT_HTTP, names.PORT_GRPC},
            "operator": every,
        },
    )


def test_triton_reaches_only_what_egress_permits(
    kube: Kube, tiny: TinyPipeline, clients: Clients
) -> None:
    (pod,) = tiny.serving_pods()
    server = (tiny.namespace, pod["metadata"]["name"])
    target = foreign_pod(kube)["status"]["podIP"]

    def wait_open(what: str, expected: set[int]) -> None:
        wait_for(
            what,
            lambda: clients.open_ports(server, target, SAMPLES_PORT),
            expected.__eq__,
            SECONDS,
        )

    wait_open("egress is open by default", {SAMPLES_PORT})
    change_policy(tiny, egress=[{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}])
    wait_open("egress is restricted", set())
    change_policy(tiny, egress=[{"to": [{"ipBlock": {"cidr": f"{target}/32"}}]}])
    wait_open("egress to this address is permitted", {SAMPLES_PORT})
