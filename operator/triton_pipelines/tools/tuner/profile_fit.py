"""Fit the model of a pipeline to the times of its steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from triton_pipelines.compile.graph.defaults import TOKENIZER
from triton_pipelines.compile.graph.graph import Graph, Step
from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .calibration import StepExecutions, estimate_spread, padded_lengths
from .padding_candidates import longest_row, padding_effect
from .prediction import PaddingEffect, PipelineModel, StepModel
from .settings import needs_equal_lengths, tuned_step
from .step_time_fit import StepCost
from .workload import Workload


def token_length(effect: PaddingEffect, length: int) -> int:
    """Return the tokens of a lone request's rows after the tokenizer."""
    return padded_lengths(
        PipelineModel((), (length,), padding=effect.padding, buckets=effect.buckets)
    )[0]


def pipeline_model(
    graph: Graph, work: Workload, costs: Mapping[str, StepCost], overhead: Sequence[float]
) -> PipelineModel:
    """Return the model of a pipeline.

    Args:
        graph: The pipeline.
        work: The requests.
        costs: Costs by step name.
        overhead: Seconds of single requests that no step accounts for.
    """
    model, tokenizer = tuned_step(graph), graph.tokenizer
    effect = padding_effect(graph, longest_row(graph) or max(work.lengths))
    return PipelineModel(
        stages=tuple(_stage(step, costs[step.name], tokenizer) for step in graph.steps),
        lengths=work.lengths,
        rows=work.rows,
        tokenizer=tokenizer.name if tokenizer is not None else "",
        model=model.name,
        padding=effect.padding,
        buckets=effect.buckets,
        overhead=tuple(sorted(overhead)) or (0.0,),
        padding_effects={PaddingSetting(): effect},
    )


def _stage(step: Step, cost: StepCost, tokenizer: Step | None) -> StepModel:
    delay = (step.batching.max_queue_delay_microseconds if step.batching is not None else None) or 0
    own = step is tokenizer and step.tokenizer is not None
    return StepModel(
        name=step.name,
        # The built-in tokenizer computes each row at its own length.
        cost=replace(cost, spread=0.0) if own or step.name == TOKENIZER else cost,
        batch=max(1, step.max_batch_size) if step.batching is not None else 1,
        delay=delay / 1e6,
        instances=step.instances.counts.initial,
        equal_lengths=needs_equal_lengths(step),
    )


def with_spread(
    pipe: PipelineModel, model: str, mixed: Mapping[str, StepExecutions], work: Workload
) -> PipelineModel:
    """Add how rows of different length share a batch of the model, from the mixed load."""

    def refined(stage: StepModel) -> StepModel:
        if stage.name != model or stage.name not in mixed or stage.equal_lengths:
            return stage
        return replace(
            stage,
            cost=replace(
                stage.cost,
                spread=estimate_spread(
                    stage.cost, mixed[stage.name], padded_lengths(pipe), work.rows
                ),
            ),
        )

    return replace(pipe, stages=tuple(map(refined, pipe.stages)))


def contention(factor: float, busy: float, copies: int) -> tuple[float, ...]:
    """Return the slowdown of an execution for each number of instances that compute at once.

    It is at most that of instances that share one device in turn: more comes from the client and
    the server on the same cores, which real load has less of.

    Args:
        factor: Slowdown that was measured.
        busy: Instances that were busy meanwhile.
        copies: Number of instances.
    """
    # If another step is the bottleneck, not all instances are busy: claim only what was measured.
    seen = max(1.0, min(float(copies), busy))
    per = min(1.0, (max(1.0, factor) - 1.0) / (seen - 1.0)) if seen > 1.2 else 0.0
    return tuple(1.0 + per * number for number in range(copies))
