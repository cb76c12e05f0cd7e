"""A Triton with a real core and stub backends.

All model backends are one small C library that answers with zeros.

Loading a model starts no process, so that thousands of loads are cheap. The library replaces, under
their names, the backends that the local Triton does not have. Triton's own validation of their
configs is real; checks by these backends themselves do not happen.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from e2e.local import cache
from triton_pipelines.triton.distribution import Distribution, cache_folder, obtain

SOURCE: Final = Path(__file__).with_name("null.c")
NAME: Final = "null"
STAND_INS: Final = ("onnxruntime", "tensorrt", "pytorch", "vllm", "tensorrtllm", "dali", "fil")
"""Backends that the local Triton does not have and that the null backend replaces."""

FLAGS: Final = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
_COMPILERS: Final = ("cc", "gcc", "clang")
_COMPILE_S: Final = 60


class CompilerError(RuntimeError):
    """No C compiler, or it failed; the message says what to do."""


def library() -> Path:
    """The compiled backend library, made once per source and kept in the project's cache.

    Raises:
        CompilerError: no C compiler is on this machine.
    """
    return compiled(SOURCE)


def compiled(source: Path) -> Path:
    """Compile a shared library from one C file without any Triton header.

    Undefined symbols are resolved by the server.

    Raises:
        CompilerError: no C compiler, or it does not take the file.
    """
    target = cache_folder() / f"c-{source.stem}-{cache.digest([source.read_bytes(), *FLAGS])}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        done = subprocess.run(
            [_compiler(), *FLAGS, "-o", str(made), str(source)],
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
        )
        if done.returncode:
            raise CompilerError(f"{source.name} does not compile: {done.stderr.strip()}")
        made.rename(target)
    return target


def _compiler() -> str:
    wanted = [os.environ["CC"]] if os.environ.get("CC") else _COMPILERS
    found = next((path for name in wanted if (path := shutil.which(name))), None)
    if found is None:
        raise CompilerError(
            f"no C compiler ({', '.join(wanted)}) is on this machine: install gcc "
            f"(Debian: apt-get install gcc libc6-dev), or set CC"
        )
    return found


def distribution(backends: Path, *extra: str, python: bool = True) -> Distribution:
    """Return the local Triton with the null backend added.

    The backend is available under its own name and those of the backends that it replaces.

    Args:
        backends: a new folder, created here, for Triton's own backends and the library.
        extra: further backend names to replace.
        python: whether the python backend is the real one; otherwise the null backend replaces it
            too, so that a load starts no process.
    """
    real = obtain()
    made = library()
    backends.mkdir(parents=True)
    kept = [folder for folder in real.backends.iterdir() if python or folder.name != "python"]
    for folder in kept:
        (backends / folder.name).symlink_to(folder)
    for name in (NAME, *STAND_INS, *extra, *(() if python else ("python",))):
        (backends / name).mkdir()
        # A copy: Triton refuses a library that a link takes out of its backend's folder.
        shutil.copy(made, backends / name / f"libtriton_{name}.so")
    return _Rooted(
        **{field.name: getattr(real, field.name) for field in dataclasses.fields(real)},
        folder=backends,
    )


@dataclasses.dataclass(frozen=True)
class _Rooted(Distribution):
    """A distribution with a backend folder of its own."""

    folder: Path

    @property
    def backends(self) -> Path:
        """Folder for ``--backend-directory``."""
        return self.folder
