"""An error of one pipeline does not affect others, and nothing of a deleted pipeline is kept."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from structlog.testing import capture_logs

from tests.support import builders, ownership
from tests.support.loops import loop_of
from tests.support.reconcilers import AcceptingClient, ready_pod
from tests.support.worlds import World
from tests.unit.app.test_monitoring_objects import watching
from tests.unit.app.test_slo_latency import KEY, Stage, Told, staged
from triton_pipelines.api import names
from triton_pipelines.app.composition import OperatorParts, build_parts
from triton_pipelines.app.config import load_config
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.app.services import Services
from triton_pipelines.autoscaling.metrics.latency_reader import ModelLatency
from triton_pipelines.cluster.client import Client, Object, ObjectList
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    PODS,
    Resource,
)
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.autoscaler import controller
from triton_pipelines.controllers.failure_log import LOG_SECONDS, NO_PIPELINE, FailureLog
from triton_pipelines.controllers.pipeline.actions import ApplyStage
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import Pod, Probe

OTHER = ("nlp", "other")


def failures(counter: Counter) -> dict[tuple[str, str], float]:
    """Pipeline and kind → count of a counter's errors."""
    (family,) = counter.collect()
    return {
        (sample.labels["pipeline"], sample.labels["kind"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }


# --- the log --------------------------------------------------------------------------------------


async def test_errors_are_counted_all_and_logged_seldom() -> None:
    counter = Counter("e", "e", ("namespace", "pipeline", "kind"), registry=CollectorRegistry())
    now = 0.0
    log = FailureLog("failed", counter, lambda: now)
    with capture_logs() as lines:
        for text in ("first", "first", "second"):
            await log.report(KEY, "Kind", ValueError(text))
        now = LOG_SECONDS
        await log.report(KEY, "Kind", ValueError("first"))
        assert [line["error"] for line in lines] == ["first"], "what recurs is logged once"
        for number in range(100):
            await log.report(KEY, "Kind", ValueError(f"error {number}"))
        assert [line["error"] for line in lines] == ["first", "error 0"]
        await log.report(OTHER, "Kind", ValueError("x" * 10_000))
    assert len(lines[-1]["error"]) == 1000
    assert failures(counter) == {(KEY[1], "Kind"): 104.0, (OTHER[1], "Kind"): 1.0}
    await log.report(NO_PIPELINE, "Kind", ValueError("round"))
    log.keep([OTHER])
    assert failures(counter) == {("", "Kind"): 1.0, (OTHER[1], "Kind"): 1.0}
    assert log.pipelines == {OTHER}
    assert not log.forget(KEY)


# --- the loops ------------------------------------------------------------------------------------


def with_other(stage: Stage) -> Stage:
    """A second pipeline with an SLO and one pod of its own."""
    document = builders.document(name=OTHER[1], slo={"p99Milliseconds": 100})
    document["metadata"] |= {"uid": "other", "generation": 1}
    deployment = ownership.deployment(document)
    replica_set = ownership.replica_set(deployment, "hash")
    for resource, item in ((INFERENCE_PIPELINES, document), (DEPLOYMENTS, deployment)):
        stage.put(resource, item)
    stage.watch.handover.replica_sets[OTHER] = ownership.read(replica_set)
    (pod,) = stage.watch.store.children(PODS, KEY)
    pod = ownership.controlled_pod(copy.deepcopy(pod), replica_set)
    pod["metadata"] |= {"name": "other-pod", "uid": "other-pod"}
    pod["metadata"]["labels"] |= names.labels(OTHER[1])
    pod["status"]["podIP"] = "10.0.0.2"
    stage.put(PODS, pod)
    return stage


class FailingReader(Told):
    """Fails unexpectedly for one pod."""

    async def read(self, address: str, model: str, namespace: str) -> ModelLatency | str:
        if address.startswith("10.0.0.2"):
            raise RuntimeError("a bug")
        return await super().read(address, model, namespace)


async def test_latencies_are_read_though_the_read_of_another_pipeline_fails() -> None:
    stage = with_other(staged())
    stage.watch.reader = stage.reader = FailingReader()
    with capture_logs() as lines:
        await stage.look(6)
    known = stage.watch.handover.latencies
    assert known[KEY].figures
    assert known[OTHER].figures == {}
    assert "unexpected error" in next(iter(known[OTHER].missing.values()))
    assert failures(stage.watch.failures.counter) == {(OTHER[1], "Latency"): 6.0}
    assert [line["pipeline"] for line in lines if line["log_level"] == "error"] == [OTHER[1]]


class HangingReader(Told):
    """Never gets an answer from one pod."""

    async def read(self, address: str, model: str, namespace: str) -> ModelLatency | str:
        if address.startswith("10.0.0.2"):
            await asyncio.Event().wait()
        return await super().read(address, model, namespace)


async def test_latencies_are_read_though_a_pod_of_another_pipeline_hangs() -> None:
    stage = with_other(staged())
    stage.watch.reader = stage.reader = HangingReader()
    stage.watch._reads.patience = 0.01
    await stage.look(6)
    assert stage.watch.handover.latencies[KEY].figures
    assert OTHER not in stage.watch.handover.latencies
    stage.watch._reads.cancel()


async def test_latencies_are_read_though_another_pipeline_cannot_be_observed() -> None:
    stage = with_other(staged())
    (pod,) = copy.deepcopy(stage.watch.store.children(PODS, OTHER))
    stage.put(PODS, {**pod, "status": {"conditions": ["broken"]}})
    await stage.look(6)
    assert stage.watch.handover.latencies[KEY].figures
    assert OTHER not in stage.watch.handover.latencies
    assert failures(stage.watch.failures.counter) == {(OTHER[1], "Latency"): 6.0}
    stage.watch.store.remove(INFERENCE_PIPELINES, *OTHER)
    await stage.look(1)
    assert failures(stage.watch.failures.counter) == {}


async def test_monitoring_objects_are_applied_though_another_pipeline_fails() -> None:
    monitors, server, _ = watching(podMonitor="Enabled")
    document = copy.deepcopy(monitors.store.get(INFERENCE_PIPELINES, *KEY))
    assert document is not None
    document["metadata"] |= {"name": "a-broken-one", "uid": "broken", "annotations": "none"}
    monitors.store.put(INFERENCE_PIPELINES, document)
    with capture_logs() as lines:
        for _ in range(3):
            await monitors.round()
    assert server.made == ["PodMonitor"] * 3
    assert KEY in monitors.handover.monitoring
    assert failures(monitors.failures.counter) == {("a-broken-one", "Monitoring"): 3.0}
    assert len([line for line in lines if line["log_level"] == "error"]) == 1


async def test_a_count_that_fails_unexpectedly_does_not_end_the_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_of(monkeypatch, World(builders.document(**SCALED)).started())
    loop.flow(10.0)
    loop.cache()
    (pod,) = (Pod.of(item).name for item in loop.store.all(PODS))
    loop.tritons.mute[pod] = RuntimeError("a bug")
    await loop.tick()
    await loop.tick()
    assert failures(loop.scaler.metrics.errors)[loop.key[1], "Count"] == 2.0
    assert ("", "Tick") not in failures(loop.scaler.metrics.errors)
    assert loop.collector.asked, "samples are collected all the same"


async def test_a_count_that_hangs_does_not_delay_the_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_of(monkeypatch, World(builders.document(**SCALED)).started())
    loop.flow(10.0)
    loop.cache()

    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(controller, "due_queries", lambda *_: {(loop.key, "pod"): hang})
    async with asyncio.timeout(60):
        await loop.tick()
    assert loop.collector.asked, "samples are collected all the same"
    loop.scaler._counting.cancel()


# --- a deleted pipeline ---------------------------------------------------------------------------

SCALED: dict[str, Any] = {"tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}}}
DOOMED = ("nlp", "doomed")


class KeepingClient(AcceptingClient):
    """A fake API server that gives what is applied a uid, and lists nothing."""

    async def apply(self, obj: Object, **_: Any) -> Object:
        metadata = {**obj["metadata"], "uid": f"uid-{obj['metadata']['name']}"}
        kept = {**obj, "metadata": metadata}
        if obj["kind"] == "Deployment":
            hashed = ownership.template_hash(obj["spec"]["template"])
            self.replica_sets.append(ownership.replica_set(kept, hashed))
        return kept

    async def list(self, *_: Any, **__: Any) -> ObjectList:
        return ObjectList([], "1")

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        return await super().get(resource, namespace, name)


async def fault(target: ProbeTarget, now: dt.datetime) -> Probe:
    return Probe(now, ensemble_ready=True, inference_error="a fault")


def parts_of(store: Store, metrics: OperatorMetrics) -> OperatorParts:
    environment = {"TRITONPIPE_LOADER_IMAGE": "example.com/loader:1"}
    services = Services(
        config=load_config(environ=environment),
        client=cast(Client, KeepingClient()),
        store=store,
        metrics=metrics,
        control_key=b"k" * 32,
        enqueue=lambda key: None,
        run_in_background=lambda name, run: None,
    )
    return build_parts(services, fault)


def held(root: object, word: str) -> list[str]:
    """Where objects that are reachable by attributes and containers hold text with a word."""
    found, seen = [], {id(root)}
    waiting = deque([("", root)])
    while waiting:
        path, item = waiting.popleft()
        if isinstance(item, str):
            found += [path] if word in item else []
        for name, inner in parts(item):
            if id(inner) not in seen and len(path) < 2000:
                if not isinstance(inner, (str, tuple)):
                    seen.add(id(inner))
                waiting.append((f"{path}{name}", inner))
    return found


def parts(item: object) -> Iterator[tuple[str, object]]:
    """Attributes of an object of the operator, or the content of a container."""
    if isinstance(item, Mapping):
        for key, value in item.items():
            yield " key", key
            yield f"[{key!r:.40}]", value
    elif isinstance(item, (list, tuple, set, frozenset, deque)):
        yield from ((f"[{number}]", value) for number, value in enumerate(item))
    elif type(item).__module__.startswith("triton_pipelines") and not isinstance(item, type):
        slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {*slots, *getattr(item, "__dict__", {})}:
            yield f".{name}", getattr(item, name, None)


async def run(operator: OperatorParts, rounds: int) -> None:
    """Everything that the operator does, a few times."""
    for _ in range(rounds):
        await operator.reconciler.reconcile(DOOMED)
        await operator.autoscaler.tick()
        await operator.latency_monitor.tick()
        await operator.monitoring_objects.round()


async def test_nothing_of_a_deleted_pipeline_is_kept() -> None:
    store, metrics = Store(), OperatorMetrics()
    operator = parts_of(store, metrics)
    async with operator.direct_reader, operator.latency_monitor.reader:
        document = builders.document(
            name=DOOMED[1],
            slo={"p99Milliseconds": 100},
            observability={"podMonitor": "Enabled"},
            **SCALED,
        )
        document["metadata"] |= {"generation": 1, "resourceVersion": "1", "uid": "doomed-uid"}
        store.put(INFERENCE_PIPELINES, document)
        await run(operator, 1)
        deployment = store.get(DEPLOYMENTS, *DOOMED)
        assert deployment is not None
        pod = ready_pod(deployment)
        pod["status"]["podIP"] = "127.0.0.1"  # where neither Triton nor its metrics are
        pod["metadata"] |= {"name": "doomed-pod", "uid": "doomed-pod", "namespace": DOOMED[0]}
        store.put(PODS, pod)
        await run(operator, 2)
        operator.reconciler._rejections[DOOMED] = {
            ApplyStage.TUNING_RUN: "a rejection that no iteration has seen yet"
        }
        operator.reconciler._pods.mark_deleted(DOOMED, "doomed-pod")
        for part in (operator.latency_monitor, operator.monitoring_objects):
            await part.failures.report(DOOMED, "Kind", ValueError("an error"))
        known = holders(operator, "doomed")
        assert len({path.partition("]")[0] for path in known}) > 8, known
        for resource in (INFERENCE_PIPELINES, DEPLOYMENTS, PODS, CONFIG_MAPS):
            for item in store.all(resource):
                store.remove(resource, DOOMED[0], item["metadata"]["name"])
        await run(operator, 2)
        assert holders(operator, "doomed") == []
        text = generate_latest(metrics.registry).decode()
        assert [line for line in text.splitlines() if "doomed" in line] == []


def holders(operator: OperatorParts, word: str) -> Collection[str]:
    """Where the parts of the operator hold a word, without its caches and the simulated client."""
    reconciler = operator.reconciler
    owners: list[Any] = [
        reconciler,
        reconciler._pods,
        reconciler._probes,
        reconciler._status,
        reconciler._settled,
        operator.autoscaler,
        operator.latency_monitor,
        operator.monitoring_objects,
    ]
    roots: dict[str, Any] = {
        f"{type(owner).__name__}.{name}": getattr(owner, name)
        for owner in owners
        for name in owner.__slots__
        if name not in ("store", "client", "clock", "metrics")
        and not any(getattr(owner, name) is other for other in owners)
    }
    roots["direct_reader"] = operator.direct_reader
    roots["scaling_metrics"] = operator.autoscaler.metrics
    return held(roots, word)
