"""Run a real Triton server on this machine as a child process.

``tritonpipe serve`` and the integration tests use it. The server gets the flags of a pipeline's pod
(explicit model control, no auto-complete, exit-on-error off, restricted control APIs if a key is
given), listens on loopback by default, and leaves nothing behind: processes, ports and shared
memory are its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import py_compile
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import httpx

from triton_pipelines.api import names
from triton_pipelines.compile.graph.server_settings import server_arguments
from triton_pipelines.triton.distribution import Distribution, obtain
from triton_pipelines.triton.server_log import failure_reason, is_port_taken

LOOPBACK: Final = "127.0.0.1"
_POLL_S: Final = 0.05
# The kernel's folder of shared memory, not a temporary file of this program.
_SHM: Final = Path("/dev/shm")  # noqa: S108
_SHM_PREFIX: Final = "tritonpipe-local-"
_PORT_TRIES: Final = 3
_KILL_AFTER_S: Final = 5.0
_REQUEST_S: Final = 1.0


class LocalTritonError(RuntimeError):
    """The local server did not start, or a model did not load; has the server's own reason."""


def compile_python(folder: Path) -> None:
    """Byte-compile the Python files in a folder; those with errors are left to the server.

    The result lies next to each file: Triton's interpreter ignores ``PYTHONPYCACHEPREFIX``.
    """
    for file in folder.rglob("*.py"):
        compiled = f"{file.stem}.{sys.implementation.cache_tag}.pyc"
        with contextlib.suppress(OSError):
            py_compile.compile(str(file), str(file.parent / "__pycache__" / compiled), quiet=2)


class LocalTriton:
    """One local tritonserver; a sync and an async context manager, ready on entry."""

    def __init__(
        self,
        repository: Path,
        load: Sequence[str],
        *,
        ready: str | None = None,
        control_key: str | None = None,
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        address: str = LOOPBACK,
        log_file: Path | None = None,
        deadline_s: float = 120.0,
        stop_s: int = 10,
        environment: Mapping[str, str] | None = None,
        extra_args: Sequence[str] = (),
        auto_complete: bool = False,
        precompile: bool = True,
        distribution: Distribution | None = None,
    ) -> None:
        """Prepare the server; nothing is started.

        Args:
            repository: model repository.
            load: models to load at the start; an ensemble loads its steps.
            ready: model whose readiness is awaited; default: every model of ``load``.
            control_key: value that clients must send in ``names.CONTROL_HEADER`` for the control
                APIs; ``None`` leaves these open.
            http_port: port of the HTTP API; 0 takes a free one.
            grpc_port: port of the gRPC API; 0 takes a free one.
            metrics_port: port of the metrics; 0 takes a free one.
            address: address to listen on.
            log_file: the server's log; default: a temporary file, removed at the end.
            deadline_s: seconds until the models must be ready.
            stop_s: whole seconds after SIGTERM for requests in flight (an idle keep-alive
                connection uses them up).
            environment: additional environment variables of the server.
            extra_args: additional flags of tritonserver.
            auto_complete: whether backends may complete the configs.
            precompile: byte-compile the models' Python files first. Otherwise the server writes
                ``__pycache__`` after it took the timestamps, which turns the first change of an
                instance count into a full reload.
            distribution: a tritonserver; default: ``distribution.obtain()``.
        """
        self.repository = repository
        self.load = tuple(load)
        self.awaited = (ready,) if ready is not None else self.load
        self.address = address
        self.http_port, self.grpc_port, self.metrics_port = http_port, grpc_port, metrics_port
        self.log_file = log_file
        self._requested_ports = (http_port, grpc_port, metrics_port)
        self._key = control_key
        self._deadline_s = deadline_s
        self._stop_s = stop_s
        self._environment = dict(environment or {})
        self._extra_args = tuple(extra_args)
        self._auto_complete = auto_complete
        self._precompile = precompile
        self._distribution = distribution
        self._process: subprocess.Popen[bytes] | None = None
        self._own_log = log_file is None
        self._shm_prefix = f"{_SHM_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-"

    @property
    def http_url(self) -> str:
        """Return the base URL of the HTTP API, without a trailing slash."""
        return f"http://{self.address}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        """Return ``host:port`` of the gRPC API."""
        return f"{self.address}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """Return the URL of the Prometheus metrics."""
        return f"http://{self.address}:{self.metrics_port}/metrics"

    @property
    def pid(self) -> int:
        """Return the process id of tritonserver, which is also that of its process group."""
        if self._process is None:
            raise LocalTritonError("the server has not been started")
        return self._process.pid

    def running(self) -> bool:
        """Return whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Return everything that the server has logged so far."""
        return (
            self.log_file.read_text(errors="replace")
            if self.log_file is not None and self.log_file.exists()
            else ""
        )

    def start(self) -> None:
        """Start the process and return at once (see ``wait_ready``).

        Raises:
            DistributionError: there is no Triton for this machine.
            LocalTritonError: the repository folder is missing.
        """
        if not self.repository.is_dir():
            raise LocalTritonError(
                f"{self.repository} is not a directory; specify the model repository to serve"
            )
        if self._distribution is None:
            self._distribution = obtain()
        if self._precompile:
            compile_python(self.repository)
        remove_stale_shared_memory()
        try:
            self._launch(self._distribution)
        except BaseException:
            self.stop()
            raise

    def wait_ready(self) -> None:
        """Block until the awaited models are ready.

        Raises:
            LocalTritonError: a model failed, the server ended, or the deadline passed. Nothing is
                left running.
        """
        deadline = time.monotonic() + self._deadline_s
        tries = _PORT_TRIES
        headers = {} if self._key is None else {names.CONTROL_HEADER: self._key}
        try:
            with httpx.Client(headers=headers, timeout=_REQUEST_S, trust_env=False) as client:
                while not self._ready(client):
                    if time.monotonic() > deadline:
                        raise LocalTritonError(
                            f"{', '.join(self.awaited)}: not ready within "
                            f"{self._deadline_s:g} s: {self._reason()}"
                        )
                    if self._wait_for_end(_POLL_S):
                        tries -= 1
                        self._relaunch_or_raise(tries)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and remove its shared memory and temporary log.

        Sends SIGTERM, then SIGKILL to the whole process group.
        """
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self.stop)
        try:
            if process.poll() is None:
                process.terminate()
            process.wait(self._stop_s + _KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # The group outlives its leader when a stub hangs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _remove_shared_memory(f"{self._shm_prefix}*")
            if self._own_log and self.log_file is not None:
                self.log_file.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.start)
            await asyncio.to_thread(self.wait_ready)
        except asyncio.CancelledError:
            self.stop()  # the waiting thread notices that the process is gone and returns
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def arguments(self, distribution: Distribution) -> list[str]:
        """Return the server's command line."""
        return [
            str(distribution.executable),
            f"--backend-directory={distribution.backends}",
            f"--cache-directory={distribution.caches}",
            f"--http-address={self.address}",
            f"--grpc-address={self.address}",
            f"--metrics-address={self.address}",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            *server_arguments(
                str(self.repository),
                self.load,
                exit_timeout_seconds=self._stop_s,
                connection_age_milliseconds=None,
                control_key=self._key,
                auto_complete=self._auto_complete,
                extra=self._extra_args,
            ),
        ]

    def _launch(self, distribution: Distribution) -> None:
        self.http_port, self.grpc_port, self.metrics_port = _free_ports(
            self.address, self._requested_ports
        )
        if self.log_file is None:
            handle, name = tempfile.mkstemp(prefix="tritonserver-", suffix=".log")
            os.close(handle)
            self.log_file = Path(name)
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            # Not in the calling thread: a signal handler that raises there could interrupt Popen
            # between the fork and the assignment, and leave a server that stop() does not know.
            executor.submit(self._start_process, distribution, self.log_file).result()
        atexit.register(self.stop)

    def _start_process(self, distribution: Distribution, log_file: Path) -> None:
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self.arguments(distribution),
                env={**distribution.environment(os.environ), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A separate process group: Ctrl-C reaches the server only through stop(), and
                # stop() reaches its stubs.
                start_new_session=True,
            )

    def _ready(self, client: httpx.Client) -> bool:
        """Return whether the models are ready; False if they need more time.

        Raises:
            LocalTritonError: a model failed for good.
        """
        try:
            if all(
                client.get(f"{self.http_url}/v2/models/{model}/ready").status_code == httpx.codes.OK
                for model in self.awaited
            ):
                # The metrics port opens last: until it answers, a taken port may still end the
                # server.
                return client.get(self.metrics_url).status_code == httpx.codes.OK
            models = client.post(f"{self.http_url}/v2/repository/index").raise_for_status().json()
        except httpx.TransportError:
            return False  # the port opens only after the first load
        except httpx.HTTPStatusError:
            return False  # the index answers with an error while the server starts or ends
        if any(model.get("state") in ("LOADING", "UNLOADING") for model in models):
            return False
        failed = [
            f"{m['name']}: {m['reason']}"
            for m in models
            if m.get("state") == "UNAVAILABLE" and m.get("reason") not in (None, "", "unloaded")
        ]
        raise LocalTritonError(
            "; ".join(failed) if failed else f"{', '.join(self.awaited)}: {self._reason()}"
        )

    def _wait_for_end(self, seconds: float) -> bool:
        """Wait ``seconds`` or until the process ends; return whether it ended."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _relaunch_or_raise(self, tries: int) -> None:
        """Start again if another program took a free port before the server bound it."""
        process, distribution = self._process, self._distribution
        if process is None or distribution is None:
            raise LocalTritonError("the server was stopped during startup")
        if tries <= 0 or 0 not in self._requested_ports or not is_port_taken(self.log()):
            raise LocalTritonError(
                f"tritonserver exited with code {process.returncode} before it was ready: "
                f"{self._reason()}"
            )
        self._launch(distribution)

    def _reason(self) -> str:
        """Return why the server failed, from its log."""
        return failure_reason(self.log())


def _free_ports(address: str, requested: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the requested ports, with 0 replaced by a port that is free now.

    All are held open until chosen, so that they differ.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as stack:

        def choose(port: int) -> int:
            if port:
                return port
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.bind((address, 0))
            return int(listener.getsockname()[1])

        return choose(requested[0]), choose(requested[1]), choose(requested[2])


def remove_stale_shared_memory() -> None:
    """Remove regions that earlier local servers left when their owner was killed."""
    for region in _SHM.glob(f"{_SHM_PREFIX}*"):
        owner = region.name.removeprefix(_SHM_PREFIX).split("-", 1)[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove_shared_memory(region.name)


def _remove_shared_memory(pattern: str) -> None:
    for region in _SHM.glob(pattern):
        region.unlink(missing_ok=True)
