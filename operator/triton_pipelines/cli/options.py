"""The operator's options where a command stands in for it."""

from __future__ import annotations

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

from .documents import load_yaml, shown
from .errors import EXIT_USAGE, Failure

OperatorConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--operator-config",
        metavar="FILE",
        help="YAML with the operator's options (source_map: […], images: {default: …}); flags win over it.",
    ),
]
ServerImage = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="The operator's default Triton image.")
]
SourceMaps = Annotated[
    list[str] | None,
    typer.Option(
        "--source-map",
        metavar="PREFIX=TARGET",
        help="Where sources really lie, as the operator's option; repeatable.",
    ),
]
SubstituteRunner = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLATFORM",
        help="Platform that the project's runner runs (onnxruntime_onnx), as the operator's option; repeatable.",
    ),
]


def operator_options(
    file: Path | None, *, server_image: str | None = None, **flags: Any
) -> Options:
    """What an operator with these options renders by: those of ``file``, then ``flags`` (``None`` or empty: not given).

    Both bear the names of :class:`~triton_pipelines.app.config.OperatorConfig`; the environment is not asked, so that the same command
    gives the same output everywhere. :class:`Failure` names every option that is wrong.
    """
    given = {} if file is None else _from_file(file)
    given.update({name: value for name, value in flags.items() if value})
    try:
        config = load_config(given, environ={})
        if server_image:
            config = load_config(
                {**given, "images": {**config.images, DEFAULT_IMAGE: server_image}}, environ={}
            )
    except OperatorConfigError as error:
        raise Failure(
            f"{shown(file)}, or a flag: {error}" if file else str(error), EXIT_USAGE
        ) from error
    return config.render_options


def _from_file(file: Path) -> dict[str, Any]:
    documents = load_yaml(file)
    if not documents:
        return {}
    if len(documents) > 1 or not isinstance(documents[0], dict):
        raise Failure(
            f"{shown(file)}: must be one mapping of operator options, such as `source_map: [hf://=https://mirror/]`",
            EXIT_USAGE,
        )
    given = {str(name).replace("-", "_"): value for name, value in documents[0].items()}
    if unknown := sorted(given.keys() - OperatorConfig.model_fields.keys()):
        raise Failure(
            f"{shown(file)}: {', '.join(unknown)}: no option of the operator (see `tritonpipe operator --help`)",
            EXIT_USAGE,
        )
    return given
