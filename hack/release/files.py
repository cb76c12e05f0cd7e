"""Archives and checksums that depend only on what is in the files."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Final

from triton_pipelines.loader.files import sha256_of

CHECKSUMS: Final = "SHA256SUMS"


def sha256_of_files(folder: Path) -> dict[str, str]:
    """Return the digest of each file directly in a folder, by name."""
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file()}


def checksum_lines(digests: dict[str, str]) -> str:
    """Return a file for ``sha256sum --check``."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def write_tar(folder: Path, target: Path, epoch: int) -> None:
    """Write the files of a folder as a tar archive; names that end in ``gz`` are compressed.

    Order, owners, modes and times of the entries are fixed, so equal files make equal archives.

    Args:
        folder: what to pack.
        target: the archive.
        epoch: time of all entries, in seconds since 1970.
    """
    with target.open("wb") as raw:
        if target.name.endswith("gz"):
            with (
                gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=epoch) as packed,
                tarfile.open(fileobj=packed, mode="w") as archive,
            ):
                _add(archive, folder, epoch)
        else:
            with tarfile.open(fileobj=raw, mode="w") as archive:
                _add(archive, folder, epoch)


def repack(archive: Path, scratch: Path, epoch: int) -> None:
    """Replace a tar archive by one whose entries have fixed owners, modes and times."""
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    write_tar(scratch, archive, epoch)


def _add(archive: tarfile.TarFile, folder: Path, epoch: int) -> None:
    for path in sorted(folder.rglob("*")):
        entry = archive.gettarinfo(path, path.relative_to(folder).as_posix())
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = epoch
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o111 else 0o644
        if entry.isfile():
            with path.open("rb") as stream:
                archive.addfile(entry, stream)
        else:
            archive.addfile(entry)
