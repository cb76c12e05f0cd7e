"""Run the loads of ``tritonpipe bench`` and show their progress."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from urllib.parse import unquote

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from triton_pipelines.tools.loadgen import (
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

from .bench_loads import BenchRequests, concurrencies, rates
from .bench_report import BASELINE
from .errors import EXIT_FAILED, CommandError
from .served_model import ServedModel

DEFAULT_CONCURRENCY = "1:64"


def load_specs(base: LoadSpec, concurrency: str | None, rate: str | None) -> list[LoadSpec]:
    """Return the loads of --concurrency and --rate."""
    numbers = concurrencies(concurrency or DEFAULT_CONCURRENCY) if concurrency or not rate else []
    closed = [replace(base, concurrency=number) for number in numbers]
    return closed + [
        replace(base, concurrency=0, rate=number) for number in (rates(rate) if rate else [])
    ]


def measure_loads(
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


def check_answered(measured: list[SweepResult]) -> None:
    """Raise :class:`CommandError` if a load got no answer at all."""
    for item in measured:
        if not any(run.requests for run in item.runs):
            reason = next(
                iter(item.errors),
                "no response arrived during the measurement; use a longer --duration",
            )
            raise CommandError(f"{item.spec.name}: no request succeeded: {reason}", EXIT_FAILED)


def planned_loads(
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


def _target(
    served: ServedModel, protocol: InferenceProtocol, requests: BenchRequests
) -> LoadTarget:
    url = served.grpc if protocol is InferenceProtocol.GRPC else served.server
    return LoadTarget(
        url, unquote(served.model), requests.arrays, protocol, requests.rows, tls=served.tls
    )


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
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
