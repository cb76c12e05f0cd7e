"""``tritonpipe init``: write a resource for an ONNX model and its tokenizer.

They are local files, or a repository of a model hub.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.api.v1alpha1 import NAME_MAX
from triton_pipelines.tools.importer import (
    PLACEHOLDER,
    MissingInformationError,
    draft,
    model_facts,
    slug,
)

from .draft_inputs import (
    HUB,
    hub_inputs,
    local_inputs,
    read_text,
)
from .errors import EXIT_USAGE, CommandError
from .option_groups import expand_options
from .options import SourceMaps
from .resource_output import write_resource
from .shared_options import OutputFile

_LOOK = " Lines marked LOOK need your attention, because no file contains the answer."
POSTPROCESS_TYPES = ("None", "Softmax", "Sigmoid", "MeanPooling", "FirstToken")


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Options of the files, and of what no file says."""

    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="ONNX file of the model.")] = (
        None
    )
    """``None``: the files are on a hub."""
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="tokenizer.json, or a directory with it (or with vocab.txt and "
            "tokenizer_config.json).",
        ),
    ] = None
    """``None``: next to the model."""
    onnx_path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Path of the model in the hub's repository."),
    ] = None
    """``None``: found in the repository."""
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the resource. Default: derived from the file or repository.",
        ),
    ] = None
    """``None``: derived from the files."""
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|A,B,…",
            help=(
                "Class names in the order of the model's outputs: a list, or a file with JSON "
                "or one name per line."
            ),
        ),
    ] = None
    """``None``: read from the files."""
    postprocess: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Postprocessing, if it cannot be inferred from the files:"
            f" {', '.join(POSTPROCESS_TYPES)}.",
        ),
    ] = None
    """``None``: inferred from the files."""
    pair: Annotated[
        bool,
        typer.Option(
            "--pair",
            help="Let the tokenizer read two texts, as rerankers and NLI models require.",
        ),
    ] = False
    """Whether the tokenizer reads two texts."""
    source_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Address of the directory where the files will be stored, such as "
            "s3://models/topics. Default: a placeholder.",
        ),
    ] = None
    """``None``: a placeholder."""
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with a token for private repositories of the hub."),
    ] = None
    """``None``: no token."""


@expand_options
def init(
    files: DraftOptions,
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="[hf://ORG/NAME[@REVISION]]",
            help="Repository on a model hub, such as hf://org/name. Replaces --onnx.",
        ),
    ] = None,
    source_map: SourceMaps = None,
    output_file: OutputFile = None,
) -> None:
    """Write a resource for an ONNX file and its tokenizer, with comments on the origin of values.

    Tensors come from the graph; lengths, labels and pooling from the small files next to it
    (config.json and similar). What no file says is left out with a comment, or has to be given.

    Exit codes: 2 information is missing, 3 the hub cannot be reached.
    """
    _check_options(repository, files)
    names = () if files.labels is None else _labels(files.labels)
    hints: list[str] = []
    if repository is not None:
        inputs = hub_inputs(
            repository, files.onnx_path, files.tokenizer, source_map or [], files.token_file
        )
    else:
        assert files.onnx is not None
        inputs = local_inputs(files.onnx, files.tokenizer, files.source_uri or PLACEHOLDER, hints)
    inputs = replace(
        inputs,
        name=_resource_name(files.name, inputs.name),
        labels=names,
        postprocess=files.postprocess,
        pair=files.pair,
    )
    try:
        resource = draft(inputs)
    except MissingInformationError as missing:
        raise CommandError(str(missing), EXIT_USAGE) from missing
    origin = repository or inputs.graph_name
    resource.header.insert(0, f"Written by `tritonpipe init` from {origin}.{_LOOK}")
    if files.source_uri is None and repository is None:
        resource.header.append(
            f"{PLACEHOLDER} is a placeholder: replace it with the address of the files,"
            " or set --source-uri."
        )
    write_resource(resource, output_file, hints)


def _check_options(repository: str | None, files: DraftOptions) -> None:
    """Refuse options that contradict each other or are malformed."""
    if (repository is None) == (files.onnx is None):
        raise CommandError(
            "specify either a repository (hf://org/name) or a file (--onnx model.onnx)", EXIT_USAGE
        )
    if files.postprocess is not None and files.postprocess not in POSTPROCESS_TYPES:
        raise CommandError(
            (
                f"--postprocess: {files.postprocess!r} is not allowed; use one of: "
                f"{', '.join(POSTPROCESS_TYPES)}"
            ),
            EXIT_USAGE,
        )
    if files.source_uri is not None and "://" not in files.source_uri:
        raise CommandError(
            f"--source-uri: {files.source_uri!r} is not a URI; use a URI such as s3://models/topics",
            EXIT_USAGE,
        )
    if repository is not None and files.onnx_path is None and not repository.startswith(HUB):
        raise CommandError(
            f"{repository!r} is not the address of a repository on a model hub; use "
            "hf://org/name, or --onnx for a local file",
            EXIT_USAGE,
        )


def _resource_name(name: str | None, derived: str) -> str:
    """Return the given name, or one derived from the files.

    Raises:
        CommandError: the given name is not a valid name.
    """
    valid = slug(name or derived, NAME_MAX)
    if name is not None and valid != name:
        raise CommandError(
            f"--name: {name!r} is not a valid resource name; use at most {NAME_MAX} lowercase"
            f" letters, digits and '-', for example {valid}",
            EXIT_USAGE,
        )
    return valid


def _labels(text: str) -> tuple[str, ...]:
    """Return labels from a list, or from a file.

    The file holds a JSON list, an ``id2label`` mapping, or a name per line.
    """
    path = Path(text)
    if path.is_file():
        found = _labels_of_file(path, text)
    elif "," not in text and ("/" in text or path.suffix):
        raise CommandError(
            (
                f"--labels: file {text!r} does not exist; specify an existing file, or a list "
                "of names"
            ),
            EXIT_USAGE,
        )
    else:
        found = [part.strip() for part in text.split(",")]
    if not found or not all(found) or len(set(found)) != len(found):
        raise CommandError(
            (
                f"--labels: {text!r} is not a list of distinct class names; list each class "
                "once, in the model's order"
            ),
            EXIT_USAGE,
        )
    return tuple(found)


def _labels_of_file(path: Path, text: str) -> list[str]:
    raw = read_text(path, "--labels")
    try:
        content = json.loads(raw) if raw.lstrip()[:1] in ("[", "{") else None
    except ValueError as error:
        raise CommandError(f"--labels: {text}: invalid JSON: {error}", EXIT_USAGE) from error
    if isinstance(content, dict):
        config = content if "id2label" in content else {"id2label": content}
        return list(model_facts.classes({model_facts.CONFIG: config}))
    if isinstance(content, list):
        return [str(item) for item in content]
    return [line.strip() for line in raw.splitlines() if line.strip()]
