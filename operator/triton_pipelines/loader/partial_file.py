"""An unfinished download on disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from triton_pipelines.loader.files import BLOCK, sha256_of, write_atomically
from triton_pipelines.loader.source import FileBody


@dataclass(frozen=True)
class DownloadedFile:
    """A complete file."""

    path: Path
    """Where it is."""
    sha256: str
    """Its SHA-256 in hexadecimal."""
    size: int
    """Its bytes."""
    revision: str | None
    """What it resolved to."""
    resumed: bool
    """Whether part of it came from an earlier attempt."""
    is_unproven: bool = False
    """Whether it came from the model cache, to which others can write, and the source announced no
    digest to compare it with."""


class PartialFile:
    """The unfinished file, and what its next request must prove to continue it."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._target = target
        self._note = target.with_name(f"{target.name}.part.json")
        self._done = target.with_name(f"{target.name}.done.json")

    def size(self) -> int:
        """Return the bytes that are there."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self) -> str | None:
        """Return the validator under which the file may be continued; ``None`` starts again."""
        try:
            validator = json.loads(self._note.read_text()).get("validator")
        except (OSError, ValueError, AttributeError):
            return None
        return validator if isinstance(validator, str) and self.size() > 0 else None

    def write(self, validator: str | None) -> None:
        """Remember the validator of the file."""
        temporary = self._note.with_name(f"{self._note.name}.tmp")
        temporary.write_text(json.dumps({"validator": validator}))
        temporary.replace(self._note)

    def note(self, done: DownloadedFile, identity: str | None) -> None:
        """Remember a finished file for a restart of the container."""
        if identity is not None:
            write_atomically(
                self._done, json.dumps({"identity": identity, "sha256": done.sha256}).encode()
            )

    def finished(self, body: FileBody) -> DownloadedFile | None:
        """Return the file if an earlier attempt finished it and the source still has it."""
        try:
            note = json.loads(self._done.read_text())
            if (
                body.identity is None
                or note["identity"] != body.identity
                or sha256_of(self._target) != note["sha256"]
            ):
                return None
            return DownloadedFile(
                self._target,
                note["sha256"],
                self._target.stat().st_size,
                body.revision,
                resumed=True,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def drop(self) -> None:
        """Remove the unfinished file and its validator."""
        self._note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def hash_into(self, digest: hashlib._Hash) -> None:
        """Add the bytes that are there to a digest."""
        with self.path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
