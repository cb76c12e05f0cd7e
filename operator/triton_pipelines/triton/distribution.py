"""Obtain a real Triton server for this machine without a container engine or a GPU.

The Python package ``nvidia-pytriton`` contains tritonserver with the Python backend, ensembles and
the local cache (no ONNX Runtime, TensorRT or PyTorch backend). Its files are copied once to the
cache folder, in the layout that tritonserver expects.

How the backend finds its Python (measured with Triton 2.51.0): the stub process embeds libpython
and starts it isolated. PYTHONPATH and PYTHONHOME are ignored, the *first ``python3`` on PATH* is
taken for its own executable, and if a ``pyvenv.cfg`` is above that, the stub becomes part of that
virtual environment, numpy included. So ``Distribution.environment`` puts the running interpreter's
folder first on PATH; nothing is written into any Python installation.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from triton_pipelines.api import names

PACKAGE: Final = "nvidia-pytriton"
_LIBPYTHON: Final = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
_DEBIAN_PACKAGE: Final = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
# Minors whose libpython is bundled with the package, so that none of the machine's is needed.
_BUNDLED: Final = frozenset({"3.13"})
_DOWNLOAD_TIMEOUT_S: Final = 120.0
_EXECUTABLE: Final = 0o755


class DistributionError(RuntimeError):
    """No Triton server is available for this machine; the message says why and what to do."""


@dataclass(frozen=True)
class Distribution:
    """A tritonserver on disk, ready to run."""

    root: Path
    """Folder with ``bin``, ``backends`` and ``caches``."""
    library_path: tuple[Path, ...]
    """Folders for LD_LIBRARY_PATH.

    The package's bundled libraries, and libpython if the dynamic loader would not find it.
    """
    interpreter: Path
    """Folder of the running interpreter, which goes first on PATH."""
    site: tuple[Path, ...]
    """Site-packages folders of the running interpreter."""

    @property
    def executable(self) -> Path:
        """Return the tritonserver program."""
        return self.root / "bin" / "tritonserver"

    @property
    def backends(self) -> Path:
        """Return the folder for ``--backend-directory``."""
        return self.root / "backends"

    @property
    def caches(self) -> Path:
        """Return the folder for ``--cache-directory``."""
        return self.root / "caches"

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the server's environment: ``base`` with paths and a pod's thread settings."""
        libraries = [str(folder) for folder in self.library_path]
        if base.get("LD_LIBRARY_PATH"):
            libraries.append(base["LD_LIBRARY_PATH"])
        return {
            names.ENV_BLAS_THREADS: "1",
            **base,
            "PATH": os.pathsep.join([str(self.interpreter), base.get("PATH", os.defpath)]),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries),
            names.ENV_SITE: os.pathsep.join(str(folder) for folder in self.site),
            "TOKENIZERS_PARALLELISM": "false",
            "RAYON_NUM_THREADS": "1",
            names.ENV_ORT_TELEMETRY: "1",
        }


def cache_folder() -> Path:
    """Return the project's cache folder.

    $TRITONPIPE_CACHE, else $XDG_CACHE_HOME/triton-pipelines, else ~/.cache/triton-pipelines.
    """
    explicit = os.environ.get("TRITONPIPE_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-pipelines"


def obtain(cache: Path | None = None) -> Distribution:
    """Copy the packaged tritonserver to ``cache`` unless it is there already.

    Args:
        cache: folder; default: ``cache_folder()``.

    Raises:
        DistributionError: the package is missing or does not fit this machine or interpreter, or
            libpython is not available.
    """
    cache = cache_folder() if cache is None else cache
    package, version = _package()
    _check_numpy()
    stub = (
        package / "tritonserver" / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
    )
    if not stub.is_file():
        offered = sorted(path.name for path in stub.parent.parent.glob("*"))
        raise DistributionError(
            f"{PACKAGE} {version} has no Python backend for Python {_PYTHON} (it has "
            f"{', '.join(offered)}); use one of these Python versions"
        )
    root = _lay_out(
        package / "tritonserver", stub, cache / f"tritonserver-{_key(package, version)}"
    )
    interpreter = _interpreter()
    libraries = [package.parent / "nvidia_pytriton.libs"]
    if _PYTHON not in _BUNDLED:
        libraries.extend(_libpython(cache))
    return Distribution(
        root=root,
        library_path=tuple(libraries),
        interpreter=interpreter,
        site=tuple(
            dict.fromkeys(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
        ),
    )


def _package() -> tuple[Path, str]:
    """Return folder and version of the installed package, without importing it.

    An import starts the package's own machinery.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise DistributionError(
            f"the Python package {PACKAGE}, which contains the local Triton server, is not "
            "installed; install triton-pipelines with the 'serve' extra (Linux "
            "x86-64, glibc 2.35 or later)"
        )
    folder = Path(spec.submodule_search_locations[0])
    if not (folder / "tritonserver" / "bin" / "tritonserver").is_file():
        raise DistributionError(
            f"{folder} does not contain tritonserver; reinstall {PACKAGE} for Linux x86-64"
        )
    return folder, importlib.metadata.version(PACKAGE)


def _check_numpy() -> None:
    """Refuse NumPy 2.

    It garbles BYTES tensors in this server's Python backend, and the stub dies at the first request
    (measured).
    """
    version = importlib.metadata.version("numpy")
    if int(version.split(".", 1)[0]) >= 2:
        raise DistributionError(
            f"numpy {version} is installed, but the Python backend of this Triton server "
            "works only with numpy 1; install 'numpy<2'"
        )


def _key(package: Path, version: str) -> str:
    """Return the cache key of the copied files and the Python version.

    The install record of the package has a hash per file.
    """
    record = importlib.metadata.distribution(PACKAGE).read_text("RECORD") or str(package)
    return hashlib.sha256(f"{version}\n{_PYTHON}\n{record}".encode()).hexdigest()[:16]


def _interpreter() -> Path:
    """Return the folder to put first on PATH.

    Its ``python3`` must be this interpreter, or the stub would join another Python.
    """
    folder = Path(sys.executable).parent
    python3 = folder / "python3"
    if not python3.exists() or python3.resolve() != Path(sys.executable).resolve():
        raise DistributionError(
            f"{python3} is not the interpreter that runs this program ({sys.executable}); "
            "run this program from a virtual environment"
        )
    return folder


@contextmanager
def _atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder that becomes ``target`` when the body succeeds.

    If another process was faster, its result stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(_EXECUTABLE)
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _lay_out(source: Path, stub: Path, target: Path) -> Path:
    if not target.is_dir():
        with _atomic_folder(target) as folder:
            for part in ("bin", "backends", "caches"):
                shutil.copytree(
                    source / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
                )
            copied = folder / "backends" / "python" / stub.name
            shutil.copy(stub, copied)
            for program in (copied, folder / "bin" / "tritonserver"):
                program.chmod(_EXECUTABLE)
    return target


def _libpython(cache: Path) -> list[Path]:
    """Return the folders where the dynamic loader finds libpython.

    The interpreter's own; none if the system has it; else Debian's package, unpacked.
    """
    own = _own_libpython()
    if own is not None:
        return [own]
    if ctypes.util.find_library(f"python{_PYTHON}") is not None:
        return []
    return [_download_libpython(cache)]


def _own_libpython() -> Path | None:
    """Return the folder of the running interpreter's shared library, if it has one.

    An interpreter built with --enable-shared has. That library matches its standard library
    exactly.
    """
    candidates = [sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib"]
    for folder in candidates:
        if folder and (Path(folder) / _LIBPYTHON).is_file():
            return Path(folder)
    return None


def _download_libpython(cache: Path) -> Path:
    """Download Debian's libpython package and unpack it into the cache.

    Needs no root and installs nothing.
    """
    target = cache / f"libpython-{_PYTHON}-{sysconfig.get_config_var('MULTIARCH') or 'unknown'}"
    hint = f"install {_DEBIAN_PACKAGE} (or use a Python built with --enable-shared)"
    if not target.is_dir():
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise DistributionError(
                    f"{_LIBPYTHON} is not on this machine and cannot be fetched, because "
                    f"{tool} is missing; {hint}"
                )
        with _atomic_folder(target) as folder:
            _run(["apt-get", "download", _DEBIAN_PACKAGE], folder, hint)
            packages = list(folder.glob("*.deb"))
            if len(packages) != 1:
                raise DistributionError(
                    f"apt-get download {_DEBIAN_PACKAGE} left {len(packages)} packages "
                    f"instead of one; {hint}"
                )
            _run(["dpkg-deb", "-x", str(packages[0]), str(folder)], folder, hint)
            packages[0].unlink()
    found = next(target.rglob(_LIBPYTHON), None)
    if found is None:
        raise DistributionError(
            f"Debian's package {_DEBIAN_PACKAGE} does not contain {_LIBPYTHON}; {hint}"
        )
    return found.parent


def _run(command: list[str], folder: Path, hint: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DistributionError(
            f"'{' '.join(command[:3])}' did not finish within {_DOWNLOAD_TIMEOUT_S:.0f} s; {hint}"
        ) from error
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines()
        detail = reason[-1] if reason else f"exit code {done.returncode}"
        raise DistributionError(
            f"{_LIBPYTHON} is not on this machine, and '{' '.join(command[:3])}' failed "
            f"({detail}); run apt-get update, or {hint}"
        )
