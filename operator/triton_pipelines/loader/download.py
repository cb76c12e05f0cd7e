"""One file of a source into one file on disk: resumed, hashed while it streams, never half there under its own name."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from triton_pipelines.loader.errors import NoSpaceError, SourceError
from triton_pipelines.loader.progress import Progress, human
from triton_pipelines.loader.retry import Retrier

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
BLOCK: Final = 1 << 20
"""Bytes read at once from a local file."""


@dataclass(frozen=True)
class Body:
    """The rest of a file from ``offset`` on.

    ``size`` is the whole file's, where the source tells. ``validator`` lets a later request continue this very version, None
    when the source cannot promise that. ``revision`` is what an unpinned source resolved to (commit, object version, ETag).
    """

    chunks: Iterator[bytes]
    offset: int = 0
    size: int | None = None
    validator: str | None = None
    revision: str | None = None


class Source(Protocol):
    """Where files come from. ``name`` is relative to the source's folder."""

    def resolve(self) -> str | None:
        """The revision that holds for all files of the source (a commit), or None where each file has its own."""
        ...

    def open(self, name: str, *, offset: int = 0, validator: str | None = None) -> AbstractContextManager[Body]:
        """Start reading ``name``, from ``offset`` when ``validator`` still holds, else from 0.

        Raises :class:`SourceError`, also while the chunks are read.
        """
        ...


@dataclass(frozen=True)
class Downloaded:
    """A complete file: where, its digest, bytes, what it resolved to, and whether part of it came from an earlier attempt."""

    path: Path
    sha256: str
    size: int
    revision: str | None
    resumed: bool


class Downloader:
    """Downloads with retries; unfinished files lie beside their target as ``NAME.part`` with ``NAME.part.json``."""

    def __init__(self, retrier: Retrier, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._retrier, self._log, self._clock = retrier, log, clock

    def fetch(self, source: Source, name: str, target: Path, what: str) -> Downloaded:
        """Fetch ``name`` into ``target``. ``what`` (field and URI) starts every log line.

        Raises :class:`SourceError` when the source stays unreadable and :class:`NoSpaceError` when the volume is full.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        return self._retrier.run(what, lambda: self._attempt(source, name, target, what))

    def _attempt(self, source: Source, name: str, target: Path, what: str) -> Downloaded:
        part = _Part(target)
        resumable = part.read()
        offset, validator = (part.size(), resumable) if resumable else (0, None)
        before = part.size() if resumable else 0
        try:
            with source.open(name, offset=offset, validator=validator) as body:
                return self._stream(body, part, target, what)
        except SourceError as error:
            if error.restart:
                part.drop()
            error.progress = part.size() > before
            raise
        except OSError as error:
            if error.errno in _FULL:
                raise NoSpaceError(None, free_bytes(target.parent), what) from error
            raise

    def _stream(self, body: Body, part: _Part, target: Path, what: str) -> Downloaded:
        digest = hashlib.sha256()
        if body.offset:
            if body.offset != part.size():
                part.drop()
                raise SourceError(f"the server went on at byte {body.offset} of a file that was asked for from elsewhere", retryable=True)
            part.hash_into(digest)
            self._log.info("%s: resumes at %s", what, human(body.offset))
        else:
            part.drop()
        if body.size is not None:
            free, needed = free_bytes(target.parent), body.size - body.offset
            if needed > free:
                raise NoSpaceError(needed, free, what)
        part.write(body.validator)
        progress = Progress(self._log, what, body.size, body.offset, self._clock)
        size = body.offset
        with part.path.open("ab") as file:
            for chunk in body.chunks:
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                progress.add(len(chunk))
            file.flush()
            os.fsync(file.fileno())
        if body.size is not None and size != body.size:
            if size > body.size:
                part.drop()
            raise SourceError(f"the body ended at byte {size} of {body.size}", retryable=True)
        progress.finish()
        part.path.replace(target)
        fsync_folder(target.parent)
        part.drop()
        return Downloaded(target, digest.hexdigest(), size, body.revision, resumed=body.offset > 0)


class _Part:
    """The unfinished file and what its next request must prove to go on."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self) -> str | None:
        """The validator under which the file may be continued; None: start again."""
        try:
            validator = json.loads(self._note.read_text()).get("validator")
        except (OSError, ValueError, AttributeError):
            return None
        return validator if isinstance(validator, str) and self.size() > 0 else None

    def write(self, validator: str | None) -> None:
        temporary = self._note.with_name(f"{self._note.name}.tmp")
        temporary.write_text(json.dumps({"validator": validator}))
        temporary.replace(self._note)

    def drop(self) -> None:
        self._note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def hash_into(self, digest: hashlib._Hash) -> None:
        with self.path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(folder: Path) -> int:
    """Bytes that an unprivileged writer may still put on the volume of ``folder``."""
    figures = os.statvfs(folder)
    return figures.f_bavail * figures.f_frsize


def fsync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a small file so that its name never shows a part of it; mode 0644 less the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise NoSpaceError(len(data), free_bytes(path.parent), str(path)) from error
        raise
