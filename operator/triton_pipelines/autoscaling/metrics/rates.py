"""Rates over a window from raw samples of Triton's counters. Pure.

Triton adds a batch's compute time once for each of its requests (infer_stats), so the busy time is divided by the mean batch. All
counters move when a request completes; only the pending gauge is live. Differences are taken between samples with the times of
their own scrapes, never past a counter reset, and a window that history does not cover says so: what follows from it may raise a
count and never lower one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter

from triton_pipelines.autoscaling.metrics.samples import ModelCounters, PodHistory

_EDGE = 0.1  # seconds: scrapes jitter, and a window of 60 s has to find the sample of 60.02 s ago
_values = attrgetter(*(item.name for item in fields(ModelCounters)))
_COVERED = 0.8  # share of a window that history has to cover to speak for it

Sampled = tuple[float, ModelCounters]
"""Counters and the time of their scrape, Unix seconds."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one model over a window, of one pod or summed over pods.

    ``seconds``: time between the two samples; ``throughput`` x: completions/s, cache hits included; ``growth`` dq: requests/s by
    which the backlog grows (negative while it drains); ``busy``: busy seconds per second, batch-corrected; ``executions``: per
    second; ``computed``: completions/s that went through an execution; ``queued``: seconds of queueing per second;
    ``failures``: per second; ``covered``: whether history covers the window, without a counter reset in it.
    """

    seconds: float
    throughput: float = 0.0
    growth: float = 0.0
    busy: float = 0.0
    executions: float = 0.0
    computed: float = 0.0
    queued: float = 0.0
    failures: float = 0.0
    covered: bool = True

    @property
    def arrivals(self) -> float:
        """Arriving requests/s: completions and growth of the backlog. Never negative."""
        return max(0.0, self.throughput + self.growth)

    @property
    def service(self) -> float | None:
        """Busy seconds of one instance per request; ``None`` without completions."""
        return self.busy / self.throughput if self.throughput > 0 else None

    @property
    def batch(self) -> float | None:
        """Requests per execution; ``None`` without executions."""
        return self.computed / self.executions if self.executions > 0 else None

    @property
    def queue(self) -> float | None:
        """Mean seconds in the queue of the requests that completed: for diagnosis, it reads 0 in a stall."""
        return self.queued / self.throughput if self.throughput > 0 else None


@dataclass(frozen=True, slots=True)
class InstanceRange:
    """Instances of one model in one pod over some time: those that ran all of it at ``least``, and at ``most``."""

    least: int
    most: int


class ModelSeries:
    """The samples of one model in one pod, by time; sources may repeat or mix them. Made once, asked for many windows."""

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
        # Each interval by its own mean batch: a queue that was worked off in full batches and the single requests after it have no common one.
        self._busy = [
            0.0,
            *accumulate(_busy(before[1], after[1]) for before, after in pairwise(self._run)),
        ]

    def bounded(self, ran: Callable[[float, float], InstanceRange]) -> ModelSeries:
        """The same, its busy time in each interval no more than instances can have been busy.

        The mean batch corrects busy time only where batches are alike: an interval in which a queue builds up has single requests and full
        batches, and their busy time is too much by E[b²]/E[b]². Triton counts an execution when it ends: what instances that showed no
        completion have worked on until then is carried over to that interval.

        Args:
            ran: instances between two Unix times.
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
        """Time of the newest sample, Unix seconds."""
        return self._all[-1][0] if self._all else None

    @property
    def pending(self) -> float | None:
        """Requests that wait now; ``None`` without a sample."""
        return self._all[-1][1].pending if self._all else None

    def mean_pending(self, seconds: float) -> float | None:
        """Mean of the pending gauge over the last ``seconds``; ``None`` without a sample."""
        if not self._all:
            return None
        since = self._all[-1][0] - seconds - _EDGE
        values = [counters.pending for at, counters in self._all if at >= since]
        return sum(values) / len(values)

    def rates(self, seconds: float | None, *, skip: int = 0) -> Rates | None:
        """Rates over the last ``seconds``, ending at the newest sample; ``None``: over the last interval. ``skip``: newest to leave out.

        ``None`` where fewer than two samples stand after the last counter reset, as in a pod that has just started.
        """
        run = self._run[:-skip] if skip else self._run
        if len(run) < 2:
            return None
        newest = run[-1]
        if seconds is None:
            return _between(run[-2], newest, self._spent(len(run) - 2, len(run) - 1), covered=True)
        since = newest[0] - seconds - _EDGE
        number = next(number for number, item in enumerate(run) if item[0] >= since)
        number = min(number, len(run) - 2)  # scrapes may be farther apart than the window is long
        first = run[number]
        covered = newest[0] - run[0][0] >= _COVERED * seconds and not (
            self._reset and run[0][0] > newest[0] - seconds
        )
        return _between(first, newest, self._spent(number, len(run) - 1), covered=covered)

    def _spent(self, begin: int, end: int) -> float:
        """Busy seconds between two samples of the run."""
        return self._busy[end] - self._busy[begin]


def rates(history: PodHistory, model: str, seconds: float | None) -> Rates | None:
    """Rates of ``model`` over the last ``seconds`` of ``history``: see ``Series.rates``."""
    return ModelSeries(history, model).rates(seconds)


def mean_pending(history: PodHistory, model: str, seconds: float) -> float | None:
    """Mean of the pending gauge over the last ``seconds``; ``None`` without a sample."""
    return ModelSeries(history, model).mean_pending(seconds)


def total(parts: Iterable[Rates | None]) -> Rates | None:
    """Sum over pods; a pod without rates adds nothing and makes the sum uncovered. ``None`` where no pod has any."""
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
        failures=sum(part.failures for part in known),
        covered=len(known) == len(listed) and all(part.covered for part in known),
    )


def impossible_values(history: PodHistory, models: Iterable[str]) -> str:
    """What in ``history`` cannot be: a value that is not finite or below 0, in words; "" where all is well."""
    wanted = tuple(models)
    for scrape in history.scrapes:
        if not math.isfinite(scrape.at):
            return f"a scrape at the time {scrape.at}"
        for model in wanted:
            counters = scrape.models.get(model)
            if counters is not None and not all(
                0 <= value < math.inf for value in _values(counters)
            ):
                return f"a counter of model {model} that is negative or not finite"
    return ""


def _went_back(before: ModelCounters, after: ModelCounters) -> bool:
    return (
        after.success < before.success
        or after.failure < before.failure
        or after.execs < before.execs
        or after.cache_hits < before.cache_hits
        or after.queue_us < before.queue_us
        or after.compute_infer_us < before.compute_infer_us
    )


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """What executions that are under way at a scrape have taken so far, seconds over all instances: no counter shows it yet.

    ``seconds``: of instances that surely execute; ``room``: as much of an interval as no completion accounts for. It was spent on what is under
    way if the next interval shows instances that complete nothing, and else idle: requests that wait for a batch to fill prove nothing.
    """

    seconds: float = 0.0
    room: float = 0.0

    def after(self, busy: float, first: Sampled, last: Sampled, instances: int) -> _UnderWay:
        """After one more interval, ``busy`` of which were taken by what ended in it. ``instances`` ran all the time."""
        (begin, a), (end, b) = first, last
        had = instances * (end - begin) - busy
        # Fewer completions than instances while requests wait: so many of them have been on one execution all along.
        silent = (
            max(0.0, instances - (b.execs - a.execs)) * (end - begin)
            if min(a.pending, b.pending) > 0
            else 0.0
        )
        if not silent:
            return _UnderWay(
                room=max(0.0, min((self.seconds or self.room) + had, instances * (end - begin)))
            )
        before = self.seconds or min(self.room, silent)
        return _UnderWay(max(0.0, before + min(had, silent)))


def _executed(a: ModelCounters, b: ModelCounters) -> tuple[float, float, float]:
    """Seconds as Triton counts them (a batch of k requests adds its time k times), requests and executions between two samples."""
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
    """Busy seconds between two samples, by the mean batch."""
    spent, computed, executions = _executed(a, b)
    # Fewer requests than executions only happens where requests failed.
    return spent / (max(1.0, computed / executions) if executions > 0 else 1.0)


def _possible(busy: float, first: Sampled, last: Sampled, most: int, under_way: float) -> float:
    """Busy seconds of what ended between two samples, within what ``most`` instances had: the interval, and what was under way when it began,
    which is ``under_way`` or as much as one execution of each."""
    (begin, a), (end, b) = first, last
    if busy <= end - begin:
        return busy  # one instance can
    spent, computed, executions = _executed(a, b)
    bound = most * (end - begin) + max(
        under_way, most * busy / executions if executions > 0 else 0.0
    )
    # No batch was larger than all requests but one for each other execution: with no batches at all, the time is exact.
    proven = spent / max(1.0, 1.0 + computed - executions)
    return min(busy, max(bound, proven))


def _between(first: Sampled, last: Sampled, busy: float, *, covered: bool) -> Rates:
    (begin, a), (end, b) = first, last
    seconds = end - begin
    success = b.success - a.success
    computed = max(0.0, success - (b.cache_hits - a.cache_hits))
    executions = b.execs - a.execs
    return Rates(
        seconds=seconds,
        throughput=success / seconds,
        growth=(b.pending - a.pending) / seconds,
        busy=busy / seconds,
        executions=executions / seconds,
        computed=computed / seconds,
        queued=(b.queue_us - a.queue_us) * 1e-6 / seconds,
        failures=(b.failure - a.failure) / seconds,
        covered=covered,
    )
