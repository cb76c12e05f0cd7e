"""``tritonpipe validate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph import Options

from .documents import CheckedResource, check_resource, padding_line, read_documents, unpinned_line
from .errors import EXIT_FINDINGS, CommandError
from .options import OperatorConfigFile, ServerImage, operator_options
from .result_output import print_document
from .shared_options import Output, OutputFormat

_NAMED_TWICE = Finding(
    "metadata.name",
    "an earlier document in this file has the same name and would be overwritten; rename "
    "one of the two resources",
    code=FindingCode.DUPLICATE,
)


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="YAML files with InferencePipelines. - reads standard input."
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    server_image: ServerImage = None,
    operator_config: OperatorConfigFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Check resources without a cluster: report all that the API server or the operator rejects.

    Each error names its field. Warnings name what works but is probably unintended. Further lines
    show the padding mode that Auto chose, and sources that are not pinned.

    Exit codes: 0 valid, 1 errors, 2 a file cannot be read.
    """
    options = operator_options(operator_config, server_image=server_image)
    code, documents = 0, []
    for path in files:
        try:
            for checked in _check_file(path, options):
                if output.is_table:
                    typer.echo("\n".join(_lines(checked, wide=output is OutputFormat.WIDE)))
                documents.append(_document(path, checked))
                if checked.findings or (strict and checked.warnings):
                    code = max(code, EXIT_FINDINGS)
        except CommandError as failure:
            typer.echo(f"tritonpipe: {failure}", err=True)
            code = max(code, failure.code)
    if not output.is_table:
        print_document(documents, output)
    if code:
        raise typer.Exit(code)


def _check_file(path: Path, options: Options) -> Iterator[CheckedResource]:
    """Yield the checked resources of a file; a name that occurs twice is a finding."""
    seen = set[tuple[str, str]]()
    for label, document in read_documents(path):
        checked = check_resource(label, document, options)
        if checked.pipeline is not None:
            key = checked.pipeline.namespace, checked.pipeline.name
            if key in seen:
                checked = replace(checked, findings=(*checked.findings, _NAMED_TWICE))
            seen.add(key)
        yield checked


def _lines(checked: CheckedResource, *, wide: bool) -> Iterator[str]:
    """Yield the results for people; wide lines end with the code of the finding."""
    for kind, findings in (("error", checked.findings), ("warning", checked.warnings)):
        for finding in findings:
            code = f" [{finding.code}]" if wide and finding.code else ""
            yield f"{checked.label}: {kind}: {finding}{code}"
    for note in _notes(checked):
        yield f"{checked.label}: {note}"
    if not checked.findings:
        count = len(checked.warnings)
        suffix = f", {count} warning{'s' if count > 1 else ''}" if count else ""
        yield f"{checked.label}: valid{suffix}"


def _document(path: Path, checked: CheckedResource) -> dict[str, Any]:
    """Return the results of one resource for programs."""
    pipeline = checked.pipeline
    return {
        "file": str(path),
        "namespace": pipeline.namespace if pipeline else None,
        "name": pipeline.name if pipeline else None,
        "valid": not checked.findings,
        "errors": [_finding(item) for item in checked.findings],
        "warnings": [_finding(item) for item in checked.warnings],
        "notes": list(_notes(checked)),
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {"path": finding.path, "message": finding.message, "code": str(finding.code)}


def _notes(checked: CheckedResource) -> Iterator[str]:
    """Yield what a valid resource leaves open: one line each."""
    if checked.pipeline is None or checked.graph is None:
        return
    if padding := padding_line(checked.pipeline, checked.graph):
        yield padding
    if unpinned := unpinned_line(checked.graph):
        yield unpinned
