"""Durable files on a volume: free space, digests, atomic writes."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Final

from triton_pipelines.loader.errors import NoSpaceError

FULL_VOLUME_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a full volume."""

BLOCK: Final = 1 << 20
"""Bytes read at once from a local file."""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob_of(path: Path) -> str:
    """Return the object name that Git gives to the content of a file (SHA-1 of header and data)."""
    digest = hashlib.sha1(b"blob %d\x00" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def free_bytes(folder: Path) -> int:
    """Return the bytes that an unprivileged writer may still put on the volume of ``folder``."""
    figures = os.statvfs(folder)
    return figures.f_bavail * figures.f_frsize


def fsync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(temporary: Path, path: Path) -> None:
    """Give a complete file its final name, durably: its content first, then the rename."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_folder(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a small file whose name never shows a part of it; mode 0644 less the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(data)
        replace_durably(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in FULL_VOLUME_ERRORS:
            raise NoSpaceError(len(data), free_bytes(path.parent), str(path)) from error
        raise
