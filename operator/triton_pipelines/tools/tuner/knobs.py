"""The knobs of a pipeline: read from its graph, set in its resource, written as a merge patch. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triton_pipelines.api.batching import MAX_DELAY_MICROSECONDS
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph, Role, Step
from triton_pipelines.compile.graph.resource_patch import padding_fields

from .contract import Knobs, NotTunableError

# Batch sizes and delays that are tried (autoscaling.md §8.3): powers of two, microseconds.
LARGEST_BATCH = 128
DELAYS = (0, 500, 1000, 2000, 4000, 8000)
MODEL_INSTANCES = (1, 2)
TENSORRT = "tensorrt_plan"


def model_of(graph: Graph) -> Step:
    """The step whose batching is tuned.

    Raises:
        NotTunableError: there is none, or it does not batch.
    """
    step = next((step for step in graph.steps if step.role is Role.MODEL), None)
    if step is None or graph.entry is not None:
        reason = (
            "spec.model: the pipeline has none"
            if step is None
            else "spec.ensemble.entryPoint: an own entry point calls the model as it likes"
        )
        raise NotTunableError(f"{reason}; tuning needs a model step inside an ensemble")
    if step.max_batch_size <= 0:
        raise NotTunableError(
            "spec.model.maxBatchSize: is 0, so that the model never batches; set it to the rows that the model may take"
        )
    if step.batching is None:
        what = (
            "sequenceBatching keeps"
            if step.sequences is not None
            else "dynamicBatching.mode Disabled makes"
        )
        raise NotTunableError(
            f"spec.model: {what} requests from sharing a batch; tuning needs dynamicBatching"
        )
    if step.batching.priority_levels and graph.decoupled:
        raise NotTunableError(
            "spec.model.decoupled: a step with any number of answers has no latency to tune for"
        )
    return step


def knobs_of(graph: Graph) -> Knobs:
    """The setting that a graph has."""
    model, tokenizer = model_of(graph), graph.tokenizer
    delay = (model.batching.max_queue_delay_microseconds if model.batching else None) or 0
    return Knobs(
        model.max_batch_size,
        delay,
        model.instances.counts.initial,
        tokenizer.instances.counts.initial if tokenizer is not None else 0,
    )


def patch_of(pipeline: InferencePipeline, current: Knobs, wanted: Knobs) -> dict[str, Any]:
    """A JSON merge patch of the resource (RFC 7396) that changes ``current`` to ``wanted`` and nothing else; empty where they are equal."""
    model: dict[str, Any] = {}
    batching: dict[str, Any] = {}
    given = pipeline.spec.model
    if wanted.max_batch_size != current.max_batch_size:
        model["maxBatchSize"] = wanted.max_batch_size
        preferred = (
            given.dynamic_batching.preferred_batch_sizes
            if given is not None and given.dynamic_batching is not None
            else ()
        )
        if any(size > wanted.max_batch_size for size in preferred):
            batching["preferredBatchSizes"] = [
                size for size in preferred if size <= wanted.max_batch_size
            ] or None
    if wanted.queue_delay != current.queue_delay:
        batching["maxQueueDelayMicroseconds"] = min(wanted.queue_delay, MAX_DELAY_MICROSECONDS)
    if batching:
        model["dynamicBatching"] = batching
    if wanted.model_instances != current.model_instances:
        copies = given.instances if given is not None else None
        ranged = copies is not None and copies.ranged
        high, low = (copies.max, copies.min) if copies is not None else (None, None)
        model["instances"] = (
            _range(wanted.model_instances, high, low)
            if ranged
            else {"count": wanted.model_instances}
        )
    spec: dict[str, Any] = {"model": model} if model else {}
    if (
        wanted.tokenizer_instances != current.tokenizer_instances
        and pipeline.spec.tokenizer is not None
    ):
        own = pipeline.spec.tokenizer.instances
        fixed = own.count is not None
        spec["tokenizer"] = {
            "instances": {"count": wanted.tokenizer_instances}
            if fixed
            else _range(wanted.tokenizer_instances, own.max, own.min)
        }
    if wanted.padding != current.padding and wanted.padding.mode:
        spec["tokenizer"] = spec.get("tokenizer", {}) | padding_fields(pipeline, wanted.padding)
    return {"spec": spec} if spec else {}


def equal_shapes(step: Step) -> bool:
    """Whether only requests of one length share a batch of the step."""
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


def grid(pipeline: InferencePipeline, graph: Graph, rows: int, cores: float) -> Iterator[Knobs]:
    """Every setting worth a prediction, the current one among them (autoscaling.md §8.3).

    Batch sizes are powers of two up to 128, never below the ``rows`` of a request nor below ``spec.ensemble.maxBatchSize``; a TensorRT
    plan goes no higher than it was built for. Tokenizers take a core each, so there are no more than ``cores``, or than
    ``spec.tokenizer.instances.max``.
    """
    model, current = model_of(graph), knobs_of(graph)
    least = max(rows, pipeline.spec.ensemble.max_batch_size or 1)
    most = (
        model.max_batch_size
        if model.platform == TENSORRT
        else max(LARGEST_BATCH, model.max_batch_size)
    )
    batches = sorted(
        {size for size in (2**power for power in range(17)) if least <= size <= most}
        | {current.max_batch_size}
    )
    delays = sorted({*DELAYS, current.queue_delay})
    models = sorted({*MODEL_INSTANCES, current.model_instances})
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
                    yield Knobs(batch, delay, copies, count)
