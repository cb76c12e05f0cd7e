"""Measure the p99 latency of pipelines with an SLO, pod by pod, for the SLO guard. Read-only."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from triton_pipelines.autoscaling.metrics.latency_reader import ModelLatency
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Key, Store
from triton_pipelines.controllers.autoscaler.pipeline_state import metrics_address, server_start_id
from triton_pipelines.controllers.current_specs import CurrentSpecs
from triton_pipelines.controllers.failure_log import NO_PIPELINE, FailureLog
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.latency_figures import (
    WINDOW_SECONDS,
    Latencies,
    LatencySample,
    latency_budget_of,
    latency_of,
)
from triton_pipelines.controllers.pipeline.snapshot import Pod
from triton_pipelines.controllers.pod_ownership import owned_pods
from triton_pipelines.controllers.unmanaged import is_unmanaged
from triton_pipelines.pod_calls import PendingCalls

TICK_SECONDS: Final = 15.0
# How long (seconds) pages are waited for; those that take longer count in the next tick.
PATIENCE_SECONDS: Final = 3.0
# Samples kept per pod: those of the SLO guard's period, and one more.
_SAMPLES: Final = int(WINDOW_SECONDS // TICK_SECONDS) + 2

KIND: Final = "Latency"
"""Label of failures."""


class PodLatencySource(AbstractAsyncContextManager[Any], Protocol):
    """Reads the latency of one pod."""

    async def read(self, address: str, model: str, namespace: str) -> ModelLatency | str:
        """Return a model's latency in the pod at ``host:port``, or why it is unknown."""
        ...


@dataclass(slots=True)
class _PodLatencies:
    """Latency samples of one pod."""

    start: str
    """Start of the pod's server that the samples belong to."""
    revision: str
    """Revision that the pod runs."""
    samples: deque[LatencySample] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """The latest samples."""
    missing: str = ""
    """Why the last read returned no latency; empty if it did."""


@dataclass(slots=True)
class SloLatencyMonitor:
    """Reads every serving pod of every pipeline with an SLO. ``run`` ends only when cancelled."""

    store: Store
    """The operator's caches."""
    reader: PodLatencySource
    """Reads one pod."""
    clock: Callable[[], dt.datetime]
    """Returns UTC now."""
    enqueue: Callable[[Key], None]
    """Makes a reconcile due; called when latency becomes known or unknown."""
    handover: Handover
    """Where latencies are published."""
    specs: CurrentSpecs
    """Effective specs, parsed once for all parts that read them."""
    failures: FailureLog
    """Counts and logs unexpected errors."""
    tick_seconds: float = TICK_SECONDS
    """Time between two reads of a pod."""
    _pods: dict[Key, dict[str, _PodLatencies]] = field(default_factory=dict)
    _reported: dict[Key, Mapping[str, str]] = field(default_factory=dict)
    _reads: PendingCalls[tuple[Key, str], ModelLatency | str] = field(
        default_factory=lambda: PendingCalls(PATIENCE_SECONDS)
    )
    """By pipeline and pod uid."""

    async def run(self) -> None:
        """Read latencies forever; a failure is reported, and the next tick tries again."""
        async with self.reader:
            while True:
                try:
                    await self.tick()
                except Exception as error:
                    await self.failures.report(NO_PIPELINE, KIND, error)
                await asyncio.sleep(self.tick_seconds)

    async def tick(self) -> None:
        """Read every pod once, concurrently; one pipeline does not affect others."""
        pipelines = dict.fromkeys(self.store.pipelines())
        due = []
        for key in pipelines:
            try:
                due += self._observe(key)
            except Exception as error:
                self._keep_pods(key, [])
                await self.failures.report(key, KIND, error)
        for key in self._pods.keys() - pipelines.keys():
            self._keep_pods(key, [])
        self.specs.keep(pipelines.keys())
        self.failures.keep(pipelines.keys())
        calls = {(key, pod.uid): partial(self._read, key, pod, model) for key, pod, model in due}
        latencies = await self._reads.results(calls)
        at = self.clock().timestamp()
        for (key, uid), latency in latencies.items():
            if not isinstance(latency, BaseException):
                self._add_sample(key, uid, latency, at)
        for key in {key for key, _, _ in due}:
            try:
                self._report(key)
            except Exception as error:
                await self.failures.report(key, KIND, error)

    def _observe(self, key: Key) -> list[tuple[Key, Pod, str]]:
        """Return the pods of a pipeline to read, with its public model."""
        model = self._model(key)
        pods = self._serving_pods(key) if model else []
        self._keep_pods(key, pods)
        return [(key, pod, model) for pod in pods]

    async def _read(self, key: Key, pod: Pod, model: str) -> ModelLatency | str:
        try:
            return await self.reader.read(metrics_address(pod), model, key[0])
        except Exception as error:
            await self.failures.report(key, KIND, error)
            return "an unexpected error occurred; see the operator's log"

    def _report(self, key: Key) -> None:
        """Publish the latency of a pipeline; make a reconcile due if it became (un)known."""
        self._publish(key)
        missing = self._missing(key)
        if self._reported.get(key) != missing:
            self._reported[key] = missing
            self.enqueue(key)

    def _model(self, key: Key) -> str:
        """Return the public model of a pipeline with an SLO; empty for others."""
        raw = self.store.get(INFERENCE_PIPELINES, *key)
        if raw is None or is_unmanaged(raw):
            return ""
        pipeline = self.specs.of(self.store, raw)
        if pipeline is None or latency_budget_of(pipeline) is None:
            return ""
        return pipeline.public_name

    def _serving_pods(self, key: Key) -> list[Pod]:
        found = owned_pods(self.store, self.handover.replica_sets.get(key, {}), key)
        pods = [Pod.of(item) for item in found.server]
        return [pod for pod in pods if pod.serving and pod.server_running]

    def _keep_pods(self, key: Key, pods: list[Pod]) -> None:
        """Forget other pods, and samples of an earlier start of these pods' servers."""
        if not pods:
            self._pods.pop(key, None)
            self._reported.pop(key, None)
            self.handover.latencies.pop(key, None)
            return
        before = self._pods.get(key, {})
        self._pods[key] = kept = {}
        for pod in pods:
            known, start = before.get(pod.uid), server_start_id(pod)
            is_same = known is not None and known.start == start
            kept[pod.uid] = (
                known if known is not None and is_same else _PodLatencies(start, pod.revision)
            )
        self._publish(key)

    def _add_sample(self, key: Key, uid: str, latency: ModelLatency | str, at: float) -> None:
        known = self._pods.get(key, {}).get(uid)
        if known is None:
            return
        if isinstance(latency, str):
            known.missing = latency
            known.samples.clear()  # a gap proves neither that the SLO was met nor that it was not
            return
        known.missing = ""
        known.samples.append(LatencySample(at, latency.p99, latency.requests))

    def _missing(self, key: Key) -> dict[str, str]:
        """Return revision → why the latency of one of its pods is unknown."""
        pods = sorted(self._pods.get(key, {}).items())
        return {pod.revision: pod.missing for _, pod in pods if pod.missing}

    def _publish(self, key: Key) -> None:
        """Publish what is known of a pipeline; nothing before its pods have been read."""
        pods = self._pods.get(key, {}).values()
        if not any(pod.samples or pod.missing for pod in pods):
            self.handover.latencies.pop(key, None)
            return
        figures = {}
        for revision in {pod.revision for pod in pods}:
            figure = latency_of([tuple(pod.samples) for pod in pods if pod.revision == revision])
            if figure is not None:
                figures[revision] = figure
        self.handover.latencies[key] = Latencies(figures, self._missing(key))
