"""Probe pods when they are due, and keep the last result of each. Does I/O through the prober.

Probes run as tasks of their own. An iteration waits for them for a moment only, so that pods that
do not answer occupy no worker: it ends without a plan and runs again when a probe has ended.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from triton_pipelines.api.health import Health
from triton_pipelines.cluster.work_queue import Key
from triton_pipelines.compile.graph import Graph
from triton_pipelines.compile.graph.example_request import ExampleRequest, example_of
from triton_pipelines.triton.tls import TlsIdentity

from .actions import soonest
from .compiled_pipeline import CompiledPipeline
from .probe_slots import SLOT_SECONDS, ProbeSlots
from .reported_probes import first_probe_after, reported_probes
from .snapshot import Pod, Probe, Snapshot
from .tls_trust import NO_TLS, TlsTrust

# How often (seconds) a pod that is not ready is probed for the reason. A ready one is probed every
# health.periodSeconds.
UNREADY_PROBE_SECONDS = 5.0
# How long (seconds) an iteration waits for its probes. Most answers come sooner.
PATIENCE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A pod to probe: its address, its models and the test inference, if any."""

    pod: Pod
    graph: Graph
    control_key: str
    example: ExampleRequest | None
    tls: TlsIdentity | None = None
    """How to connect with TLS; ``None`` for a pod without it."""


Prober = Callable[[ProbeTarget, dt.datetime], Awaitable[Probe]]


class ProbesPending(Exception):  # noqa: N818
    """A plan needs the results of running probes; the pipeline is enqueued when they end."""


@dataclass(frozen=True, slots=True)
class _Hang:
    """Consecutive probes of a pod that brought no response in time."""

    count: int
    until: dt.datetime
    """Before this time the pod is not probed again."""
    ready: bool
    """Whether the pod was ready. A change of that ends the back-off."""


def _enqueue_nothing(_: Key) -> None:
    """Default for reconcilers without a queue, whose probers answer at once."""


def _keep_nothing(_: str) -> None:
    """Default for probers that keep no connections."""


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
    release: Callable[[str], None] = _keep_nothing
    """Closes the prober's connection to a pod that is gone, by its uid."""
    _results: dict[Key, dict[str, Probe]] = field(default_factory=dict)
    """Last results by pod uid."""
    _running: dict[Key, dict[str, asyncio.Task[Probe]]] = field(default_factory=dict)
    """Probes whose results no iteration has read yet, by pod uid."""
    _hangs: dict[Key, dict[str, _Hang]] = field(default_factory=dict)
    """By pod uid."""
    _slots: ProbeSlots = field(default_factory=ProbeSlots)

    def of(self, key: Key) -> dict[str, Probe]:
        """Return the last results of a pipeline by pod uid."""
        return dict(self._results.get(key, {}))

    def forget(self, key: Key) -> None:
        """Drop the results of a deleted pipeline."""
        self._hangs.pop(key, None)
        known, tasks = self._results.pop(key, {}), self._running.pop(key, {})
        for uid in known.keys() | tasks.keys():
            self._disconnect(uid, tasks.get(uid))

    async def refresh(
        self,
        key: Key,
        compiled: CompiledPipeline,
        snapshot: Snapshot,
        trust: TlsTrust = NO_TLS,
    ) -> float | None:
        """Probe the pods that are due, concurrently.

        Only pods that run the effective spec are probed: other revisions may have other model names
        and inputs. Their last result stays, as does that of a pod whose probe has not ended yet.
        Before the first probe of this process, it is what the status reports.

        Returns:
            The seconds until the next pod is due; ``None`` if the end of a probe comes first.

        Raises:
            ProbesPending: A pod whose probe result the plan requires has not been probed yet.
        """
        now, pipeline = self.clock(), compiled.pipeline
        pods = self._select(key, compiled, snapshot)
        known, hangs = self._results[key], self._hangs[key]
        runs_inference = compiled.runs_inference

        def seconds(pod: Pod) -> float:
            last, hang = known.get(pod.uid), hangs.get(pod.uid)
            due = due_in(pod, last, pipeline.spec.health, now, runs_inference=runs_inference)
            return due if hang is None else max(due, (hang.until - now).total_seconds())

        tasks = self._running.setdefault(key, {})
        due = [pod for pod in pods if seconds(pod) <= 0 and pod.uid not in tasks]
        started = self._start(key, due, compiled, trust, now)
        if started:
            await asyncio.wait(started.values(), timeout=PATIENCE_SECONDS)
        for uid, task in list(tasks.items()):
            if task.done():
                del tasks[uid]
                known[uid] = task.result().merged_with(known.get(uid))
            elif uid in started:
                task.add_done_callback(partial(self._end, key, uid))
        if any(
            pod.uid in tasks
            and pod.uid not in hangs
            and is_unknown(pod, known.get(pod.uid), runs_inference=runs_inference)
            for pod in pods
        ):
            raise ProbesPending
        return soonest(*(max(1.0, seconds(pod)) for pod in pods if pod.uid not in tasks))

    def _select(self, key: Key, compiled: CompiledPipeline, snapshot: Snapshot) -> list[Pod]:
        """Return the pods to probe; forget those that do not run."""
        state = snapshot.state().revision
        # The second is a revision of the same spec that waits to be replaced by one with this
        # operator's templates.
        revisions = {
            compiled.revision.name,
            state.desired if state.generation == snapshot.generation else "",
        }
        running = {pod.uid: pod for pod in snapshot.pods if pod.server_running and not pod.deleting}
        if key not in self._results:
            self._results[key] = reported_probes(snapshot, self.clock())
        known, hangs = self._results[key], self._hangs.setdefault(key, {})
        tasks = self._running.get(key, {})
        for uid in (known.keys() | tasks.keys()) - running.keys():
            known.pop(uid, None)
            self._disconnect(uid, tasks.pop(uid, None))
        for uid, hang in list(hangs.items()):
            if uid not in running or running[uid].ready != hang.ready:
                del hangs[uid]
        return [pod for pod in running.values() if pod.revision in revisions]

    def _disconnect(self, uid: str, task: asyncio.Task[Probe] | None) -> None:
        """Close the connection to a pod, after its probe, which may still keep it."""
        if task is None:
            self.release(uid)
        else:
            task.cancel()
            task.add_done_callback(lambda _: self.release(uid))

    def _end(self, key: Key, uid: str, task: asyncio.Task[Probe]) -> None:
        if self._running.get(key, {}).get(uid) is task:
            self.enqueue(key)

    def _start(
        self,
        key: Key,
        due: list[Pod],
        compiled: CompiledPipeline,
        trust: TlsTrust,
        now: dt.datetime,
    ) -> dict[str, asyncio.Task[Probe]]:
        """Start a probe of each pod; return them by pod uid."""
        started = {
            pod.uid: asyncio.create_task(self._probe_pod(key, pod, compiled, trust, now))
            for pod in due
        }
        self._running[key].update(started)
        return started

    def _target(self, pod: Pod, compiled: CompiledPipeline, trust: TlsTrust) -> ProbeTarget:
        pipeline, graph = compiled.pipeline, compiled.graph
        return ProbeTarget(
            pod,
            graph,
            self.derive(pipeline.metadata.uid, pod.revision),
            example_of(pipeline, graph) if pod.ready else None,
            trust.identity(pod),
        )

    async def _probe_pod(
        self, key: Key, pod: Pod, compiled: CompiledPipeline, trust: TlsTrust, now: dt.datetime
    ) -> Probe:
        """Probe a pod. Probes of one that hangs back off to every ``health.periodSeconds``."""
        hang = self._hangs[key].get(pod.uid)
        result, seconds = await self._slots.run(
            key[0],
            # The example may be large, so it exists only while the probe runs.
            lambda: self.prober(self._target(pod, compiled, trust), now),
            has_hung=hang is not None,
            is_large=pod.ready and compiled.has_large_example,
        )
        if result.error and seconds >= SLOT_SECONDS:
            count = hang.count + 1 if hang is not None else 1
            period = float(compiled.pipeline.spec.health.period_seconds)
            rest = min(period, UNREADY_PROBE_SECONDS * 2.0 ** min(count - 1, 10))
            until = self.clock() + dt.timedelta(seconds=rest)
            self._hangs[key][pod.uid] = _Hang(count, until, pod.ready)
        else:
            self._hangs[key].pop(pod.uid, None)
        return result


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
    if last is None or is_unknown(pod, last, runs_inference=runs_inference):
        return 0.0
    # A first wrong output may be an accident; a rollout is decided by the second.
    is_settled = (
        pod.ready and not last.error and not last.inference_error and last.consecutive_wrong != 1
    )
    period = float(health.period_seconds)
    if not is_settled:
        period = min(UNREADY_PROBE_SECONDS, period)
    elif last.is_reported and not last.misses:
        period = first_probe_after(pod.uid, period)
    return period - (now - last.at).total_seconds()


def is_unknown(pod: Pod, last: Probe | None, *, runs_inference: bool) -> bool:
    """Return whether no probe tells if a pod serves.

    It is new, has become ready since, or has not been probed since the operator started although
    the status does not report it as healthy.

    Args:
        pod: The pod.
        last: Its last result.
        runs_inference: Whether ready pods are verified by a test inference.
    """
    is_unverified = (
        last is not None and runs_inference and last.inference_error is None and not last.error
    )
    return last is None or (pod.ready and (is_unverified or not last.ensemble_ready))
