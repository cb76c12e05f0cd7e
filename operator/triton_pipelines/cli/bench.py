"""``tritonpipe bench``: load-test a pipeline, open or closed loop, and show where time goes."""

from __future__ import annotations

import contextlib
import enum
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import typer

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.tools.loadgen import (
    Arrivals,
    InferenceProtocol,
    LoadSpec,
    SweepResult,
)
from triton_pipelines.tools.loadgen.plots import svg

from .bench_loads import BenchRequests, build_requests
from .bench_report import BASELINE, BenchReport, as_csv, as_json, chart, tables
from .bench_run import (
    DEFAULT_CONCURRENCY,
    check_answered,
    exit_on_signals,
    load_specs,
    measure_loads,
    planned_loads,
)
from .errors import EXIT_FAILED, EXIT_USAGE, CommandError
from .local_options import Deadline, Folder, Log, Mounts, SourceMapRules
from .output import print_wide, write_file
from .plot_output import check_plottable
from .served_model import ServedModel, model_metadata, served_model
from .tls_options import CaCert, Cert, Key, ServerName, client_tls, is_grpc

EXTRA_WINDOWS = 6
"""Additional windows while a run is not stable."""


class BenchOutput(enum.StrEnum):
    """Format of the printed results."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def bench(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="A pipeline's file, served on this machine during the run; or "
            "http(s)://HOST:PORT/v2/models/MODEL; over gRPC, grpc(s)://….",
        ),
    ],
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N|A:B[:STEP]",
            help="Closed loop: number of requests in flight; A:B doubles from A to B."
            f" Default: {DEFAULT_CONCURRENCY}, without --rate.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N|A:B:STEP",
            help="Open loop: requests/s, sent on schedule, regardless of when responses arrive.",
        ),
    ] = None,
    arrivals: Annotated[
        Arrivals,
        typer.Option(
            help="Arrivals of an open loop: as from many independent users, or evenly spaced."
        ),
    ] = Arrivals.POISSON,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Texts, one per line; or perf_analyzer's input data (JSON)."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="median=32,sigma=0.6,cap=512",
            help="Without --texts: lognormal lengths of generated texts, in tokens.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Texts per request.")] = 1,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help="Another input, the same in every request; as in `tritonpipe infer`.",
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--input-file",
            metavar="NAME=PATH",
            help="Another input from a file; as in `tritonpipe infer`.",
        ),
    ] = None,
    duration: Annotated[
        float,
        typer.Option(
            min=0.3,
            max=3600,
            metavar="SECONDS",
            help="Measured time of a run, in three windows whose results must agree.",
        ),
    ] = 6.0,
    warmup: Annotated[
        float,
        typer.Option(min=0, max=3600, metavar="SECONDS", help="Time under load before measuring."),
    ] = 1.0,
    runs: Annotated[
        int, typer.Option(min=1, max=100, help="Runs of each load; runs of all loads alternate.")
    ] = 3,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline/--no-baseline",
            help="Also measure one client that waits for each response: all rows in a request, "
            "and one by one.",
        ),
    ] = True,
    protocol: Annotated[
        InferenceProtocol, typer.Option(help="HTTP with binary tensors, or gRPC.")
    ] = InferenceProtocol.HTTP,
    grpc: Annotated[
        str | None,
        typer.Option(
            "--grpc-address",
            metavar="HOST:PORT",
            help=f"gRPC address, if it is not the URL's host with port {PORT_GRPC}.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, max=3600, metavar="SECONDS", help="Time after which a request fails."
        ),
    ] = 30.0,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of texts and arrivals; the same seed gives the same load."),
    ] = 0,
    output: Annotated[
        BenchOutput,
        typer.Option("--output", "-o", help="Format of the results on standard output."),
    ] = BenchOutput.TABLE,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Write the throughput-latency curve.")
    ] = None,
    source_map: SourceMapRules = None,
    mounts: Mounts = None,
    folder: Folder = None,
    log: Log = None,
    deadline: Deadline = 120.0,
    cacert: CaCert = None,
    cert: Cert = None,
    key: Key = None,
    servername: ServerName = "",
) -> None:
    """Load-test a pipeline; print throughput, latency percentiles and where the time goes.

    The latency of an open loop is measured from the time a request was due. A run ends when its
    last three windows agree within 10 % in throughput and p99; otherwise it is "not stable".

    Exit codes: 1 the resource is not valid, 2 wrong usage, 3 the server failed or never answered.
    """
    if plot is not None and plot.suffix.lower() != ".svg":
        raise CommandError(
            f"--plot {plot}: the format is SVG; name it {plot.with_suffix('.svg').name}",
            EXIT_USAGE,
        )
    base = LoadSpec(
        concurrency=1,
        arrivals=arrivals,
        duration_s=duration,
        warmup_s=warmup,
        extend=EXTRA_WINDOWS,
        timeout_s=timeout,
        seed=seed,
    )
    specs = load_specs(base, concurrency, rate)
    check_plottable(plot, "--plot")
    with exit_on_signals(), contextlib.ExitStack() as stack:
        served = served_model(
            target,
            grpc,
            stack,
            {"mounts": mounts, "folder": folder, "log": log, "deadline": deadline},
            source_map or [],
        )
        served = replace(served, tls=client_tls(served.server, cacert, cert, key, servername))
        protocol = InferenceProtocol.GRPC if is_grpc(served.server) else protocol
        model = model_metadata(served, timeout)
        requests = build_requests(
            model,
            file=texts,
            lengths=lengths,
            rows=rows,
            values=value or [],
            files=file or [],
            seed=seed,
        )
        loads = list(planned_loads(requests, base, specs, baseline=baseline, batched=model.batched))
        measured, ended = measure_loads(loads, served, protocol, runs)
    report = _report(
        base, requests, served, protocol, measured, steps=model.steps, baseline=baseline
    )
    _print(report, output, plot)
    if ended is not None:
        raise CommandError(str(ended), EXIT_FAILED) from ended
    check_answered([item for _, _, item in measured])


def _report(
    base: LoadSpec,
    requests: BenchRequests,
    served: ServedModel,
    protocol: InferenceProtocol,
    measured: list[tuple[str, LoadSpec, SweepResult]],
    *,
    steps: tuple[str, ...],
    baseline: bool,
) -> BenchReport:
    """Return the report of the measured loads. Loads with a name are baselines."""
    name = unquote(served.model)
    return BenchReport(
        model=name,
        address=served.grpc if protocol is InferenceProtocol.GRPC else served.server,
        protocol=protocol,
        source=requests.source,
        rows=requests.rows,
        seconds=base.duration_s,
        warmup_seconds=base.warmup_s,
        points=[item for label, _, item in measured if not label],
        # For requests of one row, one request at a time is the baseline itself.
        baseline={
            label or BASELINE: item
            for label, spec, item in measured
            if label or (baseline and requests.rows == 1 and spec.concurrency == 1)
        },
        names=steps or (name,),
    )


def _print(report: BenchReport, output: BenchOutput, plot: Path | None) -> None:
    if output is BenchOutput.TABLE:
        for part in tables(report):
            print_wide(part)
    else:
        typer.echo(
            as_json(report) if output is BenchOutput.JSON else as_csv(report),
            nl=output is BenchOutput.JSON,
        )
    if plot is not None:
        write_file(plot, svg(chart(report)), "--plot")
