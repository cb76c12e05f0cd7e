"""``tritonpipe status``: what a pipeline's status says, for people."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from kubernetes.aio.config import ConfigException, kube_config
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.errors import ClusterError, NotFound
from triton_pipelines.cluster.login import LoginError, load_configuration
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES

from .failure import EXIT_FAILED, EXIT_USAGE, Failure
from .output import console

DEFAULT_NAMESPACE = "default"


def status(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Its namespace. Default: that of the kubeconfig's context.")
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="kubeconfig context. Default: the current one.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: KUBECONFIG, then ~/.kube/config.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Show how a pipeline is: conditions, pods, steps, endpoints, sources, warnings.

    Exit code: 2 there is no such pipeline, 3 the cluster cannot be asked.
    """
    logging.getLogger("kubernetes").setLevel(logging.ERROR)  # what it warns of stands in our own message
    path = str(kubeconfig) if kubeconfig else None
    pipeline = asyncio.run(_get(namespace or context_namespace(path, context), name, path, context))
    if as_json:
        typer.echo(json.dumps(pipeline.get("status") or {}, ensure_ascii=False))
        return
    show(pipeline, console())


def context_namespace(kubeconfig: str | None, context: str | None) -> str:
    """The namespace of a kubeconfig's context, as kubectl takes it; ``default`` where none is named."""
    path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    try:
        contexts, current = kube_config.list_kube_config_contexts(config_file=path)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError):
        return DEFAULT_NAMESPACE  # there is no usable file: what asks the cluster says so
    chosen = current if context is None else next((item for item in contexts if item["name"] == context), None)
    return str((chosen or {}).get("context", {}).get("namespace") or DEFAULT_NAMESPACE)


async def _get(namespace: str, name: str, kubeconfig: str | None, context: str | None) -> dict[str, Any]:
    try:
        # Tried first, since the client takes a failed login for a file in mid-rotation and waits.
        await load_configuration(kubeconfig, context)
        async with Client(lambda: load_configuration(kubeconfig, context), ClientOptions(attempts=2, timeout_seconds=15.0)) as client:
            return await client.get(INFERENCE_PIPELINES, namespace, name)
    except NotFound as error:
        if f'"{name}"' in error.message:
            raise Failure(f"there is no {names.KIND} {name} in namespace {namespace}; --namespace names another", EXIT_USAGE) from error
        raise Failure(f"the cluster knows no {names.KIND}; install the operator, or its definition alone with `tritonpipe crd`") from error
    except LoginError as error:
        raise Failure(f"the cluster cannot be asked: {error.message}; --kubeconfig and --context choose another") from error
    except ClusterError as error:
        raise Failure(f"the cluster cannot be asked: {error}", EXIT_FAILED) from error


def show(pipeline: dict[str, Any], output: Console) -> None:
    """Print one pipeline's status as tables."""
    state = pipeline.get("status") or {}
    metadata = pipeline["metadata"]
    output.print(
        Text.assemble(
            (f"{metadata['namespace']}/{metadata['name']}", "bold"),
            f"  revision {state.get('revision', '-')} (serving {state.get('servingRevision', '-')})"
            f"  pods {state.get('readyReplicas', 0)}/{state.get('replicas', 0)}  tokenizers {state.get('tokenizer', {}).get('summary', '-')}",
        )
    )
    if not state.get("conditions"):
        output.print("no operator has looked at it yet: is one running that watches this namespace?")
    elif state.get("observedGeneration") != metadata.get("generation", state.get("observedGeneration")):
        output.print("the operator has not looked at its latest change yet; what follows is of an earlier one")
    conditions = [(item["type"], item["status"], item["reason"], item["message"]) for item in state.get("conditions") or ()]
    _table(output, ("condition", "status", "reason", "message"), conditions)
    steps = [
        (item["name"], item["modelName"], f"{item.get('readyPods', 0)}/{item.get('pods', 0)}", str(item.get("instances", "")), item.get("reason", ""))
        for item in state.get("steps") or ()
    ]
    _table(output, ("step", "model", "ready pods", "instances", "reason"), steps)
    for line in _lines(state):
        output.print(Text(line))


def _lines(state: dict[str, Any]) -> list[str]:
    """What stands below the tables, a line each."""
    lines = []
    ensemble = state.get("ensemble") or {}
    for kind in ("inputs", "outputs") if ensemble else ():
        tensors = ", ".join(f"{item['name']} {item['dataType']}{item['shape']}" for item in ensemble.get(kind) or ())
        lines.append(f"{ensemble['modelName']} {kind}: {tensors}")
    lines += [f"{protocol}: {address}" for protocol, address in (state.get("endpoints") or {}).items()]
    for item in state.get("sources") or ():
        lines.append(f"source of {item['step']}: {item['uri']} at {item.get('resolvedRevision', '-')} sha256 {item.get('sha256', '-')[:12]}")
    lines += [f"warning: {item['path']}: {item['message']}" for item in state.get("warnings") or ()]
    return lines


def _table(output: Console, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    output.print(table)
