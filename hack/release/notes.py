"""Release notes: the section of the changelog, and the fragments that are not in it yet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from hack.release.errors import ReleaseError

CHANGELOG: Final = "CHANGELOG.md"
FRAGMENTS: Final = "changelog.d"
_SECTION: Final = re.compile(r"^## +", re.MULTILINE)


def section(changelog: str, version: str) -> str:
    """Return the text below the heading of a version, or an empty string."""
    for part in _SECTION.split(changelog)[1:]:
        heading, _, body = part.partition("\n")
        if version in re.split(r"[\s()]+", heading):
            return body.strip()
    return ""


def fragments(source: Path) -> list[Path]:
    """Return the fragments that no section of the changelog contains yet."""
    return sorted((source / FRAGMENTS).glob("*.*.md"))


def release_notes(source: Path, version: str) -> str:
    """Return the notes of a version.

    Raises:
        ReleaseError: neither the changelog nor a fragment says anything about it.
    """
    texts = [section((source / CHANGELOG).read_text(encoding="utf-8"), version)]
    if fragments(source):
        texts.append(section(_draft(source, version), version))
    notes = "\n\n".join(text for text in texts if text)
    if not notes:
        raise ReleaseError(
            f"{CHANGELOG} has no section for {version}, and {FRAGMENTS} has no fragments; write "
            f"the section with `towncrier build --version {version}`"
        )
    return notes


def _draft(source: Path, version: str) -> str:
    """Return what towncrier would add to the changelog."""
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", version],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"towncrier failed on {FRAGMENTS}: {done.stderr.strip()[-1000:]}")
    return done.stdout
