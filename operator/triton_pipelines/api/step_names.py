"""Names by which references and the status address steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import FieldRule

STEP_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
STEP_NAME_MAX = 32
StepName = Annotated[str, Field(min_length=1, max_length=STEP_NAME_MAX, pattern=STEP_NAME_PATTERN)]
# Names by which references address the fixed slots.
TAKEN_STEP_NAMES = ("tokenizer", "model", "postprocess", "pipeline")

NAME_IS_FREE = FieldRule(
    cel="!(self.name in ['tokenizer', 'model', 'postprocess', 'pipeline'])",
    message=(
        "the names tokenizer, model, postprocess and pipeline are reserved; choose another name"
    ),
    holds=lambda s: s.name not in TAKEN_STEP_NAMES,
    field="name",
)
