"""The settings that are tuned: read from a graph, enumerated, written as a merge patch. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triton_pipelines.api.batching import MAX_DELAY_MICROSECONDS
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph, Role, Step
from triton_pipelines.compile.graph.resource_patch import PaddingSetting, padding_fields

from .errors import NotTunableError

# Batch sizes and delays that are tried (autoscaling.md §8.3): powers of two, microseconds.
MAX_BATCH = 128
DELAYS = (0, 500, 1000, 2000, 4000, 8000)
MODEL_INSTANCES = (1, 2)
TENSORRT = "tensorrt_plan"


@dataclass(frozen=True, slots=True, order=True)
class BatchingSetting:
    """One choice of all parameters that are tuned. Instances are those of one pod."""

    max_batch_size: int
    """Rows of a batch of the model."""
    queue_delay: int = 0
    """Microseconds that a batch waits to be filled."""
    model_instances: int = 1
    """Instances of the model."""
    tokenizer_instances: int = 0
    """Instances of the tokenizer; 0: there is no tokenizer."""
    padding: PaddingSetting = PaddingSetting()  # noqa: RUF009  (frozen)
    """Padding, if it differs from that of the resource."""

    def __str__(self) -> str:
        tokenizers = (
            f", {self.tokenizer_instances} tokenizer{'s' * (self.tokenizer_instances != 1)}"
            if self.tokenizer_instances
            else ""
        )
        models = f"{self.model_instances} model instance{'s' * (self.model_instances != 1)}"
        padding = f", padding {self.padding}" if self.padding.mode else ""
        delay = f"{self.queue_delay / 1000:g}"
        return f"batch {self.max_batch_size}, delay {delay} ms, {models}{tokenizers}{padding}"


def tuned_step(graph: Graph) -> Step:
    """Return the step whose batching is tuned.

    Raises:
        NotTunableError: there is none, or it does not batch.
    """
    step = next((step for step in graph.steps if step.role is Role.MODEL), None)
    if step is None or graph.entry is not None:
        reason = (
            "spec.model is not set"
            if step is None
            else "spec.ensemble.entryPoint: a custom entry point calls the model itself"
        )
        raise NotTunableError(f"{reason}; tuning needs a model step inside an ensemble")
    if any(one.repeats is not None for one in graph.steps):
        raise NotTunableError(
            "spec.repeatedSteps: tuning supports only pipelines in which each request runs "
            "each model once; set dynamicBatching manually"
        )
    if step.max_batch_size <= 0:
        raise NotTunableError(
            "spec.model.maxBatchSize: with 0, the model never batches; set the maximum "
            "number of rows that the model accepts"
        )
    if step.batching is None:
        field = (
            "sequenceBatching" if step.sequences is not None else "dynamicBatching.mode Disabled"
        )
        raise NotTunableError(
            f"spec.model: {field} prevents requests from sharing a batch; tuning needs"
            " dynamicBatching"
        )
    if step.batching.priority_levels and graph.decoupled:
        raise NotTunableError(
            "spec.model.decoupled: a step that can send any number of responses has no "
            "latency to optimize"
        )
    return step


def setting_of(graph: Graph) -> BatchingSetting:
    """Return the setting of a graph."""
    model, tokenizer = tuned_step(graph), graph.tokenizer
    delay = (model.batching.max_queue_delay_microseconds if model.batching else None) or 0
    return BatchingSetting(
        model.max_batch_size,
        delay,
        model.instances.counts.initial,
        tokenizer.instances.counts.initial if tokenizer is not None else 0,
    )


def setting_patch(
    pipeline: InferencePipeline, current: BatchingSetting, desired: BatchingSetting
) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7396) from one setting to another.

    It changes nothing else, and is empty if they are equal.
    """
    model = _model_patch(pipeline, current, desired)
    tokenizer = _tokenizer_patch(pipeline, current, desired)
    spec: dict[str, Any] = {"model": model} if model else {}
    if tokenizer:
        spec["tokenizer"] = tokenizer
    return {"spec": spec} if spec else {}


def _model_patch(
    pipeline: InferencePipeline, current: BatchingSetting, desired: BatchingSetting
) -> dict[str, Any]:
    """Return the changes of ``spec.model``."""
    patch: dict[str, Any] = {}
    given = pipeline.spec.model
    if desired.max_batch_size != current.max_batch_size:
        patch["maxBatchSize"] = desired.max_batch_size
    if batching := _batching_patch(pipeline, current, desired):
        patch["dynamicBatching"] = batching
    if desired.model_instances != current.model_instances:
        instances = given.instances if given is not None else None
        patch["instances"] = (
            _range(desired.model_instances, instances.max, instances.min)
            if instances is not None and instances.ranged
            else {"count": desired.model_instances}
        )
    return patch


def _batching_patch(
    pipeline: InferencePipeline, current: BatchingSetting, desired: BatchingSetting
) -> dict[str, Any]:
    """Return the changes of ``spec.model.dynamicBatching``."""
    patch: dict[str, Any] = {}
    given = pipeline.spec.model
    preferred = (
        given.dynamic_batching.preferred_batch_sizes
        if given is not None and given.dynamic_batching is not None
        else ()
    )
    most = desired.max_batch_size
    if most != current.max_batch_size and any(size > most for size in preferred):
        patch["preferredBatchSizes"] = [size for size in preferred if size <= most] or None
    if desired.queue_delay != current.queue_delay:
        patch["maxQueueDelayMicroseconds"] = min(desired.queue_delay, MAX_DELAY_MICROSECONDS)
    return patch


def _tokenizer_patch(
    pipeline: InferencePipeline, current: BatchingSetting, desired: BatchingSetting
) -> dict[str, Any]:
    """Return the changes of ``spec.tokenizer``."""
    patch: dict[str, Any] = {}
    given = pipeline.spec.tokenizer
    if desired.tokenizer_instances != current.tokenizer_instances and given is not None:
        patch["instances"] = (
            {"count": desired.tokenizer_instances}
            if given.instances.count is not None
            else _range(desired.tokenizer_instances, given.instances.max, given.instances.min)
        )
    if desired.padding != current.padding and desired.padding.mode:
        patch |= padding_fields(pipeline, desired.padding)
    return patch


def needs_equal_lengths(step: Step) -> bool:
    """Return whether only requests of one length share a batch of the step."""
    return (
        any(one.tensor.variable and not one.ragged for one in step.inputs)
        or step.platform == TENSORRT
    )


def _range(count: int, high: int | None, low: int | None = None) -> dict[str, int]:
    result = {"initial": count}
    if high is not None and high < count:
        result["max"] = count
    if low is not None and low > count:
        result["min"] = count
    return result


def _instance_counts(pipeline: InferencePipeline) -> Sequence[int]:
    """Return the counts worth a trial; none if the resource lists its instance groups."""
    declared = pipeline.spec.model
    return () if declared is not None and declared.instances.groups else MODEL_INSTANCES


def setting_grid(
    pipeline: InferencePipeline, graph: Graph, rows: int, cores: float
) -> Iterator[BatchingSetting]:
    """Yield every setting worth a prediction, including the current one (autoscaling.md §8.3).

    Batch sizes are powers of two up to 128, never below the ``rows`` of a request nor below
    ``spec.ensemble.maxBatchSize``; a TensorRT plan goes no higher than it was built for. Tokenizers
    take a core each, so there are no more than ``cores``, or than ``spec.tokenizer.instances.max``.
    """
    model, current = tuned_step(graph), setting_of(graph)
    least = max(rows, pipeline.spec.ensemble.max_batch_size or 1)
    most = (
        model.max_batch_size if model.platform == TENSORRT else max(MAX_BATCH, model.max_batch_size)
    )
    batches = sorted(
        {size for size in (2**power for power in range(17)) if least <= size <= most}
        | {current.max_batch_size}
    )
    delays = sorted({*DELAYS, current.queue_delay})
    models = sorted({*_instance_counts(pipeline), current.model_instances})
    tokenizers = [0]
    if current.tokenizer_instances:
        own = pipeline.spec.tokenizer.instances if pipeline.spec.tokenizer is not None else None
        limit = max(1, int(cores))
        if own is not None and (own.max is not None or own.count is not None):
            limit = min(limit, own.max or max(limit, own.count or 1))
        tokenizers = sorted(
            {count for count in (1, 2, 3, 4, 6, 8, 12, 16) if count <= limit}
            | {current.tokenizer_instances}
        )
    for batch in batches:
        for delay in delays:
            for copies in models:
                for count in tokenizers:
                    yield BatchingSetting(batch, delay, copies, count)
