"""``tritonpipe bench``: load on a pipeline, open and closed loop, and where the time goes."""

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
    LoadSpec,
    LoadTarget,
    OnSweepProgress,
    SweepEndedError,
    sweep,
)
from triton_pipelines.tools.loadgen import LoadProgress as HowFar
from triton_pipelines.tools.loadgen.plots import svg

from .bench_loads import Requests, concurrencies, made, rates
from .bench_report import BASELINE, Report, as_csv, as_json, chart, shown
from .errors import EXIT_FAILED, EXIT_USAGE, Failure
from .infer import asking, described, model_url
from .output import figures, plottable
from .serve import Deadline, Folder, Log, Mounts, SourceMapRules, local
from .tensors import Model

DEFAULT_CONCURRENCY = "1:64"
EXTEND = 6
"""Further windows while a run is not steady."""


class Output(enum.StrEnum):
    """How results are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True)
class Place:
    """Where a model is served: its server's HTTP address, its name and its server's gRPC address."""

    server: str
    model: str
    grpc: str

    @property
    def url(self) -> str:
        """Address of the model."""
        return f"{self.server}/v2/models/{self.model}"


def bench(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="A pipeline's file, served here for the time of the bench; or http(s)://HOST:PORT/v2/models/MODEL.",
        ),
    ],
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N|A:B[:STEP]",
            help=f"Closed loop: requests always under way; A:B doubles from A to B. Default: {DEFAULT_CONCURRENCY}, without --rate.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N|A:B:STEP",
            help="Open loop: requests/s, sent when they are due, however late the answers are.",
        ),
    ] = None,
    arrivals: Annotated[
        Arrivals,
        typer.Option(help="Of an open loop: as of many independent users, or evenly spaced."),
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
            help="Without --texts: lognormal lengths of made-up texts, in tokens.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Texts in each request.")] = 1,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help="Another input, the same in every request; as `tritonpipe infer`.",
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--input-file",
            metavar="NAME=PATH",
            help="Another input from a file; as `tritonpipe infer`.",
        ),
    ] = None,
    duration: Annotated[
        float,
        typer.Option(
            min=0.3,
            max=3600,
            metavar="SECONDS",
            help="Measured time of a run: three windows that must agree.",
        ),
    ] = 6.0,
    warmup: Annotated[
        float,
        typer.Option(min=0, max=3600, metavar="SECONDS", help="The same load before, not counted."),
    ] = 1.0,
    runs: Annotated[
        int, typer.Option(min=1, max=100, help="Runs of each load, in turn over all loads.")
    ] = 3,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline/--no-baseline",
            help="Also one client that waits for each answer: rows together, and one by one.",
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
            help=f"Of a URL, where it is not its host with port {PORT_GRPC}.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, max=3600, metavar="SECONDS", help="When a request is given up."),
    ] = 30.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of texts and arrivals: the same seed, the same load.")
    ] = 0,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="What is printed on standard output.")
    ] = Output.TABLE,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Write the throughput-latency curve.")
    ] = None,
    source_map: SourceMapRules = None,
    mounts: Mounts = None,
    folder: Folder = None,
    log: Log = None,
    deadline: Deadline = 120.0,
) -> None:
    """Put load on a pipeline and print throughput, latency percentiles and where the time goes.

    Latency of an open loop counts from when a request was due. A run ends when its last three windows agree within 10 % in throughput and
    p99; where they never do, it says "not stable". Exit code: 1 the resource is wrong, 2 wrong use, 3 the server failed or answered nothing.
    """
    one = LoadSpec(
        concurrency=1,
        arrivals=arrivals,
        duration_s=duration,
        warmup_s=warmup,
        extend=EXTEND,
        timeout_s=timeout,
        seed=seed,
    )
    specs = [
        replace(one, concurrency=number)
        for number in (
            concurrencies(concurrency or DEFAULT_CONCURRENCY) if concurrency or not rate else []
        )
    ]
    specs += [replace(one, concurrency=0, rate=number) for number in (rates(rate) if rate else [])]
    if plot is not None and plot.suffix.lower() != ".svg":
        raise Failure(
            f"--plot {plot}: is written as SVG; name it {plot.with_suffix('.svg').name}", EXIT_USAGE
        )
    plottable(plot, "--plot")
    with _interrupts(), contextlib.ExitStack() as stack:
        place = _place(
            target,
            grpc,
            stack,
            {"mounts": mounts, "folder": folder, "log": log, "deadline": deadline},
            source_map or [],
        )
        model = _asked(place, timeout)
        requests = made(
            model,
            file=texts,
            lengths=lengths,
            rows=rows,
            values=value or [],
            files=file or [],
            seed=seed,
        )
        pairs = [
            (name, _target(place, protocol, sends), spec)
            for name, sends, spec in _plan(
                requests, one, specs, baseline=baseline, batched=model.batched
            )
        ]
        ended: SweepEndedError | None = None
        try:
            with _progress() as tell:
                found = sweep([(to, spec) for _, to, spec in pairs], runs, tell)
        except SweepEndedError as error:  # hours of measuring may lie before it
            ended = error
            pairs, found = [pairs[place] for place in error.measured], list(error.measured.values())
        except LoadGeneratorError as error:
            raise Failure(str(error), EXIT_FAILED) from error
    report = Report(
        model=unquote(place.model),
        address=place.grpc if protocol is InferenceProtocol.GRPC else place.server,
        protocol=protocol,
        source=requests.source,
        rows=requests.rows,
        seconds=duration,
        warmup_seconds=warmup,
        points=[item for (name, _, _), item in zip(pairs, found, strict=True) if not name],
        # Of requests of one row, one at a time is the baseline itself.
        baseline={
            name or BASELINE: item
            for (name, _, spec), item in zip(pairs, found, strict=True)
            if name or (baseline and requests.rows == 1 and spec.concurrency == 1)
        },
        names=model.steps or (unquote(place.model),),
    )
    _print(report, output, plot)
    if ended is not None:
        raise Failure(str(ended), EXIT_FAILED) from ended
    if silent := [item for item in found if not any(run.requests for run in item.runs)]:
        why = next(
            iter(silent[0].errors),
            "no answer came in the measured time; a longer --duration may help",
        )
        raise Failure(f"{silent[0].spec.name}: nothing was answered: {why}", EXIT_FAILED)


def _print(report: Report, output: Output, plot: Path | None) -> None:
    if output is Output.TABLE:
        for part in shown(report):
            figures(part)
    else:
        typer.echo(
            as_json(report) if output is Output.JSON else as_csv(report), nl=output is Output.JSON
        )
    if plot is not None:
        try:
            plot.write_text(svg(chart(report)), encoding="utf-8")
        except OSError as error:
            raise Failure(
                f"--plot {plot}: cannot be written: {error.strerror}", EXIT_USAGE
            ) from error


def _plan(
    requests: Requests, one: LoadSpec, specs: list[LoadSpec], *, baseline: bool, batched: bool
) -> Iterator[tuple[str, Requests, LoadSpec]]:
    """The baselines (with their names), then the loads (without)."""
    if baseline:
        if requests.rows > 1:
            yield f"one client, {requests.rows} rows a request", requests, one
        if requests.rows > 1 or one.concurrency not in [spec.concurrency for spec in specs]:
            yield BASELINE, requests.split() if batched and requests.rows > 1 else requests, one
    for spec in specs:
        yield "", requests, spec


def _place(
    target: str,
    grpc: str | None,
    stack: contextlib.ExitStack,
    options: dict[str, Any],
    source_map: list[str],
) -> Place:
    """A running model of an address; a file's pipeline is served for as long as the stack is open."""
    if "://" in target or ("/v2/models/" in target and not Path(target).exists()):
        if "@" in target.partition("/v2/models/")[0]:
            # It would stand in the report, and requests would go without it.
            raise Failure(
                "the address holds a user or a password, which bench does not send: leave it out",
                EXIT_USAGE,
            )
        url = model_url(target, "")
        server, _, model = url.partition("/v2/models/")
        host = urlsplit(server).hostname or ""
        return Place(server, model, grpc or f"{f'[{host}]' if ':' in host else host}:{PORT_GRPC}")
    if grpc is not None:
        raise Failure("--grpc-address: goes with a URL; a file is served here", EXIT_USAGE)
    running = stack.enter_context(local(Path(target), source_map, **options))
    return Place(running.server.http_url, running.graph.model_name, running.server.grpc_address)


def _asked(place: Place, timeout: float) -> Model:
    with asking(place.server, timeout) as client:
        model = described(client, place.url)
    if model.decoupled:
        raise Failure(
            f"{place.model}: answers by streams; bench measures pipelines with one answer to a request",
            EXIT_USAGE,
        )
    return model


def _target(place: Place, protocol: InferenceProtocol, requests: Requests) -> LoadTarget:
    url = place.grpc if protocol is InferenceProtocol.GRPC else place.server
    return LoadTarget(url, unquote(place.model), requests.arrays, protocol, requests.rows)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the bench, and the server that it started."""

    came = [signal.SIGINT]

    def stop(number: int, _: FrameType | None) -> None:
        came.append(signal.Signals(number))
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(128 + came[-1]) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress() -> Iterator[OnSweepProgress]:
    """A moving bar on a terminal; else a line for each finished run. Both on standard error."""
    err = Console(stderr=True, highlight=False)
    if not err.is_terminal:

        def tell(number: int, total: int, spec: LoadSpec, far: HowFar | None) -> None:
            if far is None:
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
    # Refreshed by what is told alone: a thread that draws would take time from the load.
    with Progress(*columns, console=err, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=1.0, counts="")

        def draw(number: int, total: int, spec: LoadSpec, far: HowFar | None) -> None:
            share = 1.0 if far is None else far.elapsed_s / far.total_s
            counts = (
                ""
                if far is None
                else f"{far.answered} answered" + (f", {far.failed} failed" if far.failed else "")
            )
            bar.update(
                task,
                completed=(number + min(share, 1.0)) / total,
                description=f"{spec.name} ({number + 1} of {total})",
                counts=counts,
            )
            bar.refresh()

        yield draw
