"""Unpack the layers of an image: tar archives on top of each other, below one place only."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final

from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.listing import MAX_FILES, check_name

_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
"""Names by which a layer removes files below it (OCI image specification 1.1, layer.md)."""
_BLOCK: Final = 1 << 20


def scope_of(layers: Sequence[Path], place: str) -> str:
    """Return the folder to unpack for ``place``.

    That is the place itself. For a file it is the parent, because files next to it may belong to
    it.
    """
    if not place:
        return ""
    for layer in layers:
        with _opened(layer) as archive:
            for member in archive:
                if _name(member) == place and not member.isdir():
                    return str(PurePosixPath(place).parent) if "/" in place else ""
    return place


def unpack(layer: Path, scope: str, into: Path) -> None:
    """Put the files of ``layer`` below ``scope`` over those in ``into``, under their own names.

    Raises:
        SourceError: a name is not usable, a requested file is a link, or the archive is broken.
    """
    count = 0
    with _opened(layer) as archive:
        for member in archive:
            name = _name(member)
            last = PurePosixPath(name).name
            if name and last.startswith(_WHITEOUT):
                _remove(
                    into,
                    str(PurePosixPath(name).parent)
                    if last == _OPAQUE
                    else str(PurePosixPath(name).parent / last[len(_WHITEOUT) :]),
                )
                continue
            if not name or not (not scope or name == scope or name.startswith(f"{scope}/")):
                continue
            if not member.isdir():
                check_name(name)
            count += 1
            if count > MAX_FILES:
                raise SourceError(
                    f"holds more than {MAX_FILES} files: name the model's own folder in source.path"
                )
            _write(archive, member, name, into)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, into: Path) -> None:
    target = into / name
    if member.isdir():
        if target.is_file():
            target.unlink()
        target.mkdir(parents=True, exist_ok=True)
        return
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if member.islnk():
        linked = member.linkname.removeprefix("./").lstrip("/")
        check_name(linked)
        if not (into / linked).is_file():
            raise SourceError(
                f"{name} is a hard link to {linked}, which is outside of source.path: put a "
                "copy into the image"
            )
        shutil.copyfile(into / linked, target)
    elif member.isfile():
        stream = archive.extractfile(member)
        assert stream is not None
        with target.open("xb") as file:
            shutil.copyfileobj(stream, file, _BLOCK)
    elif member.issym():
        raise SourceError(
            f"{name} is a link to {member.linkname}: put the file itself into the image"
        )
    else:
        raise SourceError(f"{name} is not a file: remove it from the image")


def _remove(into: Path, name: str) -> None:
    if name in ("", "."):
        targets = list(into.iterdir()) if into.is_dir() else []
    else:
        check_name(name)
        targets = [into / name]
    for target in targets:
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _name(member: tarfile.TarInfo) -> str:
    """Return a member's path, relative to the image's root."""
    name = member.name.removeprefix("./").strip("/")
    return "" if name == "." else name


@contextmanager
def _opened(layer: Path) -> Iterator[tarfile.TarFile]:
    try:
        with layer.open("rb") as file:
            head = file.read(4)
            file.seek(0)
            if head == b"\x28\xb5\x2f\xfd":
                raise SourceError(
                    "has a layer packed with zstd, which cannot be read here: push it with gzip"
                )
            stream: IO[bytes] = gzip.GzipFile(fileobj=file) if head[:2] == b"\x1f\x8b" else file  # type: ignore[assignment]
            # As a stream: members are read in their order in the file, and nothing is kept in
            # memory.
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                yield archive
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"has a layer that is not a usable tar archive ({error})") from error
