"""Check and read the options of ``tritonpipe tune``."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import typer

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.model_step import max_batch_size
from triton_pipelines.tools.loadgen import TextLengths, TextsError, read_lines

from .errors import EXIT_USAGE, CommandError

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s/:@\[\]]+):[0-9]{1,5}")


def check_finite(numbers: dict[str, float | None]) -> None:
    """Refuse infinities and NaN. ``numbers``: values by option."""
    for option, number in numbers.items():
        if number is not None and not math.isfinite(number):
            raise CommandError(f"{option}: {number} is not a finite number", EXIT_USAGE)


def check_server_options(
    server: str | None,
    control_key_file: Path | None,
    mounts: Path | None,
    texts: Path | None,
    lengths: str | None,
) -> None:
    """Refuse options that contradict each other."""
    if texts is not None and lengths is not None:
        raise CommandError(
            "--lengths: sets the lengths of generated texts, but --texts provides real "
            "texts; omit one of them",
            EXIT_USAGE,
        )
    if server is not None and mounts:
        raise CommandError(
            "--mounts: only valid for a pipeline that is served on this machine; the "
            "server at --server already has its files",
            EXIT_USAGE,
        )
    if server is not None and not _ADDRESS.fullmatch(server):
        raise CommandError(
            f"--server: {server!r} is not the address of a gRPC API; use HOST:PORT, for example"
            " 127.0.0.1:8001",
            EXIT_USAGE,
        )
    if control_key_file is not None and server is None:
        raise CommandError(
            "--control-key-file: only valid with --server; a pipeline that is served on "
            "this machine has no key",
            EXIT_USAGE,
        )


def check_rows(pipeline: InferencePipeline, rows: int) -> None:
    """Refuse requests that are too large for the current setting, the baseline of all others."""
    for field, most in (
        (
            "spec.model.maxBatchSize",
            max_batch_size(pipeline.spec.model) if pipeline.spec.model is not None else None,
        ),
        ("spec.ensemble.maxBatchSize", pipeline.spec.ensemble.max_batch_size),
    ):
        if most and rows > most:
            raise CommandError(
                f"--rows {rows}: a request exceeds {field} ({most});"
                " send fewer rows, or raise the field first",
                EXIT_USAGE,
            )


def given_options(context: typer.Context) -> dict[str, str]:
    """Return the parameters on the command line with the options they are written as."""
    return {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name
        and (source := context.get_parameter_source(param.name)) is not None
        and source.name == "COMMANDLINE"
    }


def source_map_of_environment() -> list[str]:
    """Return the rules of ``TRITONPIPE_SOURCE_MAP``, the default of --source-map."""
    rules = os.environ.get("TRITONPIPE_SOURCE_MAP")
    return [rules] if rules else []


def read_texts(file: Path | None) -> tuple[str, ...]:
    """Return the texts of --texts; empty without the option.

    Raises:
        CommandError: the file cannot be read, or has no usable text.
    """
    if file is None:
        return ()
    try:
        return tuple(read_lines(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, TextsError) as error:
        raise CommandError(
            f"--texts: {file} {error}"
            if isinstance(error, TextsError)
            else f"--texts: cannot read {file}: {error}",
            EXIT_USAGE,
        ) from error


def text_lengths(text: str | None) -> TextLengths | None:
    """Return the parsed --lengths.

    Raises:
        CommandError: the option is malformed.
    """
    try:
        return None if text is None else TextLengths.parse(text)
    except TextsError as error:
        raise CommandError(f"--lengths: {error}", EXIT_USAGE) from error


def read_control_key(file: Path | None) -> str | None:
    """Return the key in the file of --control-key-file.

    Raises:
        CommandError: the file cannot be read.
    """
    try:
        return None if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--control-key-file: cannot read {file}: {error}", EXIT_USAGE
        ) from error
