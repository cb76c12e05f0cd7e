"""Latency of a pipeline under load, by discrete events with Triton's batching rules. Pure, by seed.

Each step is a queue with instances; a free one takes what waits, up to the batch size; with a queue delay the batch is held until it is
full or its oldest request has waited that long; where lengths must be equal, another length ends the batch (dynamic_batch_scheduler.cc).
Requests leave a step together, when its batch ends, and enter the next one.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .contract import Array, Knobs
from .step_time_fit import Cost

# Utilisation beyond which no step is planned (autoscaling.md §8.4), and the share of a simulated run that is its start.
MOST_BUSY = 0.8
WARM_SHARE = 0.1
# Arrivals of a simulation while searching.
SEARCHED = 5_000
_SATURATED = 3_000


@dataclass(frozen=True, slots=True)
class Stage:
    """A step. ``batch``: rows; ``delay``: seconds; ``equal``: only requests of one length share a batch."""

    name: str
    cost: Cost
    batch: int
    delay: float = 0.0
    instances: int = 1
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """What a padding makes of the pipe: ``padding``, ``buckets`` (the longest row last) and the steps that batch equal lengths only."""

    padding: Padding | None
    buckets: tuple[int, ...]
    equal: frozenset[str]


@dataclass(frozen=True, slots=True)
class Pipe:
    """The steps in the order of the data, and what the requests are like.

    ``lengths``: tokens of a row, equally likely; ``rows``: of a request; ``padding`` after step ``tokenizer`` (with ``buckets``; the
    longest row is the last of them); ``overhead``: seconds that a request spends outside the steps, by how long it is inside
    (the first: of the quickest requests);
    ``shapes``: the paddings that a setting may name, and the resource's own.
    """

    stages: tuple[Stage, ...]
    lengths: tuple[int, ...]
    rows: int = 1
    tokenizer: str = ""
    model: str = "model"
    padding: Padding | None = None
    buckets: tuple[int, ...] = ()
    overhead: tuple[float, ...] = (0.0,)
    shapes: Mapping[PaddingSetting, Shape] = field(default_factory=dict)

    def with_knobs(self, knobs: Knobs) -> Pipe:
        """The same steps with a setting."""
        shape = self.shapes.get(knobs.padding)

        def turned(stage: Stage) -> Stage:
            stage = stage if shape is None else replace(stage, equal=stage.name in shape.equal)
            if stage.name == self.model:
                return replace(
                    stage,
                    batch=knobs.max_batch_size,
                    delay=knobs.queue_delay / 1e6,
                    instances=knobs.model_instances,
                )
            if stage.name == self.tokenizer and knobs.tokenizer_instances:
                return replace(stage, instances=knobs.tokenizer_instances)
            return stage

        padding, buckets = (
            (self.padding, self.buckets) if shape is None else (shape.padding, shape.buckets)
        )
        return replace(
            self, stages=tuple(map(turned, self.stages)), padding=padding, buckets=buckets
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latencies in seconds by request, in the order of arrival, the start left out; mean requests of a batch of each step."""

    latencies: Array
    batches: dict[str, float]

    def quantile(self, share: float) -> float:
        """Seconds within which this share was answered."""
        return float(np.quantile(self.latencies, share))

    @property
    def p99(self) -> float:
        """Of 100 requests, the time of the second slowest."""
        return self.quantile(0.99)


def serve(
    stage: Stage, arrivals: Sequence[float], own: Sequence[float], rows: int
) -> tuple[list[float], list[int]]:
    """When each request leaves a step, and where each batch begins.

    ``arrivals``: ascending; ``own``: tokens of a row of each request as it arrives.
    """
    most = max(1, stage.batch // rows)
    cost, delay, spread = stage.cost, stage.delay, stage.cost.spread
    law = (
        (cost.fixed, cost.per_request + cost.per_row * rows, cost.per_token * rows)
        if cost.fitted
        else None
    )
    stretch = [cost.scale * factor for factor in cost.contention]
    alone = stage.instances == 1
    free, soonest, busy = [0.0] * stage.instances, 0.0, 1
    finish = [0.0] * len(arrivals)
    begins: list[int] = []
    head, end = 0, len(arrivals)
    # The innermost loop of every search: no call that can be left out.
    while head < end:
        if not alone:
            soonest = free[0]
        start = arrivals[head]
        if start < soonest:
            start = soonest
        if delay > 0:
            full = arrivals[head + most - 1] if head + most <= end else float("inf")
            start = max(start, min(arrivals[head] + delay, full))
        last, stop = head + 1, min(end, head + most)
        if stage.equal:
            while last < stop and arrivals[last] <= start and own[last] == own[head]:
                last += 1
            if last < stop and arrivals[last] <= start:
                # Another length closed the batch: there was nothing to wait for.
                start = max(soonest, arrivals[last]) if delay > 0 else start
        elif last < stop and arrivals[last] <= start:
            last = bisect.bisect_right(arrivals, start, last, stop)
        size = last - head
        length = own[head]
        if size > 1:
            tokens = own[head:last]
            mean = sum(tokens) / size
            length = mean + spread * (max(tokens) - mean)
        if not alone:
            busy = 1 + sum(1 for other in free[1:] if other > start)
        if law is None:
            done = start + cost.seconds(size, size * rows, length, busy)
        else:
            done = start + stretch[min(busy, len(stretch)) - 1] * (
                law[0] + size * (law[1] + law[2] * length)
            )
        if alone:
            soonest = done
        else:
            heapq.heapreplace(free, done)
        if size > 1:
            finish[head:last] = [done] * size
        else:
            finish[head] = done
        begins.append(head)
        head = last
    return finish, begins


def poisson(rate: float, count: int, seed: int) -> Array:
    """Arrival times in seconds."""
    return np.cumsum(np.random.default_rng((seed, 1)).exponential(1 / rate, count))


def bursty(rate: float, count: int, seed: int) -> Array:
    """The same mean rate in turns of a second at 1.5 and a second at 0.5 of it."""
    even = poisson(1.0, count, seed) / rate
    # Operational time: a turn of two seconds brings three quarters of its requests in the first.
    turn, within = np.divmod(even, 2.0)
    return np.asarray(2.0 * turn + np.where(within < 1.5, within / 1.5, 1.0 + (within - 1.5) / 0.5))


def simulate(pipe: Pipe, arrivals: Array, seed: int = 0) -> Prediction:
    """Requests through all steps."""
    count = len(arrivals)
    random = np.random.default_rng((seed, 2))
    drawn = random.choice(np.asarray(pipe.lengths, dtype=float), (count, pipe.rows))
    longest, mean = drawn.max(axis=1), drawn.mean(axis=1)
    order = np.arange(count)
    at = arrivals
    padded = _padded(pipe, longest, order, range(count))
    batches = {}
    for stage in pipe.stages:
        reads_text = stage.name == pipe.tokenizer
        own = (mean if reads_text else padded)[order]
        finish, begins = serve(stage, at.tolist(), own.tolist(), pipe.rows)
        if reads_text:
            padded = _padded(pipe, longest, order, begins)
        batches[stage.name] = count / len(begins)
        left = np.asarray(finish)
        sort = np.argsort(left, kind="stable")
        order, at = order[sort], left[sort]
    latencies = np.empty(count)
    latencies[order] = at
    latencies = latencies - arrivals
    # What keeps a request waiting inside, such as a busy machine, does so outside as well. Drawn without regard to that, the longest times of
    # both would seldom meet, and p99 would be lower than where it was measured.
    rank = np.argsort(np.argsort(latencies, kind="stable"), kind="stable")
    latencies += np.asarray(pipe.overhead, dtype=float)[rank * len(pipe.overhead) // count]
    return Prediction(latencies[int(WARM_SHARE * count) :], batches)


def _padded(pipe: Pipe, longest: Array, order: Array, begins: Sequence[int]) -> Array:
    """Tokens of a row as the steps behind the tokenizer see it."""
    if pipe.padding is Padding.FIXED and pipe.buckets:
        return np.full_like(longest, pipe.buckets[-1])
    if pipe.padding is Padding.BUCKETED and pipe.buckets:
        buckets = np.asarray(pipe.buckets, dtype=float)
        return np.asarray(buckets[np.minimum(np.searchsorted(buckets, longest), len(buckets) - 1)])
    if pipe.padding is Padding.LONGEST:
        inside = np.maximum.reduceat(longest[order], np.asarray(begins))
        sizes = np.diff([*begins, len(order)])
        result = np.empty_like(longest)
        result[order] = np.repeat(inside, sizes)
        return result
    return longest


def capacity(pipe: Pipe, seed: int = 0) -> float:
    """Requests/s when there is always enough to fill a batch."""
    slowest = float("inf")
    for stage in pipe.stages:
        # A step alone, everything there from the beginning; lengths as the tokenizer would leave them.
        alone = replace(pipe, stages=(stage,), overhead=(0.0,))
        took = simulate(alone, np.zeros(_SATURATED), seed).latencies.max()
        slowest = min(slowest, _SATURATED / float(took))
    return slowest


def highest_rate(
    pipe: Pipe,
    wall: float,
    seed: int = 0,
    arrivals: int = SEARCHED,
    most: float | None = None,
    least: float = 0.0,
) -> float:
    """Most requests/s with p99 within ``wall`` seconds and no step busier than 0.8; 0 where even a trickle takes longer.

    ``most``: a bound known beforehand: 0.8 of :func:`capacity`. ``least``: less than this is of no use and given as 0.
    """
    high = MOST_BUSY * capacity(pipe, seed) if most is None else most

    def kept(rate: float) -> bool:
        return simulate(pipe, poisson(rate, arrivals, seed), seed).p99 <= wall

    low = max(0.02 * high, min(least, high))
    if not kept(low):
        return 0.0
    if kept(high):
        return high
    while high / low > 1.02:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low
