"""Steps that run the model of another step once more, on other tensors."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from .base import ApiModel, FieldRule, TensorName, TensorReference
from .step_names import NAME_IS_FREE, StepName
from .tensors import TensorList


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
        StepName,
        Field(
            description=(
                "Name for from fields: a DNS label. The names tokenizer, model, postprocess and"
                " pipeline are reserved."
            )
        ),
    ]
    step: Annotated[
        StepName,
        Field(
            description="The step to repeat: tokenizer, model, postprocess or one of spec.steps."
        ),
    ]
    inputs: Annotated[
        TensorList[RepeatedInput],
        Field(
            min_length=1,
            description="Inputs that the step reads. Only optional inputs can be omitted.",
        ),
    ]

    rules: ClassVar[tuple[FieldRule, ...]] = (NAME_IS_FREE,)
