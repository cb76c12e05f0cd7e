"""What a source of files offers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from triton_pipelines.loader.listing import SourceListing


@dataclass(frozen=True)
class FileBody:
    """The rest of a file, from ``offset`` on."""

    chunks: Iterator[bytes]
    """The bytes."""
    offset: int = 0
    """First byte of ``chunks`` in the file."""
    size: int | None = None
    """Bytes of the whole file; ``None`` if the source does not say."""
    validator: str | None = None
    """Lets a later request continue this very version; ``None`` if that is not possible."""
    revision: str | None = None
    """What an unpinned source resolved to (commit, object version, ETag)."""
    identity: str | None = None
    """Stays the same only while the content does (commit, version, strong ETag, digest).

    ``None`` if nothing does.
    """
    digest: str | None = None
    """SHA-256 of the file according to the source, if it says one."""
    git_blob: str | None = None
    """Git's object name of the file according to the source, if it says one."""
    link: Path | None = None
    """The file itself, if it is linked instead of copied."""


class Source(Protocol):
    """Where files come from.

    Names are relative to the source's folder. A source is thread-safe once it is resolved.
    """

    def resolve(self) -> str | None:
        """Return the commit that holds for all files of the source.

        ``None`` if each file has its own revision.
        """
        ...

    def list(self, place: str) -> SourceListing:
        """Return the files at ``place``; an empty place, or one that ends with ``/``, is a folder.

        Raises:
            SourceError: the source cannot be read.
        """
        ...

    def open(
        self, name: str, *, offset: int = 0, validator: str | None = None
    ) -> AbstractContextManager[FileBody]:
        """Start reading ``name``, from ``offset`` if ``validator`` still holds, else from 0.

        Raises:
            SourceError: the source cannot be read; also while the chunks are read.
        """
        ...
