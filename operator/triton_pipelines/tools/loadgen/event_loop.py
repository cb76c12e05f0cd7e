"""An event loop that keeps time to about 0.1 ms."""

from __future__ import annotations

import asyncio
import select
import selectors
import signal
import threading

_SELECTABLE = 1024
"""Number of file descriptors that select(2) supports: FD_SETSIZE."""


def precise_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that keeps time to about 0.1 ms, for an ``asyncio.Runner``."""
    # A signal handler that raises in the middle of this would leave a half-initialized loop, about
    # which Python complains when it is deleted. So signals are delivered afterwards.
    if threading.current_thread() is not threading.main_thread():
        return asyncio.SelectorEventLoop(_PreciseSelector())
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: came.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        return asyncio.SelectorEventLoop(_PreciseSelector())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for got in came:
            signal.raise_signal(got)


class _PreciseSelector(selectors.DefaultSelector):
    """Waits to the microsecond: epoll itself takes whole milliseconds, rounded up."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Select as the standard selector does."""
        if (
            timeout is not None
            and timeout > 0
            and hasattr(self, "fileno")
            and self.fileno() < _SELECTABLE
        ):
            select.select([self.fileno()], (), (), timeout)
            timeout = 0
        return super().select(timeout)
