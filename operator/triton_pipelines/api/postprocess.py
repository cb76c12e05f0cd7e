"""The step after the model, as a user writes it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule, Passthrough, Switch, TensorReference, TritonName
from .batching import DynamicBatching
from .instances import InstanceResources, PlacedStepCopies
from .open_fields import FORM, OpenForm
from .python import CustomCode
from .tensors import ATOMIC, InputTensor, OutputTensor, TensorList


class PostprocessType(StrEnum):
    """Processing of the model's outputs."""

    NONE = "None"
    SOFTMAX = "Softmax"
    SIGMOID = "Sigmoid"
    MEAN_POOLING = "MeanPooling"
    FIRST_TOKEN = "FirstToken"  # noqa: S105 - not a password
    PYTHON = "Python"


class PoolingPlacement(StrEnum):
    """Where an embedding is computed."""

    STEP = "Step"
    MODEL = "Model"


CLASSIFIERS = (PostprocessType.SOFTMAX, PostprocessType.SIGMOID)
POOLINGS = (PostprocessType.MEAN_POOLING, PostprocessType.FIRST_TOKEN)


class Postprocess(ApiModel):
    """The step after the model."""

    model_name: Annotated[TritonName, Field(description="Name in the model repository.")] = (
        "postprocess"
    )
    type: Annotated[
        PostprocessType | None,
        Field(
            description=(
                "None (the default) returns the model's outputs. Softmax and Sigmoid return "
                "probabilities and labels. MeanPooling and FirstToken return an embedding. "
                "Python runs a custom model.py."
            )
        ),
    ] = None
    from_: Annotated[
        TensorReference | None,
        Field(
            alias="from",
            description="Tensor that this step reads. Default: the model's first output.",
        ),
    ] = None
    mask_from: Annotated[
        TensorReference | None,
        Field(
            description=(
                "Tensor with the attention mask for MeanPooling. Default: the tokenizer's "
                "AttentionMask."
            )
        ),
    ] = None
    labels: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
        Field(
            max_length=4096,
            description="Names of the classes, in the order of the model's outputs.",
            json_schema_extra=ATOMIC,
        ),
    ] = ()
    top_k: Annotated[
        int | None,
        Field(
            ge=1,
            le=4096,
            description=(
                "Number of labels and scores to return, in descending order of score. Default: 1."
            ),
        ),
    ] = None
    normalize: Annotated[
        Switch | None,
        Field(description="If Enabled (the default), embeddings are normalized to unit length."),
    ] = None
    placement: Annotated[
        PoolingPlacement | None,
        Field(
            description=(
                "Where an embedding is computed. Step (the default): in a Python process. Model: "
                "in the model's ONNX file."
            )
        ),
    ] = None
    python: Annotated[CustomCode | None, Field(description="Custom code, for type Python.")] = None
    inputs: Annotated[
        TensorList[InputTensor],
        Field(
            description=(
                "Input tensors, for type Python. By default, each reads the model's output of "
                "the same name."
            )
        ),
    ] = ()
    outputs: Annotated[
        TensorList[OutputTensor], Field(description="Output tensors. Required for type Python.")
    ] = ()
    instances: Annotated[
        PlacedStepCopies, Field(description="Number of processes in each pod.")
    ] = PlacedStepCopies()
    resources_per_instance: Annotated[
        InstanceResources | None,
        Field(
            description=(
                "Resources of one instance. Default: 100m and 256Mi, or 1 CPU and 400Mi if the "
                "step is scaled."
            )
        ),
    ] = None
    dynamic_batching: Annotated[
        DynamicBatching | None,
        Field(description="Dynamic batching of this step. Enabled by default."),
    ] = None
    config_patch: Annotated[
        Passthrough | None,
        Field(
            description="Additional ModelConfig fields, as in model.configPatch.",
            json_schema_extra={FORM: OpenForm.CPU_MODEL_CONFIG},
        ),
    ] = None

    rules = (
        FieldRule(
            cel=(
                "!(has(self.labels) && size(self.labels) > 0) || has(self.type) && self.type in"
                " ['Softmax', 'Sigmoid']"
            ),
            message="allowed only with type Softmax or Sigmoid",
            holds=lambda p: not p.labels or p.type in CLASSIFIERS,
            field="labels",
        ),
        FieldRule(
            cel="!has(self.topK) || has(self.labels) && self.topK <= size(self.labels)",
            message="allowed only with labels, and must not exceed the number of labels",
            holds=lambda p: p.top_k is None or p.top_k <= len(p.labels),
            field="topK",
        ),
        FieldRule(
            cel=(
                "!has(self.normalize) || has(self.type) && self.type in ['MeanPooling',"
                " 'FirstToken']"
            ),
            message="allowed only with type MeanPooling or FirstToken",
            holds=lambda p: p.normalize is None or p.type in POOLINGS,
            field="normalize",
        ),
        FieldRule(
            cel="!has(self.maskFrom) || has(self.type) && self.type == 'MeanPooling'",
            message="allowed only with type MeanPooling",
            holds=lambda p: p.mask_from is None or p.type is PostprocessType.MEAN_POOLING,
            field="maskFrom",
        ),
        FieldRule(
            cel="!has(self.from) || has(self.type) && !(self.type in ['None', 'Python'])",
            message=(
                "not allowed with type None or Python; for type Python, set from on each input"
            ),
            holds=lambda p: (
                p.from_ is None
                or p.type not in (None, PostprocessType.NONE, PostprocessType.PYTHON)
            ),
            field="from",
        ),
        FieldRule(
            cel="(has(self.type) && self.type == 'Python') == has(self.python)",
            message="required for type Python and not allowed otherwise",
            holds=lambda p: (p.type is PostprocessType.PYTHON) == (p.python is not None),
            field="python",
        ),
        FieldRule(
            cel="!has(self.python) || has(self.outputs) && size(self.outputs) > 0",
            message="required for type Python; list each output tensor with dataType and dims",
            holds=lambda p: p.python is None or bool(p.outputs),
            field="outputs",
        ),
        FieldRule(
            cel=(
                "has(self.python) || !(has(self.inputs) && size(self.inputs) > 0) &&"
                " !(has(self.outputs) && size(self.outputs) > 0)"
            ),
            message=(
                "inputs and outputs are allowed only with type Python; other types define their own"
                " tensors"
            ),
            holds=lambda p: p.python is not None or not (p.inputs or p.outputs),
            field="inputs",
        ),
    )

    @property
    def pools_in_model(self) -> bool:
        """Return whether the resource asks for an embedding that the model's file computes."""
        return self.placement is PoolingPlacement.MODEL and self.type in POOLINGS
