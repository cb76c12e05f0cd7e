"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """How a command prints its results, as kubectl's ``--output``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_table(self) -> bool:
        """Whether the format is for people and not for programs."""
        return self in (OutputFormat.TABLE, OutputFormat.WIDE)


PipelineFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="YAML file with one InferencePipeline. - reads standard input."
    ),
]
PipelineName = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Name of the pipeline. Default: all pipelines."),
]
Output = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="Output format. wide adds details to the table."),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "--output-file",
        metavar="FILE",
        help="Write to this file, which must not exist yet. Default: standard output.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace. Default: the namespace of the kubeconfig context.",
    ),
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Show the pipelines of all namespaces.")
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Watch for changes. Press Ctrl-C to stop.")
]
Context = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="kubeconfig context. Default: the current context."),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Path of the kubeconfig. Default: KUBECONFIG, then ~/.kube/config.",
    ),
]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of commands that read a cluster."""

    namespace: Namespace = None
    """``None``: that of the context."""
    everywhere: AllNamespaces = False
    """Whether to show the pipelines of all namespaces."""
    context: Context = None
    """``None``: the current context."""
    kubeconfig: Kubeconfig = None
    """``None``: the default file."""
    watch: Watch = False
    """Whether to show changes until Ctrl-C."""
    output: Output = OutputFormat.TABLE
    """How to print."""
