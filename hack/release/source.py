"""The commit that is released, and the versions that its files state."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml
from packaging.version import InvalidVersion, Version

from hack.release.errors import ReleaseError

SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(alpha|beta|rc)\.(0|[1-9]\d*))?"
)
CHART: Final = "charts/triton-pipelines"


def parse_version(text: str) -> Version:
    """Return a version that is valid both as SemVer (chart) and under PEP 440 (Python package).

    Raises:
        ReleaseError: it is not.
    """
    try:
        if SEMVER.fullmatch(text):
            return Version(text)
    except InvalidVersion:
        pass
    raise ReleaseError(
        f"VERSION={text}: must be MAJOR.MINOR.PATCH, optionally followed by -alpha.N, -beta.N or "
        "-rc.N; write for example VERSION=0.2.0 or VERSION=0.2.0-rc.1"
    )


def git(root: Path, *arguments: str) -> bytes:
    """Return the output of a git command.

    Raises:
        ReleaseError: it failed, with its message.
    """
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(
            f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}"
        )
    return done.stdout


def require_clean(root: Path) -> None:
    """Raise `ReleaseError` if the working tree differs from its commit."""
    changed = git(root, "status", "--porcelain").decode().splitlines()
    if changed:
        names = ", ".join(line[3:] for line in changed[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise ReleaseError(
            f"the working tree has changes that are not committed: {names}{more}; commit or "
            "remove them first"
        )


def export(root: Path, target: Path) -> None:
    """Write the files of the current commit to a folder."""
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", "HEAD"))) as archive:
        archive.extractall(target, filter="data")


def stated_versions(source: Path) -> dict[str, str]:
    """Return the version that each file of an exported commit states."""
    chart = yaml.safe_load((source / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    crate = tomllib.loads((source / "native/Cargo.toml").read_text(encoding="utf-8"))
    package = source / "operator/triton_pipelines"
    loader = _constant(package / "compile/graph/options.py", "DEFAULT_LOADER_IMAGE")
    return {
        "pyproject.toml: project.version": project["project"]["version"],
        "operator/triton_pipelines/__init__.py: __version__": _constant(
            package / "__init__.py", "__version__"
        ),
        "operator/triton_pipelines/compile/graph/options.py: DEFAULT_LOADER_IMAGE": (
            loader.rpartition(":")[2]
        ),
        "native/Cargo.toml: package.version": crate["package"]["version"],
        f"{CHART}/Chart.yaml: version": chart["version"],
        f"{CHART}/Chart.yaml: appVersion": chart["appVersion"],
    }


def require_version(stated: Mapping[str, str], version: Version) -> None:
    """Raise `ReleaseError` if a file states another version than the one to release."""
    different = [f"{place} is {text}" for place, text in stated.items() if not _same(text, version)]
    if different:
        raise ReleaseError(
            f"VERSION is {version}, but {'; '.join(different)}; set all of them to the same version"
        )


def _same(text: str, version: Version) -> bool:
    try:
        return Version(text) == version
    except InvalidVersion:
        return False


def _constant(path: Path, name: str) -> str:
    """Return the text that a module assigns to a name."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return str(ast.literal_eval(node.value))
    raise ReleaseError(f"{path.name}: no text is assigned to {name}")
