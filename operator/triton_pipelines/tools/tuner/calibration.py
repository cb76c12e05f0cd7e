"""Correct the model of a pipeline by what a load on the whole pipeline shows. Pure.

A load adds to the profile of the steps: padding inside batches, slower executions, and time
outside the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.tools.loadgen import Array

from .prediction import PipelineModel, StepModel, simulate
from .step_time_fit import StepCost

# A factor beyond these is an error of the measurement (a machine that slept, a step that was
# reloaded), not of the model.
STRETCH = (0.7, 3.0)
# Executions, or requests, below which nothing is concluded.
MIN_EXECUTIONS = 20
# Required ratio between the requests of the largest and the smallest batch, so that the cost of a
# request can be derived from a load.
MIN_BATCH_RANGE = 4
QUANTILES = 200


@dataclass(frozen=True, slots=True)
class StepExecutions:
    """The executions of a step during a load."""

    batches: Mapping[int, int]
    """Rows of an execution → executions."""
    seconds: float
    """Mean seconds of an execution."""
    busy: float = 0.0
    """Mean number of busy instances."""
    times: Mapping[int, float] = field(default_factory=dict)
    """Rows of an execution → mean seconds; empty: unknown."""

    @property
    def executions(self) -> int:
        """Number of executions."""
        return sum(self.batches.values())

    @property
    def rows(self) -> float:
        """Mean rows of an execution."""
        return sum(rows * count for rows, count in self.batches.items()) / max(1, self.executions)


def mean_longest(lengths: Sequence[int], count: int) -> float:
    """Return the expected length of the longest of ``count`` rows drawn at random."""
    ordered = np.sort(np.asarray(lengths, dtype=float))
    upper: Array = (np.arange(1, len(ordered) + 1) / len(ordered)) ** count
    return float(np.sum(ordered * np.diff(upper, prepend=0.0)))


def expected_seconds(
    cost: StepCost,
    executed: StepExecutions,
    lengths: Sequence[int],
    rows: int,
    spread: float,
    instances: int = 1,
) -> float:
    """Return the mean seconds of an execution by the cost model, for the executed batches.

    Lengths are drawn from the mix.
    """
    mean = mean_longest(lengths, rows)  # a request is padded to its own longest row
    total = 0.0
    for size, count in executed.batches.items():
        requests = max(1.0, size / rows)
        longest = mean_longest(lengths, size)
        total += count * cost.seconds(requests, size, mean + spread * (longest - mean), instances)
    return total / max(1, executed.executions)


def estimate_spread(
    cost: StepCost, executed: StepExecutions, lengths: Sequence[int], rows: int
) -> float:
    """Return how far rows are padded within a batch, from a load of mixed lengths.

    0: each row is computed at its own length; 1: all are padded to the longest of the batch, also
    if the mix cannot tell. Lone requests of the same load, which nothing pads, tell by what all its
    times are stretched.
    """
    stretch, batched = 1.0, executed
    together = {
        size: count
        for size, count in executed.batches.items()
        if size > rows and size in executed.times
    }
    if together and executed.times.get(rows):
        stretch = executed.times[rows] / expected_seconds(
            cost, StepExecutions({rows: 1}, 0.0), lengths, rows, 0.0
        )
        seconds = sum(count * executed.times[size] for size, count in together.items()) / sum(
            together.values()
        )
        batched = StepExecutions(together, seconds)
    own, padded = (
        stretch * expected_seconds(cost, batched, lengths, rows, spread) for spread in (0.0, 1.0)
    )
    if padded < 1.1 * own:
        return 1.0
    return float(np.clip((batched.seconds - own) / (padded - own), 0.0, 1.0))


def calibrate(
    pipe: PipelineModel,
    executed: Mapping[str, StepExecutions],
    arrivals: Array,
    latencies: Array | None = None,
) -> PipelineModel:
    """Return the pipeline with times as they are under a real load.

    Time outside the steps is what latencies exceed the prediction by, quantile by quantile: it
    carries the tail that the machine itself causes (scheduling, the client).

    Args:
        pipe: The pipeline.
        executed: Executions of its steps during the load.
        arrivals: Seconds at which its requests arrived. Within a few seconds they are more or less
            crowded by chance, which must not count as time outside the steps.
        latencies: Their seconds; ``None`` if the server did not keep up (what requests waited says
            nothing then).
    """
    stages = []
    for stage in pipe.stages:
        seen = executed.get(stage.name)
        if seen is None or seen.executions < MIN_EXECUTIONS:
            stages.append(stage)
            continue
        stages.append(
            replace(
                stage,
                cost=cost_under_load(
                    stage.cost, seen, _lengths(pipe, stage), pipe.rows, stage.instances
                ),
            )
        )
    stretched = replace(pipe, stages=tuple(stages))
    if latencies is None or len(latencies) < MIN_EXECUTIONS:
        return stretched
    inside = simulate(replace(stretched, overhead=(0.0,)), arrivals).latencies
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    beyond = np.quantile(latencies, shares) - np.quantile(inside, shares)
    return replace(stretched, overhead=tuple(float(value) for value in np.maximum(beyond, 0.0)))


def cost_under_load(
    cost: StepCost, executed: StepExecutions, lengths: Sequence[int], rows: int, instances: int = 1
) -> StepCost:
    """Return the cost model with times as executions under a real load had them.

    All times are stretched alike. If batches of one up to many requests were executed, the cost of
    a request besides its rows is fitted again too: the profile knows it least, and it decides what
    full batches cost.
    """
    busy = min(instances, max(1, round(executed.busy)))
    wide = _batch_sizes_that_separate_requests(executed, rows)
    if wide:
        free = replace(cost, per_request=0.0, scale=1.0)
        law = np.array(
            [
                expected_seconds(
                    free, StepExecutions({size: 1}, 0.0), lengths, rows, cost.spread, busy
                )
                for size in wide
            ]
        )
        # A fitted model counts every request, a table only those beyond the first.
        requests = np.array(
            [max(1.0, size / rows) - (0.0 if cost.fitted else 1.0) for size in wide]
        )
        times = np.array([executed.times[size] for size in wide])
        weights = np.sqrt(np.array([float(executed.batches[size]) for size in wide])) / times
        (stretch, each), *_ = np.linalg.lstsq(
            np.column_stack((law, requests)) * weights[:, None], times * weights, rcond=None
        )
        if STRETCH[0] <= stretch <= STRETCH[1] and each >= 0:
            factor = cost.contention[min(busy, len(cost.contention)) - 1]
            return replace(cost, scale=float(stretch), per_request=float(each / stretch / factor))
        if each < 0:  # more expensive rows, not cheaper requests
            cost = replace(cost, per_request=0.0)
    law_mean = expected_seconds(cost, executed, lengths, rows, cost.spread, busy)
    return cost.stretched(float(np.clip(executed.seconds / law_mean, *STRETCH)))


def _batch_sizes_that_separate_requests(executed: StepExecutions, rows: int) -> list[int]:
    """Return the rows of executions that separate the cost of requests from that of rows.

    They are several sizes, each executed often, the largest with many times the requests of the
    smallest; else none.
    """
    often = sorted(
        size
        for size, count in executed.batches.items()
        if count >= MIN_EXECUTIONS and executed.times.get(size, 0.0) > 0
    )
    return (
        often
        if len(often) > 2
        and max(1.0, often[-1] / rows) >= MIN_BATCH_RANGE * max(1.0, often[0] / rows)
        else []
    )


def _lengths(pipe: PipelineModel, stage: StepModel) -> Sequence[int]:
    """Return the lengths that a step sees: padded after the tokenizer, unless batches decide."""
    if stage.name == pipe.tokenizer or not pipe.buckets:
        return pipe.lengths
    return padded_lengths(pipe)


def padded_lengths(pipe: PipelineModel) -> tuple[int, ...]:
    """Return the mix's lengths after the tokenizer padded single requests."""
    if pipe.padding is Padding.FIXED and pipe.buckets:
        return (pipe.buckets[-1],)
    if pipe.padding is Padding.BUCKETED and pipe.buckets:
        return tuple(
            next((bucket for bucket in pipe.buckets if bucket >= length), pipe.buckets[-1])
            for length in pipe.lengths
        )
    return pipe.lengths
