"""Build the graph of a resource with every default resolved; ``checks.py`` validates it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triton_pipelines.api.base import Switch
from triton_pipelines.api.postprocess import PostprocessType
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline, PipelineSpec

from .declared_steps import DeclaredStep, auxiliary_steps, declared_steps
from .effective_padding import MeasuredPadding, PaddingChoice
from .ensemble import (
    ONE_TEXT,
    declared_text_dims,
    has_rows_of_texts,
    text_dims,
    text_inputs,
    with_ensemble,
    with_entry_point,
)
from .gpu_memory import with_gpu_memory
from .graph import Graph, Role, Step, Tensor
from .model_pooling import with_model_pooling
from .model_step import max_batch_size, model_step
from .options import Options
from .padding_choice import TokenReader, choose_padding
from .pooled_outputs import with_pooled_outputs
from .postprocess_step import postprocess_read, postprocess_step
from .ragged_eligibility import RaggedRejections, pads
from .repeated_steps import repeated_steps, tokenizer_names
from .step_context import StepContext
from .token_readers import input_source, token_readers, tokens_read
from .tokenizer_step import Tokens, row_length, token_tensors, tokenizer_step
from .tracing import traced_step


def build(
    pipeline: InferencePipeline,
    options: Options,
    refused: RaggedRejections | None = None,
    measured: MeasuredPadding | None = None,
) -> Graph:
    """Return the graph of a resource that its schema and rules accept.

    Wrong references stay in it for the checks to find.

    Args:
        pipeline: The resource.
        options: The operator's options.
        refused: Files that the loader could not adapt to ragged batches; their rows are padded
            instead.
        measured: The padding that a tuning run measured for this spec; ``Auto`` uses it.
    """
    spec = pipeline.spec
    declared = declared_steps(spec)
    tokenizer_batch = _tokenizer_batch(spec, declared)
    tokens = tokens_read(spec, declared)
    readers = token_readers(spec, declared, tokens, options, refused or {})
    padding = (
        choose_padding(spec.tokenizer, list(readers.values()), measured)
        if spec.tokenizer is not None
        else None
    )
    context = StepContext(
        spec=spec,
        tokens=tokens,
        token_tensors=_token_tensors(spec, tokens, padding, tokenizer_batch),
        tokenizer_batches=bool(tokenizer_batch),
        lengths=_lengths(spec, padding),
        source_of=lambda tensor: input_source(tensor, spec),
        options=options,
    )
    steps: list[Step] = []
    if spec.tokenizer is not None and tokenizer_batch is not None and padding is not None:
        dims = (
            (-1, *(declared_text_dims(spec) or ONE_TEXT))
            if _has_rows_of_texts(spec, declared)
            else text_dims(spec, tokenizer_batch)
        )
        steps.append(tokenizer_step(spec, tokenizer_batch, padding, tokens, dims))
    steps += _model_steps(declared, context, readers, padding)
    last = _postprocess_steps(spec, steps, tokens, tokenizer_batch)
    steps = [*steps, *repeated_steps(spec, [*steps, *last]), *last]
    auxiliary = [model_step(item, context) for item in auxiliary_steps(spec)]
    graph = _graph(pipeline, steps, auxiliary, padding)
    if graph.entry is not None:
        return with_entry_point(graph)
    graph = with_ensemble(graph, spec, tokenizer_batch)
    if spec.postprocess.pools_in_model:
        graph = with_model_pooling(graph)
    return with_pooled_outputs(graph)


def _graph(
    pipeline: InferencePipeline,
    steps: Sequence[Step],
    auxiliary: Sequence[Step],
    padding: PaddingChoice | None,
) -> Graph:
    """Return the graph of the steps, which are not connected to the pipeline's tensors yet."""
    spec = pipeline.spec
    if spec.ensemble.response_cache is Switch.ENABLED and spec.ensemble.entry_point is not None:
        steps = [
            replace(step, response_cache=step.name == spec.ensemble.entry_point) for step in steps
        ]
    if spec.server.auto_complete is Switch.ENABLED:
        steps = [_fixed(step) for step in steps]
        auxiliary = [_fixed(step) for step in auxiliary]
    if (gpu_memory := spec.server.gpu_memory) is not None:
        bounded = with_gpu_memory([*steps, *auxiliary], gpu_memory)
        steps, auxiliary = bounded[: len(steps)], bounded[len(steps) :]
    if (tracing := spec.observability.tracing) is not None:
        steps = [traced_step(step, tracing, pipeline) for step in steps]
        auxiliary = [traced_step(step, tracing, pipeline) for step in auxiliary]
    return Graph(
        pipeline=pipeline.name,
        model_name=pipeline.public_name,
        max_batch_size=_ensemble_batch(spec, steps, declared_steps(spec)),
        inputs=(),
        outputs=(),
        steps=tuple(steps),
        auxiliary=tuple(auxiliary),
        padding=padding,
        entry=spec.ensemble.entry_point,
        max_inflight_requests=spec.ensemble.max_inflight_requests or 0,
        response_cache=spec.ensemble.response_cache is Switch.ENABLED,
        auto_complete=spec.server.auto_complete is Switch.ENABLED,
        tracing=tracing,
    )


def _token_tensors(
    spec: PipelineSpec, tokens: Tokens, padding: PaddingChoice | None, batch: int | None
) -> tuple[Tensor, ...]:
    """Return the tokenizer's outputs as tensors; rows have one length with padding ``Fixed``."""
    fixed = padding is not None and padding.chosen is Padding.FIXED
    length = row_length(spec.tokenizer) if fixed else -1
    return token_tensors(tokens, length, batched=batch is not None and batch > 0)


def _model_steps(
    declared: Sequence[DeclaredStep],
    context: StepContext,
    readers: dict[str, TokenReader],
    padding: PaddingChoice | None,
) -> list[Step]:
    """Return the model and the further steps, adapted to ragged batches where padding needs it."""
    adapts = padding is not None and padding.chosen is Padding.RAGGED
    steps = []
    for item in declared:
        step, reader = model_step(item, context), readers.get(item.name)
        if adapts and reader is not None and reader.is_adaptable:
            step = _adapted(step, context)
        steps.append(step)
    return steps


def _postprocess_steps(
    spec: PipelineSpec, steps: Sequence[Step], tokens: Tokens, tokenizer_batch: int | None
) -> list[Step]:
    """Return the postprocess step, if the resource has one."""
    post = spec.postprocess
    if post.type in (None, PostprocessType.NONE):
        return []
    sources = {
        tensor.name: postprocess_read(tensor, spec) or input_source(tensor, spec)
        for tensor in post.inputs
    }
    return [postprocess_step(post, steps, tokens, text_inputs(spec, tokenizer_batch), sources)]


def _fixed(step: Step) -> Step:
    """Return the step with its initial count.

    If the backend completes the config, every change of a count would reload the model.
    """
    return replace(step, instances=step.instances.fixed())


def _tokenizer_batch(spec: PipelineSpec, declared: Sequence[DeclaredStep]) -> int | None:
    """Return the rows of the tokenizer's batch: as written, else those of the first model."""
    if spec.tokenizer is None:
        return None
    if spec.tokenizer.max_batch_size is not None:
        return spec.tokenizer.max_batch_size
    if _has_rows_of_texts(spec, declared):
        return 0
    return max_batch_size(declared[0].fields) if declared else 0


def _has_rows_of_texts(spec: PipelineSpec, declared: Sequence[DeclaredStep]) -> bool:
    """Return whether a row of a request has several texts."""
    return has_rows_of_texts(spec, [max_batch_size(step.fields) for step in declared])


def _ensemble_batch(
    spec: PipelineSpec, steps: Sequence[Step], declared: Sequence[DeclaredStep]
) -> int:
    """Return the rows of a request: as written, else the smallest batch of the steps."""
    if spec.ensemble.max_batch_size is not None:
        return spec.ensemble.max_batch_size
    if _has_rows_of_texts(spec, declared):
        steps = [step for step in steps if step.role is not Role.TOKENIZER]
    # If one step has no batch axis, the whole pipeline has none. The axis is then part of the dims
    # of every tensor.
    return min((step.max_batch_size for step in steps), default=0)


def _adapted(step: Step, context: StepContext) -> Step:
    """Return the step with its file adapted to ragged batches."""
    tokens, tokenizers = context.tokens, tokenizer_names(context.spec)
    fed = {
        entry.tensor.name: entry.source
        for entry in step.inputs
        if entry.source is not None and entry.source.step in tokenizers
    }
    kinds = {
        name: tokens[source.tensor].kind for name, source in fed.items() if source.tensor in tokens
    }
    flat = pads(step.inputs, kinds)
    return replace(
        step,
        flat=flat,
        inputs=tuple(replace(entry, ragged=entry.tensor.name in flat) for entry in step.inputs),
    )


def _lengths(spec: PipelineSpec, padding: PaddingChoice | None) -> tuple[int, ...]:
    """Return the lengths, in tokens, that a padded row may have; warmup runs each of them."""
    buckets = padding.buckets if padding is not None else ()
    return buckets or (row_length(spec.tokenizer),)
