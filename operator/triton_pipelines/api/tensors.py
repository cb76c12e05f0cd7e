"""Tensors as a user declares them: element types, shapes, and contents of tokenizer outputs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import Field

from .base import ApiModel, Dimension, FieldRule, Switch, TensorName, TensorReference


def by_key(key: str) -> dict[str, Any]:
    """Return the marks of a list that is merged by a field of its items."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


ATOMIC = {"x-kubernetes-list-type": "atomic"}
AS_SET = {"x-kubernetes-list-type": "set"}
BY_NAME = by_key("name")
MAX_TENSORS = 64
MAX_DIMS = 16
T = TypeVar("T")
TensorList = Annotated[tuple[T, ...], Field(max_length=MAX_TENSORS, json_schema_extra=BY_NAME)]
"""Tensors, each with a name of its own."""


class DataType(StrEnum):
    """Tensor element types, named as Triton's protocol names them (STRING is BYTES on the wire)."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    STRING = "STRING"


FLOAT_TYPES = (DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16)
"""Types of scores and vectors."""
INTEGER_TYPES = (DataType.INT32, DataType.INT64)
"""Types of tokens and masks."""


class TokenTensor(StrEnum):
    """Content of a tokenizer output."""

    INPUT_IDS = "InputIds"
    ATTENTION_MASK = "AttentionMask"
    TOKEN_TYPE_IDS = "TokenTypeIds"  # noqa: S105 - not a password
    SPECIAL_TOKENS_MASK = "SpecialTokensMask"
    OFFSETS = "Offsets"
    LENGTHS = "Lengths"


Dims = Annotated[
    tuple[Dimension, ...],
    Field(
        min_length=1,
        max_length=MAX_DIMS,
        description=(
            "Shape of one row without the batch axis, or including it if maxBatchSize is 0. -1 "
            "means any length."
        ),
        json_schema_extra=ATOMIC,
    ),
]


class PublicInput(ApiModel):
    """One input of the pipeline, as clients send it."""

    name: Annotated[TensorName, Field(description="Name of the tensor in client requests.")]
    data_type: Annotated[DataType, Field(description="Element type.")]
    dims: Dims
    optional: Annotated[
        Switch | None,
        Field(
            description=(
                "If Enabled, a request can omit this input. Every step input that reads it "
                "must then also be optional. Default: Disabled."
            )
        ),
    ] = None


class PublicOutput(ApiModel):
    """One output of the pipeline, as clients receive it."""

    name: Annotated[TensorName, Field(description="Name of the tensor in client requests.")]
    from_: Annotated[
        TensorReference,
        Field(
            alias="from",
            description="Tensor to return, as STEP.OUTPUT. The name is split at the first dot.",
        ),
    ]


class OutputTensor(ApiModel):
    """One output tensor of a step."""

    name: Annotated[TensorName, Field(description="Name of the tensor in the model.")]
    data_type: Annotated[DataType, Field(description="Element type.")]
    dims: Dims
    reshape: Annotated[
        tuple[Dimension, ...] | None,
        Field(
            max_length=MAX_DIMS,
            description="Shape in the model, if it differs from dims. [] means a scalar.",
            json_schema_extra=ATOMIC,
        ),
    ] = None


class InputTensor(OutputTensor):
    """One input tensor of a step."""

    from_: Annotated[
        TensorReference | None,
        Field(
            alias="from",
            description=(
                "Tensor that this input reads: STEP.OUTPUT or pipeline.INPUT. Default: the "
                "tokenizer's standard tensor or the pipeline's input of the same name."
            ),
        ),
    ] = None
    optional: Annotated[
        Switch | None,
        Field(
            description=(
                "If Enabled, a request can omit this input. Without from, the input reads the "
                "pipeline's input of the same name if spec.ensemble.inputs lists one; "
                "otherwise, it is not connected."
            )
        ),
    ] = None
    ragged: Annotated[
        Switch | None,
        Field(
            description=(
                "If Enabled, requests of different shapes share a batch. Backends other than "
                "python receive one flat tensor. Default: Enabled for Python steps with a dim "
                "of -1, Disabled otherwise."
            )
        ),
    ] = None

    rules = (
        FieldRule(
            cel="!(has(self.ragged) && self.ragged == 'Enabled' && has(self.reshape))",
            message=(
                "ragged and reshape cannot be combined, because the rows of a ragged input "
                "have no common shape; remove one of the two"
            ),
            holds=lambda t: not (t.ragged is Switch.ENABLED and t.reshape is not None),
            field="ragged",
        ),
    )
