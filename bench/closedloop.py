"""Run the operator's scaling loop against a real Triton under load.

The loop, collectors, decision and actuator are the operator's own. One tritonserver is the pod,
with the repository that the loader prepares. If Prometheus is requested, a real one scrapes it. The
benchmark fills the operator's caches itself and writes recorded counts back at once, which an API
server would do within milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from bench import real_step
from e2e.load.bins import Answer, Second, second, with_answers
from e2e.load.prepared import PreparedLoad, prepared_load
from e2e.load.workloads import Workload, write
from e2e.local import native
from e2e.models import tree
from e2e.models.__main__ import source_map
from e2e.suite.pipelines import merged
from tests.support import ownership
from tests.support.prometheus import PrometheusServer
from tests.support.prometheus import Target as Scraped
from tests.support.simulated_nodes import ready_status
from triton_pipelines.api import names
from triton_pipelines.autoscaling.metrics.collector import PrometheusCollector
from triton_pipelines.autoscaling.metrics.connection import Connection
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.metrics_page import parse_metrics_page
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    PipelineSample,
    Scrape,
)
from triton_pipelines.cli.documents import load_pipeline
from triton_pipelines.cli.local_pipeline import (
    CPU_FALLBACK_PLATFORMS,
    prepare_model_repository,
    with_cpu_instances,
)
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    PODS,
)
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph import Graph, Options
from triton_pipelines.compile.graph.advisories import server_image
from triton_pipelines.compile.graph.example_request import ExampleRequest, example_of
from triton_pipelines.compile.render import render
from triton_pipelines.controllers.autoscaler.actuator import PodTarget, change_count
from triton_pipelines.controllers.autoscaler.controller import Autoscaler
from triton_pipelines.controllers.autoscaler.pipeline_state import config_with
from triton_pipelines.controllers.autoscaler.sample_collection import Collector
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.autoscaler.triton_pod import TritonPod
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.prober import probe_pod
from triton_pipelines.controllers.pipeline.snapshot import Pod
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.local_server import LocalTriton

SPACE, POD, KEY = "bench", "pod-0", "key of the benchmark"
TEMPLATE_HASH = "template"
UID = "00000000-0000-0000-0000-000000000001"
DIRECT, PROMETHEUS = "direct", "Prometheus"
SOURCES = (PROMETHEUS, DIRECT)
SCRAPE_SECONDS = 5.0
STABILIZATION_SECONDS = 30
"""Of the benchmarks, so that a run with its way down takes minutes and not a quarter of an hour;
the product's default is 180.
"""
STAND_INS = (
    "Triton runs on the loopback interface instead of in a pod",
    "the benchmark fills the operator's caches; there is no API server",
)
DRAIN_SECONDS = 30.0
QUIET_SECONDS = 2.0
"""Without an answer for so long, nothing is under way any more."""
_numbers = itertools.count(1)


@dataclass
class Place:
    """A pipeline that is served and looked after.

    Attributes:
        workload: what it is.
        triton: its only pod.
        graph: as rendered.
        pod: the same as the API server would have it.
        config: of the scaled step, as rendered.
        example: a request that the pipeline answers.
        scaler: the operator's loop; `None` where nobody looks after the counts.
        seconds: what was measured so far.
    """

    workload: Workload
    triton: LocalTriton
    graph: Graph
    pod: dict[str, Any]
    config: str
    example: ExampleRequest | None
    scaler: Autoscaler | None = None
    seconds: list[Second] = field(default_factory=list)
    _load: PreparedLoad | None = None
    _client: TritonClient | None = None
    _taken: int = 0

    @property
    def load(self) -> PreparedLoad:
        """The load on it."""
        assert self._load is not None
        return self._load

    async def count(self) -> int:
        """Instances of the scaled step, as Triton tells them."""
        return await self.client.instance_count(self.workload.step)

    async def change(self, count: int) -> None:
        """Change the count in place by the operator's actuator, proof included, past the loop."""
        control = TritonPod(
            ProbeTarget(Pod.of(self.pod), self.graph, KEY, self.example),
            probe_pod,
            lambda: dt.datetime.now(dt.UTC),
        )
        target = PodTarget(POD, control, config_with(self.config), await self.count())
        outcome = await change_count(self.workload.step, self.graph.model_name, count, [target])
        if not outcome.is_verified:
            raise RuntimeError(
                f"{self.workload.step} did not get {count} instances: {outcome.reason}"
            )

    @property
    def client(self) -> TritonClient:
        """A client of the pod, with its control key."""
        assert self._client is not None
        return self._client

    async def during(self, seconds: float, rate: float) -> Sequence[Second]:
        """Load at `rate` requests/s for so long; what was measured meanwhile, second by second.

        Whole seconds.
        """
        first, began = len(self.seconds), time.monotonic()
        self.load.rate(rate)
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            before = await self._look(client)
            for number in range(1, int(seconds) + 1):
                await asyncio.sleep(max(0.0, began + number - time.monotonic()))
                after = await self._look(client)
                self.seconds.append(await self._second(before, after))
                before = after
        return self.seconds[first:]

    async def answers(self) -> Sequence[Answer]:
        """All requests; none is sent any more, and those under way have ended."""
        self.load.rate(0)
        end, known = time.monotonic() + DRAIN_SECONDS, -1
        while time.monotonic() < end and known < len(self.load.answers):
            known = len(self.load.answers)
            await asyncio.sleep(QUIET_SECONDS)
        return self.load.since(0)

    async def sample(self) -> PipelineSample | MetricsFailure:
        """What the loop's source knows of the pod now."""
        assert self.scaler is not None
        models = frozenset(step.model_name for step in self.graph.steps)
        expected = ExpectedPods(
            SPACE, {POD: f"{self.triton.address}:{self.triton.metrics_port}"}, models, 60.0
        )
        collector = self.scaler.collectors.get("default") or self.scaler.collectors[""]
        return (await collector.collect({(SPACE, self.workload.model): expected}))[
            SPACE, self.workload.model
        ]

    async def _look(self, client: httpx.AsyncClient) -> Scrape:
        text = (await client.get(self.triton.metrics_url)).raise_for_status().text
        return parse_metrics_page(text, time.monotonic())[0]

    async def _second(self, before: Scrape, after: Scrape) -> Second:
        gpu = next(step for step in self.graph.steps if step.name == "model")
        found = second(
            before,
            after,
            step=self.workload.step,
            gpu=gpu.model_name,
            count=await self.count(),
            gpu_instances=gpu.instances.counts.initial,
        )
        answers = self.load.since(self._taken)
        self._taken += len(answers)
        view = (
            self.scaler.handover.view((SPACE, self.workload.model))
            if self.scaler is not None
            else None
        )
        verdict = str(view.decision.verdict) if view is not None else ""
        return replace(with_answers(found, answers), verdict=verdict)


@contextlib.asynccontextmanager
async def place(
    workload: Workload,
    source: str | None,
    *,
    seed: int = 1,
    baseline: Callable[[Place], Coroutine[Any, Any, None]] | None = None,
) -> AsyncIterator[Place]:
    """A workload, served.

    Args:
        workload: what is served.
        source: where its loop reads from (`DIRECT`, `PROMETHEUS`); `None`: no loop, its counts stay
            as they are made.
        seed: of the load's times.
        baseline: runs in place of the operator's loop, until it is cancelled.
    """
    with tempfile.TemporaryDirectory(prefix="tritonpipe-bench-") as scratch:
        folder = Path(scratch)
        quick = {
            "spec": {"scaling": {"scaleDown": {"stabilizationSeconds": STABILIZATION_SECONDS}}}
        }
        identity = {"metadata": {"namespace": SPACE, "uid": UID, "generation": 1}}
        document = merged(merged(workload.document, quick), identity)
        mapped = SourceMap.parse(
            rule.removeprefix("--source-map=")
            for rule in source_map(
                real_step.files(folder / "files") if real_step.is_real() else tree.build()
            )
        )
        options = Options(
            models_path=str(folder / "models"),
            engines_path=str(folder / "engines"),
            substitute_runner=frozenset(CPU_FALLBACK_PLATFORMS),
        )
        native.install()
        pipeline, graph = load_pipeline(write(document, folder / "pipeline.yaml"), options)
        served = with_cpu_instances(graph)
        if real_step.is_real():
            served = real_step.placed(served, "model")
        revision = render(pipeline, served, options)
        models = prepare_model_repository(pipeline, served, options, folder, folder, mapped)
        address = f"127.78.{os.getpid() % 250 + 1}.{next(_numbers)}"
        triton = LocalTriton(
            models,
            list(graph.load),
            control_key=KEY,
            address=address,
            http_port=names.PORT_HTTP,
            grpc_port=names.PORT_GRPC,
            metrics_port=names.PORT_METRICS,
            stop_s=1,
            log_file=folder / "triton.log",
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(triton)
            client = await stack.enter_async_context(TritonClient(triton.grpc_address, KEY))
            store, pod = _caches(document, revision.name, dict(revision.data), triton.address)
            config = (models / workload.step / "config.pbtxt").read_text(encoding="utf-8")
            made = Place(
                workload, triton, graph, pod, config, example_of(pipeline, graph), _client=client
            )
            if source is not None:
                image = server_image(pipeline, graph, options)
                made.scaler = await _scaler(
                    stack, store, EffectiveSpec(UID, pipeline, graph, image), triton, source
                )
                running = asyncio.create_task(
                    made.scaler.run() if baseline is None else baseline(made)
                )
                stack.push_async_callback(_ended, running)
            requests = await asyncio.to_thread(workload.requests)
            made._load = stack.enter_context(
                prepared_load(triton.grpc_address, requests, seed=seed)
            )
            yield made


async def _scaler(
    stack: contextlib.AsyncExitStack,
    store: Store,
    going: EffectiveSpec,
    triton: LocalTriton,
    source: str,
) -> Autoscaler:
    collectors: dict[str, Collector] = {"": await stack.enter_async_context(DirectReader())}
    if source == PROMETHEUS:
        target = Scraped(
            f"{triton.address}:{triton.metrics_port}", {"namespace": SPACE, "pod": POD}
        )
        server = stack.enter_context(PrometheusServer([target], interval=SCRAPE_SECONDS))
        collectors["default"] = await stack.enter_async_context(
            PrometheusCollector(Connection(name="default", url=server.url))
        )

    def record(key: tuple[str, str]) -> None:
        """The reconcile pass's part: what is intended is recorded."""
        intent, name = scaler.handover.intent(key), going.pipeline.name
        if intent is not None:
            store.put(
                CONFIG_MAPS,
                _config_map(
                    names.live_name(name),
                    name,
                    {
                        names.KEY_COUNTS: json.dumps(dict(intent.counts)),
                        names.KEY_SCALING: intent.scaling_state_json,
                    },
                ),
            )

    key = (SPACE, going.pipeline.name)
    deployment = store.get(DEPLOYMENTS, *key)
    assert deployment is not None, "the caches are filled first"
    known = ownership.read(ownership.replica_set(deployment, TEMPLATE_HASH))
    handover = Handover(effective_specs={key: going}, replica_sets={key: known})
    scaler = Autoscaler(
        store=store,
        derive=lambda uid, revision: KEY,
        prober=probe_pod,
        collectors=collectors,
        clock=lambda: dt.datetime.now(dt.UTC),
        enqueue=record,
        metrics=ScalingMetrics(CollectorRegistry()),
        handover=handover,
    )
    return scaler


_versions = itertools.count(1)


def _config_map(name: str, pipeline: str, data: Mapping[str, str]) -> dict[str, Any]:
    labels = {names.LABEL_PIPELINE: pipeline}
    metadata = {
        "name": name,
        "namespace": SPACE,
        "uid": name,
        "resourceVersion": str(next(_versions)),
        "labels": labels,
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def _caches(
    document: dict[str, Any], revision: str, data: dict[str, str], address: str
) -> tuple[Store, dict[str, Any]]:
    """What the watches would have told, the pipeline, its ConfigMaps and its pod; and the pod."""
    name = document["metadata"]["name"]
    store = Store()
    store.put(
        INFERENCE_PIPELINES,
        {**document, "metadata": {**document["metadata"], "resourceVersion": str(next(_versions))}},
    )
    store.put(CONFIG_MAPS, _config_map(names.revision_name(name, revision), name, data))
    store.put(CONFIG_MAPS, _config_map(names.live_name(name), name, {}))
    deployment = ownership.deployment(document)
    store.put(DEPLOYMENTS, deployment)
    labels = {names.LABEL_PIPELINE: name, names.LABEL_REVISION: revision}
    pod: dict[str, Any] = {
        "metadata": {
            "name": POD,
            "namespace": SPACE,
            "uid": POD,
            "resourceVersion": str(next(_versions)),
            "labels": labels,
        }
    }
    pod = ownership.controlled_pod(pod, ownership.replica_set(deployment, TEMPLATE_HASH))
    status = ready_status(pod) | {"podIP": address, "podIPs": [{"ip": address}]}
    pod["status"] = status
    store.put(PODS, pod)
    return store, pod


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
