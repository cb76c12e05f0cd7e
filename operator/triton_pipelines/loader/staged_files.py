"""Files of a source that are complete in the staging folder, and the digest of the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from triton_pipelines.api.loadplan import (
    LoadFinding,
)
from triton_pipelines.loader.partial_file import DownloadedFile


@dataclass(frozen=True)
class StagedFiles:
    """Complete files in the staging folder."""

    files: Mapping[str, tuple[Path, str]]
    """Target (relative to the repository) → staged file and its digest."""
    sha256: str
    """Digest of the whole source."""
    revision: str | None
    """What the source resolved to."""
    resumed: bool
    """Whether part of it came from an earlier attempt."""
    is_unproven: bool = False
    """Whether part of it came from the model cache and is not what the source's digest proves."""
    versions: tuple[int, ...] = ()
    """The versions of a model."""
    notes: tuple[LoadFinding, ...] = ()
    """Findings that inform."""


def staged(
    files: Mapping[str, tuple[Path, str]], got: Mapping[str, DownloadedFile], revision: str | None
) -> StagedFiles:
    """Return the staged files of a source; ``got`` holds its downloads by name."""
    sums = {name: value.sha256 for name, value in got.items()}
    return StagedFiles(
        files,
        digest_of(sums),
        revision,
        resumed=any(value.resumed for value in got.values()),
        is_unproven=any(value.is_unproven for value in got.values()),
    )


def digest_of(files: Mapping[str, str]) -> str:
    """Return the digest of a source.

    For a single file that is the file's digest. For several files it is the digest of their
    ``sha256sum`` lines in the order of their names.
    """
    if len(files) == 1:
        return next(iter(files.values()))
    lines = "".join(f"{value}  {name}\n" for name, value in sorted(files.items()))
    return sha256(lines.encode()).hexdigest()
