"""Skip iterations that would decide the same again, and probe pods only. Does I/O by probing.

A plan depends on the caches, on what other parts publish, on probe results and on the time. Where
an iteration had nothing to do and none of these has changed, only the pods that are due are probed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from triton_pipelines.cluster.store import Store
from triton_pipelines.cluster.work_queue import Key, Result
from triton_pipelines.controllers.handover import Handover

from .actions import Plan, soonest
from .compiled_pipeline import CompiledPipeline
from .live_config_map import stored_state
from .pod_probes import PodProbes
from .snapshot import Snapshot
from .tls_trust import NO_TLS

# How long (seconds) a pipeline goes without a whole iteration at most: the default interval of
# --resync-seconds. Nothing depends on it: policies state when they are due, and watches and the
# relist report changes of objects.
SETTLED_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Settled:
    """The last iteration of a pipeline, if it had nothing to do."""

    inputs: tuple[object, object]
    """:meth:`SettledPipelines.published` and :meth:`SettledPipelines.observed`."""
    acted: tuple[Snapshot, CompiledPipeline] | None
    """What its pods are probed with; ``None`` without an effective spec."""
    until: dt.datetime
    """When the next iteration is due in any case."""


@dataclass(slots=True)
class SettledPipelines:
    """Pipelines whose last iteration had nothing to do; one instance per process."""

    store: Store
    handover: Handover
    probes: PodProbes
    clock: Callable[[], dt.datetime]
    """Returns the current time in UTC."""
    _settled: dict[Key, Settled] = field(default_factory=dict)

    def published(self, key: Key) -> object:
        """Return what an iteration reads at its start, for comparison: objects and handover."""
        published = self.handover
        return (
            self.store.state_of(key),
            published.intent(key),
            published.view(key),
            published.latencies.get(key),
            self._monitoring(key),
        )

    def _monitoring(self, key: Key) -> object:
        """Return the findings on monitoring objects: until they are published, the recorded ones.

        A plan keeps the recorded ones until then.
        """
        findings = self.handover.monitoring.get(key)
        return stored_state(self.store, key).warnings.monitoring if findings is None else findings

    def observed(self, key: Key) -> object:
        """Return what an iteration finds out before it plans, for comparison.

        With :meth:`published`, it is all that a plan depends on besides the time.
        """
        return (
            dict(self.handover.resize_rejections.get(key, {})),
            dict(self.handover.replica_sets.get(key, {})),
            self.probes.of(key),
        )

    async def repeat(self, key: Key) -> Result | None:
        """Probe the pods that are due, if nothing else has changed.

        Returns:
            ``None`` if an iteration is needed.

        Raises:
            ProbesPending: As :meth:`PodProbes.refresh`.
        """
        settled = self._settled.get(key)
        if settled is None or not self._holds(key, settled):
            self.forget(key)
            return None
        acted = settled.acted
        trust = self.handover.tls.get(key, NO_TLS)
        probe_after = await self.probes.refresh(key, acted[1], acted[0], trust) if acted else None
        if not self._holds(key, settled):
            self.forget(key)
            return None
        seconds = (settled.until - self.clock()).total_seconds()
        return Result(requeue_after=soonest(probe_after, seconds))

    def keep(
        self,
        key: Key,
        inputs: tuple[object, object],
        decided: Plan,
        acted: tuple[Snapshot, CompiledPipeline] | None,
    ) -> None:
        """Remember an iteration if it had nothing to do and its inputs have not changed since.

        Args:
            key: The pipeline's key.
            inputs: What was published at its start, and what it observed.
            decided: Its plan.
            acted: What its pods are probed with.
        """
        is_idle = decided.is_empty and not decided.events and not decided.action_events
        if is_idle and inputs == self._inputs(key):
            seconds = soonest(SETTLED_SECONDS, decided.requeue_after) or 0.0
            until = self.clock() + dt.timedelta(seconds=seconds)
            self._settled[key] = Settled(inputs, acted, until)

    def forget(self, key: Key) -> None:
        """Require an iteration of a pipeline."""
        self._settled.pop(key, None)

    def _holds(self, key: Key, settled: Settled) -> bool:
        return self.clock() < settled.until and self._inputs(key) == settled.inputs

    def _inputs(self, key: Key) -> tuple[object, object]:
        return self.published(key), self.observed(key)
