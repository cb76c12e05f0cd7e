"""``tritonpipe validate``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph import Options

from .documents import CheckedResource, check_resource, padding_line, read_documents, unpinned_line
from .errors import EXIT_FINDINGS, CommandError
from .options import OperatorConfigFile, ServerImage, operator_options

_NAMED_TWICE = Finding(
    "metadata.name",
    "an earlier document in this file has the same name and would be overwritten; rename one",
    code=FindingCode.DUPLICATE,
)


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="YAML files with InferencePipelines; - reads standard input."
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    server_image: ServerImage = None,
    operator_config: OperatorConfigFile = None,
) -> None:
    """Check resources without a cluster: report all that the API server or the operator rejects.

    Each error names its field. Warnings name what works but is probably unintended. Further lines
    show the padding mode that Auto chose, and sources that are not pinned.

    Exit codes: 0 valid, 1 errors, 2 a file cannot be read.
    """
    options = operator_options(operator_config, server_image=server_image)
    code = 0
    for path in files:
        try:
            invalid = _check_file(path, options, strict)
        except CommandError as failure:
            typer.echo(f"tritonpipe: {failure}", err=True)
            code = max(code, failure.code)
        else:
            code = max(code, EXIT_FINDINGS if invalid else 0)
    if code:
        raise typer.Exit(code)


def _check_file(path: Path, options: Options, strict: bool) -> bool:
    """Print findings and warnings of a file; return whether it is invalid."""
    invalid, seen = False, set[tuple[str, str]]()
    for label, document in read_documents(path):
        checked = check_resource(label, document, options)
        findings = list(checked.findings)
        if checked.pipeline is not None:
            key = checked.pipeline.namespace, checked.pipeline.name
            if key in seen:
                findings.append(_NAMED_TWICE)
            seen.add(key)
        for finding in findings:
            typer.echo(f"{label}: error: {finding}")
        for warning in checked.warnings:
            typer.echo(f"{label}: warning: {warning}")
        for note in _notes(checked):
            typer.echo(f"{label}: {note}")
        if not findings:
            count = len(checked.warnings)
            suffix = f", {count} warning{'s' if count > 1 else ''}" if count else ""
            typer.echo(f"{label}: valid{suffix}")
        invalid |= bool(findings) or (strict and bool(checked.warnings))
    return invalid


def _notes(checked: CheckedResource) -> Iterator[str]:
    """Yield what a valid resource leaves open: one line each."""
    if checked.pipeline is None or checked.graph is None:
        return
    if padding := padding_line(checked.pipeline, checked.graph):
        yield padding
    if unpinned := unpinned_line(checked.graph):
        yield unpinned
