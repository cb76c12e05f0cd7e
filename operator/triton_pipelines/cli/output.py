"""Print for people: on a terminal, into a pipe, in any encoding."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .errors import EXIT_USAGE, CommandError
from .shared_options import OutputFormat

# Tables only take the width that they need; a pipe has no edge at which to fold them.
PIPE_COLUMNS = 400
SHOWN_CHARACTERS = 120


def console() -> Console:
    """Return a console on standard output, as wide as the terminal (or COLUMNS).

    Lines are not folded in a pipe.
    """
    folded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if folded else PIPE_COLUMNS, highlight=False)


def print_wide(part: Table | Text) -> None:
    """Print a table of numbers, or text.

    A table keeps its width on a narrower terminal: folded lines can be read, cut numbers cannot.
    """
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


def table(output: Console, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under columns without borders, as kubectl does; nothing if there are no rows."""
    if not rows:
        return
    grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        grid.add_column(column.upper(), overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    output.print(grid)


def structured(document: Any, output: OutputFormat) -> str | None:
    """Return a document as text in a format for programs; ``None`` for a table.

    JSON takes one line, so that a watch prints a line for each change.
    """
    if output is OutputFormat.JSON:
        return json.dumps(document, ensure_ascii=False) + "\n"
    if output is OutputFormat.YAML:
        return str(yaml.safe_dump(document, allow_unicode=True, sort_keys=False))
    return None


def print_change(text: str, shown: str, output: OutputFormat) -> str:
    """Print a text of a watch if it differs from the last one (``""``: none); return it."""
    if text != shown:
        separator = {OutputFormat.JSON: "", OutputFormat.YAML: "---\n"}.get(output, "\n")
        typer.echo((separator if shown else "") + text, nl=False)
    return text


def tolerate_encoding() -> None:
    """Escape characters that the terminal's encoding lacks, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def shorten(text: str) -> str:
    """Return a text on one line, with control characters escaped, cut if it is long."""
    line = "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in text[: SHOWN_CHARACTERS + 1]
    )
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
        "is a folder"
        if file.is_dir()
        else ""
        if there.exists()
        else f"folder {there} does not exist"
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
