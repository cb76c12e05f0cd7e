"""Choose the warmup inferences of a new instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triton_pipelines.api.base import Switch
from triton_pipelines.api.optimization import MAX_TOKENS
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.tensors import TokenTensor

from .graph import Input, WarmupSample
from .repeated_steps import tokenizer_names
from .step_context import StepContext

# Token tensors for which zeros are a request that every model answers: the padding's own values.
WARM_KINDS = frozenset(
    {
        TokenTensor.INPUT_IDS,
        TokenTensor.ATTENTION_MASK,
        TokenTensor.TOKEN_TYPE_IDS,
        TokenTensor.SPECIAL_TOKENS_MASK,
    }
)


def warmup_samples(
    fields: StepFields,
    batch: int,
    inputs: Sequence[Input],
    context: StepContext,
    *,
    python: bool,
    on_cpu: bool,
) -> tuple[WarmupSample, ...]:
    """Return the warmup inferences of a new instance.

    Unless the user configures them, there are warmups only if zeros are known to be valid inputs:
    tokens from the operator's tokenizer into one of Triton's backends. The lengths and values that
    a tokenizer with custom code produces are unknown.

    On a CPU nothing is prepared for a batch size, and batches are small: by default one row is
    enough. The largest batch would take minutes and gigabytes before each start (64 rows of 512
    tokens: 22 to 160 s and 2.2 GB, measured).

    Args:
        fields: the step.
        batch: its maxBatchSize.
        inputs: its inputs.
        context: the pipeline around it.
        python: whether the python backend runs it.
        on_cpu: whether all its instances run on CPUs.
    """
    tokenizers = tokenizer_names(context.spec)

    def is_token(entry: Input) -> bool:
        known = (
            context.tokens.get(entry.source.tensor)
            if entry.source is not None and entry.source.step in tokenizers
            else None
        )
        return known is not None and known.kind in WARM_KINDS

    requested = fields.warmup is not None and fields.warmup.mode is Switch.ENABLED
    fed = [entry for entry in inputs if not (entry.optional and entry.source is None)]
    ours = context.spec.tokenizer is not None and context.spec.tokenizer.python is None
    by_default = (
        fields.warmup is None
        and ours
        and not python
        and fields.platform is not Platform.VLLM
        and bool(fed)
        and all(map(is_token, fed))
    )
    if fields.sequence_batching is not None or not (requested or by_default):
        return ()
    preferred = fields.dynamic_batching.preferred_batch_sizes if fields.dynamic_batching else ()
    written = fields.warmup.batch_sizes if fields.warmup else ()
    largest = () if on_cpu else (batch,)
    rows = sorted({*(written or (1, *preferred, *largest))}) if batch > 0 else [0]
    lengths = _accepted_lengths(fields, context.lengths) if any(map(is_token, fed)) else (1,)
    samples = []
    for length in lengths:
        for count in rows:
            tensors = tuple(
                replace(entry.tensor, dims=_filled(entry, length if is_token(entry) else 1))
                for entry in fed
            )
            samples.append(WarmupSample(f"{max(count, 1)}x{length}", count, tensors))
    return tuple(samples)


def _accepted_lengths(fields: StepFields, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of rows, limited to the range that the model accepts.

    A warmup outside of this range would stop the server.
    """
    low = (fields.lengths.min if fields.lengths else None) or 1
    high = (fields.lengths.max if fields.lengths else None) or MAX_TOKENS
    return tuple(sorted({min(max(length, low), high) for length in lengths}))


def _filled(entry: Input, length: int) -> tuple[int, ...]:
    """Return the dims with a size for every -1.

    The last open axis of a token tensor is the length; other open axes are one.
    """
    dims = list(entry.tensor.dims)
    free = [axis for axis, size in enumerate(dims) if size == -1]
    for axis in free:
        dims[axis] = length if axis == free[-1] else 1
    return tuple(dims)
