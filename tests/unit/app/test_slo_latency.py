"""The SLO latency monitor: which pods it reads and what it publishes. The reader is simulated."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any, Self

from tests.support import builders, ownership
from tests.support.simulated_nodes import ready_status
from triton_pipelines.api import names
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.autoscaling.metrics.latency_reader import ModelLatency
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.current_specs import CurrentSpecs
from triton_pipelines.controllers.failure_log import FailureLog
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.latency_figures import RevisionLatency
from triton_pipelines.controllers.slo_latency import TICK_SECONDS, SloLatencyMonitor

KEY = ("nlp", "sentiment")
START = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@dataclass
class Told:
    """A reader that says what it is told to."""

    says: ModelLatency | str = "nothing"
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None: ...

    async def read(self, address: str, model: str, namespace: str) -> ModelLatency | str:
        self.asked.append((address, model))
        return self.says


@dataclass
class Stage:
    """One pipeline with a promise and one pod."""

    reader: Told = field(default_factory=Told)
    now: dt.datetime = START
    dues: list[tuple[str, str]] = field(default_factory=list)
    version: int = 0

    def __post_init__(self) -> None:
        failures = FailureLog("failed", OperatorMetrics().monitor_errors)
        handover = Handover()
        self.watch = SloLatencyMonitor(
            Store(),
            self.reader,
            lambda: self.now,
            self.dues.append,
            handover,
            CurrentSpecs(handover),
            failures,
        )

    def put(self, resource: Any, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.watch.store.put(resource, item)

    def pipeline(self, **spec: Any) -> None:
        document = builders.document(**spec)
        document["metadata"]["generation"] = self.version
        self.put(INFERENCE_PIPELINES, document)
        deployment = ownership.deployment(document)
        self.replica_set = ownership.replica_set(deployment, "hash")
        self.put(DEPLOYMENTS, deployment)
        self.watch.handover.replica_sets[KEY] = ownership.read(self.replica_set)

    def pod(self, restarts: int = 0, revision: str = "0123456789") -> None:
        labels = {**names.labels("sentiment"), names.LABEL_REVISION: revision}
        pod: dict[str, Any] = {
            "metadata": {"name": "p", "namespace": "nlp", "uid": "u", "labels": labels}
        }
        pod = ownership.controlled_pod(pod, self.replica_set)
        pod["status"] = ready_status(pod)
        pod["status"]["containerStatuses"][0]["restartCount"] = restarts
        self.put(PODS, pod)

    async def look(self, times: int, p99: float = 50.0, rate: float = 10.0) -> None:
        for _ in range(times):
            self.now += dt.timedelta(seconds=TICK_SECONDS)
            self.reader.says = ModelLatency(p99, (self.now - START).total_seconds() * rate)
            await self.watch.tick()


def staged(**spec: Any) -> Stage:
    stage = Stage()
    stage.pipeline(**({"slo": {"p99Milliseconds": 100}} | spec))
    stage.pod()
    return stage


async def test_a_revision_gets_its_figure_after_a_while() -> None:
    stage = staged(ensemble={"modelName": "public"})
    assert stage.watch.handover.latencies.get(KEY) is None
    await stage.look(5)
    assert (known := stage.watch.handover.latencies.get(KEY)) is not None
    assert known.figures == {}
    await stage.look(1)
    assert (known := stage.watch.handover.latencies.get(KEY)) is not None
    assert known.figures == {"0123456789": RevisionLatency(50.0, 50.0, 10.0)}
    assert set(stage.reader.asked) == {("10.0.0.1:8002", "public")}


async def test_only_promises_are_looked_at() -> None:
    stage = staged(slo=None)
    await stage.look(2)
    assert stage.reader.asked == []
    assert stage.watch.handover.latencies.get(KEY) is None


async def test_a_restart_of_the_server_starts_over() -> None:
    stage = staged()
    await stage.look(6)
    stage.pod(restarts=1)
    await stage.look(5)
    assert (known := stage.watch.handover.latencies.get(KEY)) is not None
    assert known.figures == {}


async def test_what_cannot_be_read_is_told_once_and_makes_a_gap() -> None:
    stage = staged()
    await stage.look(6)
    stage.dues.clear()
    stage.reader.says = "cannot be read"
    for _ in range(3):
        await stage.watch.tick()
    assert (known := stage.watch.handover.latencies.get(KEY)) is not None
    assert (known.figures, known.missing) == ({}, {"0123456789": "cannot be read"})
    assert stage.dues == [KEY]
    await stage.look(1)
    assert (known := stage.watch.handover.latencies.get(KEY)) is not None
    assert known.missing == {}
    assert stage.dues == [KEY, KEY]


async def test_what_is_gone_is_forgotten() -> None:
    stage = staged()
    await stage.look(6)
    stage.watch.store.remove(PODS, "nlp", "p")
    await stage.look(1)
    assert stage.watch.handover.latencies.get(KEY) is None
    stage.watch.store.remove(INFERENCE_PIPELINES, *KEY)
    await stage.look(1)
    assert stage.watch.specs._known == {}
