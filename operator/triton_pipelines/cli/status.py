"""``tritonpipe status``: what the status says, for people."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import ClusterError, NotFound
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES

from .failure import EXIT_FAILED, EXIT_USAGE, Failure


def status(
    name: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    context: Annotated[str | None, typer.Option(help="kubeconfig context.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Show how a pipeline is: conditions, pods, steps, endpoints, warnings."""
    pipeline = asyncio.run(_get(namespace, name, context))
    if as_json:
        typer.echo(json.dumps(pipeline.get("status") or {}, ensure_ascii=False))
        return
    show(pipeline, Console())


async def _get(namespace: str, name: str, context: str | None) -> dict[str, Any]:
    try:
        async with Client(lambda: load_configuration(context=context)) as client:
            return await client.get(INFERENCE_PIPELINES, namespace, name)
    except NotFound as error:
        raise Failure(f"there is no InferencePipeline {name} in namespace {namespace}", EXIT_USAGE) from error
    except ClusterError as error:
        raise Failure(f"the cluster cannot be asked: {error}", EXIT_FAILED) from error


def show(pipeline: dict[str, Any], console: Console) -> None:
    """Print one pipeline's status as tables."""
    state = pipeline.get("status") or {}
    metadata = pipeline["metadata"]
    head = (
        f"[bold]{metadata['namespace']}/{metadata['name']}[/bold]  revision {state.get('revision', '-')}"
        f" (serving {state.get('servingRevision', '-')})  pods {state.get('readyReplicas', 0)}/{state.get('replicas', 0)}"
        f"  tokenizers {state.get('tokenizer', {}).get('summary', '-')}"
    )
    console.print(head)
    _table(console, ("condition", "status", "reason", "message"), [
        (item["type"], item["status"], item["reason"], item["message"]) for item in state.get("conditions") or ()
    ])  # fmt: skip
    _table(console, ("step", "model", "ready pods", "instances", "reason"), [
        (item["name"], item["modelName"], f"{item.get('readyPods', 0)}/{item.get('pods', 0)}", str(item.get("instances", "")), item.get("reason", ""))
        for item in state.get("steps") or ()
    ])  # fmt: skip
    ensemble = state.get("ensemble") or {}
    if ensemble:
        for kind in ("inputs", "outputs"):
            tensors = ", ".join(f"{item['name']} {item['dataType']}{item['shape']}" for item in ensemble.get(kind) or ())
            console.print(f"{ensemble['modelName']} {kind}: {tensors}", markup=False)
    for protocol, address in (state.get("endpoints") or {}).items():
        console.print(f"{protocol}: {address}", markup=False)
    for item in state.get("sources") or ():
        console.print(
            f"source of {item['step']}: {item['uri']} at {item.get('resolvedRevision', '-')} sha256 {item.get('sha256', '-')[:12]}", markup=False
        )
    for item in state.get("warnings") or ():
        console.print(f"warning: {item['path']}: {item['message']}", markup=False)


def _table(console: Console, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if not rows:
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
