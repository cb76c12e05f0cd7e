"""``tritonpipe import``: the resource of an existing Triton model repository, and what it could not carry over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.tools.importer.assemble import import_models
from triton_pipelines.tools.importer.import_notes import ConfigError
from triton_pipelines.tools.importer.repository import read_repository
from triton_pipelines.tools.importer.source_placement import PLACEHOLDER

from .errors import EXIT_FINDINGS, EXIT_USAGE, Failure
from .resource_output import Meters, finish, writable


def import_repository(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="The model repository: a folder with one folder per model."
        ),
    ],
    ensemble: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The ensemble, or the model that clients call, where there are several.",
        ),
    ] = None,
    source_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Where the folder's content will lie, such as s3://models/repository. Default: a placeholder.",
        ),
    ] = None,
    config_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Config of configs/ that counts, as Triton's --model-config-name."
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Fills ${NAME} in configs; repeatable."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="Leave this model out; repeatable.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit code 1 where anything was changed or not carried over."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write there; an existing file is kept. Default: standard output.",
        ),
    ] = None,
) -> None:
    """Write the resource of an existing Triton model repository: its ensemble with all steps, or the one model that clients call.

    What the resource cannot say as the repository says it is told field by field, in comments and on standard error.
    Exit code: 1 the resource is not valid (or, with --strict, something was not carried over), 2 the repository cannot be read.
    """
    writable(output)
    if source_uri is not None and "://" not in source_uri:
        raise Failure(
            f"--source-uri: {source_uri!r} is no address; write one such as s3://models/repository",
            EXIT_USAGE,
        )
    filled = {}
    for value in values or ():
        name, found, text = value.partition("=")
        if not found or not name:
            raise Failure(f"--set: {value!r} is no NAME=VALUE", EXIT_USAGE)
        filled[name] = text
    prefix = source_uri or PLACEHOLDER
    try:
        with Meters() as meters:
            repository = read_repository(folder, filled, config_name)
            draft, report = import_models(repository, ensemble, prefix, meters.of, without or ())
    except ConfigError as error:
        raise Failure(f"{folder}: {error}", EXIT_USAGE) from error
    except OSError as error:
        raise Failure(
            f"{error.filename or folder}: cannot be read: {error.strerror}", EXIT_USAGE
        ) from error
    draft.head.insert(
        0, f"Written by `tritonpipe import` from the model repository {folder.resolve().name}."
    )
    hints = []
    if source_uri is None:
        draft.head.insert(
            1,
            f"{PLACEHOLDER} is a placeholder: write where the repository's folder will lie, or give --source-uri.",
        )
        hints.append(
            f"to try it here: tritonpipe serve FILE --source-map {PLACEHOLDER}/={folder.resolve().as_uri()}/"
        )
    for note in report.notes:
        typer.echo(str(note), err=True)
    finish(draft, output, hints)
    if strict and report.strictly_wrong:
        raise typer.Exit(EXIT_FINDINGS)
