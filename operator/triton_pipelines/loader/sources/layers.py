"""Unpack the layers of an image: tar archives on top of each other, below one place only.

Layers are untrusted. Only regular files and folders are written, below the folder to unpack into
and nowhere else, and what comes out of a layer is bounded. A hard link to a file that was unpacked
becomes a copy of it, which counts toward the limits. The filters of :mod:`tarfile` are not
enough for that: they rename absolute names, accept links, bound nothing, and Python has them only
from 3.11.4 on.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from triton_pipelines.loader.errors import NoSpaceError, SourceError
from triton_pipelines.loader.files import free_bytes
from triton_pipelines.loader.listing import MAX_FILES, check_name
from triton_pipelines.loader.progress import format_bytes
from triton_pipelines.loader.sources.unpack_limits import unpacked_error, unpacked_limit

MAX_MEMBERS: Final = 500_000
"""Maximum members of one layer, with those outside of the place that is unpacked.

The layers of full operating systems have up to 100 000.
"""
MAX_HEADER_BYTES: Final = 1 << 20
"""Maximum bytes of a member's headers, which :mod:`tarfile` holds in memory."""
_MAX_GLOBAL_HEADERS: Final = 64
"""Maximum number of global headers of a layer, which :mod:`tarfile` keeps in memory."""
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
"""Names by which a layer removes files below it (OCI image specification 1.1, layer.md)."""
_BLOCK: Final = 1 << 20
_BROKEN: Final = (
    tarfile.TarError,
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    # tarfile lets these pass for headers that are nested too deep, end early or hold no numbers.
    RecursionError,
    ValueError,
    OverflowError,
    IndexError,
    KeyError,
    # A member, or a removal, below what is a file.
    NotADirectoryError,
)


def scope_of(layers: Sequence[Path], place: str) -> str:
    """Return the folder to unpack for ``place``.

    That is the place itself. For a file it is the parent, because files next to it may belong to
    it.

    Raises:
        SourceError: a layer is broken or exceeds a limit.
    """
    if not place:
        return ""
    for layer in layers:
        with _opened(layer) as members:
            for _, member in members:
                if _name(member) == place and not member.isdir():
                    return str(PurePosixPath(place).parent) if "/" in place else ""
    return place


def unpack(layer: Path, scope: str, into: Path) -> None:
    """Put the files of ``layer`` below ``scope`` over those in ``into``, under their own names.

    Raises:
        SourceError: a member is not a regular file or a folder, its name is not usable, or the
            archive is broken or exceeds a limit.
        NoSpaceError: a file does not fit on the volume.
    """
    count = copied = 0
    with _opened(layer) as members:
        for archive, member in members:
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
            count += 1
            if count > MAX_FILES:
                raise SourceError(
                    f"the image contains more than {MAX_FILES} files; set source.path to "
                    "the model's own directory"
                )
            _check_member(member, name)
            if member.islnk():
                copied += _copy_link(member, name, into, layer.stat().st_size, copied)
            else:
                _write(archive, member, name, into)


def _check_member(member: tarfile.TarInfo, name: str) -> None:
    """Refuse everything except a regular file, a hard link or a folder below its own name."""
    check_name(name)
    if member.issym():
        raise SourceError(
            f"{name} is a link to {member.linkname[:200]}; put the file itself into the image"
        )
    if member.issparse():
        raise SourceError(f"{name} is stored as a sparse file; pack it without --sparse")
    if not (member.isreg() or member.isdir() or member.islnk()):
        raise SourceError(f"{name} is not a file; remove it from the image")


def _copy_link(member: tarfile.TarInfo, name: str, into: Path, packed: int, copied: int) -> int:
    """Copy the file to which the hard link ``name`` leads; return its bytes.

    Args:
        member: the hard link.
        name: its name.
        into: folder with what is unpacked.
        packed: bytes of the layer.
        copied: bytes of the copies that the layer's hard links have made.
    """
    origin = _plain_name(member.linkname)
    check_name(origin)
    source, target = into / origin, into / name
    _make_way(name, into)
    if (
        source.is_relative_to(target)
        or source.is_symlink()
        or not source.is_file()
        or not source.resolve().is_relative_to(into.resolve())
    ):
        raise SourceError(
            f"{name} is a hard link to {origin[:200]}, which is not a file of the same "
            "directory; put the file itself into the image"
        )
    size = source.stat().st_size
    if copied + size > unpacked_limit(packed):
        raise unpacked_error("a layer", packed)
    if (free := free_bytes(into)) < size:
        raise NoSpaceError(size, free, name)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target, follow_symlinks=False)
    return size


def _make_way(name: str, into: Path) -> None:
    """Remove files of lower layers where ``name`` needs folders."""
    # Unpacking makes no links; the name alone would not show one that is there anyway.
    if not (into / name).parent.resolve().is_relative_to(into.resolve()):
        raise SourceError(
            f"link {name!r} points outside its directory; remove the link from the image"
        )
    for parent in PurePosixPath(name).parents:
        if (into / parent).is_file():
            (into / parent).unlink()


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, into: Path) -> None:
    target = into / name
    _make_way(name, into)
    if member.isdir():
        if target.is_symlink() or target.is_file():
            target.unlink()
        target.mkdir(parents=True, exist_ok=True)
        return
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if (free := free_bytes(into)) < member.size:
        raise NoSpaceError(member.size, free, name)
    stream = archive.extractfile(member)
    assert stream is not None
    with target.open("xb") as file:
        shutil.copyfileobj(stream, file, _BLOCK)


def _remove(into: Path, name: str) -> None:
    if name in ("", "."):
        targets = list(into.iterdir()) if into.is_dir() else []
    else:
        check_name(name)
        targets = [into / name]
    for target in targets:
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _name(member: tarfile.TarInfo) -> str:
    """Return a member's path, relative to the image's root."""
    return _plain_name(member.name)


def _plain_name(path: str) -> str:
    name = path.removeprefix("./").strip("/")
    return "" if name == "." else name


class _BoundedStream:
    """The unpacked bytes of a layer, up to the limits of the layer and of a header."""

    def __init__(self, stream: IO[bytes], packed: int) -> None:
        self._stream, self._packed = stream, packed
        self._position, self._header_end, self._member_end = 0, MAX_HEADER_BYTES, 0

    def read(self, size: int) -> bytes:
        """Read the next bytes.

        Raises:
            SourceError: there are more than a layer, or a header, may have.
            tarfile.ReadError: the archive ends inside a member. (:mod:`tarfile` skips content
                without an end: it repeats empty reads up to the size that a header states.)
        """
        data = self._stream.read(size)
        if not data and size > 0 and self._position < self._member_end:
            raise tarfile.ReadError("unexpected end of data")
        self._position += len(data)
        if self._position > unpacked_limit(self._packed):
            raise unpacked_error("a layer", self._packed)
        if self._position > self._header_end:
            raise SourceError(
                "the image has a layer with a header of more than "
                f"{format_bytes(MAX_HEADER_BYTES)}; pack the files without extended "
                "attributes"
            )
        return data

    def expect_content(self, start: int, end: int) -> None:
        """Bound what is read for the content of a member: by the layer's limit alone.

        Args:
            start: position of the content.
            end: position after the content, where the headers of the next member start.

        Raises:
            SourceError: the content is larger than the layer may unpack to.
            tarfile.ReadError: the content has a negative size.
        """
        if end < start:
            raise tarfile.ReadError("negative size")
        if end - start > unpacked_limit(self._packed):
            raise unpacked_error("a layer", self._packed)
        self._header_end, self._member_end = unpacked_limit(self._packed), end

    def expect_header(self) -> None:
        """Bound what is read until the next member by the maximum of its headers."""
        self._header_end = self._member_end + MAX_HEADER_BYTES + tarfile.RECORDSIZE


@contextmanager
def _opened(layer: Path) -> Iterator[Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]]:
    try:
        with layer.open("rb") as file:
            head = file.read(4)
            file.seek(0)
            if head == b"\x28\xb5\x2f\xfd":
                raise SourceError(
                    "the image has a layer compressed with zstd, which the loader cannot "
                    "read; push the image with gzip"
                )
            is_gzip = head[:2] == b"\x1f\x8b"
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if is_gzip else file
            bounded = _BoundedStream(stream, layer.stat().st_size)
            # As a stream: members are read in their order in the file.
            with tarfile.open(fileobj=bounded, mode="r|") as archive:  # type: ignore[call-overload]
                yield _members(archive, bounded)
    except _BROKEN as error:
        detail = str(error) or type(error).__name__
        raise SourceError(
            f"the image has a layer that is not a valid tar archive ({detail}); push the "
            "image again"
        ) from error


def _members(
    archive: tarfile.TarFile, stream: _BoundedStream
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the archive with each member, in order; nothing of earlier members stays in memory."""
    count = 0
    while (member := archive.next()) is not None:
        count += 1
        if count > MAX_MEMBERS or len(archive.pax_headers) > _MAX_GLOBAL_HEADERS:
            raise SourceError(
                f"the image has a layer with more than {MAX_MEMBERS} members or "
                f"{_MAX_GLOBAL_HEADERS} global headers; publish only the model's files"
            )
        archive.members.clear()  # type: ignore[attr-defined]
        if member.size < 0:
            raise tarfile.ReadError("negative size")
        # The size of a sparse member, or of one of an unknown type, is not that of its content.
        stream.expect_content(member.offset_data, archive.offset)
        yield archive, member
        stream.expect_header()
