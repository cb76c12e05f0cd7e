"""Options of ``tritonpipe bench``: the load, and the content of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.tools.loadgen import Arrivals, InferenceProtocol, LoadSpec

from .bench_run import DEFAULT_CONCURRENCY

EXTRA_WINDOWS = 6
"""Additional windows while a run is not stable."""


class BenchOutput(StrEnum):
    """Format of the printed results: kubectl's, and CSV with a line for each load."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class BenchLoadOptions:
    """Options of the load."""

    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N|A:B[:STEP]",
            help="Number of requests in flight (closed loop). A:B doubles the number from A to "
            f"B. Default without --rate: {DEFAULT_CONCURRENCY}.",
        ),
    ] = None
    """Closed loops."""
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N|A:B:STEP",
            help=(
                "Requests per second (open loop). They are sent on schedule, regardless of "
                "when responses arrive."
            ),
        ),
    ] = None
    """Open loops."""
    arrivals: Annotated[
        Arrivals,
        typer.Option(
            help=(
                "Arrival pattern of an open loop: random, as with many independent users, or "
                "evenly spaced."
            )
        ),
    ] = Arrivals.POISSON
    """Arrivals of open loops."""
    duration: Annotated[
        float,
        typer.Option(
            min=0.3,
            max=3600,
            metavar="SECONDS",
            help=(
                "Duration of the measurement in each run. It is divided into three windows, "
                "whose results must agree."
            ),
        ),
    ] = 6.0
    """Measured seconds of a run."""
    warmup: Annotated[
        float,
        typer.Option(
            min=0,
            max=3600,
            metavar="SECONDS",
            help="Time under load before the measurement starts.",
        ),
    ] = 1.0
    """Seconds under load before them."""
    runs: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="Number of runs per load. Runs of different loads alternate."
        ),
    ] = 3
    """Runs of each load."""
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline/--no-baseline",
            help="Also measure a single client that waits for each response, first with all "
            "rows in one request, then with one row per request.",
        ),
    ] = True
    """Whether to measure the baselines."""
    protocol: Annotated[
        InferenceProtocol, typer.Option(help="HTTP with binary tensors, or gRPC.")
    ] = InferenceProtocol.HTTP
    """Protocol of the requests."""
    grpc: Annotated[
        str | None,
        typer.Option(
            "--grpc-address",
            metavar="HOST:PORT",
            help=f"gRPC address. Default: the URL's host with port {PORT_GRPC}.",
        ),
    ] = None
    """``None``: the host of the URL."""
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, max=3600, metavar="SECONDS", help="Time after which a request fails."
        ),
    ] = 30.0
    """Seconds after which a request fails."""
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Seed for texts and arrivals. The same seed produces the same load."
        ),
    ] = 0
    """Seed of texts and arrivals."""

    def spec(self) -> LoadSpec:
        """Return the load of one client, from which the others are derived."""
        return LoadSpec(
            concurrency=1,
            arrivals=self.arrivals,
            duration_s=self.duration,
            warmup_s=self.warmup,
            extend=EXTRA_WINDOWS,
            timeout_s=self.timeout,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of the content of requests."""

    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with one text per line, or input data for perf_analyzer (JSON).",
        ),
    ] = None
    """``None``: generated texts."""
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="median=32,sigma=0.6,cap=512",
            help="Lognormal lengths of generated texts, in tokens. Not allowed with --texts.",
        ),
    ] = None
    """Lengths of generated texts."""
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Texts per request.")] = 1
    """Texts per request."""
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help=(
                "Value of another input, which is the same in every request. Same format as in "
                "`tritonpipe infer`."
            ),
        ),
    ] = None
    """Further inputs."""
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--input-file",
            metavar="NAME=PATH",
            help="Value of another input from a file. Same format as in `tritonpipe infer`.",
        ),
    ] = None
    """Further inputs from files."""
