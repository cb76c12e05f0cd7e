"""Options of ``tritonpipe tune``, with their checks."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.model_step import max_batch_size
from triton_pipelines.tools.loadgen import TextLengths, TextsError, read_lines
from triton_pipelines.tools.tuner import TuningOptions

from .errors import EXIT_USAGE, CommandError
from .local_options import Mounts
from .options import OperatorConfigFile, SourceMaps, SubstituteRunner
from .shared_options import Namespace

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s/:@\[\]]+):[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ClusterRunOptions:
    """Options of a run in the cluster."""

    in_cluster: Annotated[
        bool,
        typer.Option(
            "--in-cluster",
            help="Print the command that starts a run in the cluster. FILE is then the name of "
            "the pipeline in the cluster.",
        ),
    ] = False
    """Whether the run is one in the cluster."""
    namespace: Namespace = None
    """``None``: that of the context."""
    kube_context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", help="kubeconfig context. Default: the current context."
        ),
    ] = None
    """``None``: the current context."""

    def check_unused(self) -> None:
        """Refuse the options in a run that is none in the cluster."""
        for option, value in (("--namespace", self.namespace), ("--context", self.kube_context)):
            if value is not None:
                raise CommandError(
                    (
                        f"{option} is allowed only with --in-cluster; omit {option}, or add "
                        "--in-cluster"
                    ),
                    EXIT_USAGE,
                )


@dataclass(frozen=True, slots=True)
class TunedServerOptions:
    """Options of the server that is measured."""

    server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="gRPC address of a Triton server that serves this pipeline without other "
            "traffic. Default: serve it on this machine.",
        ),
    ] = None
    """``None``: the pipeline is served here."""
    control_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "File with the key for the control API of --server, if access to it is restricted."
            ),
        ),
    ] = None
    """``None``: the control API is not restricted."""
    source_map: SourceMaps = None
    """Rules for other places of sources."""
    mounts: Mounts = None
    """``None``: no files are mounted."""
    operator_config: OperatorConfigFile = None
    """Options of the operator behind ``server``."""
    substitute_runner: SubstituteRunner = None
    """Platforms that run on the CPU fallback backend of ``server``."""


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """Options of what is measured, and for how long."""

    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Measure longer, at more points, and with more repetitions."
        ),
    ] = False
    """Whether the mode is Thorough."""
    slo: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=1,
            help="Target p99 latency, in milliseconds. Default: spec.slo.p99Milliseconds.",
        ),
    ] = None
    """``None``: that of the resource."""
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.1,
            help="Request rate (per second) at which settings are compared. Default: the highest "
            "rate that the pipeline sustains.",
        ),
    ] = None
    """``None``: the highest that the pipeline sustains."""
    texts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts from real traffic, one per line.")
    ] = None
    """``None``: generated texts."""
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="median=N,sigma=X,cap=N",
            help="Lengths of generated texts, in tokens."
            " Default: median=32,sigma=0.6, up to maxLength.",
        ),
    ] = None
    """Lengths of generated texts."""
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Rows (texts) per request.")] = 1
    """Rows per request."""
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Duration of each measurement. Default: 16, or 60 with --thorough.",
        ),
    ] = None
    """``None``: that of the mode."""
    cores: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.5,
            help="CPU cores that the server can use. Default: all cores of this machine.",
        ),
    ] = None
    """``None``: all cores of this machine."""

    def settings(self) -> TuningOptions:
        """Return the settings of a run.

        Raises:
            CommandError: a file cannot be read, or the lengths are malformed.
        """
        return TuningOptions(
            mode=TuningMode.THOROUGH if self.thorough else TuningMode.QUICK,
            slo_ms=self.slo,
            rate=self.rate,
            texts=read_texts(self.texts),
            lengths=text_lengths(self.lengths),
            rows=self.rows,
            cores=self.cores or float(os.cpu_count() or 1),
            seconds=self.seconds,
        )


def check_finite(measurement: MeasurementOptions) -> None:
    """Refuse infinities and NaN."""
    for option, number in (
        ("--slo", measurement.slo),
        ("--rate", measurement.rate),
        ("--seconds", measurement.seconds),
        ("--cores", measurement.cores),
    ):
        if number is not None and not math.isfinite(number):
            raise CommandError(f"{option}: {number} is not a finite number", EXIT_USAGE)


def check_server_options(target: TunedServerOptions, measurement: MeasurementOptions) -> None:
    """Refuse options that contradict each other."""
    server = target.server
    if measurement.texts is not None and measurement.lengths is not None:
        raise CommandError(
            "--texts and --lengths cannot be combined; omit one of the two",
            EXIT_USAGE,
        )
    if server is not None and target.mounts:
        raise CommandError(
            "--mounts: allowed only for a pipeline that is served on this machine, because the "
            "server at --server already has its files",
            EXIT_USAGE,
        )
    if server is not None and not _ADDRESS.fullmatch(server):
        raise CommandError(
            f"--server: {server!r} is not the address of a gRPC API; use HOST:PORT, for example"
            " 127.0.0.1:8001",
            EXIT_USAGE,
        )
    if target.control_key_file is not None and server is None:
        raise CommandError(
            "--control-key-file: allowed only with --server; a pipeline that is served on "
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
