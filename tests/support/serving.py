"""`tritonpipe serve` and `tritonpipe` commands as a user runs them.

They are real processes of the installed package, but for ``run_here``.
"""

from __future__ import annotations

import contextlib
import io
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.local import native
from e2e.models import tree
from e2e.models.__main__ import source_map
from e2e.suite.reach import Endpoint
from triton_pipelines.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "manifests" / "samples"
TRITONPIPE = (sys.executable, "-m", "triton_pipelines.cli.main")
FREE_PORTS = ("--port=0", "--grpc-port=0", "--metrics-port=0")
START_SECONDS = 100.0
STOP_SECONDS = 30.0
LAST_LINE = "Ctrl-C to stop"


@dataclass(frozen=True)
class Served:
    """A pipeline that `tritonpipe serve` serves.

    Attributes:
        process: the command.
        said: what it printed on standard output until it served.
        log: file of its standard error.
    """

    process: subprocess.Popen[str]
    said: str
    log: Path

    @property
    def model_url(self) -> str:
        """Address of the pipeline's model, as printed."""
        return self._printed(r"HTTP\s+(http://\S+)/infer")

    @property
    def model(self) -> str:
        """Name of the pipeline's model."""
        return self.model_url.rpartition("/")[2]

    @property
    def endpoint(self) -> Endpoint:
        """Its addresses, as printed."""
        http = self.model_url.partition("/v2/")[0]
        return Endpoint(
            http, self._printed(r"gRPC\s+(\S+)"), self._printed(r"metrics\s+http://(\S+)/metrics")
        )

    def stop(self, number: int = signal.SIGINT) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def _printed(self, pattern: str) -> str:
        found = re.search(pattern, self.said)
        assert found is not None, self.said
        return found[1]


def sample_sources() -> list[str]:
    """Return options that map the samples' sources to their models on this machine.

    Builds the models and the native tokenizer if they are missing.
    """
    native.install()
    return source_map(tree.build())


@contextlib.contextmanager
def begun(file: Path, *options: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Start `tritonpipe serve FILE` with standard error in `log`.

    It is killed at the end if it is still running.
    """
    native.install()
    command = [*TRITONPIPE, "serve", str(file), *options]
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
            process.kill()


@contextlib.contextmanager
def served(
    file: Path, *options: str, log: Path, ports: Sequence[str] = FREE_PORTS
) -> Iterator[Served]:
    """Run `tritonpipe serve FILE` on free ports and wait until it is ready.

    It is stopped with Ctrl-C unless the test has stopped it.
    """
    with begun(file, *ports, *options, log=log) as process:
        deadline = threading.Timer(START_SECONDS, process.kill)
        deadline.start()
        try:
            said = ""
            assert process.stdout is not None
            for line in process.stdout:
                said += line
                if LAST_LINE in line:
                    break
        finally:
            deadline.cancel()
        assert LAST_LINE in said, (
            f"`tritonpipe serve {file.name}` ended or took more than {START_SECONDS:.0f} "
            f"s:\n{said}{log.read_text()}"
        )
        running = Served(process, said, log)
        yield running
        if process.poll() is None:
            assert running.stop() == 0, log.read_text()


def run(
    *arguments: str, text: str | None = None, seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """One command of `tritonpipe`, run to its end; it must not print a traceback."""
    done = subprocess.run(
        [*TRITONPIPE, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def run_here(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command in this process, which saves its start."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["tritonpipe", *arguments])
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    assert "Traceback" not in out.getvalue() + err.getvalue(), err.getvalue()
    return code, out.getvalue(), err.getvalue()
