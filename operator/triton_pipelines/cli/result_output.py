"""Print results in kubectl's formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
import yaml

from .shared_options import OutputFormat

# `tritonpipe validate` prints no table, and would wait for the import.
if TYPE_CHECKING:
    from rich.console import Console


def table(output: Console, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under columns without borders, as kubectl does; nothing if there are no rows."""
    from rich.table import Table
    from rich.text import Text

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
        plain = json.loads(json.dumps(document))  # enums, tuples and numpy's numbers
        return str(yaml.safe_dump(plain, allow_unicode=True, sort_keys=False))
    return None


def print_change(text: str, shown: str, output: OutputFormat) -> str:
    """Print a text of a watch if it differs from the last one (``""``: none); return it."""
    if text != shown:
        separator = {OutputFormat.JSON: "", OutputFormat.YAML: "---\n"}.get(output, "\n")
        typer.echo((separator if shown else "") + text, nl=False)
    return text


def print_document(document: Any, output: OutputFormat) -> None:
    """Print one document for programs, on several lines."""
    if output is OutputFormat.JSON:
        typer.echo(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1))
    else:
        typer.echo(structured(document, output), nl=False)
