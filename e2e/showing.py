"""Output of the demo: headings, errors, and a line that follows a measurement."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from e2e.load.bins import Second, figures

console = Console(highlight=False)
SHOWN = 4
"""Seconds over which a live value is averaged."""
PLAIN_EVERY = 4
"""Seconds between two lines if the output is not a terminal."""
_COLUMNS = ("time", "tokenizers", "requests/s", "p99", "GPU busy", "GPU starved", "bottleneck")


class DemoError(RuntimeError):
    """A step of the demo failed; the message says which, and where to look."""


def say(text: str) -> None:
    """A heading of the demo."""
    console.print(f"\n[bold cyan]▶ {text}[/bold cyan]")


class LiveLine:
    """The last seconds of a measurement as one line.

    It is updated in place on a terminal, and repeated now and then elsewhere.
    """

    def __init__(self, out: Console, live: Live | None) -> None:
        self._out, self._live = out, live
        self._last: deque[Second] = deque(maxlen=SHOWN)
        self._number = 0

    def add(self, one: Second) -> None:
        """Add one second."""
        self._last.append(one)
        self._number += 1
        if self._live is not None:
            self._live.update(table(cells(self._number, list(self._last))))
        elif self._number % PLAIN_EVERY == 0:
            self._out.print(
                line(cells(self._number, list(self._last))), markup=False, soft_wrap=True
            )


@contextmanager
def live_line(out: Console = console) -> Iterator[LiveLine]:
    """Show a live line during the context; its last state stays."""
    if not out.is_terminal:
        yield LiveLine(out, None)
        return
    with Live(console=out, auto_refresh=False) as live:
        yield LiveLine(out, live)
        live.refresh()


def cells(seconds: int, last: Sequence[Second]) -> list[str]:
    """The values of the line's columns."""
    found = figures(last)
    return [
        f"{seconds} s",
        str(last[-1].count),
        f"{found.rate:.0f}",
        f"{1000 * found.p99:.0f} ms" if found.p99 < float("inf") else "-",
        f"{100 * sum(one.gpu_busy for one in last) / len(last):.0f} %",
        f"{100 * found.starved:.0f} %",
        last[-1].verdict or "-",
    ]


def table(values: Sequence[str]) -> Table:
    """The line on a terminal."""
    made = Table(box=None, padding=(0, 2))
    for name in _COLUMNS:
        made.add_column(name, no_wrap=True)
    made.add_row(*values)
    return made


def line(values: Sequence[str]) -> str:
    """The line elsewhere."""
    time, count, rate, p99, busy, starved, verdict = values
    return (
        f"  {time:>5}: tokenizers {count}, {rate} requests/s, p99 {p99},"
        f" GPU busy {busy}, starved {starved}, {verdict}"
    )
