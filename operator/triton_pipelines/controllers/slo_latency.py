"""Looks at the latency of pipelines with a promise (spec.slo), pod by pod, for the watch after a rollout. Nothing here writes."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from triton_pipelines.autoscaling.metrics.latency_reader import Latency
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.autoscaler.pipeline_state import metrics_address, start_of
from triton_pipelines.controllers.current_specs import Specs
from triton_pipelines.controllers.pipeline.latency_figures import (
    HELD_SECONDS,
    Latencies,
    Look,
    figure_of,
    limit_of,
)
from triton_pipelines.controllers.pipeline.plan import is_unmanaged
from triton_pipelines.controllers.pipeline.snapshot import Pod, serves

Key = tuple[str, str]
TICK_SECONDS: Final = 15.0
# As many looks as reach back for so long, and one more.
_LOOKS: Final = int(HELD_SECONDS // TICK_SECONDS) + 2

_log = structlog.get_logger(__name__)


class Reader(AbstractAsyncContextManager[Any], Protocol):
    """Reads one pod."""

    async def read(self, address: str, model: str) -> Latency | str:
        """The latency of a model in the pod at ``host:port``, or why it is not known."""
        ...


@dataclass(slots=True)
class _Seen:
    """One pod: which start of its server the looks are of, and why the last one brought nothing."""

    start: str
    revision: str
    looks: deque[Look] = field(default_factory=lambda: deque(maxlen=_LOOKS))
    missing: str = ""


@dataclass(slots=True)
class LatencyWatch:
    """Looks at every pod of every pipeline that promises a p99. ``run`` ends only when cancelled; ``clock`` gives UTC now; ``enqueue`` makes
    a pass due: where it becomes known, or unknown, whether there is anything to watch by."""

    store: Store
    reader: Reader
    clock: Callable[[], dt.datetime]
    enqueue: Callable[[Key], None]
    tick_seconds: float = TICK_SECONDS
    specs: Specs = field(default_factory=Specs)
    _seen: dict[Key, dict[str, _Seen]] = field(default_factory=dict)
    _told: dict[Key, Mapping[str, str]] = field(default_factory=dict)

    def latencies(self, key: Key) -> Latencies | None:
        """What is known of a pipeline; ``None`` where its pods have not been looked at."""
        pods = self._seen.get(key)
        if not pods or not any(seen.looks or seen.missing for seen in pods.values()):
            return None
        figures = {}
        for revision in {seen.revision for seen in pods.values()}:
            figure = figure_of(
                [tuple(seen.looks) for seen in pods.values() if seen.revision == revision]
            )
            if figure is not None:
                figures[revision] = figure
        return Latencies(figures, self._missing(key))

    def _missing(self, key: Key) -> dict[str, str]:
        return {
            seen.revision: seen.missing
            for _, seen in sorted(self._seen.get(key, {}).items())
            if seen.missing
        }

    async def run(self) -> None:
        """Tick for ever; what fails is logged, and the next tick tries again."""
        async with self.reader:
            while True:
                try:
                    await self.tick()
                except Exception as error:
                    await _log.aerror(
                        "looking at latencies failed", error=str(error), exc_info=error
                    )
                await asyncio.sleep(self.tick_seconds)

    async def tick(self) -> None:
        """One look at every pod, side by side."""
        due = []
        for key in list(self.store.pipelines()):
            model = self._model(key)
            pods = (
                [Pod.of(item) for item in self.store.children(PODS, key) if serves(item)]
                if model
                else []
            )
            serving = [pod for pod in pods if pod.serving and pod.server_running]
            self._keep(key, serving)
            due += [(key, pod, model) for pod in serving]
        for key in self._seen.keys() - set(self.store.pipelines()):
            self._forget(key)
        self.specs.keep(set(self.store.pipelines()))
        answers = await asyncio.gather(
            *(self.reader.read(metrics_address(pod), model) for _, pod, model in due)
        )
        at = self.clock().timestamp()
        for (key, pod, _), answer in zip(due, answers, strict=True):
            self._take(key, pod, answer, at)
        for key in {key for key, _, _ in due}:
            missing = self._missing(key)
            if self._told.get(key) != missing:
                self._told[key] = missing
                self.enqueue(key)

    def _model(self, key: Key) -> str:
        """The public model of a pipeline that promises a p99; "" for others."""
        raw = self.store.get(INFERENCE_PIPELINES, *key)
        if raw is None or is_unmanaged(raw):
            return ""
        pipeline = self.specs.of(self.store, raw)
        return (
            pipeline.public_name if pipeline is not None and limit_of(pipeline) is not None else ""
        )

    def _keep(self, key: Key, pods: list[Pod]) -> None:
        """Forget pods that are gone, and what an earlier start of their servers told."""
        if not pods:
            self._seen.pop(key, None)
            self._told.pop(key, None)
            return
        seen = self._seen.get(key, {})
        self._seen[key] = {
            pod.uid: known
            if (known := seen.get(pod.uid)) is not None and known.start == start_of(pod)
            else _Seen(start_of(pod), pod.revision)
            for pod in pods
        }

    def _forget(self, key: Key) -> None:
        self._seen.pop(key, None)
        self._told.pop(key, None)

    def _take(self, key: Key, pod: Pod, answer: Latency | str, at: float) -> None:
        seen = self._seen.get(key, {}).get(pod.uid)
        if seen is None:
            return
        if isinstance(answer, str):
            seen.missing = answer
            seen.looks.clear()  # a gap is no evidence that the limit was held or broken meanwhile
            return
        seen.missing = ""
        seen.looks.append(Look(at, answer.p99, answer.requests))
