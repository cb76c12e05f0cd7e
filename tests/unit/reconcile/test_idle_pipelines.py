"""Count what an operator does for pipelines of which nothing changes, and for pods that hang."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import json
import re
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import merge
from tests.support.reconcilers import KEY, reconciler_of, stored
from tests.support.worlds import START
from tests.unit.docs.markdown import ROOT
from tests.unit.reconcile.test_pod_probes import TakingClient
from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Key, Store
from triton_pipelines.cluster.work_queue import Result
from triton_pipelines.controllers.pipeline import (
    deployment_progress,
    pod_probes,
    probe_slots,
    reconciler,
)
from triton_pipelines.controllers.pipeline.pod_probes import ProbesPending, ProbeTarget
from triton_pipelines.controllers.pipeline.probe_record import HUNG_PROBES, HUNG_PROBES_ALONE
from triton_pipelines.controllers.pipeline.settled import SETTLED_SECONDS
from triton_pipelines.controllers.pipeline.snapshot import ModelState, Probe, Snapshot
from triton_pipelines.controllers.pipeline.state import PipelineState
from triton_pipelines.controllers.timestamps import rfc3339
from triton_pipelines.triton.probe import DEADLINE_S


class KeepingClient(TakingClient):
    """A fake API server that gives each state of an object a version."""

    def __init__(self, document: Object) -> None:
        super().__init__(document)
        self.versions = itertools.count(100)
        self.deleted = 0
        self.clock = lambda: START

    @property
    def pod(self) -> Object:
        created = {"creationTimestamp": rfc3339(START)}
        return merge(super().pod, {"metadata": created})

    async def delete(self, *_: object, **__: object) -> bool:  # type: ignore[override]
        self.deleted += 1
        return True

    async def apply(self, obj: Object, **options: Any) -> Object:
        applied = await super().apply(obj, **options)
        return applied if options.get("dry_run") else self.stored(applied)

    async def apply_status(self, obj: Object, **options: Any) -> Object:
        applied = self.stored(await super().apply_status(obj, **options))
        written = {"manager": names.MANAGER_STATUS, "time": rfc3339(self.clock())}
        return merge(applied, {"metadata": {"managedFields": [written]}})

    def stored(self, obj: Object) -> Object:
        version = str(next(self.versions))
        uid = obj["metadata"].get("uid") or f"uid-{obj['kind']}-{obj['metadata']['name']}"
        return {**obj, "metadata": {**obj["metadata"], "uid": uid, "resourceVersion": version}}


class Place:
    """A pipeline with a ready pod, a clock, and what was counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        self.store, self.plans, self.probes = Store(), 0, 0
        self.elapsed, self.fault, self.error, self.mismatch = 0.0, "", "", ""
        self.hang: asyncio.Event | None = None
        self.is_late = False
        self.enqueued: list[Key] = []
        document = merge(stored(), {"spec": spec})
        self.client = KeepingClient(document)
        self.store.put(INFERENCE_PIPELINES, document)
        self.reconciler = reconciler_of(
            self.client,
            self.store,
            prober=self.probe,
            clock=self.now,
        )
        self.client.clock = self.now
        self.reconciler._probes.enqueue = self.enqueued.append
        plan = reconciler.plan

        def counted(*arguments: object) -> object:
            self.plans += 1
            return plan(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(reconciler, "plan", counted)

    def now(self) -> dt.datetime:
        return START + dt.timedelta(seconds=self.elapsed)

    async def probe(self, target: ProbeTarget, now: dt.datetime) -> Probe:
        self.probes += 1
        if self.hang is not None:
            await self.hang.wait()
        if self.is_late:
            self.elapsed += DEADLINE_S
            return Probe(now, ensemble_ready=True, error="deadline exceeded", completed=7)
        if self.error:
            return Probe(now, ensemble_ready=False, error=self.error)
        return Probe(
            now,
            ensemble_ready=True,
            models=tuple(
                ModelState(name, "READY")
                for name in sorted(
                    (
                        target.graph.model_name,
                        *(step.model_name for step in target.graph.steps),
                    )
                )
            ),
            inference_error=self.fault,
            mismatch=self.mismatch,
        )

    @property
    def probe_record(self) -> Probe:
        """Return the last probe of the pod."""
        (probe,) = self.reconciler._probes.of(KEY).values()
        return probe

    async def reconcile(self, seconds: float = 0.0) -> Result:
        self.elapsed += seconds
        return await self.reconciler.reconcile(KEY)

    async def settle(self) -> None:
        await self.reconcile()
        self.store.put(PODS, self.client.pod)
        for _ in range(10):
            before = self.plans
            await self.reconcile(1.0)
            if self.plans == before:
                return
        raise AssertionError("the pipeline does not settle")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def running_probes(place: Place) -> list[asyncio.Task[Probe]]:
    return [task for tasks in place.reconciler._probes._running.values() for task in tasks.values()]


async def test_an_idle_pipeline_is_probed_without_being_planned(place: Place) -> None:
    await place.settle()
    plans, probes = place.plans, place.probes
    result = await place.reconcile(31.0)
    assert (place.plans, place.probes) == (plans, probes + 1)
    assert result.requeue_after == pytest.approx(30.0)
    await place.reconcile(SETTLED_SECONDS)
    assert place.plans == plans + 1, "planned now and then in any case"


async def test_findings_that_are_recorded_change_nothing_when_they_are_published(
    place: Place,
) -> None:
    """The monitoring objects of a new pipeline are usually checked after its last iteration."""
    await place.settle()
    plans, published = place.plans, place.reconciler.handover.monitoring
    published[KEY] = ()
    await place.reconcile(31.0)
    assert place.plans == plans
    code = FindingCode.MONITORING_NOT_APPLIED
    published[KEY] = (Finding("spec.observability", "not applied", Severity.WARNING, code=code),)
    await place.reconcile(31.0)
    assert place.plans == plans + 1


async def test_another_probe_result_is_acted_on_at_once(place: Place) -> None:
    await place.settle()
    plans, place.fault = place.plans, "no output"
    await place.reconcile(31.0)
    assert place.plans == plans + 1


async def test_a_changed_object_is_acted_on_at_once(place: Place) -> None:
    await place.settle()
    plans, pod = place.plans, place.client.pod
    pod["metadata"]["resourceVersion"] = "9"
    place.store.put(PODS, pod)
    await place.reconcile(1.0)
    assert place.plans == plans + 1


async def test_a_pod_that_does_not_answer_occupies_no_worker(place: Place) -> None:
    await place.reconcile()
    place.store.put(PODS, place.client.pod)
    place.hang = asyncio.Event()
    plans = place.plans
    async with asyncio.timeout(5):
        result = await place.reconcile()
        again = await place.reconcile()
    assert (result.outcome, again.outcome) == ("probing", "probing")
    assert (place.plans, place.probes, place.enqueued) == (plans, 1, [])
    place.hang.set()
    await asyncio.wait_for(asyncio.gather(*running_probes(place)), 5)
    await asyncio.sleep(0)  # for the callback of the ended task
    assert set(place.enqueued) == {KEY}
    await place.reconcile()
    assert (place.plans, place.probes) == (plans + 1, 1)


async def test_a_changed_spec_does_not_wait_for_a_pod_that_hangs(place: Place) -> None:
    await place.settle()
    plans, place.hang = place.plans, asyncio.Event()
    await place.reconcile(31.0)
    assert place.plans == plans
    changed = {**place.store.children(PODS, KEY)[0]}
    changed["metadata"] = {**changed["metadata"], "resourceVersion": "9"}
    place.store.put(PODS, changed)
    assert (await place.reconcile()).outcome == "ok"
    assert (place.plans, place.enqueued) == (plans + 1, [])


async def test_the_result_of_a_pod_does_not_wait_for_another_that_hangs(place: Place) -> None:
    await place.settle()
    settled, probes = place.reconciler._settled._settled[KEY].acted, place.reconciler._probes
    assert settled is not None
    snapshot, compiled = settled
    (good,) = snapshot.pods
    hung, hang, now = replace(good, uid="hung", name="hung"), asyncio.Event(), START
    both = replace(snapshot, pods=(good, hung))

    async def answer(target: ProbeTarget, at: dt.datetime) -> Probe:
        if at > START and target.pod.uid == "hung":
            await hang.wait()
        return Probe(at, ensemble_ready=True, inference_error="")

    probes.prober, probes.clock = answer, lambda: now
    await probes.refresh(("nlp", "two"), compiled, both)
    now += dt.timedelta(seconds=31)
    await probes.refresh(("nlp", "two"), compiled, both)
    try:
        found = {uid: probe.at for uid, probe in probes.of(("nlp", "two")).items()}
        assert found == {good.uid: now, "hung": START}
    finally:
        hang.set()
        await asyncio.gather(*running_probes(place))


async def test_hung_pods_of_many_namespaces_leave_slots_to_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_slots, "SLOT_SECONDS", 0.01)
    await place.settle()
    settled, probes = place.reconciler._settled._settled[KEY].acted, place.reconciler._probes
    assert settled is not None
    snapshot, compiled = settled
    snapshot = replace(snapshot, pipeline={**snapshot.pipeline, "status": {}})
    hang, answered = asyncio.Event(), asyncio.Event()

    async def answer(target: ProbeTarget, now: dt.datetime) -> Probe:
        await (hang.wait() if "hung" in target.control_key else asyncio.sleep(0))
        if "hung" not in target.control_key:
            answered.set()
        return Probe(now, ensemble_ready=True, inference_error="")

    def refresh(namespace: str, name: str) -> Awaitable[float | None]:
        update = {"namespace": namespace, "uid": namespace}
        metadata = compiled.pipeline.metadata.model_copy(update=update)
        pipeline = compiled.pipeline.model_copy(update={"metadata": metadata})
        return probes.refresh((namespace, name), replace(compiled, pipeline=pipeline), snapshot)

    probes.prober = answer
    hung = (refresh(f"hung-{number % 8}", f"p{number}") for number in range(200))
    assert {type(found) for found in await asyncio.gather(*hung, return_exceptions=True)} == {
        ProbesPending
    }
    try:
        with contextlib.suppress(ProbesPending):
            await refresh("other", "new")
        await asyncio.wait_for(answered.wait(), 5)
    finally:
        hang.set()
        await asyncio.gather(*running_probes(place))


async def test_a_pod_that_hangs_is_probed_ever_more_seldom(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_probes, "SLOT_SECONDS", 0.0)
    times, place.error = list[float](), "deadline exceeded"
    await place.reconcile()
    place.store.put(PODS, place.client.pod)
    for _ in range(100):
        before = place.probes
        await place.reconcile(1.0)
        if place.probes > before:
            times.append(place.elapsed)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps == [5.0, 10.0, 20.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("period", "seconds", "seconds_alone"), [(5, 75, 150), (30, 170, 370), (60, 300, 650)]
)
async def test_a_hung_model_is_detected_after_the_documented_time(
    monkeypatch: pytest.MonkeyPatch, period: int, seconds: int, seconds_alone: int
) -> None:
    monkeypatch.setattr(pod_probes, "SLOT_SECONDS", 0.0)
    place = Place(monkeypatch, health={"periodSeconds": period})
    await place.settle()
    answered, place.is_late = place.elapsed, True
    while place.probe_record.at < START + dt.timedelta(seconds=answered):
        await place.reconcile(1.0)
    taken = {place.probe_record.consecutive_hung: place.elapsed - answered}
    while place.probe_record.consecutive_hung < HUNG_PROBES_ALONE:
        assert not place.client.deleted
        await place.reconcile(1.0)
        taken.setdefault(place.probe_record.consecutive_hung, place.elapsed - answered)
    assert place.client.deleted
    # The settled pipeline was probed less than a period before.
    assert seconds - period <= taken[HUNG_PROBES] <= seconds
    assert seconds_alone - period <= taken[HUNG_PROBES_ALONE] <= seconds_alone
    page = (ROOT / "docs" / "user" / "pod-repair.md").read_text(encoding="utf-8")
    assert re.search(rf"\| {period}( \(default\))? \| {seconds} s \| {seconds_alone} s \|", page)


def test_rollouts_are_counted_without_reading_every_deployment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading all Deployments in each iteration makes the cost quadratic."""
    store, read = Store(), list[str]()
    for number in range(100):
        metadata = {"name": f"d{number}", "namespace": "n", "resourceVersion": "1"}
        store.put(DEPLOYMENTS, {"kind": "Deployment", "metadata": metadata})

    def is_rolling_out(item: dict[str, dict[str, str]]) -> bool:
        read.append(item["metadata"]["name"])
        return False

    monkeypatch.setattr(deployment_progress, "is_rolling_out", is_rolling_out)
    for _ in range(10):
        assert deployment_progress.rolling_pipelines(store, START) == set()
    assert len(read) == 100


def test_the_states_of_many_idle_pipelines_are_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str | None] = []
    original = PipelineState.parse

    def parse(text: str | None) -> PipelineState:
        parsed.append(text)
        return original(text)

    monkeypatch.setattr(PipelineState, "parse", parse)
    texts = [json.dumps({"revision": {"desired": f"{number:010x}"}}) for number in range(500)]
    snapshots = [
        Snapshot(
            {"metadata": {"name": "p"}},
            {("ConfigMap", names.live_name("p")): {"data": {names.KEY_STATE: text}}},
        )
        for text in texts
    ]
    for _ in range(2):
        for number, snapshot in enumerate(snapshots):
            assert snapshot.state().revision.desired == f"{number:010x}"
    assert len(parsed) <= len(texts)
