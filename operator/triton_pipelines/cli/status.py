"""``tritonpipe status``: the status of pipelines as tables."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from kubernetes.aio.config import ConfigException, kube_config
from rich.console import Console
from rich.text import Text

from triton_pipelines.api import names
from triton_pipelines.api.conditions import condition_of
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.errors import ClusterError, NotFound
from triton_pipelines.cluster.login import LoginError, load_configuration
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES

from .errors import EXIT_FAILED, EXIT_NOT_READY, EXIT_USAGE, CommandError
from .option_groups import expand_options
from .output import console, printable, shorten
from .result_output import print_change, structured, table
from .shared_options import ClusterOptions, OutputFormat, PipelineName

DEFAULT_NAMESPACE = "default"
WATCH_SECONDS = 2.0
"""Interval of --watch."""


@expand_options
def status(
    cluster: ClusterOptions,
    name: PipelineName = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the current generation of the pipeline is ready."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Maximum time for --wait.")
    ] = 300.0,
) -> None:
    """Show the status of a pipeline: conditions, pods, steps, endpoints, sources and warnings.

    Without NAME, list all pipelines, one per line.

    Exit codes: 0 the pipeline is ready (or a list or a watch was printed), 1 it is not ready,
    2 it does not exist, 3 the cluster cannot be reached.
    """
    if wait and (name is None or cluster.watch):
        raise CommandError("--wait needs NAME and cannot be combined with --watch", EXIT_USAGE)
    query = pipeline_query(name, cluster)
    with exit_on_interrupt(cluster):
        if cluster.watch:
            asyncio.run(_watch(query, cluster.output))
            return
        pipelines = asyncio.run(_once(query, timeout if wait else None))
    typer.echo(_format(query, pipelines, cluster.output), nl=False)
    if name is not None and not is_ready(pipelines[0]):
        raise typer.Exit(EXIT_NOT_READY)


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """Which pipelines to read, and from which cluster."""

    namespace: str | None
    """``None``: all namespaces."""
    name: str | None
    """``None``: all pipelines."""
    kubeconfig: str | None
    """``None``: the default file."""
    context: str | None
    """``None``: the current context."""


def pipeline_query(name: str | None, cluster: ClusterOptions) -> StatusQuery:
    """Return which pipelines the options name.

    Raises:
        CommandError: a name in all namespaces is not one pipeline.
    """
    if name is not None and cluster.everywhere:
        raise CommandError("--all-namespaces cannot be combined with NAME; omit NAME", EXIT_USAGE)
    # Warnings of the client repeat what our own message says.
    logging.getLogger("kubernetes").setLevel(logging.ERROR)
    path = str(cluster.kubeconfig) if cluster.kubeconfig else None
    namespace = (
        None
        if cluster.everywhere
        else cluster.namespace or context_namespace(path, cluster.context)
    )
    return StatusQuery(namespace, name, path, cluster.context)


@contextlib.contextmanager
def exit_on_interrupt(cluster: ClusterOptions) -> Iterator[None]:
    """End the command on Ctrl-C, which is how a watch ends."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(0 if cluster.watch else 128 + signal.SIGINT) from None


async def _once(query: StatusQuery, wait_seconds: float | None) -> list[dict[str, Any]]:
    """Return the pipelines; with ``wait_seconds``, as soon as the pipeline is ready, or then."""
    async for pipelines in poll_pipelines(query, watch_seconds=wait_seconds or 0.0):
        if wait_seconds is None or is_ready(pipelines[0]):
            break
    return pipelines


async def _watch(query: StatusQuery, output: OutputFormat) -> None:
    shown = ""
    async for pipelines in poll_pipelines(query, watch_seconds=math.inf):
        text = _format(query, pipelines, output)
        shown = print_change(text, shown, output)


def is_ready(pipeline: dict[str, Any]) -> bool:
    """Return whether a pipeline is ready, by a status of its current generation."""
    state = pipeline.get("status") or {}
    generation = pipeline["metadata"].get("generation")
    is_current: bool = state.get("observedGeneration", generation) == generation
    return is_current and condition_of(state, "Ready").get("status") == "True"


def _format(query: StatusQuery, pipelines: list[dict[str, Any]], output: OutputFormat) -> str:
    states = [item.get("status") or {} for item in pipelines]
    document = (
        states[0]
        if query.name is not None
        else [
            {"metadata": _identity(item), "status": state}
            for item, state in zip(pipelines, states, strict=True)
        ]
    )
    if (text := structured(document, output)) is not None:
        return text
    page, pipelines = console(), printable(pipelines)
    wide = output is OutputFormat.WIDE
    with page.capture() as captured:
        if query.name is not None:
            print_status(pipelines[0], page)
        elif pipelines:
            _print_list(pipelines, page, everywhere=query.namespace is None, wide=wide)
        else:
            page.print(no_pipelines(query))
    return captured.get()


def no_pipelines(query: StatusQuery) -> str:
    """Return what is said about an empty list."""
    place = f"namespace {query.namespace}" if query.namespace else "any namespace"
    return f"no pipelines found in {place}"


def _identity(pipeline: dict[str, Any]) -> dict[str, Any]:
    return {key: pipeline["metadata"][key] for key in ("namespace", "name")}


def _print_list(
    pipelines: list[dict[str, Any]], page: Console, *, everywhere: bool, wide: bool
) -> None:
    rows = []
    for item in pipelines:
        state, metadata = item.get("status") or {}, item["metadata"]
        ready = condition_of(state, "Ready")
        rows.append(
            (
                *((metadata["namespace"],) if everywhere else ()),
                metadata["name"],
                ready.get("status", "-"),
                f"{state.get('readyReplicas', 0)}/{state.get('replicas', 0)}",
                (state.get("tokenizer") or {}).get("summary", "-"),
                state.get("revision", "-"),
                ready.get("reason", "-"),
                *((shorten(ready.get("message", "")),) if wide else ()),
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
            *(("message",) if wide else ()),
        ),
        rows,
    )


def context_namespace(kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace of a kubeconfig's context, as kubectl chooses it."""
    path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    try:
        contexts, current = kube_config.list_kube_config_contexts(  # type: ignore[no-untyped-call]
            config_file=path,
        )
    except (ConfigException, OSError):
        return DEFAULT_NAMESPACE  # no usable file; the connection reports it
    chosen = (
        current
        if context is None
        else next((item for item in contexts if item["name"] == context), None)
    )
    return str((chosen or {}).get("context", {}).get("namespace") or DEFAULT_NAMESPACE)


async def poll_pipelines(
    query: StatusQuery, *, watch_seconds: float = 0.0
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the pipelines once, and then repeatedly for ``watch_seconds``.

    A watch survives an API server that is unavailable for a while; it ends in time nevertheless.

    Raises:
        CommandError: no pipeline of that name, or the cluster cannot be reached.
    """
    first, end = True, time.monotonic() + watch_seconds
    try:
        # Checked first: the client treats a failed login as a file being rotated, and waits.
        await load_configuration(query.kubeconfig, query.context)
        async with Client(
            lambda: load_configuration(query.kubeconfig, query.context),
            ClientOptions(attempts=2, timeout_seconds=15.0),
        ) as client:
            while True:
                try:
                    yield await _read(client, query)
                except NotFound:
                    raise
                except ClusterError as error:
                    if first:
                        raise
                    typer.echo(f"cannot reach the cluster: {error}; retrying", err=True)
                first = False
                if (rest := end - time.monotonic()) <= 0:
                    break
                await asyncio.sleep(min(WATCH_SECONDS, rest))
    except NotFound as error:
        if query.name is not None and error.of_an_object:
            raise CommandError(
                f"{names.KIND} {query.name!r} does not exist in namespace "
                f"{query.namespace!r}; check the name, or choose another namespace with "
                "--namespace",
                EXIT_USAGE,
            ) from error
        raise CommandError(
            f"{names.KIND} is not installed in the cluster; install the operator, or install "
            "only the CRD (the output of `tritonpipe crd`)"
        ) from error
    except LoginError as error:
        raise CommandError(
            f"cannot reach the cluster: {error.message};"
            " specify another kubeconfig or context with --kubeconfig or --context"
        ) from error
    except ClusterError as error:
        raise CommandError(f"cannot reach the cluster: {error}", EXIT_FAILED) from error


async def _read(client: Client, query: StatusQuery) -> list[dict[str, Any]]:
    if query.name is not None:
        return [await client.get(INFERENCE_PIPELINES, query.namespace, query.name)]
    pipelines = (await client.list(INFERENCE_PIPELINES, query.namespace)).items
    return sorted(
        pipelines, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"])
    )


def print_status(pipeline: dict[str, Any], output: Console) -> None:
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
        output.print("no status yet; check that an operator is running and watches this namespace")
    elif state.get("observedGeneration") != metadata.get(
        "generation", state.get("observedGeneration")
    ):
        output.print(
            f"status is out of date: generation {metadata['generation']} has not been processed yet"
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
    for line in _detail_lines(state):
        output.print(Text(line))


def _detail_lines(state: dict[str, Any]) -> list[str]:
    """Return the lines below the tables: tensors, endpoints, sources, tuning, warnings."""
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
            f"source of {item['step']}: {item['uri']} at {item.get('resolvedRevision', '-')}"
            f" sha256 {item.get('sha256', '-')[:12]}"
        )
    tuning = state.get("tuning") or {}
    if tuning.get("state"):
        lines.append(
            f"tuning {tuning.get('request', '')!r}: {tuning['state']}: {tuning.get('message', '')}"
        )
        lines += [f"tuning advice: {tuning['advice']}"] if tuning.get("advice") else []
    lines += [f"warning: {item['path']}: {item['message']}" for item in state.get("warnings") or ()]
    return lines
