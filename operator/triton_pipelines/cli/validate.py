"""``tritonpipe validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.api.base import Finding
from triton_pipelines.compile.graph import Options

from .documents import judge, padding_of, read
from .errors import EXIT_FINDINGS, Failure
from .options import OperatorConfigFile, ServerImage, operator_options

_NAMED_TWICE = Finding(
    "metadata.name",
    "an earlier document of the file has this name, which the later one would overwrite; rename one",
)


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="YAML files with InferencePipelines; - reads standard input."
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    server_image: ServerImage = None,
    operator_config: OperatorConfigFile = None,
) -> None:
    """Check resources without a cluster: everything that the API server or the operator would refuse, each with its field.

    Warnings name what works but is probably not meant; where padding is left to Auto, a line says which it is. Exit code: 0 valid, 1 errors, 2 a file cannot be read.
    """
    options = operator_options(operator_config, server_image=server_image)
    code = 0
    for path in files:
        try:
            wrong = _judge_file(path, options, strict)
        except Failure as failure:
            typer.echo(f"tritonpipe: {failure}", err=True)
            code = max(code, failure.code)
        else:
            code = max(code, EXIT_FINDINGS if wrong else 0)
    if code:
        raise typer.Exit(code)


def _judge_file(path: Path, options: Options, strict: bool) -> bool:
    """Print what is to be said about a file; whether it is wrong."""
    wrong, seen = False, set[tuple[str, str]]()
    for label, document in read(path):
        judged = judge(label, document, options)
        findings = list(judged.findings)
        if judged.pipeline is not None:
            key = judged.pipeline.namespace, judged.pipeline.name
            if key in seen:
                findings.append(_NAMED_TWICE)
            seen.add(key)
        for finding in findings:
            typer.echo(f"{label}: error: {finding}")
        for warning in judged.warnings:
            typer.echo(f"{label}: warning: {warning}")
        if (
            judged.pipeline is not None
            and judged.graph is not None
            and (padding := padding_of(judged.pipeline, judged.graph))
        ):
            typer.echo(f"{label}: {padding}")
        if not findings:
            count = len(judged.warnings)
            said = f", {count} warning{'s' if count > 1 else ''}" if count else ""
            typer.echo(f"{label}: valid{said}")
        wrong |= bool(findings) or (strict and bool(judged.warnings))
    return wrong
