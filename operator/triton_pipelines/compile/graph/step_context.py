"""The context of a step: values of the pipeline on which its defaults depend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_pipelines.api.tensors import InputTensor
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .graph import Reference, Tensor
from .options import Options
from .tokenizer_step import Tokens


@dataclass(frozen=True, slots=True)
class StepContext:
    """The rest of the pipeline, as far as the defaults of one step depend on it."""

    spec: PipelineSpec
    """The spec of the pipeline."""
    tokens: Tokens
    """The tokenizer's outputs by name; empty without a tokenizer."""
    token_tensors: Sequence[Tensor]
    """The same outputs as tensors, with the shape that padding gives them."""
    tokenizer_batches: bool
    """Whether the tokenizer has a batch axis; else their dims include the rows."""
    lengths: tuple[int, ...]
    """Lengths in tokens that a padded row may have."""
    source_of: Callable[[InputTensor], Reference | None]
    """Returns the tensor that feeds an input; ``None`` if the input is not connected."""
    options: Options
    """The operator's options."""
