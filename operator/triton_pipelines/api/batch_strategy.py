"""A custom batching library on top of the dynamic batcher of one step."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule
from .source import SourceSpec

# A path below a model's folder.
LIBRARY_PATTERN = r"^[A-Za-z0-9_][-A-Za-z0-9_./]*$"


class BatchStrategy(ApiModel):
    """A custom batching library.

    Its C functions extend the dynamic batcher and decide which requests join a batch.
    """

    source: Annotated[
        SourceSpec | None,
        Field(
            description=(
                "The shared library. It is stored as batchstrategy.so in the model directory, "
                "where Triton looks for it."
            )
        ),
    ] = None
    path: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            pattern=LIBRARY_PATTERN,
            description=(
                "Path of a library in the model's source, relative to the model directory, such "
                "as 1/libvolume.so."
            ),
        ),
    ] = None

    rules = (
        FieldRule(
            cel="has(self.source) != has(self.path)",
            message="exactly one of batchStrategy.source and batchStrategy.path is required",
            holds=lambda b: (b.source is None) != (b.path is None),
        ),
        FieldRule(
            cel="!has(self.path) || !self.path.contains('..')",
            message=(
                "must not contain '..', because the library must be inside the model's directory"
            ),
            holds=lambda b: b.path is None or ".." not in b.path,
            field="path",
        ),
    )
