"""What lies at a place of a source: one file, or a folder with everything below it.

And the record of it for later pods.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from triton_pipelines.loader.errors import SourceError

MAX_FILES: Final = 10_000
"""Files that one source may bring.

A model has dozens; more means that the URI names a whole bucket or volume.
"""
_SHOWN: Final = 6
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")
"""A version folder's name.

Triton reads the digits into 64 bits and takes none with a leading zero.
"""
_RECORD: Final = re.compile(
    r"(?:versions=(?P<versions>[1-9][0-9,]*))?;?(?:listing=(?P<listing>[0-9a-f]{64}))?"
)
_LEFT_OUT: Final = frozenset({"__pycache__", ".git", "lost+found"})
"""Folders that are never part of a model.

Byte code, a repository's history, a file system's own.
"""


@dataclass(frozen=True, order=True)
class ListedFile:
    """A file.

    Its name relative to the place, its size in bytes and what changes with its content (ETag,
    version), where they are known.
    """

    name: str
    size: int | None = None
    identity: str | None = None


@dataclass(frozen=True)
class SourceListing:
    """What is at a place.

    ``entries`` None: a folder that cannot be listed (a web server's). ``single``: the place is the
    one file of ``entries``.
    """

    entries: tuple[ListedFile, ...] | None
    single: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The files' names."""
        return tuple(entry.name for entry in self.entries or ())


def folder(entries: Iterable[ListedFile]) -> SourceListing:
    """A listing of a folder, in order of names.

    Raises :class:`SourceError` for too many files and names that lead astray.
    """
    kept: list[ListedFile] = []
    for entry in entries:
        if _LEFT_OUT.isdisjoint(PurePosixPath(entry.name).parts):
            kept.append(entry)
        if len(kept) > MAX_FILES:
            raise SourceError(f"holds more than {MAX_FILES} files: name the model's own folder")
    names = {entry.name for entry in kept}
    for name in sorted(names):
        check_name(name)
        parents = {str(parent) for parent in PurePosixPath(name).parents}
        if clash := parents & names:
            raise SourceError(
                f"holds {clash.pop()} both as a file and as a folder, which no volume can "
                "hold: rename one"
            )
    if not kept:
        raise SourceError("holds no files: check uri and path", missing=True)
    return SourceListing(tuple(sorted(kept)))


def check_name(name: str) -> None:
    """Refuse a name that would leave the folder it is written to, or be another on disk than in
    the source.
    """
    pure = PurePosixPath(name)
    if (
        not name
        or pure.is_absolute()
        or ".." in pure.parts
        or str(pure) != name
        or "\x00" in name
        or "\\" in name
        or len(name.encode()) > 1024
    ):
        raise SourceError(
            f"holds a file named {name[:200]!r}, which is no plain path below its folder: rename it"
        )


def list_some(names: Iterable[str]) -> str:
    """A few of ``names`` in words, for messages."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:_SHOWN])
    return (
        f"{shown} and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else shown or "nothing"
    )


def files_by_version(entries: Iterable[ListedFile]) -> dict[int, tuple[ListedFile, ...]]:
    """The files below each version folder, named relative to it."""
    found: dict[int, list[ListedFile]] = {}
    for entry in entries:
        first, slash, rest = entry.name.partition("/")
        if slash and _VERSION.fullmatch(first):
            found.setdefault(int(first), []).append(ListedFile(rest, entry.size, entry.identity))
    return {version: tuple(found[version]) for version in sorted(found)}


def digest(entries: Iterable[ListedFile]) -> str | None:
    """A digest of names, sizes and identities; None where a file has no identity (a mounted folder.

    Its content's digest stands for it).
    """
    rows = [[entry.name, entry.size, entry.identity] for entry in sorted(entries)]
    if not rows or any(row[2] is None for row in rows):
        return None
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True)
class ListingRecord:
    """What a folder without a revision of its own resolved to, as ``resolvedRevision`` holds it."""

    versions: tuple[int, ...] = ()
    listing: str | None = None

    def __str__(self) -> str:
        parts = [f"versions={','.join(map(str, self.versions))}"] if self.versions else []
        return ";".join([*parts, *([f"listing={self.listing}"] if self.listing else [])])

    @classmethod
    def parse(cls, text: str | None) -> ListingRecord | None:
        """The record in ``text``; None when that is something else (a commit, an ETag)."""
        match = _RECORD.fullmatch(text) if text else None
        if match is None:
            return None
        versions = tuple(int(part) for part in (match["versions"] or "").split(",") if part)
        return cls(versions, match["listing"])
