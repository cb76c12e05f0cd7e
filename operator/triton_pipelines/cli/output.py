"""Printing for people: on a terminal, into a pipe, in any encoding."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from triton_pipelines.tools.loadgen.plots import PlotError, check_available

from .errors import EXIT_USAGE, Failure

# Tables take only the width that they need; a pipe has no edge at which they must be folded.
PIPE_COLUMNS = 400
SHOWN_CHARACTERS = 120


def console() -> Console:
    """A console on standard output: as wide as the terminal (or COLUMNS); into a pipe, lines stay whole."""
    folded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if folded else PIPE_COLUMNS, highlight=False)


def figures(part: Table | Text) -> None:
    """Print tables of figures and words around them. A table keeps its width where the terminal is narrower: folded lines can be read, cut figures cannot."""
    page = console()
    if isinstance(part, Table):
        page = Console(
            width=max(
                page.width,
                page.measure(part, options=page.options.update(max_width=PIPE_COLUMNS)).maximum,
            ),
            highlight=False,
        )
    page.print(part)


def tolerate_encoding() -> None:
    """Make output survive a terminal whose encoding lacks a character: it is written escaped instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def shortened(text: str) -> str:
    """A text on one line, control characters escaped, cut where it is long."""
    line = "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in text[: SHOWN_CHARACTERS + 1]
    )
    return (
        line
        if len(text) <= SHOWN_CHARACTERS
        else f"{line[:SHOWN_CHARACTERS]}… ({len(text)} characters)"
    )


def writable(file: Path | None, option: str) -> None:
    """Refuse a file that cannot be written, before minutes are spent on what is to be in it. ``option``: that names it.

    Raises:
        Failure: it cannot; says why.
    """
    if file is None:
        return
    there = file if file.exists() else file.parent
    reason = (
        "is a folder" if file.is_dir() else "" if there.exists() else f"there is no folder {there}"
    )
    if reason or not os.access(there, os.W_OK):
        raise Failure(
            f"{option}: {file} cannot be written: {reason or 'permission denied'}", EXIT_USAGE
        )


def plottable(file: Path | None, option: str) -> None:
    """Refuse a plot that cannot be drawn or written, before minutes are spent on measuring. ``option``: that names it.

    Raises:
        Failure: It cannot; says why.
    """
    writable(file, option)
    if file is not None:
        try:
            check_available()
        except PlotError as error:
            raise Failure(f"{option}: {error}", EXIT_USAGE) from error
