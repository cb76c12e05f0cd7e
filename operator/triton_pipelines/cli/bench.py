"""``tritonpipe bench``: load-test a pipeline, open or closed loop, and show where time goes."""

from __future__ import annotations

import contextlib
import enum
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.tools.loadgen import (
    Arrivals,
    InferenceProtocol,
    LoadGeneratorError,
    LoadProgress,
    LoadSpec,
    LoadTarget,
    OnSweepProgress,
    SweepEndedError,
    SweepResult,
    sweep,
)
from triton_pipelines.tools.loadgen.plots import svg

from .bench_loads import BenchRequests, build_requests, concurrencies, rates
from .bench_report import BASELINE, BenchReport, as_csv, as_json, chart, tables
from .errors import EXIT_FAILED, EXIT_USAGE, CommandError
from .infer import fetch_metadata, http_client, model_url
from .local_options import Deadline, Folder, Log, Mounts, SourceMapRules
from .local_pipeline import serve_locally
from .output import check_plottable, print_wide, write_file
from .tensors import ModelMetadata

DEFAULT_CONCURRENCY = "1:64"
EXTRA_WINDOWS = 6
"""Additional windows while a run is not stable."""


class BenchOutput(enum.StrEnum):
    """Format of the printed results."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True)
class ServedModel:
    """Where a model is served."""

    server: str
    """HTTP address of the server."""
    model: str
    """Name of the model, as in URLs."""
    grpc: str
    """gRPC address of the server."""

    @property
    def url(self) -> str:
        """HTTP address of the model."""
        return f"{self.server}/v2/models/{self.model}"


def bench(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="A pipeline's file, served here during the run;"
            " or http(s)://HOST:PORT/v2/models/MODEL.",
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
            help="Open loop: requests/s, sent on schedule, however late the answers are.",
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
            help="Another input, the same in every request; as for `tritonpipe infer`.",
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--input-file",
            metavar="NAME=PATH",
            help="Another input from a file; as for `tritonpipe infer`.",
        ),
    ] = None,
    duration: Annotated[
        float,
        typer.Option(
            min=0.3,
            max=3600,
            metavar="SECONDS",
            help="Measured time of a run, in three windows that must agree.",
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
            help="Also measure one client that waits for each answer:"
            " all rows in a request, and one by one.",
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
    specs = _load_specs(base, concurrency, rate)
    check_plottable(plot, "--plot")
    with _interrupts(), contextlib.ExitStack() as stack:
        served = _served_model(
            target,
            grpc,
            stack,
            {"mounts": mounts, "folder": folder, "log": log, "deadline": deadline},
            source_map or [],
        )
        model = _model_metadata(served, timeout)
        requests = build_requests(
            model,
            file=texts,
            lengths=lengths,
            rows=rows,
            values=value or [],
            files=file or [],
            seed=seed,
        )
        loads = list(_plan(requests, base, specs, baseline=baseline, batched=model.batched))
        measured, ended = _measure(loads, served, protocol, runs)
    report = BenchReport(
        model=unquote(served.model),
        address=served.grpc if protocol is InferenceProtocol.GRPC else served.server,
        protocol=protocol,
        source=requests.source,
        rows=requests.rows,
        seconds=duration,
        warmup_seconds=warmup,
        points=[item for name, _, item in measured if not name],
        # For requests of one row, one request at a time is the baseline itself.
        baseline={
            name or BASELINE: item
            for name, spec, item in measured
            if name or (baseline and requests.rows == 1 and spec.concurrency == 1)
        },
        names=model.steps or (unquote(served.model),),
    )
    _print(report, output, plot)
    if ended is not None:
        raise CommandError(str(ended), EXIT_FAILED) from ended
    _check_answered([item for _, _, item in measured])


def _load_specs(base: LoadSpec, concurrency: str | None, rate: str | None) -> list[LoadSpec]:
    """Return the loads of --concurrency and --rate."""
    numbers = concurrencies(concurrency or DEFAULT_CONCURRENCY) if concurrency or not rate else []
    closed = [replace(base, concurrency=number) for number in numbers]
    return closed + [
        replace(base, concurrency=0, rate=number) for number in (rates(rate) if rate else [])
    ]


def _measure(
    loads: list[tuple[str, BenchRequests, LoadSpec]],
    served: ServedModel,
    protocol: InferenceProtocol,
    runs: int,
) -> tuple[list[tuple[str, LoadSpec, SweepResult]], SweepEndedError | None]:
    """Measure the loads.

    Returns:
        Name, load and result of each that was measured, and the error that ended the sweep early.

    Raises:
        CommandError: nothing could be measured.
    """
    targets = [(_target(served, protocol, requests), spec) for _, requests, spec in loads]
    ended: SweepEndedError | None = None
    try:
        with _progress() as tell:
            results = dict(enumerate(sweep(targets, runs, tell)))
    except SweepEndedError as error:  # results of hours may be in it
        ended, results = error, dict(error.measured)
    except LoadGeneratorError as error:
        raise CommandError(str(error), EXIT_FAILED) from error
    return [(loads[index][0], loads[index][2], item) for index, item in results.items()], ended


def _check_answered(measured: list[SweepResult]) -> None:
    """Raise :class:`CommandError` if a load got no answer at all."""
    for item in measured:
        if not any(run.requests for run in item.runs):
            reason = next(
                iter(item.errors),
                "no answer arrived in the measured time; a longer --duration may help",
            )
            raise CommandError(f"{item.spec.name}: no request succeeded: {reason}", EXIT_FAILED)


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


def _plan(
    requests: BenchRequests,
    base: LoadSpec,
    specs: list[LoadSpec],
    *,
    baseline: bool,
    batched: bool,
) -> Iterator[tuple[str, BenchRequests, LoadSpec]]:
    """Yield the baselines (with their names), then the loads (with an empty name)."""
    if baseline:
        if requests.rows > 1:
            yield f"one client, {requests.rows} rows per request", requests, base
        if requests.rows > 1 or base.concurrency not in [spec.concurrency for spec in specs]:
            yield BASELINE, requests.split() if batched and requests.rows > 1 else requests, base
    for spec in specs:
        yield "", requests, spec


def _served_model(
    target: str,
    grpc: str | None,
    stack: contextlib.ExitStack,
    options: dict[str, Any],
    source_map: list[str],
) -> ServedModel:
    """Return the model at a URL, or serve the pipeline of a file while the stack is open."""
    if "://" in target or ("/v2/models/" in target and not Path(target).exists()):
        if "@" in target.partition("/v2/models/")[0]:
            # They would be in the report, and requests would be sent without them.
            raise CommandError(
                "the URL contains a user or password, which bench does not send; remove it",
                EXIT_USAGE,
            )
        url = model_url(target, "")
        server, _, model = url.partition("/v2/models/")
        host = urlsplit(server).hostname or ""
        address = f"{f'[{host}]' if ':' in host else host}:{PORT_GRPC}"
        return ServedModel(server, model, grpc or address)
    if grpc is not None:
        raise CommandError(
            "--grpc-address: only valid with a URL; a file is served here", EXIT_USAGE
        )
    running = stack.enter_context(serve_locally(Path(target), source_map, **options))
    return ServedModel(
        running.server.http_url, running.graph.model_name, running.server.grpc_address
    )


def _model_metadata(served: ServedModel, timeout: float) -> ModelMetadata:
    with http_client(served.server, timeout) as client:
        model = fetch_metadata(client, served.url)
    if model.decoupled:
        raise CommandError(
            f"{served.model}: streams its answers; bench only supports pipelines"
            " with one response per request",
            EXIT_USAGE,
        )
    return model


def _target(
    served: ServedModel, protocol: InferenceProtocol, requests: BenchRequests
) -> LoadTarget:
    url = served.grpc if protocol is InferenceProtocol.GRPC else served.server
    return LoadTarget(url, unquote(served.model), requests.arrays, protocol, requests.rows)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """End the bench, and the server that it started, on Ctrl-C and SIGTERM."""
    received = [signal.SIGINT]

    def stop(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number))
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(128 + received[-1]) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress() -> Iterator[OnSweepProgress]:
    """Yield a progress callback: a bar on a terminal, else a line for each finished run."""
    err = Console(stderr=True, highlight=False)
    if not err.is_terminal:

        def tell(number: int, total: int, spec: LoadSpec, progress: LoadProgress | None) -> None:
            if progress is None:
                typer.echo(f"run {number + 1} of {total}: {spec.name}", err=True)

        yield tell
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[counts]}"),
    )
    # Refreshed by callbacks only: a drawing thread would take time from the load.
    with Progress(*columns, console=err, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=1.0, counts="")

        def draw(number: int, total: int, spec: LoadSpec, progress: LoadProgress | None) -> None:
            share = 1.0 if progress is None else progress.elapsed_s / progress.total_s
            counts = (
                ""
                if progress is None
                else f"{progress.answered} answered"
                + (f", {progress.failed} failed" if progress.failed else "")
            )
            bar.update(
                task,
                completed=(number + min(share, 1.0)) / total,
                description=f"{spec.name} ({number + 1} of {total})",
                counts=counts,
            )
            bar.refresh()

        yield draw
