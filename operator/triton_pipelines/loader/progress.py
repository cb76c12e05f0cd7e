"""Progress of a download as log lines: bytes, share, rate."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

EVERY_SECONDS: Final = 5.0
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def human(count: float) -> str:
    """``count`` bytes in the largest binary unit that keeps it at 1 or more."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


class Progress:
    """Writes a line at most every :data:`EVERY_SECONDS`; ``start`` bytes were there before (a resumed download)."""

    def __init__(self, log: logging.Logger, what: str, total: int | None, start: int, clock: Callable[[], float]) -> None:
        self._log, self._what, self._total, self._clock = log, what, total, clock
        self._start = self._done = start
        self._began = self._last = clock()

    def add(self, count: int) -> None:
        """Note ``count`` more bytes."""
        self._done += count
        now = self._clock()
        if now - self._last >= EVERY_SECONDS:
            self._last = now
            self._log.info("%s: %s", self._what, self._line(now))

    def finish(self) -> None:
        """Write the closing line."""
        self._log.info("%s: fetched %s", self._what, self._line(self._clock()))

    def _line(self, now: float) -> str:
        rate = (self._done - self._start) / max(now - self._began, 1e-6)
        if self._total:
            return f"{human(self._done)} of {human(self._total)} ({100 * self._done // self._total} %), {human(rate)}/s"
        return f"{human(self._done)}, {human(rate)}/s"
