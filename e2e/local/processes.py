"""Child processes with log files: started, watched for an early death, ended for certain."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL. An API server whose etcd is gone never ends by itself."""

PORTS = range(12_000, 30_000)
"""Below the ephemeral range (`net.ipv4.ip_local_port_range`, 32768 by default) and node ports."""

LOG_TAIL = 15
"""Lines of a dead process's log that go into the error message."""


class ProcessDiedError(RuntimeError):
    """A process ended that should be running; the message ends with the last lines of its log."""


class Process:
    """One running child whose output goes to a file.

    The child dies with the thread that started it (Linux parent-death signal), so a killed test run
    leaves nothing behind: start it from a thread that outlives it, normally the main one.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        setpriv = shutil.which("setpriv")
        prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def check(self) -> None:
        """Raise `ProcessDiedError` if the process has ended."""
        code = self._child.poll()
        if code is not None:
            raise ProcessDiedError(
                f"{self.name} ended with exit code {code}; {self.log} ends with:\n{tail(self.log)}"
            )

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._child.kill()
        self._child.wait()

    def stop(self, grace: float = GRACE) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds; returns when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()


def stop_all(processes: Sequence[Process], grace: float = GRACE) -> None:
    """End processes in the order given, each for certain, whatever happens to the others."""
    with contextlib.ExitStack() as stack:
        for process in reversed(processes):
            stack.callback(process.stop, grace)


def tail(log: Path, lines: int = LOG_TAIL) -> str:
    """Last lines of a log file."""
    with contextlib.suppress(FileNotFoundError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return "(no log)"


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Reserve free TCP ports on loopback for the duration of the block.

    They stay bound, so that parallel callers get others. After the block, a process has time to
    listen on them: no connection that somebody opens gets a port below Linux's ephemeral range.
    """
    with contextlib.ExitStack() as stack:
        yield [_bind(stack.enter_context(socket.socket())) for _ in range(count)]


def _bind(handle: socket.socket) -> int:
    """Bind a socket to a port that no other socket has, and return the port."""
    for port in secrets.SystemRandom().sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError):
            handle.bind(("127.0.0.1", port))
            # From now on, a server with the same option can listen on it.
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return port
    raise OSError(f"no free port from {PORTS[0]} to {PORTS[-1]} on 127.0.0.1")


def free_port() -> int:
    """Return a TCP port of loopback on which no process listens."""
    with reserved_ports(1) as (port,):
        return port


def replace_file(path: Path, text: str) -> None:
    """Write a file in one step, so that no reader sees half of it; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text)
    scratch.replace(path)


def wait_gone(pids: Sequence[int], deadline: float) -> list[int]:
    """Wait until none of the process ids exists anymore.

    Returns those that still exist after `deadline` seconds.
    """
    end = time.monotonic() + deadline
    left = list(pids)
    while left and time.monotonic() < end:
        left = [pid for pid in left if Path(f"/proc/{pid}").exists()]
        time.sleep(0.02 if left else 0)
    return left
