"""Lease as a file whose owner touches it; a file that is not touched anymore is free.

A lease only avoids double work. Doing the work twice does no harm, so a lost race needs no more
care than that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

SMALL_FILE_BYTES: Final = 4096
"""Size of the largest lease or index entry."""


@dataclass(frozen=True)
class LeaseTimes:
    """Times of a lease, in seconds."""

    beat: float = 5.0
    """Between two touches by the owner."""
    dead_after: float = 30.0
    """Without a touch until the owner counts as dead."""
    poll: float = 1.0
    """Between two checks by a waiting pod."""
    patience: float = 600.0
    """Maximum duration of a wait; a download waits up to three times for the same file."""
    sleep: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)
    """Waits a number of seconds; tests replace it."""


class Lease:
    """A held lease, as context manager."""

    def __init__(self, path: Path | None, times: LeaseTimes, owner: str = "") -> None:
        """Create the lease.

        Args:
            path: the lease's file; ``None`` holds nothing and excludes no one.
            times: when to touch the file.
            owner: content of the file, which identifies the owner.
        """
        self._path, self._times, self._owner = path, times, owner
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is None:
            return
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            # Another owner took the lease over because it considered this one dead.
            if read_small(self._path) == self._owner.encode():
                self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._end.wait(self._times.beat):
            with contextlib.suppress(OSError):
                if self._path is not None and read_small(self._path) == self._owner.encode():
                    os.utime(self._path)


def read_small(path: Path) -> bytes:
    """Return the content of a small file on a volume that others can write to.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large. Opening a pipe would
            wait forever, and a link could lead anywhere.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{path.name} is not a file")
        content = os.read(descriptor, SMALL_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > SMALL_FILE_BYTES:
        raise OSError(errno.EFBIG, f"{path.name} is larger than {SMALL_FILE_BYTES} bytes")
    return content


def try_lease(path: Path, times: LeaseTimes) -> Lease | None:
    """Return the lease at ``path``; ``None`` while another owner has it.

    Raises:
        OSError: no file can be created there.
    """
    owner = uuid.uuid4().hex
    try:
        # Exclusive creation is atomic also on NFS (since version 3).
        with path.open("x") as file:
            file.write(owner)
    except FileExistsError:
        return None
    return Lease(path, times, owner)


def wait_for(
    path: Path, times: LeaseTimes, done: Callable[[], bool], clock: Callable[[], float]
) -> None:
    """Wait until ``done()``, until the lease ends, or until its owner counts as dead.

    The lease of a dead owner is removed. An owner is alive while the file's time stamp changes
    within this host's own seconds: the clocks of hosts and file servers differ.
    """
    began = seen = clock()
    last: tuple[int, int] | None = None
    while not done() and clock() - began < times.patience:
        try:
            status = path.stat()
        except FileNotFoundError:
            return
        now = clock()
        if (stamp := (status.st_ino, status.st_mtime_ns)) != last:
            last, seen = stamp, now
        elif now - seen >= times.dead_after:
            path.unlink(missing_ok=True)
            return
        times.sleep(times.poll)
