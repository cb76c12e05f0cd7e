"""Options of the operator, for commands that render or check as it does."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from triton_pipelines.app.config import (
    DEFAULT_IMAGE,
    OperatorConfig,
    OperatorConfigError,
    load_config,
)
from triton_pipelines.compile.graph import Options

from .documents import display_name, load_yaml
from .errors import EXIT_USAGE, CommandError

OperatorConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--operator-config",
        metavar="FILE",
        help="YAML file with the operator's options (source_map: […], images: {default: …}). "
        "Flags take precedence.",
    ),
]
ServerImage = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="The operator's default Triton image.")
]
LoaderImage = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE", help="Image of the init container, which is the operator's image."
    ),
]
SourceMaps = Annotated[
    list[str] | None,
    typer.Option(
        "--source-map",
        metavar="PREFIX=TARGET",
        help="Read sources whose URI starts with PREFIX from TARGET instead, as with the "
        "operator's option. Repeatable.",
    ),
]
SubstituteRunner = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLATFORM",
        help="Platform (onnxruntime_onnx) that runs on the CPU fallback backend, as with the "
        "operator's option. Repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class OperatorRenderOptions:
    """Options of the operator that decide what is rendered."""

    operator_config: OperatorConfigFile = None
    """``None``: no file; the other options take precedence over it."""
    server_image: ServerImage = None
    """``None``: the operator's default."""
    loader_image: LoaderImage = None
    """``None``: the operator's default."""
    source_map: SourceMaps = None
    """Rules for other places of sources."""
    substitute_runner: SubstituteRunner = None
    """Platforms on the CPU fallback backend."""
    operator_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace in which the operator runs.")
    ] = None
    """``None``: the operator's default."""

    def render_options(self) -> Options:
        """Return the render options of an operator that has these options."""
        flags = {item.name: getattr(self, item.name) for item in fields(self)}
        return operator_options(flags.pop("operator_config"), **flags)


def operator_options(
    file: Path | None, *, server_image: str | None = None, **flags: Any
) -> Options:
    """Return the render options of an operator that has these options.

    The environment is ignored, so that the same command has the same output everywhere.

    Args:
        file: YAML with options of the operator.
        server_image: Triton image for all platforms without one of their own.
        flags: take precedence over ``file``. Both use the field names of
            :class:`~triton_pipelines.app.config.OperatorConfig`; ``None`` or empty: not given.

    Raises:
        CommandError: names every option that is wrong.
    """
    values = {} if file is None else _from_file(file)
    values.update({name: value for name, value in flags.items() if value})
    try:
        config = load_config(values, environ={})
        if server_image:
            config = load_config(
                {**values, "images": {**config.images, DEFAULT_IMAGE: server_image}}, environ={}
            )
    except OperatorConfigError as error:
        raise CommandError(
            f"{display_name(file)} or the command line: {error}" if file else str(error),
            EXIT_USAGE,
        ) from error
    return config.render_options


def _from_file(file: Path) -> dict[str, Any]:
    documents = load_yaml(file)
    if not documents:
        return {}
    if len(documents) > 1 or not isinstance(documents[0], dict):
        raise CommandError(
            f"{display_name(file)}: the file must be a mapping of operator options,"
            " such as `source_map: [hf://=https://mirror/]`",
            EXIT_USAGE,
        )
    values = {str(name).replace("-", "_"): value for name, value in documents[0].items()}
    if unknown := sorted(values.keys() - OperatorConfig.model_fields.keys()):
        raise CommandError(
            f"{display_name(file)}: unknown option {', '.join(map(repr, unknown))}; see "
            "`tritonpipe operator --help` for the options",
            EXIT_USAGE,
        )
    return values
