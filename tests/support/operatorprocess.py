"""The operator in a process of its own, behind its own proxy to a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.local.processes import free_port
from tests.support.faultproxy import FaultProxy

LEASE = "operator"


@dataclass
class OperatorProcess:
    """An operator process that takes part in leader election."""

    name: str
    """Name of the replica."""
    proxy: FaultProxy
    """Its way to the API server."""
    process: asyncio.subprocess.Process
    """The process."""
    log: Path
    """What it prints."""
    health_url: str
    """Address of its liveness endpoint."""
    ports: tuple[int, ...] = ()
    """Ports on which it listens."""

    def writes(self) -> list[str]:
        """Return what it wrote, apart from its Lease and events."""
        return [
            f"{seen.method} {seen.target}"
            for seen in self.proxy.mutating
            if "/leases" not in seen.target
        ]

    def leads(self) -> bool:
        """Return whether it has ever led."""
        return "leading" in self.log.read_text()

    def stands_by(self) -> bool:
        """Return whether it has ever waited for the Lease."""
        return "standing by" in self.log.read_text()

    def is_running(self) -> bool:
        """Return whether the process exists."""
        return self.process.returncode is None

    async def end(self) -> None:
        """Kill it if it runs."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


async def start_operator(
    name: str,
    proxy: FaultProxy,
    folder: Path,
    namespace: str,
    *,
    environment: dict[str, str] | None = None,
    **settings: str,
) -> OperatorProcess:
    """Start an operator for one namespace.

    On a busy machine, it does not lose its Lease.

    Args:
        name: name of the replica.
        proxy: its way to the API server.
        folder: new folder for its key, kubeconfig and log.
        namespace: where it works, and where the Lease is.
        environment: further environment variables.
        settings: further options, as names of environment variables without their prefix.
    """
    folder.mkdir(parents=True)
    (folder / "key").write_text("k" * 64)
    port = free_port()
    options = {
        "NAMESPACES": namespace,
        "OPERATOR_NAMESPACE": namespace,
        "OPERATOR_KEY_FILE": str(folder / "key"),
        "KUBECONFIG": str(proxy.write_kubeconfig(folder / "kubeconfig")),
        "METRICS_PORT": "0",
        "METRICS_HOST": "127.0.0.1",
        "LIVENESS_HOST": "127.0.0.1",
        "LIVENESS_PORT": str(port),
        "SHUTDOWN_SECONDS": "5",
        "INSTANCE": name,
        "LEADER_ELECT": "true",
        "LEADER_ELECT_LEASE": LEASE,
        "LEADER_ELECT_LEASE_DURATION_SECONDS": "60",
        "LEADER_ELECT_RENEW_DEADLINE_SECONDS": "40",
        "LEADER_ELECT_RETRY_SECONDS": "0.5",
        **settings,
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "triton_pipelines.cli.main",
            "operator",
            env={
                **os.environ,
                **{f"TRITONPIPE_{key}": value for key, value in options.items()},
                **(environment or {}),
            },
            stdout=output,
            stderr=output,
        )
    health_url = f"http://127.0.0.1:{port}/healthz"
    return OperatorProcess(name, proxy, process, log, health_url, (port,))
