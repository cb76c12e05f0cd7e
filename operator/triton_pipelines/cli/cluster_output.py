"""Print what a command read from a cluster, in kubectl's formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text


class OutputFormat(StrEnum):
    """How a command prints what it read from a cluster, as kubectl's ``--output``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="Format; wide adds columns to the table."),
]


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
