"""What load on the whole pipeline adds to the profile of its steps: padding inside batches,
stretched times, time outside the steps. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.tools.loadgen import Array

from .prediction import PipelineModel, StepModel, simulate
from .step_time_fit import StepCost

# A factor beyond these is a fault of the measurement (a machine that slept, a step that was loaded
# anew), not of the law.
STRETCH = (0.7, 3.0)
# Executions, or requests, below which nothing is concluded.
MIN_EXECUTIONS = 20
# How many times the requests of the smallest batch the largest must have, for a request's own cost
# to be told from a load.
MIN_BATCH_RANGE = 4
QUANTILES = 200


@dataclass(frozen=True, slots=True)
class StepExecutions:
    """What a step did.

    ``batches``: rows of an execution → executions; ``seconds``: mean of an execution; ``busy``:
    instances busy; ``times``: rows of an execution → mean seconds of these (empty: not told).
    """

    batches: Mapping[int, int]
    seconds: float
    busy: float = 0.0
    times: Mapping[int, float] = field(default_factory=dict)

    @property
    def executions(self) -> int:
        """All of them."""
        return sum(self.batches.values())

    @property
    def rows(self) -> float:
        """Mean rows of an execution."""
        return sum(rows * count for rows, count in self.batches.items()) / max(1, self.executions)


def mean_longest(lengths: Sequence[int], count: int) -> float:
    """Expected longest of so many rows drawn at random."""
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
    """Mean seconds of an execution by the law, for the batches that were executed; lengths drawn
    from the mix.
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
    """Share of the way from own lengths (0) to the batch's longest (1) that a step computes, from a
    run of mixed lengths; 1 where the mix cannot tell. Lone requests of the same run, which no
    company pads, tell by what all its times are stretched.
    """
    stretch, company = 1.0, executed
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
        company = StepExecutions(together, seconds)
    own, padded = (
        stretch * expected_seconds(cost, company, lengths, rows, spread) for spread in (0.0, 1.0)
    )
    if padded < 1.1 * own:
        return 1.0
    return float(np.clip((company.seconds - own) / (padded - own), 0.0, 1.0))


def calibrate(
    pipe: PipelineModel,
    executed: Mapping[str, StepExecutions],
    arrivals: Array,
    latencies: Array | None = None,
    seed: int = 0,
) -> PipelineModel:
    """The pipe with times as they are under a real load.

    ``executed``: what its steps did then; ``arrivals``: seconds at which its requests came, since
    those of a few seconds are more or less crowded by chance, which is no time outside;
    ``latencies``: seconds of these, ``None`` where it could not keep up (what they waited says
    nothing then). Time outside the steps is what latencies have beyond the prediction, quantile by
    quantile: it carries the tail that the machine itself makes (scheduling, the client).
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
    inside = simulate(replace(stretched, overhead=(0.0,)), arrivals, seed).latencies
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    beyond = np.quantile(latencies, shares) - np.quantile(inside, shares)
    return replace(stretched, overhead=tuple(float(value) for value in np.maximum(beyond, 0.0)))


def cost_under_load(
    cost: StepCost, executed: StepExecutions, lengths: Sequence[int], rows: int, instances: int = 1
) -> StepCost:
    """The law with times as executions under a real load had them.

    All times are stretched alike; where batches of one up to many requests were executed, what a
    request costs beside its rows is found anew too: the profile knows it least, and it decides what
    full batches carry.
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
        # A fitted law counts every request, a table those beyond the first.
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
        if each < 0:  # dearer rows, not cheaper requests
            cost = replace(cost, per_request=0.0)
    law_mean = expected_seconds(cost, executed, lengths, rows, cost.spread, busy)
    return cost.stretched(float(np.clip(executed.seconds / law_mean, *STRETCH)))


def _batch_sizes_that_separate_requests(executed: StepExecutions, rows: int) -> list[int]:
    """Rows of the executions that tell requests from rows: several sizes, each often, the largest
    of many times the requests of the smallest.
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
    """Lengths as a step sees them: padded after the tokenizer, unless that depends on the company."""
    if stage.name == pipe.tokenizer or not pipe.buckets:
        return pipe.lengths
    return padded_lengths(pipe)


def padded_lengths(pipe: PipelineModel) -> tuple[int, ...]:
    """The mix's lengths after the tokenizer's padding of single requests."""
    if pipe.padding is Padding.FIXED and pipe.buckets:
        return (pipe.buckets[-1],)
    if pipe.padding is Padding.BUCKETED and pipe.buckets:
        return tuple(
            next((bucket for bucket in pipe.buckets if bucket >= length), pipe.buckets[-1])
            for length in pipe.lengths
        )
    return pipe.lengths
