"""Test inferences of the pods and their example request."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule, TensorName, Text
from .tensors import ATOMIC, TensorList


class InferenceHealth(StrEnum):
    """Whether pods are probed with a real inference."""

    AUTO = "Auto"
    DISABLED = "Disabled"


class ExampleInput(ApiModel):
    """One tensor of an example request."""

    name: Annotated[TensorName, Field(description="Name of the pipeline's input.")]
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...],
        Field(
            max_length=17,
            description="Shape of the tensor, including the batch axis.",
            json_schema_extra=ATOMIC,
        ),
    ]
    data: Annotated[
        tuple[Annotated[str, Field(max_length=65536)], ...],
        Field(
            min_length=1,
            max_length=4096,
            description="Elements of the tensor as strings, in row-major order. A single "
            "element fills the whole tensor.",
            json_schema_extra=ATOMIC,
        ),
    ]


class Health(ApiModel):
    """A test inference per pod, in addition to Triton's readiness.

    Triton reports a pod with a dead process as ready.
    """

    inference: Annotated[
        InferenceHealth,
        Field(
            description=(
                "If Auto, the operator sends an example request to each ready pod. Text pipelines"
                " have a default example."
            )
        ),
    ] = InferenceHealth.AUTO
    text: Annotated[
        Text | None,
        Field(description="Example text for all text inputs. Default: a short sentence."),
    ] = None
    inputs: Annotated[
        TensorList[ExampleInput],
        Field(description="Example request for pipelines that have inputs other than text."),
    ] = ()
    period_seconds: Annotated[
        int, Field(ge=5, le=3600, description="Interval between two test inferences, in seconds.")
    ] = 30

    rules = (
        FieldRule(
            cel=(
                "!(has(self.text) || has(self.inputs)) || !has(self.inference) || self.inference !="
                " 'Disabled'"
            ),
            message=(
                "text and inputs have no effect when inference is Disabled; remove both, or "
                "set inference to Auto"
            ),
            holds=lambda h: (
                (h.text is None and not h.inputs) or h.inference is not InferenceHealth.DISABLED
            ),
            field="inference",
        ),
        FieldRule(
            cel="!(has(self.text) && has(self.inputs))",
            message="text and inputs cannot be combined; move the text to inputs, or remove inputs",
            holds=lambda h: h.text is None or not h.inputs,
            field="text",
        ),
    )
