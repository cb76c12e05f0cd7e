"""Runs a real Triton server on this machine as a child process.

What ``tritonpipe serve`` and the integration tests use. The server gets the flags of a pipeline's
pod (explicit model control, no auto-complete, exit-on-error off, restricted control APIs when a key
is given), listens on loopback unless told otherwise, and leaves nothing behind: processes, ports
and shared memory are its own.
"""

from __future__ import annotations

import asyncio
import atexit
import compileall
import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from triton_pipelines.api import names
from triton_pipelines.compile.graph.server_settings import server_arguments
from triton_pipelines.triton.distribution import Distribution, obtain

LOOPBACK: Final = "127.0.0.1"
_POLL_S: Final = 0.05
_SHM: Final = Path("/dev/shm")  # noqa: S108 the kernel's shared memory folder, not a temporary file of ours
_SHM_PREFIX: Final = "tritonpipe-local-"
_PORT_TRIES: Final = 3
_KILL_AFTER_S: Final = 5.0
_REQUEST_S: Final = 1.0
_PORT_TAKEN: Final = re.compile(
    r"[Aa]ddress (already )?in use|failed to start (HTTP|GRPC|Metrics) service|Unable to bind"
)
# Triton's own error lines, protobuf's on a config it cannot parse, and getopt's on a flag it does
# not know.
_LOG_ERROR: Final = re.compile(
    r"^(?:E\d{4} [\d:.]+ \d+ (?:[\w.]+:\d+\] )?|\[libprotobuf ERROR \S+\] |\S*tritonserver: )(.*)$"
)
# Error lines that every machine without a GPU logs and that explain nothing.
_HARMLESS: Final = re.compile(r"CUDA|cuda|pinned memory|NVML|DCGM|unable to create stream")


class LocalTritonError(RuntimeError):
    """The local server did not start or a model did not load.

    The message carries the server's own reason.
    """


class LocalTriton:
    """One local tritonserver; a sync and an async context manager, ready on entry.

    Args: repository: model repository folder. load: models to load at the start; loading an
    ensemble loads its steps. ready: model whose readiness is awaited; default: every model of
    ``load``. control_key: value clients must send in ``names.CONTROL_HEADER`` for the control APIs;
    None leaves these open. http_port, grpc_port, metrics_port: 0 takes a free one. address: address
    to listen on. log_file: the server's log; default: a temporary file, removed at the end when all
    went well. deadline_s: seconds until the models must be ready. stop_s: whole seconds the server
    gets after SIGTERM to answer what it has begun (an idle keep-alive connection uses them up).
    environment: extra environment variables of the server. extra_args: further flags of
    tritonserver. auto_complete: whether backends may complete the configs. precompile: byte-compile
    the models' python files first, so that the server writes no ``__pycache__`` after it took the
    timestamps, which would turn the first instance-count change into a full reload. distribution: a
    tritonserver; default: ``distribution.obtain()``.
    """

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
        self.repository = repository
        self.load = tuple(load)
        self.awaited = (ready,) if ready is not None else self.load
        self.address = address
        self.http_port, self.grpc_port, self.metrics_port = http_port, grpc_port, metrics_port
        self.log_file = log_file
        self._wanted_ports = (http_port, grpc_port, metrics_port)
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

    # --- what clients need
    @property
    def http_url(self) -> str:
        """Base URL of the HTTP API, without a trailing slash."""
        return f"http://{self.address}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        """``host:port`` of the gRPC API."""
        return f"{self.address}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """URL of the Prometheus metrics."""
        return f"http://{self.address}:{self.metrics_port}/metrics"

    @property
    def pid(self) -> int:
        """Process id of tritonserver, also its process group's."""
        if self._process is None:
            raise LocalTritonError("the server has not been started")
        return self._process.pid

    def running(self) -> bool:
        """Whether the server process lives."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Everything the server has logged so far."""
        return (
            self.log_file.read_text(errors="replace")
            if self.log_file is not None and self.log_file.exists()
            else ""
        )

    # --- life cycle
    def start(self) -> None:
        """Start the process; returns at once (see ``wait_ready``).

        Raises:
            DistributionError: no Triton for this machine.
            LocalTritonError: the repository folder is missing.
        """
        if not self.repository.is_dir():
            raise LocalTritonError(
                f"{self.repository} is not a folder: give the model repository to serve"
            )
        if self._distribution is None:
            self._distribution = obtain()
        if self._precompile:
            compileall.compile_dir(str(self.repository), quiet=2, maxlevels=20)
        remove_stale_shared_memory()
        self._launch(self._distribution)

    def wait_ready(self) -> None:
        """Block until the awaited models are ready.

        Raises: LocalTritonError: a model failed, the server ended, or the deadline passed; nothing
        is left running.
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
        """End the server (SIGTERM, then SIGKILL to its whole process group) and remove its shared
        memory and temporary log.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.start)
            await asyncio.to_thread(self.wait_ready)
        except asyncio.CancelledError:
            self.stop()  # the waiting thread notices that the process is gone and returns
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    # --- inside
    def arguments(self, distribution: Distribution) -> list[str]:
        """The server's command line."""
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
            self.address, self._wanted_ports
        )
        if self.log_file is None:
            handle, name = tempfile.mkstemp(prefix="tritonserver-", suffix=".log")
            os.close(handle)
            self.log_file = Path(name)
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self.arguments(distribution),
                env={**distribution.environment(os.environ), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # An own process group: Ctrl-C reaches the server only through stop(), and stop()
                # reaches its stubs.
                start_new_session=True,
            )
        atexit.register(self.stop)

    def _ready(self, client: httpx.Client) -> bool:
        """One look: True when ready, False when it needs more time.

        Raises when a model has failed for good.
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
        """Wait ``seconds`` or until the process ends; whether it ended."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _relaunch_or_raise(self, tries: int) -> None:
        """A chosen free port may be taken by another program before the server binds it.

        Then try others.
        """
        process, distribution = self._process, self._distribution
        if process is None or distribution is None:
            raise LocalTritonError("the server was stopped while it started")
        if tries <= 0 or 0 not in self._wanted_ports or not _PORT_TAKEN.search(self.log()):
            raise LocalTritonError(
                f"tritonserver ended with exit code {process.returncode} before it was ready: "
                f"{self._reason()}"
            )
        self._launch(distribution)

    def _reason(self) -> str:
        """The server's own error lines (some reasons are only in its log), else the end of its
        log.
        """
        text = self.log()
        errors = [
            match[1].strip('"')
            for line in text.splitlines()
            if (match := _LOG_ERROR.match(line)) and not _HARMLESS.search(line)
        ]
        # The first error is the cause of the others.
        return (
            " | ".join(list(dict.fromkeys(errors))[:3])
            or " | ".join(text.strip().splitlines()[-3:])
            or "it logged nothing"
        )


def _free_ports(address: str, wanted: tuple[int, int, int]) -> tuple[int, int, int]:
    """The wanted ports, 0 replaced by one that is free now.

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

        return choose(wanted[0]), choose(wanted[1]), choose(wanted[2])


def remove_stale_shared_memory() -> None:
    """Remove regions that earlier local servers left behind when their owner was killed."""
    for region in _SHM.glob(f"{_SHM_PREFIX}*"):
        owner = region.name.removeprefix(_SHM_PREFIX).split("-", 1)[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove_shared_memory(region.name)


def _remove_shared_memory(pattern: str) -> None:
    for region in _SHM.glob(pattern):
        region.unlink(missing_ok=True)
