"""One step of one pod: instances that take requests from one queue, as Triton does. Pure.

Semantics (dynamic_batch_scheduler.cc of Triton core): a free instance takes the pending requests,
up to ``max_batch``. With a queue delay, the batch is held until it is full or its oldest request
has waited that long. A request of another shape ends the batch. Payloads formed ahead of execution
are not modeled: Triton merges them when an instance takes them, so batches are those of a single
queue. An execution of k requests takes ``alpha * k + fixed``, times a normally distributed factor.
Counters move at completion, as Triton's do, and each request of a batch adds the whole time of the
batch.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_pipelines.autoscaling.metrics.samples import ModelCounters

Request = tuple[float, float]  # (arrival at this station, birth at the client), seconds

# Number of factors drawn in advance and used in turn: a power of two, and far more than any
# measured window needs.
_NOISE = 8192


@dataclass(frozen=True, slots=True)
class StationSpec:
    """Settings of a step."""

    name: str
    """Name of the step."""
    alpha: float
    """Seconds per request."""
    fixed: float = 0.0
    """Seconds per execution."""
    spread: float = 0.0
    """Relative standard deviation of the time."""
    least: float = 0.2
    """Relative lower bound of the time."""
    instances: int = 1
    """Initial number of instances."""
    max_batch: int = 1
    """Largest batch."""
    delay: float = 0.0
    """The max_queue_delay in seconds."""
    same_shape: float = 1.0
    """Probability that a request has the shape of its predecessor."""
    cpu: bool = True
    """Whether each busy instance uses a core, and is slower if cores are scarce; else it uses the
    GPU."""
    scaled: bool = False
    """Whether the step is scaled."""
    reports_time: bool = False
    """Whether its metrics have the busy time and the CPU time of its instances, as the native
    tokenizer reports them."""


@dataclass(slots=True)
class Totals:
    """Cumulative counters: requests, executions, seconds. ``busy`` counts a batch once."""

    success: int = 0
    execs: int = 0
    compute: float = 0.0
    busy: float = 0.0
    queue: float = 0.0
    cpu: float = 0.0
    throttled: float = 0.0


class Station:
    """A queue and its instances.

    Call ``offer``, then ``advance`` to a time. Times must never decrease.
    """

    def __init__(self, spec: StationSpec, noise: Sequence[float], shapes: Sequence[float]) -> None:
        self.spec = spec
        self.totals = Totals()
        self.factor = 1.0  # of the service time: longer texts
        self._free = [0.0] * spec.instances
        self._queue: list[Request] = []
        self._head = 0
        self._noise, self._drawn = noise, 0
        self._shapes = shapes
        self._running: list[
            tuple[float, float, float, float, int, float]
        ] = []  # finish, birth, seconds, waited, executions, unstretched
        self.on_busy: Callable[[float, float], None] | None = (
            None  # (start, finish) of each execution
        )

    @property
    def instances(self) -> int:
        """Instances that serve or finish their last batch."""
        return len(self._free)

    @property
    def seconds(self) -> float:
        """Time of an execution of one request."""
        return (self.spec.alpha + self.spec.fixed) * self.factor

    def offer(self, requests: Sequence[Request]) -> None:
        """Requests by time of arrival, none before those offered earlier."""
        if self._head > 4096:
            del self._queue[: self._head]
            self._head = 0
        self._queue.extend(requests)

    def pending(self, now: float) -> int:
        """Return the requests that have arrived but are not executing.

        This is Triton's nv_inference_pending_request_count.
        """
        return max(0, bisect_right(self._queue, (now, float("inf"))) - self._head)

    def busy(self, now: float) -> int:
        """Instances that execute."""
        return sum(1 for free in self._free if free > now)

    def grow(self, count: int, now: float) -> None:
        """Add instances."""
        for _ in range(count):
            heapq.heappush(self._free, now)

    def shrink(self, count: int) -> None:
        """Remove instances, idle ones first; a running batch is completed."""
        for _ in range(min(count, len(self._free) - 1)):
            heapq.heappop(self._free)

    def clear(self, now: float, instances: int) -> int:
        """Restart the pod and return the number of lost requests.

        Everything in it is lost, and counters start at 0.
        """
        lost = bisect_right(self._queue, (now, float("inf"))) - self._head + len(self._running)
        self._queue, self._head, self._running = [], 0, []
        self._free = [now] * instances
        self.totals = Totals()
        return max(0, lost)

    def advance(self, until: float, cores: float) -> list[Request]:
        """Run to ``until`` and return the completed requests by time.

        ``cores`` are the cores available to this station's instances.
        """
        if self.spec.max_batch == 1:
            self._singly(until, cores)
        else:
            self._batches(until, cores)
        self._running.sort()
        cut = bisect_right(self._running, (until, float("inf")))
        done, self._running = self._running[:cut], self._running[cut:]
        totals = self.totals
        totals.success += len(done)
        for _, _, seconds, waited, executions, plain in done:
            totals.compute += seconds
            totals.queue += waited
            totals.execs += executions
            totals.busy += seconds if executions else 0.0
            totals.cpu += plain
            totals.throttled += seconds - plain if executions else 0.0
        return [(item[0], item[1]) for item in done]

    def counters(self, now: float) -> ModelCounters:
        """As Triton's metrics endpoint would give them."""
        totals, reports = self.totals, self.spec.reports_time
        return ModelCounters(
            success=float(totals.success),
            execs=float(totals.execs),
            queue_us=totals.queue * 1e6,
            compute_infer_us=totals.compute * 1e6,
            pending=float(self.pending(now)),
            busy_us=totals.busy * 1e6 if reports else 0.0,
            cpu_us=totals.cpu * 1e6 if reports else 0.0,
        )

    def _stretch(self, start: float, cores: float) -> float:
        """Linear: as many instances as cores run at full speed, more share them."""
        if not self.spec.cpu or len(self._free) <= cores:
            return 1.0
        busy = 1 + sum(1 for free in self._free[1:] if free > start)
        return max(1.0, busy / max(cores, 0.1))

    def _singly(self, until: float, cores: float) -> None:
        queue, free, noise, head, drawn = (
            self._queue,
            self._free,
            self._noise,
            self._head,
            self._drawn,
        )
        seconds = self.seconds
        cramped = self.spec.cpu and len(free) > cores
        replace, append, told, mask = (
            heapq.heapreplace,
            self._running.append,
            self.on_busy,
            _NOISE - 1,
        )
        for head in range(self._head, len(queue)):
            arrived, born = queue[head]
            start = free[0]
            if arrived > start:
                start = arrived
            if start >= until:
                break
            plain = seconds * noise[drawn & mask]
            drawn += 1
            taken = plain * self._stretch(start, cores) if cramped else plain
            finish = start + taken
            replace(free, finish)
            append((finish, born, taken, start - arrived, 1, plain))
            if told is not None:
                told(start, finish)
        else:
            head = len(queue)
        self._head, self._drawn = head, drawn

    def _batches(self, until: float, cores: float) -> None:
        queue, free, spec = self._queue, self._free, self.spec
        head, end, drawn = self._head, len(self._queue), self._drawn
        while head < end:
            arrived = queue[head][0]
            start = max(free[0], arrived)
            if spec.delay > 0:
                full = (
                    queue[head + spec.max_batch - 1][0]
                    if head + spec.max_batch <= end
                    else float("inf")
                )
                start = max(start, min(arrived + spec.delay, full))
            if start >= until:
                break
            last = head + 1
            most = min(end, head + spec.max_batch)
            while last < most and queue[last][0] <= start:
                if spec.same_shape < 1.0 and self._shapes[last & (_NOISE - 1)] >= spec.same_shape:
                    break
                last += 1
            size = last - head
            plain = (
                (spec.alpha * size + spec.fixed) * self.factor * self._noise[drawn & (_NOISE - 1)]
            )
            drawn += 1
            taken = plain * self._stretch(start, cores)
            finish = start + taken
            heapq.heapreplace(free, finish)
            for index in range(head, last):
                came, born = queue[index]
                self._running.append(
                    (
                        finish,
                        born,
                        taken,
                        start - came,
                        1 if index == head else 0,
                        plain if index == head else 0.0,
                    )
                )
            if self.on_busy is not None:
                self.on_busy(start, finish)
            head = last
        self._head, self._drawn = head, drawn


def noise(normal: Sequence[float], spec: StationSpec) -> list[float]:
    """Factors of service times from standard normal draws, 8192 of them."""
    return [max(spec.least, 1.0 + spec.spread * value) for value in normal[:_NOISE]]


NOISE = _NOISE
