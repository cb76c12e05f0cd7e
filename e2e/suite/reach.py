"""Reach a Service from outside the cluster.

The client uses the Service's own address if it is routed, else `kubectl port-forward`.

A forwarded port ends at ONE pod, as kubectl does it; tests about rollouts and drains need a routed
service range (a local cluster has one).
"""

import contextlib
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from e2e.suite.kube import Kube, wait_for
from triton_pipelines.api import names

CONNECT_SECONDS = 10.0
"""For one connection; a refused one, or an unknown route, shows at once."""
FORWARD_SECONDS = 20.0
ACCEPT_SECONDS = 1.0
SERVICE_SECONDS = 60.0
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)")


@dataclass(frozen=True)
class Endpoint:
    """Where a pipeline answers: `http` is a URL, `grpc` and `metrics` are `host:port`.

    With TLS, clients trust `authorities` (PEM) and expect a certificate for `server_name`.
    """

    http: str
    grpc: str
    metrics: str
    authorities: bytes = b""
    server_name: str = ""

    @classmethod
    def of(cls, host: str, ports: Mapping[int, int]) -> "Endpoint":
        """From a host and the local port of each of Triton's ports."""
        return cls(
            f"http://{host}:{ports[names.PORT_HTTP]}",
            f"{host}:{ports[names.PORT_GRPC]}",
            f"{host}:{ports[names.PORT_METRICS]}",
        )


def _accepts(address: str) -> bool:
    """Return whether a Service accepts a connection; raises OSError if it does not."""
    with socket.create_connection((address, names.PORT_GRPC), ACCEPT_SECONDS):
        return True


class Reach:
    """Decides once whether the cluster's service range is routed from here."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        address = kube.get("Service", "default", "kubernetes")["spec"]["clusterIP"]
        try:
            with socket.create_connection((address, 443), CONNECT_SECONDS):
                self.routed = True
        except OSError:
            self.routed = False

    @contextlib.contextmanager
    def service(self, namespace: str, name: str) -> Iterator[Endpoint]:
        """Return a way to reach the Service's ports for the duration of the context.

        At least one pod of the Service must be ready. The node's rules follow readiness within a
        second. A connection that starts between two of their parts (reject removed, address
        translation not there yet) hangs until its client gives up, so the first one is made here.
        """
        ports = (names.PORT_HTTP, names.PORT_GRPC, names.PORT_METRICS)
        if self.routed:
            address = self._kube.get("Service", namespace, name)["spec"]["clusterIP"]
            wait_for(
                f"service {name} accepts connections",
                lambda: _accepts(address),
                bool,
                SERVICE_SECONDS,
            )
            yield Endpoint.of(address, {port: port for port in ports})
            return
        command = self._kube.kubectl_command(
            "port-forward",
            f"--namespace={namespace}",
            f"service/{name}",
            *(f":{port}" for port in ports),
        )
        with tempfile.TemporaryFile("w+") as output:
            forward = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

            def forwarded() -> dict[int, int]:
                output.seek(0)
                text = output.read()
                if forward.poll() is not None:
                    raise AssertionError(f"kubectl port-forward ended: {text.strip()}")
                return {int(there): int(here) for here, there in _FORWARDING.findall(text)}

            try:
                found = wait_for(
                    f"ports of service {name} forwarded",
                    forwarded,
                    lambda seen: seen.keys() >= set(ports),
                    FORWARD_SECONDS,
                )
                yield Endpoint.of("127.0.0.1", found)
            finally:
                forward.terminate()
                forward.wait(FORWARD_SECONDS)
