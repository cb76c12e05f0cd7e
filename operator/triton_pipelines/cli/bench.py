"""``tritonpipe bench``: load-test a pipeline, open or closed loop, and show where time goes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import typer

from triton_pipelines.tools.loadgen import InferenceProtocol, LoadSpec, SweepResult
from triton_pipelines.tools.loadgen.plots import svg

from .bench_loads import BenchRequests, build_requests
from .bench_options import BenchLoadOptions, BenchOutput, RequestOptions
from .bench_report import BASELINE, BenchReport, as_csv, bench_document, chart, tables
from .bench_run import (
    check_answered,
    exit_on_signals,
    load_specs,
    measure_loads,
    planned_loads,
)
from .errors import EXIT_FAILED, EXIT_USAGE, CommandError
from .local_options import LocalServerOptions
from .model_metadata import ModelMetadata
from .option_groups import expand_options
from .output import print_wide, write_file
from .plot_output import check_plottable
from .result_output import print_document
from .served_model import ServedModel, model_metadata, served_model
from .shared_options import OutputFormat
from .tls_options import TlsOptions, client_tls, is_grpc


@expand_options
def bench(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="File of a pipeline, which is served on this machine during the run, or URL "
            "of a model: http(s)://HOST:PORT/v2/models/MODEL, or grpc(s)://… for gRPC.",
        ),
    ],
    load: BenchLoadOptions,
    content: RequestOptions,
    local: LocalServerOptions,
    tls: TlsOptions,
    output: Annotated[
        BenchOutput,
        typer.Option("--output", "-o", help="Format of the results on standard output."),
    ] = BenchOutput.TABLE,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Write the throughput-latency curve.")
    ] = None,
) -> None:
    """Load-test a pipeline; print throughput, latency percentiles and where the time goes.

    The latency of an open loop is measured from the time a request was due. A run ends when its
    last three windows agree within 10 % in throughput and p99; otherwise it is "not stable".

    Exit codes: 1 the resource is not valid, 2 wrong usage, 3 the server failed or never answered.
    """
    _check_plot(plot)
    base = load.spec()
    specs = load_specs(base, load.concurrency, load.rate)
    with exit_on_signals(), contextlib.ExitStack() as stack:
        served = served_model(
            target, load.grpc, stack, local.of_the_server(), local.source_map or []
        )
        served = replace(served, tls=client_tls(served.server, tls))
        protocol = InferenceProtocol.GRPC if is_grpc(served.server) else load.protocol
        model = model_metadata(served, load.timeout)
        requests = _requests(model, content, load.seed)
        loads = list(
            planned_loads(requests, base, specs, baseline=load.baseline, batched=model.batched)
        )
        measured, ended = measure_loads(loads, served, protocol, load.runs)
    report = _report(
        base, requests, served, protocol, measured, steps=model.steps, baseline=load.baseline
    )
    _print(report, output, plot)
    if ended is not None:
        raise CommandError(str(ended), EXIT_FAILED) from ended
    check_answered([item for _, _, item in measured])


def _check_plot(plot: Path | None) -> None:
    """Refuse a file that cannot become an SVG, before minutes of work."""
    if plot is not None and plot.suffix.lower() != ".svg":
        raise CommandError(
            f"--plot {plot}: the format is SVG; name it {plot.with_suffix('.svg').name}",
            EXIT_USAGE,
        )
    check_plottable(plot)


def _requests(model: ModelMetadata, content: RequestOptions, seed: int) -> BenchRequests:
    return build_requests(
        model,
        file=content.texts,
        lengths=content.lengths,
        rows=content.rows,
        values=content.value or [],
        files=content.file or [],
        seed=seed,
    )


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
    if output is BenchOutput.CSV:
        typer.echo(as_csv(report), nl=False)
    elif output in (BenchOutput.TABLE, BenchOutput.WIDE):
        for part in tables(report):
            print_wide(part)
    else:
        print_document(bench_document(report), OutputFormat(output))
    if plot is not None:
        write_file(plot, svg(chart(report)), "--plot")
