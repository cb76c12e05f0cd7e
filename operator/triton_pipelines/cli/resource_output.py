"""The end of `init` and `import`: show progress, check the resource and write it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from triton_pipelines.compile.graph import Options
from triton_pipelines.tools.importer import ResourceDraft

from .documents import CheckedResource, check_resource
from .errors import EXIT_FINDINGS, EXIT_USAGE, CommandError
from .output import write_file

# Smaller files are read before a progress bar could be seen.
LARGE_BYTES = 16 << 20


class ReadProgress:
    """Report progress of long reads: bars on a terminal, a line for each large file elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            transient=True,
            disable=not self._bars,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def of(self, what: str, size: int | None) -> Callable[[int], None]:
        """Return a callback for the progress of one read.

        Args:
            what: description of the read.
            size: bytes to read; ``None`` if unknown.
        """
        if not self._bars and (size is None or size >= LARGE_BYTES):
            typer.echo(what + (f" ({size / 1e6:.0f} MB)" if size else ""), err=True)
        task = self._progress.add_task(what, total=size)
        return lambda count: self._progress.advance(task, count)


def check_absent(output: Path | None) -> None:
    """Refuse an existing file, before any long work."""
    if output is not None and output.exists():
        raise CommandError(
            (f"--output-file: {output} already exists; remove the file, or choose another name"),
            EXIT_USAGE,
        )


def write_resource(
    draft: ResourceDraft, output: Path | None, hints: Sequence[str]
) -> CheckedResource:
    """Check the resource, write it, and print findings and hints on standard error.

    Raises:
        CommandError: the file cannot be written.
        typer.Exit: the resource is invalid.
    """
    check_absent(output)
    text = draft.text()
    checked = check_resource(
        str(output) if output is not None else draft.name, draft.document, Options()
    )
    if output is None:
        typer.echo(text, nl=False)
        sys.stdout.flush()
    else:
        write_file(output, text, "--output-file")
    for finding in checked.findings:
        typer.echo(f"{checked.label}: error: {finding}", err=True)
    for warning in checked.warnings:
        typer.echo(f"{checked.label}: warning: {warning}", err=True)
    shown = str(output) if output is not None else "FILE"
    for hint in hints:
        typer.echo(hint.replace("FILE", shown), err=True)
    if checked.findings:
        raise typer.Exit(EXIT_FINDINGS)
    return checked
