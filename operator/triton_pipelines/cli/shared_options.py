"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PipelineFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="YAML file with one InferencePipeline; - reads standard input."
    ),
]
ResourceOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to this file, which must not exist. Default: standard output.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace. Default: from the kubeconfig's context.",
    ),
]
Context = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="kubeconfig context. Default: the current context."),
]
Kubeconfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Default: KUBECONFIG, then ~/.kube/config.")
]
