"""``tritonpipe import``: write the resource of an existing Triton model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.compile.graph.server_settings import server_version
from triton_pipelines.tools.importer import (
    PLACEHOLDER,
    InexpressibleRepositoryError,
    ModelRepositoryError,
    import_models,
    read_repository,
)

from .errors import EXIT_FINDINGS, EXIT_USAGE, CommandError
from .resource_output import ReadProgress, check_absent, write_resource
from .shared_options import ResourceOutput


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
            help="The ensemble, or the model that clients call, if there are several.",
        ),
    ] = None,
    source_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Address that the folder will be copied to, such as s3://models/repository."
            " Default: a placeholder.",
        ),
    ] = None,
    config_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Config in configs/ to use, as Triton's --model-config-name.",
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Value for ${NAME} in configs; repeatable."
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Exclude this model, even if it is invalid; repeatable.",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Image of the Triton server. Its version determines which fields can be "
            "carried over. Default: the operator's.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with code 1 if anything was changed or not carried over."
        ),
    ] = False,
    output: ResourceOutput = None,
) -> None:
    """Write the resource of a model repository: an ensemble with its steps, or a single model.

    What the resource cannot express is reported field by field, as comments and on standard error.

    A resource that `tritonpipe validate` rejects is never written.

    Exit codes: 1 no resource can express the repository (or, with --strict, something was changed
    or not carried over), 2 the repository cannot be read, or Triton would not load it.
    """
    check_absent(output)
    if source_uri is not None and "://" not in source_uri:
        raise CommandError(
            f"--source-uri: {source_uri!r} is not a URI; use one such as s3://models/repository",
            EXIT_USAGE,
        )
    if image is not None and server_version(None, image) is None:
        raise CommandError(
            f"--image: the tag of {image} does not contain a Triton release; use one that does,"
            " for example nvcr.io/nvidia/tritonserver:24.10-py3",
            EXIT_USAGE,
        )
    filled = {}
    for value in values or ():
        name, separator, text = value.partition("=")
        if not separator or not name:
            raise CommandError(f"--set: {value!r} is not NAME=VALUE", EXIT_USAGE)
        filled[name] = text
    prefix = source_uri or PLACEHOLDER
    try:
        with ReadProgress() as meters:
            repository = read_repository(folder, filled, config_name, without=without or ())
            draft, report = import_models(
                repository, ensemble, prefix, meters.of, without or (), image
            )
    except ModelRepositoryError as error:
        expressible = not isinstance(error, InexpressibleRepositoryError)
        raise CommandError(
            _error_message(folder, error), EXIT_USAGE if expressible else EXIT_FINDINGS
        ) from error
    except OSError as error:
        raise CommandError(
            f"{error.filename or folder}: cannot be read: {error.strerror}", EXIT_USAGE
        ) from error
    draft.header.insert(
        0, f"Written by `tritonpipe import` from the model repository {folder.resolve().name}."
    )
    hints = []
    if source_uri is None:
        draft.header.insert(
            1,
            f"{PLACEHOLDER} is a placeholder: replace it with the address of the repository,"
            " or set --source-uri.",
        )
        hints.append(
            "to try it on this machine: tritonpipe serve FILE --source-map "
            f"{PLACEHOLDER}/={folder.resolve().as_uri()}/"
        )
    for note in report.sorted():
        typer.echo(str(note), err=True)
    write_resource(draft, output, hints)
    if strict and report.has_changes_or_losses:
        raise typer.Exit(EXIT_FINDINGS)


def _error_message(folder: Path, error: ModelRepositoryError) -> str:
    """Return the message of an error; several problems are on a line each."""
    first, *others = str(error).split("\n")
    if not others:
        return f"{folder}: {first}"
    return "\n  ".join((f"{folder}: cannot be imported:", first, *others))
