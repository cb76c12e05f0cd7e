"""Command line of the load generator: `python -m e2e.load --help`."""

import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from e2e.load.clients import CLIENTS, ONE_ADDRESS, Answer
from e2e.load.generator import INTERVAL_SECONDS, WORKERS, Load, under_load
from e2e.suite.reach import Endpoint
from triton_pipelines.api import names

EXIT_FAILED = 1


def run(
    host: Annotated[
        str, typer.Argument(help="Address of the pipeline's Service, with Triton's usual ports.")
    ],
    model: Annotated[
        str, typer.Option(help="Model to call, with one text input TEXT.")
    ] = "sentiment",
    client: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Kind of client, repeatable: {', '.join(CLIENTS)}. Default: all but the last."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Clients of each kind.")] = WORKERS,
    interval: Annotated[
        float, typer.Option(min=0.001, help="Seconds between two requests of one client.")
    ] = INTERVAL_SECONDS,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = 10.0,
    text: Annotated[
        list[str] | None, typer.Option(help="A text to send; repeatable, sent in turn.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for all outcomes, as JSON.")] = None,
) -> None:
    """Put load on a pipeline and say what became of every request; exit code 1 when one failed."""
    unknown = sorted(set(client or ()) - CLIENTS.keys())
    if unknown:
        raise typer.BadParameter(
            f"unknown kind of client {', '.join(unknown)}; known are {', '.join(CLIENTS)}",
            param_hint="--client",
        )
    endpoint = Endpoint.of(
        host, {port: port for port in (names.PORT_HTTP, names.PORT_GRPC, names.PORT_METRICS)}
    )
    load = Load(
        endpoint,
        model,
        tuple(text or ("A short text.",)),
        _outputs,
        tuple(client or ONE_ADDRESS),
        workers,
        interval,
    )
    with under_load(load):
        threading.Event().wait(seconds)
    console = Console(highlight=False, soft_wrap=True)
    for summary in load.summary().values():
        console.print(str(summary), markup=False)
    if out is not None:
        out.write_text(json.dumps([asdict(outcome) for outcome in load.outcomes]))
    if any(outcome.error for outcome in load.outcomes):
        raise typer.Exit(EXIT_FAILED)


def _outputs(_: str, answer: Answer) -> str:
    """Any answer counts here; whether it is right is the tests' question."""
    return ", ".join(sorted(answer))


def main() -> int:
    """Run the command line; no answer at all is one message."""
    try:
        typer.run(run)
    except AssertionError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, style="red")
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
