"""Latency of a pipeline under load, by discrete events with Triton's batching rules.

Pure, by seed.

Each step is a queue with instances; a free one takes what waits, up to the batch size; with a queue
delay the batch is held until it is full or its oldest request has waited that long; where lengths
must be equal, another length ends the batch (dynamic_batch_scheduler.cc). Requests leave a step
together, when its batch ends, and enter the next one.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.loadgen import Array

from .settings import BatchingSetting
from .step_time_fit import StepCost

# Utilization beyond which no step is planned (autoscaling.md §8.4), and the share of a simulated
# run that counts as its start.
MAX_UTILIZATION = 0.8
WARM_SHARE = 0.1
# Arrivals of a simulation while searching.
SEARCH_ARRIVALS = 5_000
_SATURATED = 3_000


@dataclass(frozen=True, slots=True)
class StepModel:
    """The queueing model of a step."""

    name: str
    """Name of the step."""
    cost: StepCost
    """Execution times."""
    batch: int
    """Rows of a full batch."""
    delay: float = 0.0
    """Seconds that a batch waits to be filled."""
    instances: int = 1
    """Number of instances."""
    equal_lengths: bool = False
    """Whether only requests of one length share a batch."""


@dataclass(frozen=True, slots=True)
class PaddingEffect:
    """The effect of a padding mode on the pipeline."""

    padding: Padding | None
    """The padding mode; ``None``: unknown."""
    buckets: tuple[int, ...]
    """Bucket lengths, the longest row last."""
    equal_lengths: frozenset[str]
    """Steps that only batch requests of one length."""


@dataclass(frozen=True, slots=True)
class PipelineModel:
    """The queueing model of a pipeline: its steps in the order of the data, and its requests."""

    stages: tuple[StepModel, ...]
    """The steps."""
    lengths: tuple[int, ...]
    """Tokens of a row, equally likely."""
    rows: int = 1
    """Rows of a request."""
    tokenizer: str = ""
    """Name of the tokenizer step."""
    model: str = "model"
    """Name of the step that is tuned."""
    padding: Padding | None = None
    """Padding mode after the tokenizer; ``None``: unknown."""
    buckets: tuple[int, ...] = ()
    """Bucket lengths of the padding, the longest row last."""
    overhead: tuple[float, ...] = (0.0,)
    """Seconds that a request spends outside the steps, by how long it is inside; the first value is
    that of the quickest requests.
    """
    padding_effects: Mapping[PaddingSetting, PaddingEffect] = field(default_factory=dict)
    """Effects of the padding modes that a setting may name, and of the resource's own."""

    def with_setting(self, setting: BatchingSetting) -> PipelineModel:
        """Return the same steps with a setting."""
        effect = self.padding_effects.get(setting.padding)

        def turned(stage: StepModel) -> StepModel:
            stage = (
                stage
                if effect is None
                else replace(stage, equal_lengths=stage.name in effect.equal_lengths)
            )
            if stage.name == self.model:
                return replace(
                    stage,
                    batch=setting.max_batch_size,
                    delay=setting.queue_delay / 1e6,
                    instances=setting.model_instances,
                )
            if stage.name == self.tokenizer and setting.tokenizer_instances:
                return replace(stage, instances=setting.tokenizer_instances)
            return stage

        padding, buckets = (
            (self.padding, self.buckets) if effect is None else (effect.padding, effect.buckets)
        )
        return replace(
            self, stages=tuple(map(turned, self.stages)), padding=padding, buckets=buckets
        )


@dataclass(frozen=True, slots=True)
class LatencyPrediction:
    """Simulated latencies."""

    latencies: Array
    """Seconds by request, in the order of arrival, without the warm-up."""

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of requests was answered."""
        return float(np.quantile(self.latencies, share))

    @property
    def p99(self) -> float:
        """p99 latency in seconds."""
        return self.quantile(0.99)


def serve_step(
    stage: StepModel, arrivals: Sequence[float], own: Sequence[float], rows: int
) -> tuple[list[float], list[int]]:
    """Return when each request leaves a step, and the first request of each batch.

    This is the innermost loop of every search: it makes no call that can be avoided.

    Args:
        stage: The step.
        arrivals: Seconds, ascending.
        own: Tokens of a row of each request as it arrives.
        rows: Rows of a request.
    """
    most = max(1, stage.batch // rows)
    cost, spread = stage.cost, stage.cost.spread
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
    while head < end:
        start, last = _next_batch(stage, arrivals, own, head, most, soonest)
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
            soonest = free[0]
        finish[head:last] = [done] * size
        begins.append(head)
        head = last
    return finish, begins


def _next_batch(
    stage: StepModel,
    arrivals: Sequence[float],
    own: Sequence[float],
    head: int,
    most: int,
    soonest: float,
) -> tuple[float, int]:
    """Return when the batch that begins with request ``head`` starts, and where it ends.

    Args:
        stage: The step.
        arrivals: Seconds, ascending.
        own: Tokens of a row of each request.
        head: Index of the first request.
        most: Requests of a full batch.
        soonest: Seconds at which an instance is free.
    """
    end, delay = len(arrivals), stage.delay
    start = arrivals[head]
    if start < soonest:
        start = soonest
    if delay > 0:
        full = arrivals[head + most - 1] if head + most <= end else float("inf")
        start = max(start, min(arrivals[head] + delay, full))
    last, stop = head + 1, min(end, head + most)
    if stage.equal_lengths:
        while last < stop and arrivals[last] <= start and own[last] == own[head]:
            last += 1
        if last < stop and arrivals[last] <= start and delay > 0:
            # A request of another length closed the batch, so there was nothing to wait for.
            start = max(soonest, arrivals[last])
    elif last < stop and arrivals[last] <= start:
        last = bisect.bisect_right(arrivals, start, last, stop)
    return start, last


def poisson(rate: float, count: int, seed: int = 0) -> Array:
    """Return Poisson arrival times in seconds."""
    return np.cumsum(np.random.default_rng((seed, 1)).exponential(1 / rate, count))


def bursty(rate: float, count: int, seed: int = 0) -> Array:
    """Return arrival times with the same mean rate: alternating seconds at 1.5 and 0.5 of it."""
    even = poisson(1.0, count, seed) / rate
    # Operational time: a turn of two seconds brings three quarters of its requests in the first.
    turn, within = np.divmod(even, 2.0)
    return np.asarray(2.0 * turn + np.where(within < 1.5, within / 1.5, 1.0 + (within - 1.5) / 0.5))


def simulate(pipe: PipelineModel, arrivals: Array, seed: int = 0) -> LatencyPrediction:
    """Send requests through all steps."""
    count = len(arrivals)
    random = np.random.default_rng((seed, 2))
    drawn = random.choice(np.asarray(pipe.lengths, dtype=float), (count, pipe.rows))
    longest, mean = drawn.max(axis=1), drawn.mean(axis=1)
    order = np.arange(count)
    at = arrivals
    padded = _padded(pipe, longest, order, range(count))
    for stage in pipe.stages:
        reads_text = stage.name == pipe.tokenizer
        own = (mean if reads_text else padded)[order]
        finish, batches_begun = serve_step(stage, at.tolist(), own.tolist(), pipe.rows)
        if reads_text:
            padded = _padded(pipe, longest, order, batches_begun)
        left = np.asarray(finish)
        sort = np.argsort(left, kind="stable")
        order, at = order[sort], left[sort]
    latencies = np.empty(count)
    latencies[order] = at
    latencies = latencies - arrivals
    # What delays a request inside the steps, such as a busy machine, delays it outside as well. If
    # the times were drawn independently, the longest times of both would seldom coincide, and p99
    # would be lower than measured.
    rank = np.argsort(np.argsort(latencies, kind="stable"), kind="stable")
    latencies += np.asarray(pipe.overhead, dtype=float)[rank * len(pipe.overhead) // count]
    return LatencyPrediction(latencies[int(WARM_SHARE * count) :])


def _padded(
    pipe: PipelineModel, longest: Array, order: Array, batches_begun: Sequence[int]
) -> Array:
    """Return the tokens of a row as the steps after the tokenizer see it."""
    if pipe.padding is Padding.FIXED and pipe.buckets:
        return np.full_like(longest, pipe.buckets[-1])
    if pipe.padding is Padding.BUCKETED and pipe.buckets:
        buckets = np.asarray(pipe.buckets, dtype=float)
        return np.asarray(buckets[np.minimum(np.searchsorted(buckets, longest), len(buckets) - 1)])
    if pipe.padding is Padding.LONGEST:
        inside = np.maximum.reduceat(longest[order], np.asarray(batches_begun))
        sizes = np.diff([*batches_begun, len(order)])
        result = np.empty_like(longest)
        result[order] = np.repeat(inside, sizes)
        return result
    return longest


def capacity(pipe: PipelineModel) -> float:
    """Return the requests/s if there are always enough requests to fill a batch."""
    slowest = float("inf")
    for stage in pipe.stages:
        # One step alone, with all requests present from the beginning and with lengths as the
        # tokenizer would return them.
        alone = replace(pipe, stages=(stage,), overhead=(0.0,))
        took = simulate(alone, np.zeros(_SATURATED)).latencies.max()
        slowest = min(slowest, _SATURATED / float(took))
    return slowest


def max_rate(
    pipe: PipelineModel,
    latency_budget: float,
    most: float | None = None,
    least: float = 0.0,
) -> float:
    """Return the maximum requests/s with p99 within the budget and no step busier than 0.8.

    Args:
        pipe: The pipeline.
        latency_budget: Seconds.
        most: Known upper bound: 0.8 of :func:`capacity`.
        least: Lower rates are of no use.

    Returns:
        Requests/s; 0 if even a trickle exceeds the budget, or the rate is below ``least``.
    """
    high = MAX_UTILIZATION * capacity(pipe) if most is None else most

    def meets_budget(rate: float) -> bool:
        return simulate(pipe, poisson(rate, SEARCH_ARRIVALS)).p99 <= latency_budget

    low = max(0.02 * high, min(least, high))
    if not meets_budget(low):
        return 0.0
    if meets_budget(high):
        return high
    while high / low > 1.02:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets_budget(middle) else (low, middle)
    return low
