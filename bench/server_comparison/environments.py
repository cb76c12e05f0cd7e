"""A virtual environment for each of the other servers, outside the checkout.

It is made from a lock file in ``requirements/servers`` and kept in the cache under a name that
contains the hash of that file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bench.results import FOLDER
from e2e.local.cache import cache_root, digest, locked

LOCKS = FOLDER.parent / "requirements" / "servers"
_COMPLETE = ".complete"


def folder_of(lock: Path) -> Path:
    """Return where the environment of a lock file is kept."""
    version = ".".join(map(str, sys.version_info[:2]))
    return cache_root() / f"server-{lock.stem}-{digest([lock.read_bytes(), version])}"


def python_of(name: str) -> Path:
    """Return the interpreter of a server's environment, which is made if it is missing.

    Raises:
        subprocess.CalledProcessError: a package cannot be installed; the output names it.
    """
    lock = LOCKS / f"{name}.txt"
    folder = folder_of(lock)
    python = folder / "bin" / "python"
    with locked(folder):
        if not (folder / _COMPLETE).exists():
            print(f"installing {name} into {folder}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            install = [sys.executable, "-m", "uv", "pip", "install", "--quiet"]
            target = ["--python", str(python), "--require-hashes", "-r", str(lock)]
            subprocess.run([*install, *target], check=True)
            (folder / _COMPLETE).touch()
    return python
