"""What `init` and `import` share: progress of long reads, and the end of both, a resource that was judged before it is handed over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from triton_pipelines.compile.graph import Options
from triton_pipelines.tools.importer.yaml_document import Draft

from .documents import Judged, judge
from .errors import EXIT_FINDINGS, EXIT_USAGE, Failure

# Smaller files are read before anybody could look at a bar.
LARGE_BYTES = 16 << 20


class Meters:
    """Progress of long reads on standard error: bars on a terminal, a line for each large file elsewhere."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def of(self, what: str, size: int | None) -> Callable[[int], None]:
        """A meter of one read of ``size`` bytes (None: nobody knows)."""
        if not self._bars and (size is None or size >= LARGE_BYTES):
            typer.echo(what + (f" ({size / 1e6:.0f} MB)" if size else ""), err=True)
        task = self._progress.add_task(what, total=size)
        return lambda count: self._progress.advance(task, count)


def writable(output: Path | None) -> None:
    """Refuse a file that is there, before anything long is done."""
    if output is not None and output.exists():
        raise Failure(
            f"--output: {output} is there already; remove it, or choose another name", EXIT_USAGE
        )


def finish(made: Draft, output: Path | None, hints: Sequence[str]) -> Judged:
    """Judge the resource, write it, and say on standard error what stands against it and what may be done next."""
    writable(output)
    text = made.text()
    judged = judge(str(output) if output is not None else made.name, made.document, Options())
    if output is None:
        typer.echo(text, nl=False)
        sys.stdout.flush()
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Failure(
                f"--output: {output} cannot be written: {error.strerror}", EXIT_USAGE
            ) from error
    for finding in judged.findings:
        typer.echo(f"{judged.label}: error: {finding}", err=True)
    for warning in judged.warnings:
        typer.echo(f"{judged.label}: warning: {warning}", err=True)
    shown = str(output) if output is not None else "FILE"
    for hint in hints:
        typer.echo(hint.replace("FILE", shown), err=True)
    if judged.findings:
        raise typer.Exit(EXIT_FINDINGS)
    return judged
