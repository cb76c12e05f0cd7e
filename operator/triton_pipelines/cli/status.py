"""``tritonpipe status``: what a pipeline's status says, for people."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
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

from .errors import EXIT_FAILED, EXIT_USAGE, Failure
from .output import console, shortened

DEFAULT_NAMESPACE = "default"
# Between two looks of --watch.
WATCH_SECONDS = 2.0


def status(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Name of the pipeline. Default: a line for each pipeline."
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Its namespace. Default: that of the kubeconfig's context.",
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Pipelines of all namespaces.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print it anew whenever it changes, until Ctrl-C.")
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="kubeconfig context. Default: the current one."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: KUBECONFIG, then ~/.kube/config.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the status as JSON; of several pipelines a list of them."
        ),
    ] = False,
) -> None:
    """Show how a pipeline is: conditions, pods, steps, endpoints, sources, warnings. Without NAME: a line for each pipeline.

    Exit code: 2 there is no such pipeline, 3 the cluster cannot be asked.
    """
    if name is not None and everywhere:
        raise Failure("--all-namespaces lists pipelines; leave NAME out", EXIT_USAGE)
    logging.getLogger("kubernetes").setLevel(
        logging.ERROR
    )  # what it warns of stands in our own message
    path = str(kubeconfig) if kubeconfig else None
    asked = Asked(
        None if everywhere else namespace or context_namespace(path, context), name, path, context
    )
    try:
        asyncio.run(_show(asked, watch=watch, as_json=as_json))
    except KeyboardInterrupt:
        # What a watch is ended by.
        raise typer.Exit(0 if watch else 128 + signal.SIGINT) from None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for: of one namespace or (``None``) of all, one pipeline or (``None``) every one; and where the cluster is."""

    namespace: str | None
    name: str | None
    kubeconfig: str | None
    context: str | None


async def _show(asked: Asked, *, watch: bool, as_json: bool) -> None:
    shown = ""
    async for found in looks(asked, watch=watch):
        text = _printed(asked, found, as_json=as_json)
        if text != shown:
            typer.echo(("" if as_json or not shown else "\n") + text, nl=False)
            shown = text


def _printed(asked: Asked, found: list[dict[str, Any]], *, as_json: bool) -> str:
    if as_json:
        states = [item.get("status") or {} for item in found]
        document = (
            states[0]
            if asked.name is not None
            else [
                {"metadata": _named(item), "status": state}
                for item, state in zip(found, states, strict=True)
            ]
        )
        return json.dumps(document, ensure_ascii=False) + "\n"
    page = console()
    with page.capture() as text:
        if asked.name is not None:
            show(found[0], page)
        elif found:
            _lines_of(found, page, everywhere=asked.namespace is None)
        else:
            page.print(
                f"there are no pipelines in {f'namespace {asked.namespace}' if asked.namespace else 'any namespace'}"
            )
    return text.get()


def _named(pipeline: dict[str, Any]) -> dict[str, Any]:
    return {key: pipeline["metadata"][key] for key in ("namespace", "name")}


def _lines_of(found: list[dict[str, Any]], page: Console, *, everywhere: bool) -> None:
    rows = []
    for item in found:
        state, metadata = item.get("status") or {}, item["metadata"]
        ready: dict[str, Any] = next(
            (one for one in state.get("conditions") or () if one["type"] == "Ready"), {}
        )
        rows.append(
            (
                *((metadata["namespace"],) if everywhere else ()),
                metadata["name"],
                ready.get("status", "-"),
                f"{state.get('readyReplicas', 0)}/{state.get('replicas', 0)}",
                (state.get("tokenizer") or {}).get("summary", "-"),
                state.get("revision", "-"),
                ready.get("reason", "-"),
                shortened(ready.get("message", "")),
            )
        )
    table(
        page,
        (
            *(("namespace",) if everywhere else ()),
            "name",
            "ready",
            "pods",
            "tokenizers",
            "revision",
            "reason",
            "message",
        ),
        rows,
    )


def context_namespace(kubeconfig: str | None, context: str | None) -> str:
    """The namespace of a kubeconfig's context, as kubectl takes it; ``default`` where none is named."""
    path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    try:
        contexts, current = kube_config.list_kube_config_contexts(config_file=path)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError):
        return DEFAULT_NAMESPACE  # there is no usable file: what asks the cluster says so
    chosen = (
        current
        if context is None
        else next((item for item in contexts if item["name"] == context), None)
    )
    return str((chosen or {}).get("context", {}).get("namespace") or DEFAULT_NAMESPACE)


async def looks(asked: Asked, *, watch: bool) -> AsyncIterator[list[dict[str, Any]]]:
    """What the cluster says now, and with ``watch`` again and again; an API server that is away meanwhile is waited for."""
    first = True
    try:
        # Tried first, since the client takes a failed login for a file in mid-rotation and waits.
        await load_configuration(asked.kubeconfig, asked.context)
        async with Client(
            lambda: load_configuration(asked.kubeconfig, asked.context),
            ClientOptions(attempts=2, timeout_seconds=15.0),
        ) as client:
            while first or watch:
                try:
                    yield await _look(client, asked)
                except NotFound:
                    raise
                except ClusterError as error:
                    if first:
                        raise
                    typer.echo(f"the cluster cannot be asked: {error}; trying again", err=True)
                first = False
                if watch:
                    await asyncio.sleep(WATCH_SECONDS)
    except NotFound as error:
        if asked.name is not None and f'"{asked.name}"' in error.message:
            raise Failure(
                f"there is no {names.KIND} {asked.name} in namespace {asked.namespace}; --namespace names another",
                EXIT_USAGE,
            ) from error
        raise Failure(
            f"the cluster knows no {names.KIND}; install the operator, or its definition alone with `tritonpipe crd`"
        ) from error
    except LoginError as error:
        raise Failure(
            f"the cluster cannot be asked: {error.message}; --kubeconfig and --context choose another"
        ) from error
    except ClusterError as error:
        raise Failure(f"the cluster cannot be asked: {error}", EXIT_FAILED) from error


async def _look(client: Client, asked: Asked) -> list[dict[str, Any]]:
    if asked.name is not None:
        return [await client.get(INFERENCE_PIPELINES, asked.namespace, asked.name)]
    found = (await client.list(INFERENCE_PIPELINES, asked.namespace)).items
    return sorted(found, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))


def show(pipeline: dict[str, Any], output: Console) -> None:
    """Print one pipeline's status as tables."""
    state = pipeline.get("status") or {}
    metadata = pipeline["metadata"]
    output.print(
        Text.assemble(
            (f"{metadata['namespace']}/{metadata['name']}", "bold"),
            f"  revision {state.get('revision', '-')} (serving {state.get('servingRevision', '-')})"
            f"  pods {state.get('readyReplicas', 0)}/{state.get('replicas', 0)}",
            f"  tokenizers {state['tokenizer'].get('summary', '-')}"
            if state.get("tokenizer")
            else "",
        )
    )
    if not state.get("conditions"):
        output.print(
            "no operator has looked at it yet: is one running that watches this namespace?"
        )
    elif state.get("observedGeneration") != metadata.get(
        "generation", state.get("observedGeneration")
    ):
        output.print(
            "the operator has not looked at its latest change yet; what follows is of an earlier one"
        )
    conditions = [
        (item["type"], item["status"], item["reason"], item["message"])
        for item in state.get("conditions") or ()
    ]
    table(output, ("condition", "status", "reason", "message"), conditions)
    steps = [
        (
            item["name"],
            item["modelName"],
            f"{item.get('readyPods', 0)}/{item.get('pods', 0)}",
            str(item.get("instances", "")),
            item.get("verdict", ""),
            item.get("reason", ""),
        )
        for item in state.get("steps") or ()
    ]
    table(output, ("step", "model", "ready pods", "instances", "verdict", "reason"), steps)
    for line in _lines(state):
        output.print(Text(line))


def _lines(state: dict[str, Any]) -> list[str]:
    """What stands below the tables, a line each."""
    lines = []
    ensemble = state.get("ensemble") or {}
    for kind in ("inputs", "outputs") if ensemble else ():
        tensors = ", ".join(
            f"{item['name']} {item['dataType']}{item['shape']}" for item in ensemble.get(kind) or ()
        )
        lines.append(f"{ensemble['modelName']} {kind}: {tensors}")
    lines += [
        f"{protocol}: {address}" for protocol, address in (state.get("endpoints") or {}).items()
    ]
    for item in state.get("sources") or ():
        lines.append(
            f"source of {item['step']}: {item['uri']} at {item.get('resolvedRevision', '-')} sha256 {item.get('sha256', '-')[:12]}"
        )
    tuning = state.get("tuning") or {}
    if tuning.get("state"):
        lines.append(
            f"tuning {tuning.get('request', '')!r}: {tuning['state']}: {tuning.get('message', '')}"
        )
        lines += [f"tuning advice: {tuning['advice']}"] if tuning.get("advice") else []
    lines += [f"warning: {item['path']}: {item['message']}" for item in state.get("warnings") or ()]
    return lines


def table(output: Console, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under columns; nothing where there are none."""
    if not rows:
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    output.print(table)
