"""ONNX Runtime in the versions of Triton's images.

The development environment has one newer version, which accepts graphs that the servers refuse.
Each version is installed from its lock file in ``requirements/onnxruntime`` into a folder of the
project's cache, and runs in a process of its own.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

import numpy as np
import yaml
from numpy.typing import NDArray

from e2e.local.cache import cache_root, digest, locked
from triton_pipelines.api import names

Array = NDArray[Any]
ROOT: Final = Path(__file__).resolve().parents[3]
LOCKS: Final = ROOT / "requirements" / "onnxruntime"
WORKER: Final = Path(__file__).with_name("worker.py")
RELEASES: Final[Mapping[str, str]] = yaml.safe_load(
    Path(__file__).with_name("releases.yaml").read_text(encoding="utf-8")
)
"""Triton release → version of ONNX Runtime."""
VERSIONS: Final = tuple(dict.fromkeys(RELEASES.values()))
"""Every version once, oldest first."""
_INSTALL_S: Final = 600


class InstallError(RuntimeError):
    """A version cannot be installed; the message has the output of pip."""


def obtain(version: str) -> Path:
    """Return the folder that holds a version, installed on first use.

    Args:
        version: one of :data:`VERSIONS`.

    Raises:
        InstallError: pip failed.
    """
    lock = LOCKS / f"{version}.txt"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_root() / f"onnxruntime-{version}-{digest([lock.read_bytes(), python])}"
    with locked(folder):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".onnxruntime-") as made:
                _install(lock, Path(made) / "made")
                (Path(made) / "made").rename(folder)
    return folder


def _install(lock: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-compile"]
    done = subprocess.run(
        [*command, "--target", str(folder), "--requirement", str(lock)],
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    if done.returncode:
        raise InstallError(f"{lock.name} cannot be installed: {done.stderr.strip()[-500:]}")
    # Tools that no test uses, and half of the size.
    for unused in ("transformers", "quantization", "tools"):
        shutil.rmtree(folder / "onnxruntime" / unused, ignore_errors=True)


class ServerError(RuntimeError):
    """ONNX Runtime refused a model or a batch; the message is its own."""


@dataclass(frozen=True)
class Value:
    """An input or output as ONNX Runtime reports it."""

    name: str
    """Its name."""
    shape: list[int | str | None]
    """Number, name or ``None`` per axis."""


class Session:
    """A loaded model, with the part of ``InferenceSession`` that the tests use."""

    def __init__(self, runtime: ServerOnnxRuntime, model: Any) -> None:
        what = str(model) if isinstance(model, Path) else model.SerializeToString()
        self._runtime = runtime
        self._number, inputs, outputs = runtime.call("open", what)
        self._inputs = [Value(*value) for value in inputs]
        self._outputs = [Value(*value) for value in outputs]

    def get_inputs(self) -> list[Value]:
        """Return the inputs."""
        return self._inputs

    def get_outputs(self) -> list[Value]:
        """Return the outputs, with the shapes that Triton compares."""
        return self._outputs

    def run(self, outputs: Sequence[str] | None, feed: Mapping[str, Array]) -> list[Array]:
        """Run the model. Raises :class:`ServerError`."""
        made = self._runtime.call(
            "run",
            self._number,
            outputs and list(outputs),
            {key: np.asarray(feed[key]) for key in feed},
        )
        return cast(list[Array], made)


class ServerOnnxRuntime:
    """A process with one version of ONNX Runtime. It ends with the ``with`` block."""

    def __init__(self, version: str) -> None:
        self.version = version
        folder = obtain(version)
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "", names.ENV_ORT_TELEMETRY: "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process as process:
            cast(IO[bytes], process.stdin).close()

    def session(self, model: Any) -> Session:
        """Load a ``ModelProto`` or a file. Raises :class:`ServerError`."""
        return Session(self, model)

    def peak_mib(self) -> float:
        """Return the largest resident size that the process has had, in MiB."""
        return float(self.call("peak"))

    def call(self, *request: Any) -> Any:
        """Send a request to the process and return its answer. Raises :class:`ServerError`."""
        into, out = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        pickle.dump(request, into)
        into.flush()
        is_good, answer = pickle.load(out)
        if not is_good:
            raise ServerError(answer)
        return answer
