"""Name the bottleneck of a pipeline and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from .calibration import StepExecutions, mean_longest
from .prediction import PipelineModel, StepModel

# Utilization from which a step's instances count as the bottleneck; between it and the 0.8 of the
# prediction is the noise of a measurement.
BUSY_SHARE = 0.65
PADDED = 1.3
STRETCHED = 1.3
FIXED_SHARE = 0.5
# Mean requests of a batch below which batching is ineffective although requests wait.
ALONE = 1.2


class Bottleneck(StrEnum):
    """What limits a pipeline."""

    COMPUTE = "Compute"
    QUEUE = "Queue"
    PADDING = "Padding"
    CPU = "CPU"
    BATCHING = "Batching"


@dataclass(frozen=True, slots=True)
class BottleneckAdvice:
    """The bottleneck and what to do about it."""

    bound: Bottleneck
    """The bottleneck."""
    text: str
    """A sentence or two for people."""


@dataclass(frozen=True, slots=True)
class _BottleneckLoad:
    """How busy the steps are."""

    slowest: StepModel
    """The step with the highest utilization."""
    share: float
    """Its utilization."""
    slowdown: float
    """Greatest slowdown of a step under load."""
    cpu: float
    """CPU cores that the steps keep busy."""

    @property
    def text(self) -> str:
        """The utilization of the slowest step, as text."""
        return f"step {self.slowest.name!r} computes {self.share:.0%} of the time"


def _load(
    pipe: PipelineModel, seen: Mapping[str, StepExecutions], cpu_model: bool
) -> _BottleneckLoad:
    busy = {
        stage.name: seen[stage.name].busy / stage.instances if stage.name in seen else 0.0
        for stage in pipe.stages
    }
    slowest = max(pipe.stages, key=lambda stage: busy[stage.name])
    cpu = sum(
        seen[stage.name].busy
        for stage in pipe.stages
        if stage.name in seen and (stage.name != pipe.model or cpu_model)
    )
    slowdown = max((stage.cost.scale for stage in pipe.stages), default=1.0)
    return _BottleneckLoad(slowest, busy[slowest.name], slowdown, cpu)


def advise(
    pipe: PipelineModel,
    seen: Mapping[str, StepExecutions],
    at_limit: bool,
    cores: float,
    cpu_model: bool,
) -> BottleneckAdvice:
    """Return the bottleneck.

    Args:
        pipe: The model of the pipeline with the recommended setting.
        seen: Executions of its steps at the highest measured rate.
        at_limit: Whether utilization, not latency, limits that rate.
        cores: CPU cores that the pod may use.
        cpu_model: Whether the model step computes on CPU.
    """
    load = _load(pipe, seen, cpu_model)
    is_model = load.slowest.name == pipe.model
    if load.share < BUSY_SHARE and load.slowdown < STRETCHED and not at_limit:
        return BottleneckAdvice(
            Bottleneck.QUEUE,
            f"Queue-bound: p99 reaches the latency budget while {load.text}: requests wait "
            "for the batch that is being computed. Raise the SLO, add instances (shorter "
            "waits at the same batch size), or use smaller batches (lower maxBatchSize). "
            "More compute does not help.",
        )
    if not is_model and load.share >= BUSY_SHARE:
        return BottleneckAdvice(
            Bottleneck.CPU,
            f"CPU-bound: {load.text}, before the model is busy. Add instances of this step (one "
            f"core each; {cores:g} cores are available). Larger batches of the model do not "
            "help.",
        )
    if load.slowdown >= STRETCHED or (cpu_model and load.cpu >= 0.8 * cores):
        return BottleneckAdvice(
            Bottleneck.CPU,
            f"CPU-bound: under load, a step takes up to {load.slowdown:.2g} times as long as "
            f"when it runs alone, and {load.cpu:.1f} of {cores:g} cores are busy. "
            "Add cores, or run the model on a GPU. Batching settings have little effect.",
        )
    if not is_model:
        return BottleneckAdvice(
            Bottleneck.QUEUE,
            f"Queue-bound: {load.text} at the highest valid rate, and no other step is busier. "
            "The time is spent before and between the steps: on waiting, on throttling by the "
            "pod's CPU limit, or on other load on the machine. Raise the SLO or the limit, or "
            "use an idle machine. More instances do not help.",
        )
    return _model_advice(pipe, load, seen.get(load.slowest.name))


def _model_advice(
    pipe: PipelineModel, load: _BottleneckLoad, executed: StepExecutions | None
) -> BottleneckAdvice:
    """Return why the model is the bottleneck.

    It is padding, batches that do not form, the fixed cost of executions, or computing.
    """
    stage = load.slowest
    rows = executed.rows if executed is not None else 1.0
    if stage.equal_lengths and rows < ALONE * pipe.rows:
        return BottleneckAdvice(
            Bottleneck.BATCHING,
            f"Batching is ineffective: {load.text} with {rows / pipe.rows:.1f} requests per "
            "batch, because only requests of the same length share one. Use Ragged inputs, or "
            "padding Bucketed or Fixed.",
        )
    factor = padding_factor(pipe, stage, rows)
    cost = stage.cost
    tokens = cost.per_token * rows * mean_longest(pipe.lengths, 1) * factor
    total = cost.fixed + cost.per_request * rows / pipe.rows + cost.per_row * rows + tokens
    if factor >= PADDED and tokens > 0.4 * total:
        return BottleneckAdvice(
            Bottleneck.PADDING,
            f"Padding-bound: {load.text}, and computes {factor:.1f} tokens for each real "
            "token. Use padding Ragged (or more buckets), or micro-batches sorted by "
            "length. Larger batches increase the cost.",
        )
    if cost.fixed > FIXED_SHARE * total:
        return BottleneckAdvice(
            Bottleneck.COMPUTE,
            f"Compute-bound by the fixed cost per execution: {load.text}; "
            f"{cost.fixed / total:.0%} of that time does not depend on the number of rows "
            f"({rows:.0f} per batch). Fill the batches (with a longer delay, or clients that "
            "send more rows), or use a compiled engine.",
        )
    return BottleneckAdvice(
        Bottleneck.COMPUTE,
        f"Compute-bound: {load.text}; most of that time depends on the number of rows "
        f"({rows:.0f} per batch). "
        "Larger batches have little effect. Use a faster or smaller model, lower "
        "precision, another GPU or another replica.",
    )


def padding_factor(pipe: PipelineModel, stage: StepModel, rows: float) -> float:
    """Return the tokens computed for each real one, in batches of ``rows`` rows."""
    mean = mean_longest(pipe.lengths, 1)
    if pipe.padding is not None and pipe.padding.value == "Fixed" and pipe.buckets:
        return pipe.buckets[-1] / mean
    own = mean_longest(pipe.lengths, pipe.rows)
    longest = mean_longest(pipe.lengths, max(1, round(rows)))
    return (own + stage.cost.spread * (longest - own)) / mean
