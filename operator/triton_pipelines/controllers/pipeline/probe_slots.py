"""Bound how many probes run at a time, so that pods that hang do not delay those that answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from triton_pipelines.pod_calls import NamespaceSlots

from .snapshot import Probe

# A probe holds its slot for this long (seconds) at most, then continues without one. So a pod that
# hangs for the first time delays others by no more, and at most deadline / 1 s * SLOTS probes run.
SLOT_SECONDS: Final = 1.0
SLOTS: Final = 32
# Of one namespace: its pods must not delay those of others.
SLOTS_PER_NAMESPACE: Final = 8
# For pods whose last probe hung, until the probe ends.
HUNG_SLOTS: Final = 16
HUNG_SLOTS_PER_NAMESPACE: Final = 4
# For probes with a large example, until the probe ends. With 16 MiB, the process grew by 100 MiB
# for one, 164 MiB for two and 293 MiB for four at a time (measured); with 1,000 pipelines, it has
# about 300 MiB of the chart's 512 MiB.
LARGE_SLOTS: Final = 2
LARGE_SLOTS_PER_NAMESPACE: Final = 1


@dataclass(slots=True)
class ProbeSlots:
    """Slots of all probes; one instance per process."""

    _slots: NamespaceSlots = field(
        default_factory=lambda: NamespaceSlots(SLOTS, SLOTS_PER_NAMESPACE)
    )
    _hung: NamespaceSlots = field(
        default_factory=lambda: NamespaceSlots(HUNG_SLOTS, HUNG_SLOTS_PER_NAMESPACE)
    )

    _large: NamespaceSlots = field(
        default_factory=lambda: NamespaceSlots(LARGE_SLOTS, LARGE_SLOTS_PER_NAMESPACE)
    )

    async def run(
        self,
        namespace: str,
        probe: Callable[[], Awaitable[Probe]],
        *,
        has_hung: bool,
        is_large: bool = False,
    ) -> tuple[Probe, float]:
        """Run a probe when there is a slot.

        Args:
            namespace: The namespace of the pod.
            probe: Probes it.
            has_hung: Whether its last probe hung.
            is_large: Whether its example request is large.

        Returns:
            The result, and the seconds that it took.
        """

        async def timed() -> tuple[Probe, float]:
            begin = time.monotonic()
            return await probe(), time.monotonic() - begin

        if is_large or has_hung:
            slots = self._large if is_large else self._hung
            async with slots.hold(namespace):
                return await timed()
        async with self._slots.hold(namespace):
            task = asyncio.create_task(timed())
            try:
                await asyncio.wait({task}, timeout=SLOT_SECONDS)
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait({task})
                raise
        return await task
