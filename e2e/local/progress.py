"""What the user sees while something slow runs: one line per step, on standard error, with its time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

console = Console(stderr=True, highlight=False)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show `title` with a spinner on a terminal (a line elsewhere), then how long it took or that it failed."""
    started = time.monotonic()
    try:
        if console.is_terminal:
            with console.status(title):
                yield
        else:
            console.print(f"… {title}", markup=False)
            yield
    except BaseException:
        console.print(f"✗ {title} ({time.monotonic() - started:.1f} s)", style="red", markup=False)
        raise
    console.print(f"✓ {title} ({time.monotonic() - started:.1f} s)", style="green", markup=False)
