"""A de-duplicating work queue for reconcile keys.

What it promises:

- a key that is added several times before its turn runs once;
- a key added while it is in work runs once more afterwards, and never twice at the same time;
- at most ``workers`` keys are in work;
- a failed key comes back after an exponential, jittered wait of its error's class; success forgets the failures;
- a delayed add keeps the earliest moment and survives earlier runs.

Time is the event loop's own clock, so tests run on a virtual one; jitter comes from an injected function.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

Key = tuple[str, str]
"""Namespace and name of a pipeline."""

OUTCOME_OK: Final = "ok"


@dataclass(frozen=True, slots=True)
class Result:
    """What a pass over a key came to.

    Attributes:
        requeue_after: seconds until the key has to be looked at again, or None when only an event or the resync does that.
        outcome: short word for the metric.
    """

    requeue_after: float | None = None
    outcome: str = OUTCOME_OK


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a key that failed waits: ``initial × 2^(failures - 1)``, at most ``maximum``, of which the upper half is jittered.

    Attributes:
        name: the error class, for the metric; a change of class starts the count anew.
        initial, maximum: seconds.
        at_least: seconds the server asked for (``Retry-After``); jitter comes on top.
    """

    name: str
    initial: float
    maximum: float
    at_least: float = 0.0

    def delay(self, failures: int, uniform: Callable[[float, float], float]) -> float:
        """Seconds to wait after the ``failures``-th failure in a row (1 is the first)."""
        # 2**60 s is far beyond any maximum; the bound keeps the power a small number.
        ceiling = min(self.maximum, self.initial * 2.0 ** min(failures - 1, 60))
        return self.at_least + uniform(ceiling / 2, ceiling)


TRANSIENT: Final = Backoff("transient", 0.5, 60.0)
BUG: Final = Backoff("bug", 5.0, 300.0)


class Observe(Protocol):
    """Told of every finished pass. ``error`` is what it raised; ``waited`` the seconds between becoming due and being started."""

    def __call__(
        self, key: Key, *, outcome: str, seconds: float, waited: float, error: BaseException | None
    ) -> None: ...


def _observe_nothing(
    key: Key, *, outcome: str, seconds: float, waited: float, error: BaseException | None
) -> None:
    """Default hook."""


def _all_bugs(_: BaseException) -> Backoff:
    return BUG


@dataclass(slots=True)
class WorkQueue:
    """The queue; all methods but :meth:`run` are plain calls from the loop's thread and never block.

    Args:
        work: one pass over a key. Cancelled when it runs longer than ``timeout_seconds``, which then counts as its failure.
        workers: keys in work at a time.
        classify: error → back-off.
        observe: measuring and logging hook; must not raise.
        uniform: jitter.
    """

    work: Callable[[Key], Awaitable[Result]]
    workers: int = 4
    timeout_seconds: float = 300.0
    classify: Callable[[BaseException], Backoff] = _all_bugs
    observe: Observe = _observe_nothing
    uniform: Callable[[float, float], float] = random.uniform
    _ready: dict[Key, float] = field(
        default_factory=dict, init=False
    )  # in order of turn; value: since when
    _running: dict[Key, float] = field(default_factory=dict, init=False)  # value: since when
    _dirty: dict[Key, float] = field(default_factory=dict, init=False)  # added while in work
    _due: dict[Key, float] = field(
        default_factory=dict, init=False
    )  # delayed adds; the heap may hold outdated entries
    _heap: list[tuple[float, Key]] = field(default_factory=list, init=False)
    _failures: dict[Key, tuple[str, int]] = field(default_factory=dict, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _group: asyncio.TaskGroup | None = field(default=None, init=False)
    _context: contextvars.Context | None = field(default=None, init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")

    # --- adding --------------------------------------------------------------------------------------------------------

    def add(self, key: Key) -> None:
        """Makes a key due now. After :meth:`stop` it is taken but not worked on."""
        now = asyncio.get_running_loop().time()
        if key in self._running:
            self._dirty.setdefault(key, now)
        else:
            self._ready.setdefault(key, now)
            self._pump()

    def add_after(self, key: Key, delay: float) -> None:
        """Makes a key due in ``delay`` seconds, or when an earlier delayed add says so."""
        if delay <= 0:
            self.add(key)
            return
        due = asyncio.get_running_loop().time() + delay
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._arm()

    def forget(self, key: Key) -> None:
        """Drops failures and delayed adds of a key whose object is gone. A turn that is due already stays."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    # --- figures -------------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Keys that are due and not in work, those dirtied while in work included."""
        return len(self._ready) + len(self._dirty)

    @property
    def in_work(self) -> int:
        """Keys in work."""
        return len(self._running)

    @property
    def delayed(self) -> int:
        """Keys with a delayed add."""
        return len(self._due)

    def failures(self, key: Key) -> int:
        """Failures in a row of a key."""
        return self._failures.get(key, ("", 0))[1]

    def oldest_wait(self) -> float:
        """Seconds that the longest waiting due key has waited; 0 without one."""
        now = asyncio.get_running_loop().time()
        return max(
            (now - since for since in (*self._ready.values(), *self._dirty.values())), default=0.0
        )

    def longest_work(self) -> float:
        """Seconds that the pass longest in work has taken; 0 without one."""
        now = asyncio.get_running_loop().time()
        return max((now - since for since in self._running.values()), default=0.0)

    # --- running -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works on keys until :meth:`stop`, then until those in work are done. Cancelling it cancels them.

        Raises:
            ExceptionGroup: the queue itself failed (errors of ``work`` never end it).
        """
        # Passes run in the context of this call, not in that of whoever adds a key (a Kopf handler with its own context variables).
        self._context = contextvars.copy_context()
        try:
            async with asyncio.TaskGroup() as self._group:
                self._pump()
                self._arm()
                await self._stop.wait()
        finally:
            self._group = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def stop(self) -> None:
        """Starts no more passes; those in work are finished."""
        self._stop.set()

    def _pump(self) -> None:
        while (
            self._group is not None
            and not self._stop.is_set()
            and self._ready
            and len(self._running) < self.workers
        ):
            loop = asyncio.get_running_loop()
            key = next(iter(self._ready))
            since = self._ready.pop(key)
            self._running[key] = loop.time()
            # A copy for each: in one shared context, passes side by side would log under each other's names.
            context = self._context.copy() if self._context else None
            self._group.create_task(
                self._pass(key, loop.time() - since),
                name=f"reconcile {key[0]}/{key[1]}",
                context=context,
            )

    async def _pass(self, key: Key, waited: float) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        error: BaseException | None = None
        outcome = OUTCOME_OK
        try:
            async with asyncio.timeout(self.timeout_seconds):
                result = await self.work(key)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error = cancelled  # something inside was cancelled, not we
        except Exception as failed:
            error = failed
        else:
            outcome = result.outcome
            self._failures.pop(key, None)
            if result.requeue_after is not None:
                # At once means: after those that wait already.
                self.add_after(key, result.requeue_after)
        finally:
            # The one place where a key leaves work, whatever happened; without it the key would never run again.
            self._running.pop(key, None)
            if key in self._dirty:
                self._ready.setdefault(key, self._dirty.pop(key))
        if error is not None:
            outcome = self._fail(key, error)
        self.observe(
            key, outcome=outcome, seconds=loop.time() - started, waited=waited, error=error
        )
        self._pump()

    def _fail(self, key: Key, error: BaseException) -> str:
        backoff = self.classify(error)
        name, count = self._failures.get(key, (backoff.name, 0))
        count = count + 1 if name == backoff.name else 1
        self._failures[key] = (backoff.name, count)
        self.add_after(key, backoff.delay(count, self.uniform))
        return backoff.name

    # --- time ----------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Sets the one timer to the earliest delayed add."""
        if self._group is None:
            return
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if self._timer is not None:
            if self._heap and self._timer.when() == self._heap[0][0]:
                return
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer = asyncio.get_running_loop().call_at(
                self._heap[0][0], self._on_timer, context=self._context
            )

    def _on_timer(self) -> None:
        self._timer = None
        # A timer may fire early by the clock's resolution: what it was set for is due.
        now = max(asyncio.get_running_loop().time(), self._heap[0][0])
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._arm()
