"""Print for people: on a terminal, into a pipe, in any encoding."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import EXIT_USAGE, CommandError

# Only commands with tables wait for the import.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# Tables only take the width that they need; a pipe has no edge at which to fold them.
PIPE_COLUMNS = 400
SHOWN_CHARACTERS = 120


def console() -> Console:
    """Return a console on standard output, as wide as the terminal (or COLUMNS).

    Lines are not folded in a pipe.
    """
    from rich.console import Console

    folded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if folded else PIPE_COLUMNS, highlight=False)


def print_wide(part: Table | Text) -> None:
    """Print a table of numbers, or text.

    A table keeps its width on a narrower terminal: folded lines can be read, cut numbers cannot.
    """
    from rich.console import Console
    from rich.table import Table

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
    """Escape characters that the terminal's encoding lacks, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def escape_controls(text: str) -> str:
    """Return a text on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def escape_lines(text: str) -> str:
    """Return a text with control characters escaped, except for the ends of its lines."""
    return "\n".join(map(escape_controls, text.split("\n")))


def printable(document: Any) -> Any:
    """Return a document of the cluster with control characters escaped in all texts.

    Terminals execute control sequences, and any user of the cluster can write some of these texts.
    """
    if isinstance(document, str):
        return escape_controls(document)
    if isinstance(document, Mapping):
        return {key: printable(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [printable(value) for value in document]
    return document


def shorten(text: str) -> str:
    """Return a text on one line, with control characters escaped, cut if it is long."""
    line = escape_controls(text[: SHOWN_CHARACTERS + 1])
    return (
        line
        if len(text) <= SHOWN_CHARACTERS
        else f"{line[:SHOWN_CHARACTERS]}… ({len(text)} characters)"
    )


def check_writable(file: Path | None, option: str) -> None:
    """Refuse a file that cannot be written, before minutes of work.

    Args:
        file: the file; ``None``: not given.
        option: the option that names it.

    Raises:
        CommandError: says why it cannot be written.
    """
    if file is None:
        return
    there = file if file.exists() else file.parent
    reason = (
        "is a directory"
        if file.is_dir()
        else ""
        if there.exists()
        else f"directory {there} does not exist"
    )
    if reason or not os.access(there, os.W_OK):
        raise CommandError(
            f"{option}: cannot write {file}: {reason or 'permission denied'}", EXIT_USAGE
        )


def write_file(file: Path | None, content: str, option: str) -> None:
    """Write a file that an option names.

    Args:
        file: the file; ``None``: not given.
        content: what it contains afterwards.
        option: the option that names it.

    Raises:
        CommandError: says why it cannot be written.
    """
    if file is None:
        return
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{option}: cannot write {file}: {error.strerror}", EXIT_USAGE
        ) from error
