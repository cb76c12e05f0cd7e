"""A lock that outlives nobody: a file whose owner touches it.

One that is not touched any more is free. It only saves double work. Whoever does the work twice
harms nobody, so a lost race needs no more care than that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds.

    Between two signs of life, without one until the owner counts as dead, between two looks, and
    that a wait may last at most.
    """

    beat: float = 5.0
    dead_after: float = 30.0
    poll: float = 1.0
    patience: float = 1800.0
    sleep: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)


class Lease:
    """A held lease, as context manager; ``path`` None: nothing is held and nobody is kept out."""

    def __init__(self, path: Path | None, times: LeaseTimes, owner: str = "") -> None:
        self._path, self._times, self._owner = path, times, owner
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._path is None:
            return
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            # Taken over by somebody who thought this one dead: then it is theirs.
            if self._path.read_text() == self._owner:
                self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._end.wait(self._times.beat):
            with contextlib.suppress(OSError):
                if self._path is not None and self._path.read_text() == self._owner:
                    os.utime(self._path)


def try_lease(path: Path, times: LeaseTimes) -> Lease | None:
    """The lease at ``path``, or None while another has it.

    Raises :class:`OSError` where no file can be made.
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
    """Wait until ``done()``, until the lease is given back, or until its owner shows no life.

    Then it is removed. Life is a changed time stamp within this host's own seconds: clocks of hosts
    and file servers differ.
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
