"""Files at a place of a source: one file, or a folder with everything below it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from triton_pipelines.api.wording import first_of
from triton_pipelines.loader.errors import SourceError

MAX_FILES: Final = 10_000
"""Maximum files of one source.

A model has dozens; more means that the URI names a whole bucket or volume.
"""
MAX_NAME_BYTES: Final = 1024
"""Maximum bytes of a file's name with its folders."""
_MAX_PART_BYTES: Final = 255
"""Maximum bytes of one part of a name: file systems hold no longer one (``NAME_MAX``)."""
_SHOWN: Final = 6
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")
"""Name of a version folder: Triton reads the digits into 64 bits and takes no leading zero."""
_RECORD: Final = re.compile(
    r"(?:versions=(?P<versions>[1-9][0-9,]*))?;?(?:listing=(?P<listing>[0-9a-f]{64}))?"
)
_LEFT_OUT: Final = frozenset({"__pycache__", ".git", "lost+found"})
"""Folders that are never part of a model: byte code, a history, a file system's own."""


@dataclass(frozen=True, order=True)
class ListedFile:
    """A file of a listing."""

    name: str
    """Its name, relative to the place."""
    size: int | None = None
    """Its bytes, if known."""
    identity: str | None = None
    """Changes with the content (ETag, version), if known."""


@dataclass(frozen=True)
class SourceListing:
    """The files at a place."""

    entries: tuple[ListedFile, ...] | None
    """The files; ``None`` for a folder that cannot be listed (a web server's)."""
    single: bool = False
    """Whether the place is the one file of ``entries``."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the files."""
        return tuple(entry.name for entry in self.entries or ())


def folder(entries: Iterable[ListedFile]) -> SourceListing:
    """Return the listing of a folder, ordered by name.

    Raises:
        SourceError: there are too many files, or a name is not usable.
    """
    kept: list[ListedFile] = []
    for entry in entries:
        if _LEFT_OUT.isdisjoint(PurePosixPath(entry.name).parts):
            kept.append(entry)
        if len(kept) > MAX_FILES:
            raise SourceError(
                f"the source contains more than {MAX_FILES} files; use the model's own directory"
            )
    names = {entry.name for entry in kept}
    for name in sorted(names):
        check_name(name)
        parents = {str(parent) for parent in PurePosixPath(name).parents}
        if clash := parents & names:
            raise SourceError(
                f"the source has both a file and a directory named {clash.pop()!r}; rename "
                "one of the two"
            )
    if not kept:
        raise SourceError("the source has no files; check uri and path", missing=True)
    return SourceListing(tuple(sorted(kept)))


def listing_at(place: str, entries: Mapping[str, ListedFile], problem: str) -> SourceListing:
    """Return the file at a place among the entries of a source, or everything below the place.

    Args:
        place: the place; with a slash at its end, it is a folder.
        entries: all files by name.
        problem: message of the error if there is nothing.

    Raises:
        SourceError: there is nothing, too much, or a name is not usable.
    """
    path = place.strip("/")
    if path in entries and not place.endswith("/"):
        found = replace(entries[path], name=path.rpartition("/")[2])
        return SourceListing((found,), single=True)
    prefix = f"{path}/" if path else ""
    try:
        return folder(
            replace(found, name=name.removeprefix(prefix))
            for name, found in entries.items()
            if name.startswith(prefix)
        )
    except SourceError as error:
        if error.missing:
            raise SourceError(problem, missing=True) from error
        raise


def check_name(name: str) -> None:
    """Refuse a name that leaves its target folder, or that differs on disk from the source."""
    pure = PurePosixPath(name)
    if (
        not name
        or pure.is_absolute()
        or ".." in pure.parts
        or str(pure) != name
        or "\x00" in name
        or "\\" in name
        or len(name.encode(errors="surrogateescape")) > MAX_NAME_BYTES
        or any(len(part.encode(errors="surrogateescape")) > _MAX_PART_BYTES for part in pure.parts)
    ):
        raise SourceError(
            f"the source contains a file or directory named {name[:200]!r}, which is not a "
            "plain path below its directory; rename the file"
        )


def list_some(names: Iterable[str]) -> str:
    """Return a few of ``names`` as text, for messages."""
    return first_of(sorted(names), _SHOWN) or "nothing"


def files_by_version(entries: Iterable[ListedFile]) -> dict[int, tuple[ListedFile, ...]]:
    """Return the files below each version folder, named relative to it."""
    found: dict[int, list[ListedFile]] = {}
    for entry in entries:
        first, slash, rest = entry.name.partition("/")
        if slash and _VERSION.fullmatch(first):
            found.setdefault(int(first), []).append(ListedFile(rest, entry.size, entry.identity))
    return {version: tuple(found[version]) for version in sorted(found)}


def digest(entries: Iterable[ListedFile]) -> str | None:
    """Return a digest of names, sizes and identities.

    ``None`` if a file has no identity: for a mounted folder, the digest of the content is used.
    """
    rows = [[entry.name, entry.size, entry.identity] for entry in sorted(entries)]
    if not rows or any(row[2] is None for row in rows):
        return None
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True)
class ListingRecord:
    """What a folder without a revision resolved to, as ``resolvedRevision`` stores it."""

    versions: tuple[int, ...] = ()
    """Versions that were taken; empty without version folders."""
    listing: str | None = None
    """Digest of the listing, if known."""

    def __str__(self) -> str:
        parts = [f"versions={','.join(map(str, self.versions))}"] if self.versions else []
        return ";".join([*parts, *([f"listing={self.listing}"] if self.listing else [])])

    @classmethod
    def parse(cls, text: str | None) -> ListingRecord | None:
        """Return the record in ``text``; ``None`` if it is something else (a commit, an ETag)."""
        match = _RECORD.fullmatch(text) if text else None
        if match is None:
            return None
        versions = tuple(int(part) for part in (match["versions"] or "").split(",") if part)
        return cls(versions, match["listing"])
