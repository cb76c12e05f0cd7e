"""Cache of fetched files on a volume that pods share.

Files are found by what identifies them, verified on every use, and appear only when complete.
Layout below the volume: ``v1/index/KK/KEY.json`` (digest and size of the file of a key),
``v1/files/DD/DIGEST`` (the content), ``v1/locks/KEY`` (who is fetching it), ``v1/tmp``. If the
volume fails in any way, the load continues without it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import stat
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from triton_pipelines.api.loadplan import LoadFinding, LoadReason
from triton_pipelines.loader.file_lease import Lease, LeaseTimes, read_small, try_lease, wait_for
from triton_pipelines.loader.progress import format_bytes

KEEP_FREE: Final = 0.1
"""Share of the cache volume that is left free."""
IN_USE_SECONDS: Final = 900.0
"""Seconds since the last use within which a file is not evicted.

On a local file system a process that has the file open keeps it anyway. NFS keeps a removed file
only for clients of the same host.
"""
ABANDONED_SECONDS: Final = 3600.0
"""Seconds since the last write after which an unfinished file counts as abandoned by its pod."""
_BLOCK: Final = 1 << 20
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_FICLONE: Final = 0x40049409
"""``ioctl`` that makes a file share another's blocks (linux/fs.h), as on XFS and Btrfs."""


@dataclass(frozen=True)
class CachedFile:
    """A file of the cache, copied to its target."""

    sha256: str
    """Its SHA-256 in hexadecimal."""
    size: int
    """Its bytes."""


def cache_key(*parts: str | None) -> str:
    """Return the key of a file from how it was requested and what identifies that version."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class FileCache:
    """The cache on the volume at ``root``.

    Its methods never raise for a fault of that volume; :meth:`finding` reports it.
    """

    def __init__(
        self,
        root: Path,
        log: logging.Logger,
        *,
        keep_free: float = KEEP_FREE,
        times: LeaseTimes | None = None,
    ) -> None:
        self._root, self._log, self._keep_free = root / "v1", log, keep_free
        self._times = times or LeaseTimes()
        self._problem: str | None = None
        self._room = threading.Lock()

    def finding(self) -> LoadFinding | None:
        """Return why the cache was not used, for the report; ``None`` if it was."""
        if self._problem is None:
            return None
        return LoadFinding(
            reason=LoadReason.CACHE_UNUSED,
            message=(
                f"the model cache was not used for some files, because {self._problem}. "
                "These files were fetched from their sources; check the volume of the model cache."
            ),
        )

    def take(
        self,
        key: str,
        target: Path,
        is_expected: Callable[[CachedFile], bool] = lambda _: True,
    ) -> CachedFile | None:
        """Copy the file of ``key`` to ``target`` and verify it; ``None`` if it is not cached.

        Everyone who can write to the volume can change what the index names, so the caller's own
        knowledge of the file decides, where there is any.

        Args:
            key: the file's key.
            target: where to put the copy.
            is_expected: whether the copy at ``target`` is the requested file. An entry that names
                another file is removed.

        Raises:
            OSError: ``target`` cannot be written.
        """
        sha256 = self._sha256_of(key)
        if sha256 is None:
            return None
        for _ in range(2):
            # A copy counts as broken if it is so twice: one host may read wrongly once.
            copied = self._copy_of(sha256, target)
            if copied is None:
                return None
            if copied.sha256 != sha256:
                continue
            if is_expected(copied):
                return copied
            target.unlink(missing_ok=True)
            self._log.warning(
                "the model cache entry with digest %s is not the file that the source "
                "announced; the entry is removed",
                sha256,
            )
            self._remove(self._index(key))
            return None
        target.unlink(missing_ok=True)
        self._log.warning("the model cache contains a broken copy of %s; it is removed", sha256)
        self._remove(self._index(key), self._blob(sha256))
        return None

    def _sha256_of(self, key: str) -> str | None:
        """Return the digest that the index has for ``key``."""
        try:
            return self._read_index(key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._note("it cannot be read", error)
            return None

    def _read_index(self, key: str) -> str:
        """Return the digest that the index has for ``key``.

        Raises:
            OSError: the index cannot be read.
            ValueError: it has no digest.
        """
        try:
            sha256 = str(json.loads(read_small(self._index(key)))["sha256"])
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError("no digest") from error
        self._blob(sha256)
        return sha256

    def _copy_of(self, sha256: str, target: Path) -> CachedFile | None:
        """Copy a file of the cache to ``target``; ``None`` if it is gone or cannot be read.

        It stays in the cache in any case: other pods may be able to read it.
        """
        try:
            # Neither a link nor a pipe, which would block, can be a file of the cache.
            source = os.open(self._blob(sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note("it cannot be read", error)
            return None
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                self._note("it contains something that is not a file", None)
                return None
            with contextlib.suppress(OSError):
                os.utime(source)
            copied = self._copy(source, target)
        finally:
            os.close(source)
        if copied is None:
            target.unlink(missing_ok=True)
        return copied

    def _remove(self, *paths: Path) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def put(self, key: str, path: Path, sha256: str) -> None:
        """Keep a copy of ``path`` for ``key``, if there is room."""
        temporary = self._root / "tmp" / uuid.uuid4().hex
        try:
            size = path.stat().st_size
            blob = self._blob(sha256)
            for folder in (temporary.parent, blob.parent, self._index(key).parent):
                self._folder(folder)
            # A pod that died, or a full volume, may leave an empty or cut file under the name.
            if blob.is_symlink() or not blob.is_file() or blob.stat().st_size != size:
                if not self._make_room(size):
                    return
                if not self._keep(path, temporary, sha256):
                    return
                temporary.replace(blob)
            temporary.write_text(json.dumps({"sha256": sha256, "size": size}))
            _share(temporary)
            temporary.replace(self._index(key))
        except OSError as error:
            self._note("writing to it failed", error)
            self._remove(temporary)

    def _keep(self, path: Path, temporary: Path, sha256: str) -> bool:
        """Copy ``path`` onto the volume; return whether the copy is whole."""
        with path.open("rb") as source:
            copied = self._copy(source.fileno(), temporary, shared=True)
        if copied is None or copied.sha256 != sha256:
            if copied is not None:
                self._note(f"the copy of {sha256} differs from the file", None)
            self._remove(temporary)
            return False
        return True

    def lease(self, key: str) -> Lease | None:
        """Return the right to fetch ``key`` while others wait; ``None`` while another pod has it.

        Where the volume cannot hold a lock, every pod gets the right.
        """
        try:
            self._folder(self._lock(key).parent)
            return try_lease(self._lock(key), self._times)
        except OSError as error:
            self._note("writing to it failed", error)
            return Lease(None, self._times)

    def wait(self, key: str, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until ``key`` is cached, its lease ends, it is stopped, or the wait is too long."""
        self._log.info("another pod is fetching the same file into the model cache; waiting for it")
        with contextlib.suppress(OSError):
            wait_for(
                self._lock(key),
                self._times,
                lambda: is_stopped() or self._is_cached(key),
                time.monotonic,
            )

    def _is_cached(self, key: str) -> bool:
        """Return whether index and file are there: after an eviction, only the index is."""
        try:
            return self._blob(self._read_index(key)).is_file()
        except (OSError, ValueError):
            return False

    def _make_room(self, size: int) -> bool:
        """Return whether ``size`` bytes fit after evicting the least recently used files."""
        with self._room:
            now = self._now()
            for left in (self._root / "tmp").iterdir():
                with contextlib.suppress(OSError):
                    if now - left.stat().st_mtime > ABANDONED_SECONDS:
                        left.unlink(missing_ok=True)
            if self._lacking(size) <= 0:
                return True
            for used, blob in sorted(self._blobs()):
                if now - used < IN_USE_SECONDS:
                    break
                self._log.info(
                    "the model cache is full: its least recently used file %s is removed", blob.name
                )
                # Its index entries now point to a missing file, which counts as a cache miss.
                with contextlib.suppress(OSError):
                    blob.unlink(missing_ok=True)
                if self._lacking(size) <= 0:
                    return True
            self._note(
                f"its volume has too little free space for {format_bytes(size)} "
                f"({format_bytes(self._lacking(size))} more are required)",
                None,
            )
            return False

    def _blobs(self) -> list[tuple[float, Path]]:
        found = []
        for blob in (self._root / "files").glob("*/*"):
            with contextlib.suppress(OSError):
                if blob.parent.is_symlink():
                    continue
                found.append((blob.stat().st_mtime, blob))
        return found

    def _lacking(self, size: int) -> int:
        figures = os.statvfs(self._root)
        return int(
            size
            + self._keep_free * figures.f_blocks * figures.f_frsize
            - figures.f_bavail * figures.f_frsize
        )

    def _folder(self, path: Path) -> None:
        """Create a folder of the cache.

        Every pod may write to it: pods may run as different users of one group. None of them may
        lead the others to another folder of theirs through a link.

        Raises:
            OSError: the folder cannot be created, or it or a parent is a symbolic link.
        """
        for folder in (self._root, path.parent, path):
            if folder.is_symlink():
                raise OSError(errno.ELOOP, f"{folder.name} is a symbolic link")
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            for made in (path, path.parent):
                with contextlib.suppress(OSError):
                    made.chmod(0o2775)

    def _now(self) -> float:
        """Return the time of the volume: its server's clock may differ from this host's."""
        mark = self._root / "tmp" / uuid.uuid4().hex
        mark.touch()
        try:
            return mark.stat().st_mtime
        finally:
            mark.unlink(missing_ok=True)

    def _copy(self, source: int, target: Path, *, shared: bool = False) -> CachedFile | None:
        """Copy an open file and return what was written.

        ``None`` if the source fails, such as an NFS server that lost the file. What was written
        until then is left to the caller.

        Raises:
            OSError: ``target`` cannot be written.
        """
        target.unlink(missing_ok=True)
        digest = hashlib.sha256()
        with target.open("xb+") as file:
            cloned = _clone(source, file.fileno())
            while True:
                try:
                    block = file.read(_BLOCK) if cloned else os.read(source, _BLOCK)
                except OSError as error:
                    self._note("it cannot be read", error)
                    return None
                if not block:
                    break
                digest.update(block)
                if not cloned:
                    file.write(block)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if shared:
            _share(target)
        return CachedFile(digest.hexdigest(), size)

    def _note(self, what: str, error: Exception | None) -> None:
        detail = (
            f" ({error.strerror or error})"
            if isinstance(error, OSError)
            else (f" ({type(error).__name__})" if error else "")
        )
        if self._problem is None:
            self._problem = f"{what}{detail}"
        self._log.warning("the model cache is not used: %s%s", what, detail)

    def _index(self, key: str) -> Path:
        return self._root / "index" / key[:2] / f"{key}.json"

    def _blob(self, sha256: str) -> Path:
        if _SHA256.fullmatch(sha256) is None:
            raise ValueError("no digest")
        return self._root / "files" / sha256[:2] / sha256

    def _lock(self, key: str) -> Path:
        return self._root / "locks" / key


def _clone(source: int, target: int) -> bool:
    """Let ``target`` share the blocks of ``source`` (reflink); return whether it could."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def _share(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.chmod(0o664)
