"""Bound how many probes run at a time, so that pods that hang do not delay those that answer."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

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


@dataclass(slots=True)
class _Slots:
    """Slots that are given in the order of requests, a bounded number to each namespace."""

    total: int
    per_namespace: int
    _all: asyncio.Semaphore = field(init=False)
    _own: weakref.WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=weakref.WeakValueDictionary, init=False
    )

    def __post_init__(self) -> None:
        self._all = asyncio.Semaphore(self.total)

    @asynccontextmanager
    async def hold(self, namespace: str) -> AsyncIterator[None]:
        own = self._own.setdefault(namespace, asyncio.Semaphore(self.per_namespace))
        async with own, self._all:
            yield


@dataclass(slots=True)
class ProbeSlots:
    """Slots of all probes; one instance per process."""

    _slots: _Slots = field(default_factory=lambda: _Slots(SLOTS, SLOTS_PER_NAMESPACE))
    _hung: _Slots = field(default_factory=lambda: _Slots(HUNG_SLOTS, HUNG_SLOTS_PER_NAMESPACE))

    async def run(
        self, namespace: str, probe: Callable[[], Awaitable[Probe]], *, has_hung: bool
    ) -> tuple[Probe, float]:
        """Run a probe when there is a slot.

        Args:
            namespace: The namespace of the pod.
            probe: Probes it.
            has_hung: Whether its last probe hung.

        Returns:
            The result, and the seconds that it took.
        """

        async def timed() -> tuple[Probe, float]:
            begin = time.monotonic()
            return await probe(), time.monotonic() - begin

        if has_hung:
            async with self._hung.hold(namespace):
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
