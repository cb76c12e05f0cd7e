"""List the software inside the image, and write it as SPDX and as CycloneDX.

Sources are the lock files that the image is built from: Python packages and Rust crates. The
documents are written by libraries in an environment of their own (``requirements/release.txt``).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from e2e.local import cache
from e2e.local.progress import step
from hack.release.errors import ReleaseError
from hack.release.model import NAME, Release

PYTHON_LOCK: Final = "requirements/operator.txt"
RUST_LOCK: Final = "native/Cargo.lock"
TOOLS_LOCK: Final = "requirements/release.txt"
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)", re.MULTILINE)


def components(source: Path) -> list[dict[str, str]]:
    """Return name, version and package URL of everything in the lock files."""
    python = _PINNED.findall((source / PYTHON_LOCK).read_text(encoding="utf-8"))
    crates = tomllib.loads((source / RUST_LOCK).read_text(encoding="utf-8"))["package"]
    return [
        *(_component("pypi", _normalized(name), version) for name, version in python),
        *(
            _component("cargo", crate["name"], crate["version"])
            for crate in crates
            if "source" in crate
        ),
    ]


def write(release: Release, subject_digest: str) -> list[Path]:
    """Return the two documents about the image.

    Args:
        release: the release.
        subject_digest: digest of the image.

    Raises:
        ReleaseError: the libraries cannot be installed, or a document is not valid.
    """
    stem = release.folder / f"{NAME}-{release.version}"
    targets = [Path(f"{stem}.spdx.json"), Path(f"{stem}.cdx.json")]
    description: dict[str, Any] = {
        "name": NAME,
        "version": release.version,
        "created": release.created,
        "commit": release.commit,
        "image": f"{release.image}@{subject_digest}",
        "home": release.home,
        "components": components(release.source),
        "spdx": str(targets[0]),
        "cyclonedx": str(targets[1]),
    }
    script = release.source / "hack/release/sbom_documents.py"
    done = subprocess.run(
        [str(_tools(release.source)), str(script)],
        input=json.dumps(description),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"writing the SBOMs failed:\n{done.stderr.strip()[-2000:]}")
    return targets


def _component(ecosystem: str, name: str, version: str) -> dict[str, str]:
    purl = f"pkg:{ecosystem}/{name}@{quote(version, safe='-._~')}"
    return {"name": name, "version": version, "purl": purl}


def _normalized(name: str) -> str:
    """Return the name of a Python package in the form that package URLs prescribe."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _tools(source: Path) -> Path:
    """Return the Python of the environment with the libraries, installed once per lock file."""
    lock = source / TOOLS_LOCK
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = cache.digest([lock.read_bytes(), version])
    folder = cache.cache_root() / f"release-tools-{key}"
    with cache.locked(folder):
        if not (folder / "complete").exists():
            uv = Path(sys.executable).with_name("uv")
            with step("installing the libraries for SBOMs"):
                _install([uv, "venv", "--quiet", "--clear", f"--python={sys.executable}", folder])
                python = folder / "bin/python"
                options = ["--quiet", "--require-hashes", f"--python={python}"]
                _install([uv, "pip", "install", *options, "-r", lock])
            (folder / "complete").touch()
    return folder / "bin/python"


def _install(command: list[str | Path]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"installing {TOOLS_LOCK} failed:\n{done.stderr.strip()[-2000:]}")
