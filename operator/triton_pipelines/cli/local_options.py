"""Options of the commands that serve a pipeline on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from triton_pipelines.loader.uris import SourceMap

from .errors import EXIT_USAGE, CommandError

SourceMapRules = Annotated[
    list[str] | None,
    typer.Option(
        "--source-map",
        metavar="PREFIX=TARGET",
        help="Read sources whose URI starts with PREFIX from TARGET instead, such as "
        "s3://models/=file:///home/me/models/. Repeatable.",
        envvar="TRITONPIPE_SOURCE_MAP",
    ),
]
Mounts = Annotated[
    Path | None,
    typer.Option(
        "--mounts",
        metavar="FOLDER",
        help="Directory with the files that a pod would mount: credentials/STEP/KEY, "
        "ca/STEP/ca.crt, configmaps/STEP/KEY (STEP.code/KEY for custom Python), "
        "claims/CLAIM/…",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help=(
            "Directory for downloaded files, reused by later runs. Default: a temporary directory."
        ),
    ),
]
Log = Annotated[
    Path | None, typer.Option("--log", metavar="FILE", help="Write Triton's log to this file.")
]
Deadline = Annotated[
    float,
    typer.Option(
        "--deadline", min=1, metavar="SECONDS", help="Maximum time until the models are loaded."
    ),
]


@dataclass(frozen=True, slots=True)
class LocalServerOptions:
    """Options of commands that serve a pipeline on this machine."""

    source_map: SourceMapRules = None
    """Rules for other places of sources."""
    mounts: Mounts = None
    """``None``: no files are mounted."""
    folder: Folder = None
    """``None``: a temporary folder."""
    log: Log = None
    """``None``: in the folder."""
    deadline: Deadline = 120.0
    """Maximum time for loading the models, seconds."""

    def of_the_server(self) -> dict[str, Any]:
        """Return the options that the local server takes by name."""
        return {
            "mounts": self.mounts,
            "folder": self.folder,
            "log": self.log,
            "deadline": self.deadline,
        }


def parse_source_map(rules: list[str]) -> SourceMap:
    """Parse the values of ``--source-map``; each may hold several rules, separated by commas.

    Raises:
        CommandError: a rule is malformed.
    """
    try:
        return SourceMap.parse(part for rule in rules for part in rule.split(","))
    except ValueError as error:
        raise CommandError(f"--source-map: {error}", EXIT_USAGE) from error
