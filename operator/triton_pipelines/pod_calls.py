"""Call many pods at a time, so that slow pods of one namespace do not delay those of others."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True)
class NamespaceSlots:
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
        """Hold a slot as long as the context lasts."""
        own = self._own.setdefault(namespace, asyncio.Semaphore(self.per_namespace))
        async with own, self._all:
            yield


@dataclass(frozen=True, slots=True)
class PodSlots:
    """Slots for calls of pods; pods whose last call was slow have slots of their own.

    Such a call may hold its slot up to its time limit. In the slots of the other pods, the slow
    pods of a few namespaces would therefore delay the pods of all others.
    """

    fast: NamespaceSlots
    slow: NamespaceSlots

    def hold(self, namespace: str, *, is_slow: bool) -> AbstractAsyncContextManager[None]:
        """Hold a slot as long as the context lasts.

        Args:
            namespace: The namespace of the pod.
            is_slow: Whether its last call was slow.
        """
        return (self.slow if is_slow else self.fast).hold(namespace)


@dataclass(slots=True)
class PendingCalls(Generic[K, T]):
    """Calls that go on if they take longer than their caller waits, one at a time for each key."""

    patience: float
    """How long (seconds) :meth:`results` waits."""
    _tasks: dict[K, asyncio.Task[T]] = field(default_factory=dict, init=False)

    async def results(
        self, calls: Mapping[K, Callable[[], Awaitable[T]]]
    ) -> dict[K, T | BaseException]:
        """Start calls that are not running, and return the results that there are in time.

        An error is returned as the result. A running call whose key is not given is canceled.
        """
        for key in self._tasks.keys() - calls.keys():
            self._tasks.pop(key).cancel()
        for key, call in calls.items():
            if key not in self._tasks:
                self._tasks[key] = asyncio.ensure_future(call())
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=self.patience)
        done = {key: task for key, task in self._tasks.items() if task.done()}
        for key in done:
            del self._tasks[key]
        return {key: _result_of(task) for key, task in done.items()}

    def cancel(self) -> None:
        """Cancel what is running."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()


def _result_of(task: asyncio.Task[T]) -> T | BaseException:
    try:
        return task.result()
    except (Exception, asyncio.CancelledError) as error:
        return error
