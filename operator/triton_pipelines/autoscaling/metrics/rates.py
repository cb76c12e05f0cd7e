"""Rates over a window from raw samples of Triton's counters. Pure.

Triton adds a batch's compute time once for each of its requests (infer_stats), so the busy time is
divided by the mean batch size, unless the step reports its busy time itself. All counters move when
a request completes; only the pending gauge is live. Differences are taken between samples with the
times of their own scrapes and never across a counter reset. A window that the history does not
cover is marked as uncovered: its rates may raise a count but never lower one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter

from triton_pipelines.autoscaling.metrics.samples import COUNTER_MAX, ModelCounters, PodHistory

# Seconds of tolerance. Scrapes jitter, and a window of 60 s has to find the sample of 60.02 s ago.
_EDGE = 0.1
_values = attrgetter(*(item.name for item in fields(ModelCounters)))
# Share of a window that the history has to span for the window to count as covered.
_COVERED = 0.8

Sampled = tuple[float, ModelCounters]
"""Counters and the time of their scrape, Unix seconds."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one model over a window, of one pod or summed over pods."""

    seconds: float
    """Time between the two samples."""
    throughput: float = 0.0
    """Completions per second (x), including cache hits."""
    growth: float = 0.0
    """Requests per second by which the backlog grows (dq); negative while it drains."""
    busy: float = 0.0
    """Busy seconds per second, corrected for batching."""
    executions: float = 0.0
    """Executions per second."""
    computed: float = 0.0
    """Completions per second that went through an execution."""
    queued: float = 0.0
    """Seconds of queueing per second."""
    rejected: float = 0.0
    """Requests per second that a queue policy rejected."""
    cpu: float = 0.0
    """CPU seconds per second; 0 where a step or pod does not report them."""
    covered: bool = True
    """Whether the history covers the window, without a counter reset in it."""

    @property
    def arrivals(self) -> float:
        """Return arrivals per second, never negative.

        They are completions, growth of the backlog and rejected requests.
        """
        return max(0.0, self.throughput + self.growth + self.rejected)

    @property
    def service(self) -> float | None:
        """Return the busy seconds of one instance per request; ``None`` without completions."""
        return self.busy / self.throughput if self.throughput > 0 else None

    @property
    def cpu_share(self) -> float | None:
        """Return the share of busy time that instances had a core; ``None``: not reported."""
        return min(1.0, self.cpu / self.busy) if self.cpu > 0 and self.busy > 0 else None

    @property
    def batch(self) -> float | None:
        """Return the requests per execution; ``None`` without executions."""
        return self.computed / self.executions if self.executions > 0 else None

    @property
    def queue(self) -> float | None:
        """Return the mean queue time of completed requests in seconds; ``None`` without any.

        For diagnosis only: during a stall it is 0.
        """
        return self.queued / self.throughput if self.throughput > 0 else None


@dataclass(frozen=True, slots=True)
class InstanceRange:
    """Range of the number of instances of one model in one pod over a period."""

    least: int
    """Instances that ran for the whole period."""
    most: int
    """The most instances that ran at any time in the period."""


class ModelSeries:
    """The samples of one model in one pod, ordered by time.

    Sources may repeat samples or deliver them out of order. A series is built once and then answers
    for many windows.
    """

    def __init__(self, history: PodHistory, model: str) -> None:
        by_time = {
            scrape.at: counters
            for scrape in history.scrapes
            if (counters := scrape.models.get(model)) is not None
        }
        self._all = sorted(by_time.items(), key=itemgetter(0))
        last = 0
        for number in range(len(self._all) - 1, 0, -1):
            if _went_back(self._all[number - 1][1], self._all[number][1]):
                last = number
                break
        self._reset = last > 0
        self._run = self._all[last:]
        # Each interval uses its own mean batch size: a queue that drained in full batches and the
        # single requests after it have no common mean.
        self._busy = [
            0.0,
            *accumulate(_busy(before[1], after[1]) for before, after in pairwise(self._run)),
        ]

    def bounded(self, ran: Callable[[float, float], InstanceRange]) -> ModelSeries:
        """Return the series with the busy time of each interval limited to what instances allow.

        The mean batch corrects busy time only if all batches have the same size. An interval in
        which a queue builds up has single requests and full batches, and its busy time is too high
        by the factor E[b²]/E[b]². Triton counts an execution when it ends, so the work that
        instances did without a completion is carried over to the interval in which it completes.

        Args:
            ran: Returns the range of instances between two Unix times.
        """
        spent = [end - begin for begin, end in pairwise(self._busy)]
        possible: list[float] = []
        under_way = _UnderWay()
        for busy, (before, after) in zip(spent, pairwise(self._run), strict=True):
            instances = ran(before[0], after[0])
            possible.append(_possible(busy, before, after, instances.most, under_way.seconds))
            under_way = under_way.after(possible[-1], before, after, instances.least)
        if possible == spent:
            return self
        bounded = copy(self)
        bounded._busy = [0.0, *accumulate(possible)]
        return bounded

    @property
    def newest(self) -> float | None:
        """Return the time of the newest sample in Unix seconds; ``None`` without a sample."""
        return self._all[-1][0] if self._all else None

    @property
    def pending(self) -> float | None:
        """Return the number of requests pending now; ``None`` without a sample."""
        return self._all[-1][1].queued if self._all else None

    def mean_pending(self, seconds: float) -> float | None:
        """Return the mean number of pending requests in the last ``seconds``, if known."""
        if not self._all:
            return None
        since = self._all[-1][0] - seconds - _EDGE
        values = [counters.queued for at, counters in self._all if at >= since]
        return sum(values) / len(values)

    def rates(self, seconds: float | None, *, skip: int = 0) -> Rates | None:
        """Return the rates over a window that ends at the newest sample.

        Args:
            seconds: Length of the window; ``None`` for the last scrape interval.
            skip: Number of newest samples to leave out.

        Returns:
            The rates, or ``None`` if there are fewer than two samples since the last counter reset,
            as in a pod that has just started.
        """
        run = self._run[:-skip] if skip else self._run
        if len(run) < 2:
            return None
        newest = run[-1]
        if seconds is None:
            return _between(run[-2], newest, self._spent(len(run) - 2, len(run) - 1), covered=True)
        since = newest[0] - seconds - _EDGE
        number = next(number for number, item in enumerate(run) if item[0] >= since)
        number = min(number, len(run) - 2)  # Scrapes may be further apart than the window is long.
        first = run[number]
        covered = newest[0] - run[0][0] >= _COVERED * seconds and not (
            self._reset and run[0][0] > newest[0] - seconds
        )
        return _between(first, newest, self._spent(number, len(run) - 1), covered=covered)

    def _spent(self, begin: int, end: int) -> float:
        """Return the busy seconds between two samples of the run."""
        return self._busy[end] - self._busy[begin]


def rates(history: PodHistory, model: str, seconds: float | None) -> Rates | None:
    """Return the rates of ``model`` over the last ``seconds``; see ``ModelSeries.rates``."""
    return ModelSeries(history, model).rates(seconds)


def mean_pending(history: PodHistory, model: str, seconds: float) -> float | None:
    """Return the mean number of pending requests in the last ``seconds``, if known."""
    return ModelSeries(history, model).mean_pending(seconds)


def total(parts: Iterable[Rates | None]) -> Rates | None:
    """Return the sum over pods; ``None`` if no pod has rates.

    A pod without rates adds nothing and makes the sum uncovered.
    """
    listed = list(parts)
    known = [part for part in listed if part is not None]
    if not known:
        return None
    if len(known) == 1 == len(listed):
        return known[0]
    return Rates(
        seconds=max(part.seconds for part in known),
        throughput=sum(part.throughput for part in known),
        growth=sum(part.growth for part in known),
        busy=sum(part.busy for part in known),
        executions=sum(part.executions for part in known),
        computed=sum(part.computed for part in known),
        queued=sum(part.queued for part in known),
        rejected=sum(part.rejected for part in known),
        cpu=sum(part.cpu for part in known)
        if all(part.cpu for part in known if part.busy)
        else 0.0,
        covered=len(known) == len(listed) and all(part.covered for part in known),
    )


def impossible_values(history: PodHistory, models: Iterable[str]) -> str:
    """Describe the first impossible value in ``history``: negative or too large; "" if none."""
    expected = tuple(models)
    for scrape in history.scrapes:
        if not math.isfinite(scrape.at):
            return f"a scrape at the time {scrape.at}"
        for model in expected:
            counters = scrape.models.get(model)
            if counters is not None and not all(
                0 <= value <= COUNTER_MAX for value in _values(counters)
            ):
                return f"a counter of model {model} that is negative or too large"
    return ""


def _went_back(before: ModelCounters, after: ModelCounters) -> bool:
    return (
        after.success < before.success
        or after.rejected < before.rejected
        or after.execs < before.execs
        or after.cache_hits < before.cache_hits
        or after.queue_us < before.queue_us
        or after.compute_infer_us < before.compute_infer_us
    )


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """Time spent so far on executions that are running at a scrape, summed over all instances.

    No counter shows this time yet.
    """

    seconds: float = 0.0
    """Seconds spent by instances that are certainly executing."""
    room: float = 0.0
    """Seconds of an interval that no completion accounts for.

    They were spent on running executions if instances complete nothing in the next interval.
    Otherwise they were idle: requests that wait for a batch to fill prove nothing.
    """

    def after(self, busy: float, first: Sampled, last: Sampled, instances: int) -> _UnderWay:
        """Return the running time after one more interval.

        Args:
            busy: Busy seconds of the executions that ended in the interval.
            first: Sample at the start of the interval.
            last: Sample at the end of the interval.
            instances: Instances that ran for the whole interval.
        """
        (begin, a), (end, b) = first, last
        had = instances * (end - begin) - busy
        # If fewer executions than instances completed while requests were pending, the remaining
        # instances spent the whole interval on one execution each.
        silent = (
            max(0.0, instances - (b.execs - a.execs)) * (end - begin)
            if min(a.queued, b.queued) > 0
            else 0.0
        )
        if not silent:
            return _UnderWay(
                room=max(0.0, min((self.seconds or self.room) + had, instances * (end - begin)))
            )
        before = self.seconds or min(self.room, silent)
        return _UnderWay(max(0.0, before + min(had, silent)))


def _executed(a: ModelCounters, b: ModelCounters) -> tuple[float, float, float]:
    """Return the compute seconds, requests and executions between two samples.

    Seconds are as Triton counts them: a batch of k requests adds its time k times.
    """
    spent = (
        b.compute_input_us
        + b.compute_infer_us
        + b.compute_output_us
        - a.compute_input_us
        - a.compute_infer_us
        - a.compute_output_us
    ) * 1e-6
    return max(0.0, spent), b.success - a.success - (b.cache_hits - a.cache_hits), b.execs - a.execs


def _busy(a: ModelCounters, b: ModelCounters) -> float:
    """Return the busy seconds between two samples, as reported or by the mean batch size."""
    if b.busy_us > a.busy_us:
        return (b.busy_us - a.busy_us) * 1e-6
    spent, computed, executions = _executed(a, b)
    # There are fewer requests than executions only if requests failed.
    return spent / (max(1.0, computed / executions) if executions > 0 else 1.0)


def _possible(busy: float, first: Sampled, last: Sampled, most: int, under_way: float) -> float:
    """Return the busy seconds of executions that ended between two samples, limited by instances.

    ``most`` instances had the interval itself and the time spent on executions that were running
    when it began: ``under_way``, or one execution of each instance if that is more.
    """
    (begin, a), (end, b) = first, last
    if busy <= end - begin:
        return busy  # One instance alone can have spent this time.
    spent, computed, executions = _executed(a, b)
    if b.busy_us > a.busy_us:
        return busy  # Reported, not estimated.
    bound = most * (end - begin) + max(
        under_way, most * busy / executions if executions > 0 else 0.0
    )
    # The largest possible batch holds all requests except one for each other execution. Without
    # any batching, the time is exact.
    least = spent / max(1.0, 1.0 + computed - executions)
    return min(busy, max(bound, least))


def _between(first: Sampled, last: Sampled, busy: float, *, covered: bool) -> Rates:
    (begin, a), (end, b) = first, last
    seconds = end - begin
    success = b.success - a.success
    computed = max(0.0, success - (b.cache_hits - a.cache_hits))
    executions = b.execs - a.execs
    return Rates(
        seconds=seconds,
        throughput=success / seconds,
        growth=(b.queued - a.queued) / seconds,
        busy=busy / seconds,
        executions=executions / seconds,
        computed=computed / seconds,
        queued=(b.queue_us - a.queue_us) * 1e-6 / seconds,
        rejected=(b.rejected - a.rejected) / seconds,
        cpu=max(0.0, b.cpu_us - a.cpu_us) * 1e-6 / seconds,
        covered=covered,
    )
