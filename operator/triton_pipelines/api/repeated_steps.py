"""Steps that run the model of another step once more, on other tensors."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from .base import ApiModel, FieldRule, TensorName, TensorReference
from .step_names import NAME_IS_FREE, STEP_NAME_MAX, STEP_NAME_PATTERN
from .tensors import BY_NAME, MAX_TENSORS


class RepeatedInput(ApiModel):
    """One connected input of a repeated step."""

    name: Annotated[TensorName, Field(description="Name of an input of the repeated step's model.")]
    from_: Annotated[
        TensorReference,
        Field(
            alias="from", description="Tensor that this input reads: STEP.OUTPUT or pipeline.INPUT."
        ),
    ]


class RepeatedStep(ApiModel):
    """A step that runs the model of another step in the same instances."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=STEP_NAME_MAX,
            pattern=STEP_NAME_PATTERN,
            description=(
                "Name for from fields: a DNS label. The names tokenizer, model, postprocess and"
                " pipeline are reserved."
            ),
        ),
    ]
    step: Annotated[
        str,
        Field(
            min_length=1,
            max_length=STEP_NAME_MAX,
            pattern=STEP_NAME_PATTERN,
            description="The step to repeat: tokenizer, model, postprocess or one of spec.steps.",
        ),
    ]
    inputs: Annotated[
        tuple[RepeatedInput, ...],
        Field(
            min_length=1,
            max_length=MAX_TENSORS,
            description="Inputs that the step reads. Only optional inputs can be omitted.",
            json_schema_extra=BY_NAME,
        ),
    ]

    rules: ClassVar[tuple[FieldRule, ...]] = (NAME_IS_FREE,)
