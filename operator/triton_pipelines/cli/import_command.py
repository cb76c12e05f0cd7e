"""``tritonpipe import``: write the resource of an existing Triton model repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.compile.graph.server_settings import server_version
from triton_pipelines.tools.importer import (
    PLACEHOLDER,
    ImportReport,
    InexpressibleRepositoryError,
    ModelRepositoryError,
    ResourceDraft,
    import_models,
    read_repository,
)

from .errors import EXIT_FINDINGS, EXIT_USAGE, CommandError
from .option_groups import expand_options
from .resource_output import ReadProgress, check_absent, write_resource
from .shared_options import OutputFile


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of what is imported, and how."""

    ensemble: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=(
                "Ensemble or model that clients call, if the repository contains multiple models."
            ),
        ),
    ] = None
    """``None``: the only one."""
    source_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Address to which the directory will be copied, such as "
            "s3://models/repository. Default: a placeholder.",
        ),
    ] = None
    """``None``: a placeholder."""
    config_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the config in configs/ to use, as with Triton's --model-config-name.",
        ),
    ] = None
    """``None``: config.pbtxt."""
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Value for ${NAME} in configs; repeatable."
        ),
    ] = None
    """Values of variables in configs."""
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Exclude this model, even if it is invalid; repeatable.",
        ),
    ] = None
    """Models to leave out."""
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Image of the Triton server. Its version determines which fields can be "
            "imported. Default: the operator's.",
        ),
    ] = None
    """``None``: the operator's default image."""
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with code 1 if any setting was changed or dropped."),
    ] = False
    """Whether a change or a loss is an error."""

    def check(self) -> None:
        """Refuse malformed options."""
        if self.source_uri is not None and "://" not in self.source_uri:
            raise CommandError(
                f"--source-uri: {self.source_uri!r} is not a URI; use a URI such as"
                " s3://models/repository",
                EXIT_USAGE,
            )
        if self.image is not None and server_version(None, self.image) is None:
            raise CommandError(
                f"--image: the tag of {self.image} does not contain a Triton release; use a "
                "tag such as nvcr.io/nvidia/tritonserver:24.10-py3",
                EXIT_USAGE,
            )

    def variables(self) -> dict[str, str]:
        """Return the values of variables in configs by name."""
        filled = {}
        for value in self.values or ():
            name, separator, text = value.partition("=")
            if not separator or not name:
                raise CommandError(
                    f"--set: {value!r} does not have the form NAME=VALUE", EXIT_USAGE
                )
            filled[name] = text
        return filled


@expand_options
def import_repository(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="The model repository, with one directory per model."
        ),
    ],
    options: ImportOptions,
    output_file: OutputFile = None,
) -> None:
    """Write the resource of a model repository: an ensemble with its steps, or a single model.

    What the resource cannot express is reported field by field, as comments and on standard error.

    A resource that `tritonpipe validate` rejects is never written.

    Exit codes: 1 no resource can express the repository (or, with --strict, something was changed
    or not carried over), 2 the repository cannot be read, or Triton would not load it.
    """
    check_absent(output_file)
    options.check()
    draft, report = _import(folder, options)
    draft.header.insert(
        0, f"Written by `tritonpipe import` from the model repository {folder.resolve().name}."
    )
    hints = []
    if options.source_uri is None:
        draft.header.insert(
            1,
            f"{PLACEHOLDER} is a placeholder: replace it with the address of the repository,"
            " or set --source-uri.",
        )
        hints.append(
            "to try the pipeline on this machine, run: tritonpipe serve FILE --source-map "
            f"{PLACEHOLDER}/={folder.resolve().as_uri()}/"
        )
    for note in report.sorted():
        typer.echo(str(note), err=True)
    write_resource(draft, output_file, hints)
    if options.strict and report.has_changes_or_losses:
        raise typer.Exit(EXIT_FINDINGS)


def _import(folder: Path, options: ImportOptions) -> tuple[ResourceDraft, ImportReport]:
    """Return the resource of a repository, and what it does not express.

    Raises:
        CommandError: the repository cannot be read or expressed.
    """
    variables, without = options.variables(), options.without or ()
    prefix = options.source_uri or PLACEHOLDER
    try:
        with ReadProgress() as meters:
            repository = read_repository(folder, variables, options.config_name, without=without)
            return import_models(
                repository, options.ensemble, prefix, meters.of, without, options.image
            )
    except ModelRepositoryError as error:
        expressible = not isinstance(error, InexpressibleRepositoryError)
        raise CommandError(
            _error_message(folder, error), EXIT_USAGE if expressible else EXIT_FINDINGS
        ) from error
    except OSError as error:
        raise CommandError(
            f"cannot read {error.filename or folder}: {error.strerror}", EXIT_USAGE
        ) from error


def _error_message(folder: Path, error: ModelRepositoryError) -> str:
    """Return the message of an error; several problems are on a line each."""
    first, *others = str(error).split("\n")
    if not others:
        return f"{folder}: {first}"
    return "\n  ".join((f"{folder}: the repository cannot be imported:", first, *others))
