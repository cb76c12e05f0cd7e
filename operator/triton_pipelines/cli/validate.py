"""``tritonpipe validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.pipeline import Options

from .documents import judge, read
from .failure import EXIT_FINDINGS


def validate(
    files: Annotated[list[Path], typer.Argument(help="Files with InferencePipelines; - reads standard input.")],
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
    server_image: Annotated[str | None, typer.Option(help="The operator's default Triton image.")] = None,
) -> None:
    """Say everything that is wrong with resources, each with its field. Exit code 1 on findings."""
    options = Options(server_image=server_image) if server_image else Options()
    wrong = False
    for path in files:
        for label, document in read(path):
            judged = judge(label, document, options)
            for finding in judged.findings:
                typer.echo(f"{label}: error: {finding}")
            for warning in judged.warnings:
                typer.echo(f"{label}: warning: {warning}")
            if not judged.findings:
                typer.echo(f"{label}: valid{f', {len(judged.warnings)} warnings' if judged.warnings else ''}")
            wrong |= bool(judged.findings) or (strict and bool(judged.warnings))
    if wrong:
        raise typer.Exit(EXIT_FINDINGS)
