"""Control the supervisor from outside.

Launches it and asks it to run, stop and restart a cluster's components.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.local import api, network, packages, processes
from e2e.local.processes import replace_file

END_SECONDS = 60.0
PROGRAM = Path(__file__).with_name("supervisor.py")

# Supervisors of this process. A cluster outlives the objects that started it, and Python warns of a
# child that is forgotten while it runs.
_LAUNCHED: list[subprocess.Popen[bytes]] = []


class ClusterError(RuntimeError):
    """The cluster could not be brought up, changed or removed; the message says what to do."""


@dataclass(frozen=True)
class Supervisor:
    """Handle on process 1 of a cluster, whether it is running or not.

    The cluster has this name, state folder, network namespace and log folder.
    """

    name: str
    state: Path
    namespace: str
    logs: Path

    def init_pid(self) -> int | None:
        """Return the host's process id of the cluster's process 1.

        `None` if the cluster is not running.
        """
        for pid in network.processes(self.namespace):
            with contextlib.suppress(OSError):
                status = (Path("/proc") / str(pid) / "status").read_text()
                ids = next(
                    line for line in status.splitlines() if line.startswith("NSpid:")
                ).split()[1:]
                if ids[-1] == "1" and len(ids) > 1:
                    return pid
        return None

    def require_running(self) -> int:
        """Like `init_pid`, but raises `ClusterError` when the cluster is not running."""
        pid = self.init_pid()
        if pid is None:
            raise ClusterError(
                f"cluster {self.name} is not running: bring it up with `python -m "
                f"e2e.local up --name {self.name}`"
            )
        return pid

    def launch(self) -> None:
        """Start process 1 in the network namespace and in new mount and process namespaces.

        Returns when it has set up its mounts.
        """
        for folder in (self.logs, self.state / "components", self.state / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        with (self.logs / "supervisor.log").open("ab") as output:
            child = subprocess.Popen(
                [
                    *("nsenter", f"--net={network.namespace_path(self.namespace)}"),
                    *(
                        "unshare",
                        "--mount",
                        "--propagation=private",
                        "--pid",
                        "--fork",
                        "--kill-child",
                    ),
                    *(sys.executable, "-I", str(PROGRAM), str(self.state)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={
                    "PATH": packages.search_path(),
                    "TMPDIR": str(self.state / "tmp"),
                    "LANG": "C.UTF-8",
                },
                start_new_session=True,
            )
        _LAUNCHED.append(child)

        def alive() -> None:
            if child.poll() is not None:
                raise ClusterError(
                    f"the supervisor of cluster {self.name} ended:\n"
                    f"{processes.tail(self.logs / 'supervisor.log')}"
                )

        api.wait_for("supervisor", lambda: (self.state / "run.json").exists(), END_SECONDS, alive)

    def add(self, name: str, command: Sequence[str]) -> None:
        """Describe a component; it is started at `launch`, or at the next `rescan`."""
        definition = {"command": list(command), "log": str(self.logs / f"{name}.log")}
        replace_file(self.state / "components" / f"{name}.json", json.dumps(definition))

    def rescan(self) -> None:
        """Let the supervisor start and stop components as described."""
        os.kill(self.require_running(), signal.SIGHUP)

    def components(self) -> dict[str, dict[str, int]]:
        """Return what the supervisor runs, by name.

        Each entry has `pid` (in the cluster's process namespace, 0 between restarts) and `ended`
        (how often the component ended).
        """
        with contextlib.suppress(FileNotFoundError):
            document: dict[str, dict[str, int]] = json.loads((self.state / "run.json").read_text())
            return document
        return {}

    def stop(self, name: str) -> None:
        """Stop a component until `start`; returns when its process is gone.

        Raises:
            ClusterError: there is no such running component.
        """
        definition = self.state / "components" / f"{name}.json"
        if not definition.exists():
            raise ClusterError(
                f"no running component {name}; components are "
                f"{', '.join(sorted(self.components()))}"
            )
        definition.rename(definition.with_suffix(".stopped"))
        self.rescan()
        api.wait_for(f"end of {name}", lambda: name not in self.components(), END_SECONDS)

    def start(self, name: str) -> None:
        """Run a component again that `stop` stopped.

        Raises:
            ClusterError: the component is not stopped.
        """
        stopped = self.state / "components" / f"{name}.stopped"
        if not stopped.exists():
            raise ClusterError(
                f"component {name} is not stopped; running are "
                f"{', '.join(sorted(self.components()))}"
            )
        stopped.rename(stopped.with_suffix(".json"))
        self.rescan()

    def kill(self, name: str) -> None:
        """Kill a component at once (SIGKILL), as a crash would.

        It is restarted after a second.
        """
        pid = self.components().get(name, {}).get("pid", 0)
        if not pid:
            raise ClusterError(
                f"component {name} is not running; components are "
                f"{', '.join(sorted(self.components()))}"
            )
        self.run(["kill", "-KILL", str(pid)])

    def run(self, command: Sequence[str]) -> str:
        """Run a command in all of the node's namespaces; returns its standard output.

        Raises:
            ClusterError: the cluster is not running.
            CalledProcessError: the command failed.
        """
        enter = [
            "nsenter",
            "--target",
            str(self.require_running()),
            "--mount",
            "--net",
            "--pid",
            "--",
        ]
        return subprocess.run(
            [*enter, *command], check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def failure_report(self) -> str:
        """Last log lines of the components that ended, else of supervisor and kubelet."""
        failed = [name for name, entry in self.components().items() if entry["ended"]] or [
            "supervisor",
            "kubelet",
        ]
        return "\n".join(
            f"--- {name}.log ends with:\n{processes.tail(self.logs / f'{name}.log')}"
            for name in failed
        )
