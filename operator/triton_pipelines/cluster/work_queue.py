"""A de-duplicating work queue for reconcile keys.

Guarantees:

- a key that is added several times before it runs, runs once;
- a key added while it is running runs once more afterwards, and never twice at the same time;
- at most ``workers`` keys run at a time, in turn over namespaces, urgent keys of each first; one
  namespace leaves a quarter of the workers (rounded down) to others, and so do all namespaces
  together in which a run took long;
- a key whose last run used much CPU time is delayed by a multiple of that time;
- a failed key is retried after an exponential, jittered back-off that depends on the class of its
  error; a success resets it;
- a delayed add keeps the earliest time and survives earlier runs.

Time is the event loop's own clock, so tests run on a virtual one; jitter comes from an injected
function.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.fair_keys import FairKeys, Key

__all__ = [
    "BUG",
    "OUTCOME_OK",
    "TRANSIENT",
    "Backoff",
    "Key",
    "ReconcileObserver",
    "Result",
    "WorkQueue",
    "backoff_of",
]

OUTCOME_OK: Final = "ok"
# A run with at least this CPU time (seconds) delays the next run of its key by this multiple of it.
COSTLY_SECONDS: Final = 0.1
REST_FACTOR: Final = 10.0
# One worker of so many is not for keys of a namespace that occupies the others: its writes may each
# take as long as the time-out of a request.
WORKERS_PER_RESERVED: Final = 4
# A run takes long from this time (seconds) on, as when a webhook delays each write of a namespace,
# and its namespace counts as slow for so long (seconds) afterwards.
SLOW_SECONDS: Final = 5.0
SLOW_MEMORY_SECONDS: Final = 300.0
# Delays of at least this many seconds may take this much (seconds) longer, so that keys become due
# together: a call over gRPC takes 0.3 ms of CPU time if 16 start together, 0.5 ms if four do, and
# 1.4 ms if the process wakes up for each.
LONG_DELAY_SECONDS: Final = 10.0
WAKE_UP_SECONDS: Final = 1.0
# Outdated delayed adds, in addition to one per delayed key, that wait for their time to be dropped.
_OUTDATED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a reconcile."""

    requeue_after: float | None = None
    """Seconds until the next reconcile; ``None`` leaves it to events and the resync."""
    outcome: str = OUTCOME_OK
    """Label of the metric."""
    cpu_seconds: float = 0.0
    """CPU time that was spent on this key alone."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Wait after a failure: ``initial × 2^(failures - 1)``, at most ``maximum``.

    The upper half of it is jittered.
    """

    name: str
    """The error class, for the metric; another class restarts the count of failures."""
    initial: float
    """Seconds after the first failure."""
    maximum: float
    """Longest wait in seconds."""
    at_least: float = 0.0
    """Seconds that the server asked for (``Retry-After``); the wait is added to it."""

    def delay(self, failures: int, uniform: Callable[[float, float], float]) -> float:
        """Return the seconds to wait after ``failures`` failures in a row."""
        # 2**60 s is far beyond any maximum; the bound keeps the power a small number.
        ceiling = min(self.maximum, self.initial * 2.0 ** min(failures - 1, 60))
        return self.at_least + uniform(ceiling / 2, ceiling)


TRANSIENT: Final = Backoff("transient", 0.5, 60.0)
BUG: Final = Backoff("bug", 5.0, 300.0)


class ReconcileObserver(Protocol):
    """Called after every reconcile."""

    def __call__(
        self, key: Key, *, outcome: str, seconds: float, waited: float, error: BaseException | None
    ) -> None:
        """Observe a reconcile.

        Args:
            key: its key.
            outcome: label of the metric.
            seconds: its duration.
            waited: seconds from being due to its start.
            error: what it raised.
        """
        ...


def _observe_nothing(
    key: Key, *, outcome: str, seconds: float, waited: float, error: BaseException | None
) -> None:
    """Default hook."""


def backoff_of(error: BaseException) -> Backoff:
    """Return the back-off after an error of a reconcile.

    An error of the API server is retried soon, but no earlier than the server asks for. Anything
    else is a bug and is retried later.
    """
    if isinstance(error, ClusterError):
        return replace(TRANSIENT, at_least=error.retry_after or 0.0)
    return BUG


@dataclass(slots=True)
class WorkQueue:
    """The queue. All methods except :meth:`run` are plain calls from the loop's thread."""

    work: Callable[[Key], Awaitable[Result]]
    """Reconciles one key."""
    workers: int = 4
    """Keys that run at a time."""
    timeout_seconds: float = 300.0
    """Time limit of a reconcile; exceeding it is a failure."""
    backoff_of: Callable[[BaseException], Backoff] = backoff_of
    """Returns the back-off after an error; replaced in tests."""
    observe: ReconcileObserver = _observe_nothing
    """Called after each reconcile, for metrics and logs; must not raise."""
    uniform: Callable[[float, float], float] = random.uniform
    """Jitter; replaced in tests."""
    _ready: FairKeys = field(default_factory=FairKeys, init=False)
    """Due keys in order of execution, with the time since when."""
    _resting: dict[Key, float] = field(default_factory=dict, init=False)
    """Keys whose last run used much CPU, with the earliest time of the next one."""
    _running: dict[Key, float] = field(default_factory=dict, init=False)
    """Running keys, with the time of their start."""
    _slow: dict[str, float] = field(default_factory=dict, init=False)
    """Slow namespaces, with the time of the end of their last long run."""
    _dirty: dict[Key, float] = field(default_factory=dict, init=False)
    """Keys added while running, with the time of the add."""
    _due: dict[Key, float] = field(default_factory=dict, init=False)
    """Delayed adds, with their time."""
    _heap: list[tuple[float, Key]] = field(default_factory=list, init=False)
    """Delayed adds by time; may contain outdated entries."""
    _failures: dict[Key, tuple[str, int]] = field(default_factory=dict, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _group: asyncio.TaskGroup | None = field(default=None, init=False)
    _context: contextvars.Context | None = field(default=None, init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")

    # --- adding ---------------------------------------------------------------------------------

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Make a key due now. After :meth:`stop` it is accepted, but does not run.

        Args:
            key: the key.
            urgent: whether it runs before other keys of its namespace. If it is running, it is not
                urgent afterwards: one key that changes all the time does not stop the others.
        """
        now = asyncio.get_running_loop().time()
        if key in self._running:
            self._dirty.setdefault(key, now)
        else:
            self._make_due(key, now, urgent=urgent)
            self._pump()

    def _make_due(self, key: Key, since: float, *, urgent: bool = False) -> None:
        """Make a key that is not running due, or schedule it while it is delayed."""
        now = asyncio.get_running_loop().time()
        rested = self._resting.get(key, now)
        if rested > now:
            self.add_after(key, rested - now)
        else:
            self._resting.pop(key, None)
            self._ready.add(key, since, urgent=urgent)

    def add_after(self, key: Key, delay: float) -> None:
        """Make a key due in ``delay`` seconds, or at the time of an earlier delayed add.

        A long delay may take up to :data:`WAKE_UP_SECONDS` longer.
        """
        if delay <= 0:
            self.add(key)
            return
        due = asyncio.get_running_loop().time() + delay
        if delay >= LONG_DELAY_SECONDS:
            due = math.ceil(due / WAKE_UP_SECONDS) * WAKE_UP_SECONDS
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > 2 * len(self._due) + _OUTDATED_MAX:
            self._heap = [(time, other) for other, time in self._due.items()]
            heapq.heapify(self._heap)
        self._arm()

    def forget(self, key: Key) -> None:
        """Drop failures and delayed adds of a deleted object's key. If it is due, it stays due."""
        self._failures.pop(key, None)
        self._resting.pop(key, None)
        self._due.pop(key, None)

    # --- figures --------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Return how many keys are due and not running, including those added while running."""
        return len(self._ready) + len(self._dirty)

    @property
    def in_work(self) -> int:
        """Return how many keys are running."""
        return len(self._running)

    @property
    def delayed(self) -> int:
        """Return how many keys have a delayed add."""
        return len(self._due)

    def failures(self, key: Key) -> int:
        """Return the number of failures in a row of a key."""
        return self._failures.get(key, ("", 0))[1]

    def longest_work(self) -> float:
        """Return the age of the longest running reconcile (seconds); 0 without one."""
        now = asyncio.get_running_loop().time()
        return max((now - since for since in self._running.values()), default=0.0)

    # --- running --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run keys until :meth:`stop`, then until the running ones end. Cancelling cancels them.

        Raises:
            ExceptionGroup: the queue itself failed (errors of ``work`` never end it).
        """
        # Reconciles run in the context of this call, not of the code that adds a key (a Kopf
        # handler with its own context variables).
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
        """Start no more reconciles; the running ones finish."""
        self._stop.set()

    def _pump(self) -> None:
        while (
            self._group is not None
            and not self._stop.is_set()
            and len(self._running) < self.workers
            and (ready := self._ready.pop(self._full_namespaces())) is not None
        ):
            loop = asyncio.get_running_loop()
            key, since = ready
            self._running[key] = loop.time()
            # A copy for each: in a shared context, concurrent reconciles would log each other's
            # keys.
            context = self._context.copy() if self._context else None
            self._group.create_task(
                self._run_key(key, loop.time() - since),
                name=f"reconcile {key[0]}/{key[1]}",
                context=context,
            )

    def _full_namespaces(self) -> set[str]:
        """Return the namespaces that occupy as many workers as they may, alone or together."""
        running = Counter(namespace for namespace, _ in self._running)
        limit = self.workers - self.workers // WORKERS_PER_RESERVED
        full = {namespace for namespace, count in running.items() if count >= limit}
        slow = self._slow_namespaces()
        return full | slow if sum(running[namespace] for namespace in slow) >= limit else full

    def _slow_namespaces(self) -> set[str]:
        """Return the namespaces in which a run takes long, or took long lately."""
        now = asyncio.get_running_loop().time()
        lately = now - SLOW_MEMORY_SECONDS
        self._slow = {name: ended for name, ended in self._slow.items() if ended > lately}
        hanging = {key[0] for key, since in self._running.items() if now - since >= SLOW_SECONDS}
        return hanging | self._slow.keys()

    async def _run_key(self, key: Key, waited: float) -> None:
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
            error = cancelled  # something inside was cancelled, not this task
        except Exception as failed:
            error = failed
        else:
            outcome = result.outcome
            self._failures.pop(key, None)
            self._rest(key, result.cpu_seconds)
            if result.requeue_after is not None:
                # With 0 it runs after those that are already due.
                self.add_after(key, result.requeue_after)
        finally:
            # The only place where a key stops running, whatever happened; else it would never run
            # again.
            self._running.pop(key, None)
            if loop.time() - started >= SLOW_SECONDS:
                self._slow[key[0]] = loop.time()
            if key in self._dirty:
                self._make_due(key, self._dirty.pop(key))
        if error is not None:
            outcome = self._fail(key, error)
        self.observe(
            key, outcome=outcome, seconds=loop.time() - started, waited=waited, error=error
        )
        self._pump()

    def _rest(self, key: Key, cpu_seconds: float) -> None:
        """Delay the next run of an expensive key, since it may cost as much."""
        self._resting.pop(key, None)
        if cpu_seconds >= COSTLY_SECONDS:
            now = asyncio.get_running_loop().time()
            self._resting[key] = now + REST_FACTOR * cpu_seconds

    def _fail(self, key: Key, error: BaseException) -> str:
        backoff = self.backoff_of(error)
        name, count = self._failures.get(key, (backoff.name, 0))
        count = count + 1 if name == backoff.name else 1
        self._failures[key] = (backoff.name, count)
        self.add_after(key, backoff.delay(count, self.uniform))
        return backoff.name

    # --- time -----------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Set the timer to the earliest delayed add."""
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
        # A timer may fire early by the clock's resolution; what it was set for is due nevertheless.
        now = max(asyncio.get_running_loop().time(), self._heap[0][0])
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._arm()
