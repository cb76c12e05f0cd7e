"""Show progress while something slow runs.

Prints one line per step on standard error, with its duration.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

console = Console(stderr=True, highlight=False)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show `title` with a spinner on a terminal, or as a line elsewhere.

    At the end, show how long the step took or that it failed.

    There is one spinner at a time: steps of other threads than the main one are lines.
    """
    started = time.monotonic()
    try:
        if console.is_terminal and threading.current_thread() is threading.main_thread():
            with console.status(title):
                yield
        else:
            console.print(f"… {title}", markup=False, soft_wrap=True)
            yield
    except BaseException:
        console.print(
            f"✗ {title} ({time.monotonic() - started:.1f} s)",
            style="red",
            markup=False,
            soft_wrap=True,
        )
        raise
    console.print(
        f"✓ {title} ({time.monotonic() - started:.1f} s)",
        style="green",
        markup=False,
        soft_wrap=True,
    )
