"""Log the progress of downloads: bytes, share and rate, of one file or of several at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

EVERY_SECONDS: Final = 5.0
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(count: float) -> str:
    """Return ``count`` bytes in the largest binary unit that keeps the number at 1 or more."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


class Meter(Protocol):
    """Receives the progress of one download."""

    def add(self, count: int) -> None:
        """Add ``count`` bytes."""
        ...

    def finish(self) -> None:
        """Note that the file is complete."""
        ...


MeterFactory = Callable[[int | None, int], Meter]
"""Starts the meter of a download.

Arguments: the file's size, if known, and the bytes that were there before.
"""


class DownloadProgress:
    """Log the progress of one file, at most every :data:`EVERY_SECONDS`."""

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        total: int | None,
        start: int,
        clock: Callable[[], float],
    ) -> None:
        self._log, self._what, self._total, self._clock = log, what, total, clock
        self._start = self._done = start
        self._began = self._last = clock()

    def add(self, count: int) -> None:
        """Add ``count`` bytes."""
        self._done += count
        now = self._clock()
        if now - self._last >= EVERY_SECONDS:
            self._last = now
            self._log.info("%s: %s", self._what, self._line(now))

    def finish(self) -> None:
        """Log the final line."""
        self._log.info("%s: fetched %s", self._what, self._line(self._clock()))

    def _line(self, now: float) -> str:
        return _line(self._done, self._start, self._total, now - self._began)


class GroupProgress:
    """Log the joint progress of files that are fetched at once; thread-safe."""

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        files: int,
        total: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._log, self._what, self._files, self._total, self._clock = (
            log,
            what,
            files,
            total,
            clock,
        )
        self._lock = threading.Lock()
        self._done: dict[str, int] = {}
        self._start: dict[str, int] = {}
        self._whole = 0
        self._began = self._last = clock()

    def of(self, name: str) -> MeterFactory:
        """Return a meter factory for the file ``name``; a new attempt continues its count."""

        def begin(_: int | None, start: int) -> Meter:
            with self._lock:
                self._done[name] = start
                self._start.setdefault(name, start)
            return _Share(self, name)

        return begin

    def there(self, name: str, size: int) -> None:
        """Note a file that needed no download."""
        with self._lock:
            self._done[name] = self._start[name] = size
            self._whole += 1

    def finish(self) -> None:
        """Log the final line."""
        with self._lock:
            self._log.info("%s: fetched %s", self._what, self._text(self._clock()))

    def add(self, name: str, count: int, whole: int = 0) -> None:
        """Add ``count`` bytes of a file, and whether it is complete now."""
        with self._lock:
            self._done[name] += count
            self._whole += whole
            now = self._clock()
            if now - self._last >= EVERY_SECONDS:
                self._last = now
                self._log.info("%s: %s", self._what, self._text(now))

    def _text(self, now: float) -> str:
        start = sum(self._start.values())
        return (
            f"{self._whole} of {self._files} files, "
            f"{_line(sum(self._done.values()), start, self._total, now - self._began)}"
        )


class _Share:
    def __init__(self, group: GroupProgress, name: str) -> None:
        self._group, self._name = group, name

    def add(self, count: int) -> None:
        self._group.add(self._name, count)

    def finish(self) -> None:
        self._group.add(self._name, 0, whole=1)


def _line(done: int, start: int, total: int | None, seconds: float) -> str:
    rate = max(0, done - start) / max(seconds, 1e-6)
    if total:
        return (
            f"{format_bytes(done)} of {format_bytes(total)} ({100 * done // total} %), "
            f"{format_bytes(rate)}/s"
        )
    return f"{format_bytes(done)}, {format_bytes(rate)}/s"
