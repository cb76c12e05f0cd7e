"""Probe pods when they are due, and keep the last result of each. Does I/O through the prober.

Probes run as tasks of their own. An iteration waits for them for a moment only, so that pods that
do not answer occupy no worker: it ends without a plan and runs again once the probes have ended.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from triton_pipelines.api.health import Health, InferenceHealth
from triton_pipelines.cluster.work_queue import Key
from triton_pipelines.compile.graph import Graph
from triton_pipelines.compile.graph.example_request import ExampleRequest, example_of, probe_blocker

from .compiled_pipeline import CompiledPipeline
from .snapshot import Pod, Probe, Snapshot

# How often (seconds) a pod that is not ready is probed for the reason. A ready one is probed every
# health.periodSeconds.
UNREADY_PROBE_SECONDS = 5.0
# How long (seconds) an iteration waits for its probes. Most answers come sooner.
PATIENCE_SECONDS: Final = 0.1
# Probes at a time, in total and in one namespace: pods of one namespace that do not answer must not
# delay the probes of others.
PROBES_MAX: Final = 64
PROBES_PER_NAMESPACE: Final = 16


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A pod to probe: its address, its models and the test inference, if any."""

    pod: Pod
    graph: Graph
    control_key: str
    example: ExampleRequest | None


Prober = Callable[[ProbeTarget, dt.datetime], Awaitable[Probe]]


class ProbesPending(Exception):  # noqa: N818
    """Pods are still being probed; the pipeline is enqueued when that ends."""


def _enqueue_nothing(_: Key) -> None:
    """Default for reconcilers without a queue, whose probers answer at once."""


@dataclass(slots=True)
class PodProbes:
    """Probe results of all pipelines; one instance per process."""

    prober: Prober
    """Probes one pod."""
    derive: Callable[[str, str], str]
    """Returns the control key of a pipeline's uid and a revision."""
    clock: Callable[[], dt.datetime]
    """Returns the current time in UTC."""
    enqueue: Callable[[Key], None] = _enqueue_nothing
    """Makes a pipeline due."""
    _results: dict[Key, dict[str, Probe]] = field(default_factory=dict)
    """Last results by pod uid."""
    _running: dict[Key, asyncio.Task[dict[str, Probe]]] = field(default_factory=dict)
    """Probes whose results no iteration has read yet."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PROBES_MAX))
    _namespace_slots: weakref.WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=weakref.WeakValueDictionary
    )

    def of(self, key: Key) -> dict[str, Probe]:
        """Return the last results of a pipeline by pod uid."""
        return dict(self._results.get(key, {}))

    def forget(self, key: Key) -> None:
        """Drop the results of a deleted pipeline."""
        self._results.pop(key, None)
        if (task := self._running.pop(key, None)) is not None:
            task.cancel()

    async def refresh(
        self, key: Key, compiled: CompiledPipeline, snapshot: Snapshot
    ) -> float | None:
        """Probe the pods that are due, concurrently.

        Only pods that run the effective spec are probed: other revisions may have other model names
        and inputs. Their last result stays.

        Returns:
            The seconds until the next pod is due.

        Raises:
            ProbesPending: Probes take longer than :data:`PATIENCE_SECONDS`.
        """
        now, pipeline, state = self.clock(), compiled.pipeline, snapshot.state().revision
        # The second is a revision of the same spec that waits to be replaced by one with this
        # operator's templates.
        revisions = {
            compiled.revision.name,
            state.desired if state.generation == snapshot.generation else "",
        }
        health = pipeline.spec.health
        runs_inference = health.inference is InferenceHealth.AUTO and not probe_blocker(
            pipeline, compiled.graph
        )
        known = self._results.setdefault(key, {})
        running = {pod.uid: pod for pod in snapshot.pods if pod.server_running and not pod.deleting}
        for uid in set(known) - set(running):
            del known[uid]
        pods = {uid: pod for uid, pod in running.items() if pod.revision in revisions}

        def seconds(pod: Pod) -> float:
            return due_in(pod, known.get(pod.uid), health, now, runs_inference=runs_inference)

        due = [pod for pod in pods.values() if seconds(pod) <= 0]
        is_late = key in self._running
        if due and not is_late:
            self._running[key] = asyncio.create_task(self._probe(due, compiled, now))
        results = await self._read_results(key)
        for uid in results.keys() & running.keys():
            known[uid] = results[uid].merged_with(known.get(uid))

        def next_in(pod: Pod) -> float:
            # A probe that took long began long ago; the next one does not follow at once.
            has_hung = is_late and pod.uid in results
            return max(UNREADY_PROBE_SECONDS if has_hung else 1.0, seconds(pod))

        return min(map(next_in, pods.values())) if pods else None

    async def _read_results(self, key: Key) -> dict[str, Probe]:
        """Return the results of the running probes by pod uid; empty without any."""
        task = self._running.get(key)
        if task is None:
            return {}
        await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
        if not task.done():
            # Several iterations may end so; a pipeline that is enqueued several times runs once.
            task.add_done_callback(lambda _: self._end(key, task))
            raise ProbesPending
        del self._running[key]
        return task.result()

    def _end(self, key: Key, task: asyncio.Task[dict[str, Probe]]) -> None:
        if self._running.get(key) is task:
            self.enqueue(key)

    async def _probe(
        self, due: list[Pod], compiled: CompiledPipeline, now: dt.datetime
    ) -> dict[str, Probe]:
        pipeline, graph = compiled.pipeline, compiled.graph
        example = example_of(pipeline, graph) if any(pod.ready for pod in due) else None
        targets = [
            ProbeTarget(
                pod,
                graph,
                self.derive(pipeline.metadata.uid, pod.revision),
                example if pod.ready else None,
            )
            for pod in due
        ]
        slots = self._namespace_slots.setdefault(
            pipeline.namespace, asyncio.Semaphore(PROBES_PER_NAMESPACE)
        )

        async def probe(target: ProbeTarget) -> Probe:
            async with slots, self._slots:
                return await self.prober(target, now)

        results = await asyncio.gather(*map(probe, targets))
        return {pod.uid: result for pod, result in zip(due, results, strict=True)}


def due_in(
    pod: Pod, last: Probe | None, health: Health, now: dt.datetime, *, runs_inference: bool
) -> float:
    """Return the seconds until a pod has to be probed; 0 or less if it is due.

    Args:
        pod: The pod.
        last: Its last result.
        health: ``spec.health``.
        now: The current time.
        runs_inference: Whether ready pods are verified by a test inference.
    """
    is_unverified = (
        last is not None and runs_inference and last.inference_error is None and not last.error
    )
    if last is None or (pod.ready and (is_unverified or not last.ensemble_ready)):
        return 0.0
    # A first wrong output may be an accident; a rollout is decided by the second.
    is_settled = (
        pod.ready and not last.error and not last.inference_error and last.consecutive_wrong != 1
    )
    period = float(health.period_seconds)
    if not is_settled:
        period = min(UNREADY_PROBE_SECONDS, period)
    return period - (now - last.at).total_seconds()
