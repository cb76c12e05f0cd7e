"""What limits a pipeline, in words, and what would move it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .calibration import StepExecutions, mean_longest
from .prediction import PipelineModel, StepModel

# Share of time from which a step's instances count as what limits; between it and planning's 0.8 lies the noise of a measurement.
BUSY_SHARE = 0.65
PADDED = 1.3
STRETCHED = 1.3
FIXED_SHARE = 0.5
# Mean requests of a batch below which batching is not at work though requests wait.
ALONE = 1.2


class Bottleneck(StrEnum):
    """What limits."""

    COMPUTE = "Compute"
    QUEUE = "Queue"
    PADDING = "Padding"
    CPU = "CPU"
    BATCHING = "Batching"


@dataclass(frozen=True, slots=True)
class BottleneckAdvice:
    """The verdict, and a sentence or two for people."""

    bound: Bottleneck
    text: str


def advise(
    pipe: PipelineModel,
    seen: Mapping[str, StepExecutions],
    at_limit: bool,
    cores: float,
    cpu_model: bool,
) -> BottleneckAdvice:
    """From a pipe with the recommended setting and what its steps did at the highest rate that was measured.

    ``at_limit``: that rate is where utilisation, not latency, ends; ``cpu_model``: the model step computes on CPU.
    """
    busy = {
        stage.name: seen[stage.name].busy / stage.instances if stage.name in seen else 0.0
        for stage in pipe.stages
    }
    slowest = max(pipe.stages, key=lambda stage: busy[stage.name])
    share = busy[slowest.name]
    reported = f"{slowest.name} computes {share:.0%} of the time"
    stretch = max((stage.cost.scale for stage in pipe.stages), default=1.0)
    cpu = sum(
        seen[stage.name].busy
        for stage in pipe.stages
        if stage.name in seen and (stage.name != pipe.model or cpu_model)
    )
    if share < BUSY_SHARE and stretch < STRETCHED and not at_limit:
        return BottleneckAdvice(
            Bottleneck.QUEUE,
            f"Queue-bound: p99 reaches the wall while {reported}: what takes time is waiting for a batch that is under way. A higher SLO, more instances"
            " (shorter waits at the same batch size) or a shorter batch (smaller maxBatchSize) would move it; more compute would not.",
        )
    if slowest.name != pipe.model and share >= BUSY_SHARE:
        return BottleneckAdvice(
            Bottleneck.CPU,
            f"CPU-bound: {reported}, before the model does. More instances of it (a core each; {cores:g} here) would move it;"
            " larger batches of the model would not.",
        )
    if stretch >= STRETCHED or (cpu_model and cpu >= 0.8 * cores):
        return BottleneckAdvice(
            Bottleneck.CPU,
            f"CPU-bound: under load steps take {stretch:.2g} times as long as alone and keep {cpu:.1f} of {cores:g} cores busy."
            " More cores, or the model on a GPU, would move it; batching settings hardly do.",
        )
    if slowest.name != pipe.model:
        return BottleneckAdvice(
            Bottleneck.QUEUE,
            f"Queue-bound: {reported} at the highest rate that counts, and no other step does more: what takes time lies before and between the steps, as"
            " waiting, a CPU limit of the pod, or another load on the machine. A higher SLO, a higher limit or a quiet machine would move it; more instances would not.",
        )
    return _of_model(pipe, slowest, seen.get(slowest.name), reported)


def _of_model(
    pipe: PipelineModel, stage: StepModel, executed: StepExecutions | None, reported: str
) -> BottleneckAdvice:
    """The model limits: by padding, by batches that do not form, by what each execution costs, or by computing."""
    rows = executed.rows if executed is not None else 1.0
    if stage.equal_lengths and rows < ALONE * pipe.rows:
        return BottleneckAdvice(
            Bottleneck.BATCHING,
            f"Batching is defeated: {reported} with {rows / pipe.rows:.1f} requests a batch, because only requests of equal length share one."
            " Ragged inputs, or padding Bucketed or Fixed, would move it.",
        )
    factor = padding_factor(pipe, stage, rows)
    cost = stage.cost
    length = mean_longest(pipe.lengths, 1)
    tokens = cost.per_token * rows * length * factor
    total = cost.fixed + cost.per_request * rows / pipe.rows + cost.per_row * rows + tokens
    if factor >= PADDED and tokens > 0.4 * total:
        return BottleneckAdvice(
            Bottleneck.PADDING,
            f"Padding-bound: {reported}, and computes {factor:.1f} tokens for each real one. Padding Ragged (or more buckets) and micro-batches sorted by"
            " length would move it; larger batches make it worse.",
        )
    if cost.fixed > FIXED_SHARE * total:
        return BottleneckAdvice(
            Bottleneck.COMPUTE,
            f"Compute-bound by what every execution costs: {reported}, {cost.fixed / total:.0%} of it regardless of the rows ({rows:.0f} a batch)."
            " Fuller batches (a longer delay, clients that send more rows) or a compiled engine would move it.",
        )
    return BottleneckAdvice(
        Bottleneck.COMPUTE,
        f"Compute-bound: {reported}, most of it per row, at {rows:.0f} rows a batch. Larger batches gain little; a faster or smaller model, lower precision,"
        " another GPU or replica would move it.",
    )


def padding_factor(pipe: PipelineModel, stage: StepModel, rows: float) -> float:
    """Tokens computed for each real one, in batches of so many rows."""
    mean = mean_longest(pipe.lengths, 1)
    if pipe.padding is not None and pipe.padding.value == "Fixed" and pipe.buckets:
        return pipe.buckets[-1] / mean
    own = mean_longest(pipe.lengths, pipe.rows)
    longest = mean_longest(pipe.lengths, max(1, round(rows)))
    return (own + stage.cost.spread * (longest - own)) / mean


def gains_from_batching(
    stage: StepModel, length: float, sizes: Sequence[int]
) -> list[tuple[int, float]]:
    """Rows per second of a step at each batch size."""
    return [(size, size / stage.cost.seconds(size, size, length)) for size in sizes]
