"""A repository with one commit that holds the present files, to make releases from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EPOCH = "1700000000"
"""Time of the files of a dry run: fixed, so that an unchanged image comes from the cache."""
_AUTHOR = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "tests"), ("EMAIL", "tests@example.com"))
}


def committed_copy(target: Path) -> Path:
    """Copy the files of the checkout, changed ones included, into a new repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    git(target, "init", "--quiet")
    git(target, "add", "--all")
    git(target, "commit", "--quiet", "--message=everything")
    return target


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **_AUTHOR, "GIT_CONFIG_GLOBAL": os.devnull},
        check=True,
    )


def make_release(
    repository: Path, version: str, *arguments: str, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run what `make release` runs, on another repository."""
    return subprocess.run(
        [sys.executable, "-m", "hack.release", version, *arguments],
        cwd=repository,
        env={
            **os.environ,
            "PYTHONPATH": str(repository / "operator"),
            "SOURCE_DATE_EPOCH": EPOCH,
            "PATH": path or os.environ["PATH"],
        },
        capture_output=True,
        text=True,
        check=False,
    )
