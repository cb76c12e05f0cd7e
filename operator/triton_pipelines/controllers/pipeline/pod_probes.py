"""Probe pods when they are due, and keep the last result of each. Does I/O through the prober."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from triton_pipelines.api.health import Health, InferenceHealth
from triton_pipelines.cluster.work_queue import Key
from triton_pipelines.compile.graph import Graph
from triton_pipelines.compile.graph.example_request import ExampleRequest, example_of, probe_blocker
from triton_pipelines.triton.tls import TlsIdentity

from .compiled_pipeline import CompiledPipeline
from .snapshot import Pod, Probe, Snapshot
from .tls_trust import TlsTrust

# How often (seconds) a pod that is not ready is probed for the reason. A ready one is probed every
# health.periodSeconds.
UNREADY_PROBE_SECONDS = 5.0


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


@dataclass(slots=True)
class PodProbes:
    """Probe results of all pipelines; one instance per process."""

    prober: Prober
    """Probes one pod."""
    derive: Callable[[str, str], str]
    """Returns the control key of a pipeline's uid and a revision."""
    clock: Callable[[], dt.datetime]
    """Returns the current time in UTC."""
    _results: dict[Key, dict[str, Probe]] = field(default_factory=dict)
    """Last results by pod uid."""

    def of(self, key: Key) -> dict[str, Probe]:
        """Return the last results of a pipeline by pod uid."""
        return dict(self._results.get(key, {}))

    def forget(self, key: Key) -> None:
        """Drop the results of a deleted pipeline."""
        self._results.pop(key, None)

    async def refresh(
        self, key: Key, compiled: CompiledPipeline, snapshot: Snapshot, trust: TlsTrust
    ) -> float | None:
        """Probe the pods that are due, concurrently.

        Only pods that run the effective spec are probed: other revisions may have other model names
        and inputs. Their last result stays.

        Returns:
            The seconds until the next pod is due.
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
        if due:
            results = await self._probe(due, compiled, trust, now)
            known.update(
                {
                    pod.uid: result.merged_with(known.get(pod.uid))
                    for pod, result in zip(due, results, strict=True)
                }
            )
        return max(1.0, min(seconds(pod) for pod in pods.values())) if pods else None

    async def _probe(
        self, due: list[Pod], compiled: CompiledPipeline, trust: TlsTrust, now: dt.datetime
    ) -> list[Probe]:
        pipeline, graph = compiled.pipeline, compiled.graph
        example = example_of(pipeline, graph) if any(pod.ready for pod in due) else None
        targets = [
            ProbeTarget(
                pod,
                graph,
                self.derive(pipeline.metadata.uid, pod.revision),
                example if pod.ready else None,
                trust.identity(pod),
            )
            for pod in due
        ]
        return await asyncio.gather(*(self.prober(target, now) for target in targets))


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
