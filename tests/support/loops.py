"""The scaling loop around a modeled world.

Caches are filled by hand, samples and pods behave as the test sets, and the test controls the
clock.

The collector, Triton (a pod's count is a number) and the reconciler are simulated. The simulated
reconciler runs the real planner on the world's model.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support import ownership
from tests.support.copies import copied
from tests.support.flows import Flow, history
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    PipelineSample,
)
from triton_pipelines.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.autoscaler import controller as module
from triton_pipelines.controllers.autoscaler import count_changer
from triton_pipelines.controllers.autoscaler.actuator import Pace
from triton_pipelines.controllers.autoscaler.controller import Autoscaler, Key
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.compiled_pipeline import CompiledPipeline
from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec, Resolver
from triton_pipelines.controllers.pipeline.planner import Context, Plan, plan
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.policies.last_good_spec import effective_spec
from triton_pipelines.controllers.pipeline.snapshot import Probe, Snapshot

PACE = Pace(load=5.0, settle=0.05, settle_poll=0.01, verify=0.05, verify_poll=0.01)


def control_key(uid: str, revision: str) -> str:
    """As the world's own operator derives it."""
    return f"key of {uid} {revision}"


@dataclass
class Tritons:
    """Counts of the pods by name, recorded loads, and injected misbehavior.

    The name is the pod's for the tokenizer, and POD/MODEL for another step. Misbehavior is name →
    error to raise at a load, or at a count. A load of a model in ``gates`` waits for the event.
    """

    counts: dict[str, int] = field(default_factory=dict)
    loads: list[tuple[str, int]] = field(default_factory=list)
    refuse: dict[str, Exception] = field(default_factory=dict)
    mute: dict[str, Exception] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)


@dataclass
class FakeTriton:
    """``PodControl`` of one pod of :class:`Tritons`."""

    tritons: Tritons
    pod: str

    async def count(self, model: str) -> int:
        self.tritons.asked.append(self.pod)
        if self.pod in self.tritons.mute:
            raise self.tritons.mute[self.pod]
        return self.tritons.counts.setdefault(self._name(model), 1)

    async def load(self, model: str, config_json: str, deadline: float) -> None:
        count = json.loads(config_json)["instance_group"][0]["count"]
        name = self._name(model)
        self.tritons.loads.append((name, count))
        for gate in (self.tritons.gate, self.tritons.gates.get(model)):
            if gate is not None:
                await gate.wait()
        if name in self.tritons.refuse:
            raise self.tritons.refuse[name]
        self.tritons.counts[name] = count

    def _name(self, model: str) -> str:
        return self.pod if model == "tokenizer" else f"{self.pod}/{model}"

    async def fault(self, model: str, public: str) -> str:
        return ""

    async def inference_error(self) -> str:
        return ""


@dataclass
class Told:
    """A collector that returns what the test sets.

    That is a flow for every pod, a failure, or anything else.
    """

    says: Any = None
    asked: list[Mapping[Key, ExpectedPods]] = field(default_factory=list)
    namespaces: frozenset[str] | None = None

    def permits(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces

    async def collect(
        self, wanted: Mapping[Key, ExpectedPods]
    ) -> Mapping[Key, PipelineSample | MetricsFailure]:
        if wanted:  # else it is only asked to forget
            self.asked.append(wanted)
        if isinstance(self.says, Exception):
            raise self.says
        made: dict[Key, PipelineSample | MetricsFailure] = {
            key: self.says(one) if callable(self.says) else self.says for key, one in wanted.items()
        }
        return made


@dataclass
class Loop:
    """One pipeline, its world and the loop that scales it.

    ``dues`` counts how often a reconcile was requested. ``passed`` is the generation of the last
    one.
    """

    world: World
    scaler: Autoscaler
    collector: Told
    tritons: Tritons
    store: Store
    dues: list[dt.datetime] = field(default_factory=list)
    writes: bool = True
    version: int = 0
    plans: list[Plan] = field(default_factory=list)
    passed: int = 0
    resolver: Resolver = field(init=False)

    def __post_init__(self) -> None:
        self.resolver = Resolver(self.world.options)

    def resolve(self, observed: Snapshot) -> CompiledPipeline | list[Finding]:
        """Pass the spec to the scaling loop as a reconcile does; the loop uses it from then on."""
        wanted = self.resolver.resolve(observed)
        acted = effective_spec(observed, wanted, self.resolver.resolve)
        if acted is not None:
            effective = EffectiveSpec.of(observed.pipeline, acted[1])
            self.scaler.handover.effective_specs[self.key] = effective
        return wanted

    def live_config_map(self) -> dict[str, Any]:
        """The live ConfigMap, to be edited."""
        return dict(self.world.children["ConfigMap", names.live_name(self.world.name)])

    @property
    def key(self) -> Key:
        """Namespace and name."""
        metadata = self.world.document["metadata"]
        return metadata["namespace"], metadata["name"]

    @property
    def counts(self) -> dict[str, int]:
        """Recorded counts."""
        return dict(json.loads(self.live[names.KEY_COUNTS]))

    @property
    def live(self) -> dict[str, str]:
        """Content of the live ConfigMap."""
        return dict(self.world.children["ConfigMap", names.live_name(self.world.name)]["data"])

    def flow(self, rate: float, **fields: float) -> None:
        """What the collector says from now on: this flow in every pod, with scrapes up to now."""

        self.flows(tokenizer=Flow(rate, **fields), model=Flow(rate, service=0.0005))

    def flows(self, **flows: Flow) -> None:
        """What the collector says from now on: these flows of models in every pod."""

        def says(one: ExpectedPods) -> PipelineSample:
            return PipelineSample(
                {pod: history(flows, now=self.now) for pod in one.pods}, 5.0, "test"
            )

        self.collector.says = says

    @property
    def now(self) -> float:
        """The clock, Unix seconds."""
        return self.world.now.timestamp()

    def cache(self) -> None:
        """The watches' part: caches as the world is."""
        namespace = self.key[0]
        fresh = Store()
        fresh.put(INFERENCE_PIPELINES, copied(self.world.document))
        for (kind, _), item in self.world.children.items():
            if kind == "ConfigMap":
                made = copied(item)
                made["metadata"]["namespace"] = namespace
                fresh.put(CONFIG_MAPS, made)
        deployment = copied(self.world.deployment)
        deployment["metadata"]["namespace"] = namespace
        fresh.put(DEPLOYMENTS, deployment)
        for pod in self.world.pods:
            raw = self.world._raw(pod)
            raw["metadata"]["namespace"] = namespace
            raw["status"]["podIP"] = "10.0.0.1"
            fresh.put(PODS, raw)
        self.store = self.scaler.store = fresh
        known = ownership.read(*self.world.replica_sets)
        self.scaler.handover.replica_sets[self.key] = known

    def reconcile(self) -> Plan:
        """One pass of the real plan, with what scaling hands over."""
        observed = replace(
            self.world.observed(),
            intent=self.scaler.handover.intent(self.key),
            view=self.scaler.handover.view(self.key),
        )
        context = Context(self.world.options, control_key, cached_resolve=self.resolver.resolve)
        decided = plan(observed, context, self.world.now, self.resolve(observed))
        if self.writes:
            for item in decided.apply:
                self.world.take(item)
            self.world.resize(decided)
            if decided.status is not None:
                self.world.document["status"] = decided.status
        self.plans.append(decided)
        self.passed = self.world.document["metadata"]["generation"]
        self.cache()
        return decided

    async def tick(self, seconds: float = 2.0) -> None:
        """Advance time by ``seconds``.

        Runs the reconcile that a spec change requested, one tick, and the reconciles that the tick
        requested.
        """
        self.world.pass_time(seconds)
        self.cache()
        if self.passed != self.world.document["metadata"]["generation"]:
            self.reconcile()
        before = len(self.dues)
        await self.scaler.tick()
        if len(self.dues) > before:
            self.reconcile()

    async def settle(self) -> None:
        """What is under way ends; then the pass that tells of it."""
        state = self.scaler._states[self.key]
        if state.changes:
            await asyncio.wait_for(
                asyncio.gather(*(change.task for change in state.changes.values())), 10
            )
            self.reconcile()

    def status(self) -> dict[str, Any]:
        """The pipeline's status."""
        return self.world.status


def loop_of(monkeypatch: pytest.MonkeyPatch, world: World) -> Loop:
    """A loop around a world that has settled."""
    tritons, collector, dues = Tritons(), Told(), list[dt.datetime]()

    def control(target: ProbeTarget, prober: Any, clock: Any) -> FakeTriton:
        tritons.keys.add(target.control_key)
        return FakeTriton(tritons, target.pod.name)

    async def prober(target: ProbeTarget, now: dt.datetime) -> Probe:
        raise AssertionError("only real pods are asked")

    monkeypatch.setattr(module, "TritonPod", control)
    monkeypatch.setattr(count_changer, "INTENT_POLL_SECONDS", 0.01)
    scaler = Autoscaler(
        store=Store(),
        derive=control_key,
        prober=prober,
        collectors={"": collector},
        clock=lambda: world.now,
        enqueue=lambda key: dues.append(world.now),
        metrics=ScalingMetrics(CollectorRegistry()),
        handover=Handover(),
        intent_seconds=0.2,
        pace=PACE,
    )
    loop = Loop(
        world,
        scaler,
        collector,
        tritons,
        Store(),
        dues,
        passed=world.document["metadata"]["generation"],
    )
    loop.resolve(world.observed())
    return loop
