"""The operator in this process, on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from e2e.local.processes import free_port
from tests.support.faultproxy import FaultProxy
from triton_pipelines.api import names
from triton_pipelines.app import composition
from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.main import run_operator
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.app.services import Build, Reconcile, Services
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError, NotFound
from triton_pipelines.cluster.resources import Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.autoscaler.controller import Autoscaler
from triton_pipelines.controllers.pipeline.pod_probes import Prober, ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import (
    ModelState,
    Probe,
)
from triton_pipelines.controllers.slo_latency import SloLatencyMonitor

DEADLINE_SECONDS = 60.0
"""For what takes a second or two, on a machine that is busy with other things."""
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)
CRD_FILE = Path(__file__).parents[2] / "crds" / f"{names.PLURAL}.{names.GROUP}.yaml"
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


async def eventually(
    what: str,
    condition: Callable[[], Any],
    deadline: float = DEADLINE_SECONDS,
    *,
    every: float = 0.05,
) -> Any:
    """Wait until a condition returns something true, and return that.

    The condition is a function, awaited if necessary. ``every`` is the interval between checks in
    seconds.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline
    while True:
        with contextlib.suppress(NotFound, httpx.ConnectError):
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
        assert loop.time() < end, f"not within {deadline} s: {what}"
        await asyncio.sleep(every)


async def apply_any(
    client: Client, resource: Resource, item: Object, manager: str = "test"
) -> Object:
    """Server-side apply of a kind that the operator itself never writes."""
    path = resource.path(item["metadata"].get("namespace"), item["metadata"]["name"])
    query = {"fieldManager": manager, "force": "true"}
    return await client._transport.send(
        "apply",
        "PATCH",
        resource,
        path,
        query=query,
        body=item,
        content_type=APPLY,
        repeatable=True,
    )


async def patch(
    client: Client,
    resource: Resource,
    namespace: str,
    name: str,
    body: Mapping[str, Any],
    subresource: str | None = None,
) -> Object:
    """JSON merge patch, as by hand."""
    path = resource.path(namespace, name, subresource)
    return await client._transport.send(
        "patch", "PATCH", resource, path, body=dict(body), content_type=MERGE, repeatable=True
    )


async def make_namespace(client: Client, name: str) -> str:
    """A namespace."""
    await apply_any(
        client, NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    return name


# --- the operator ---------------------------------------------------------------------------------


async def healthy(target: ProbeTarget, now: Any) -> Probe:
    """A simulated prober for which every pod answers well."""
    states = tuple(ModelState(step.model_name, "READY") for step in target.graph.steps)
    return Probe(now, True, states, inference_error=None if target.example is None else "")


@dataclass
class Running:
    """A running operator, with what it counted."""

    config: OperatorConfig
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    prober: Prober = healthy
    services: Services | None = None
    scaler: Autoscaler | None = None
    watch: SloLatencyMonitor | None = None

    @property
    def store(self) -> Store:
        """The operator's caches."""
        assert self.services is not None
        return self.services.store

    def build(self, services: Services) -> Reconcile:
        """The product's own wiring but for the prober, since no Triton runs here."""
        self.services = services
        parts = composition.build_parts(services, self.prober)
        self.scaler = parts.autoscaler
        self.watch = parts.latency_monitor
        return composition.start(parts, services)

    def samples(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Samples of one metric, by sorted labels."""
        found = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == f"tritonpipe_{name}":
                    found[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def passes(self) -> float:
        """Passes so far, however they ended."""
        return sum(self.samples("reconciles_total").values())


@contextlib.asynccontextmanager
async def operator(
    proxy: FaultProxy,
    folder: Path,
    *namespaces: str,
    prober: Prober = healthy,
    build: Build | None = None,
    **options: Any,
) -> AsyncIterator[Running]:
    """The operator behind a proxy, up and with its caches filled; ended gracefully.

    Args:
        proxy: its way to the API server.
        folder: for its key and kubeconfig.
        namespaces: where it works; none: everywhere.
        prober: stands in for the one that asks Triton.
        build: instead of the product's wiring.
        options: of ``OperatorConfig``.
    """
    key_file = folder / "key"
    key_file.write_text("k" * 64)
    defaults = {
        "kubeconfig": str(proxy.write_kubeconfig(folder / "kubeconfig")),
        "namespaces": namespaces,
        "metrics_host": "127.0.0.1",
        "metrics_port": 0,
        "liveness_host": "127.0.0.1",
        "liveness_port": free_port(),
        "operator_key_file": key_file,
        "shutdown_seconds": 5,
    }
    running = Running(OperatorConfig(**(defaults | options)), prober=prober)
    task = asyncio.create_task(
        run_operator(
            running.config,
            build or running.build,
            stop=running.stop,
            ready=running.ready,
            metrics=running.metrics,
        )
    )
    waiting = asyncio.create_task(running.ready.wait())
    try:
        await asyncio.wait(
            {task, waiting}, timeout=DEADLINE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        assert running.ready.is_set(), "the operator did not get ready"
        yield running
    finally:
        waiting.cancel()
        running.stop.set()
        await asyncio.wait_for(task, DEADLINE_SECONDS)


@contextlib.asynccontextmanager
async def repeated(
    *steps: Callable[[], Awaitable[object]], every: float = 0.1
) -> AsyncIterator[None]:
    """Run steps repeatedly next to the body, with pauses of ``every`` seconds.

    An error in a step fails the body.
    """

    async def loop() -> None:
        while True:
            for step in steps:
                with contextlib.suppress(ClusterError):
                    await step()
            await asyncio.sleep(every)

    task = asyncio.create_task(loop())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- comparison -----------------------------------------------------------------------------------


def essence(items: list[Object], **replaced: str) -> dict[tuple[str, str], Object]:
    """Return objects by kind and name, without server and clock fields.

    Placeholders replace the texts in ``replaced``.

    Args:
        items: raw objects.
        replaced: placeholder → the text that it stands for (revisions, namespaces, UIDs).
    """
    found: dict[tuple[str, str], Object] = {}
    for item in items:
        metadata = item["metadata"]
        kept = {
            key: metadata[key]
            for key in ("name", "labels", "annotations", "ownerReferences")
            if key in metadata
        }
        text = json.dumps(
            {**{key: value for key, value in item.items() if key != "status"}, "metadata": kept},
            sort_keys=True,
        )
        for placeholder, word in replaced.items():
            text = text.replace(word, placeholder)
        result = json.loads(text)
        for given in ("clusterIP", "clusterIPs"):
            result.get("spec", {}).pop(given, None)
        found[item["kind"], result["metadata"]["name"]] = result
    return found


def without_clock(status: Mapping[str, Any]) -> Object:
    """A status without its times."""
    conditions = [
        {key: value for key, value in item.items() if key != "lastTransitionTime"}
        for item in status.get("conditions", [])
    ]
    return {**status, "conditions": conditions}
