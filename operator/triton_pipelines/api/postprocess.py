"""The step after the model, as a user writes it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, Rule, Switch, TensorReference, TritonName
from .batching import DynamicBatching
from .steps import MAX_INSTANCES


class PostprocessType(StrEnum):
    """What is made of the model's output."""

    NONE = "None"
    SOFTMAX = "Softmax"
    SIGMOID = "Sigmoid"
    MEAN_POOLING = "MeanPooling"
    FIRST_TOKEN = "FirstToken"  # noqa: S105 - not a password


CLASSIFIERS = (PostprocessType.SOFTMAX, PostprocessType.SIGMOID)
POOLINGS = (PostprocessType.MEAN_POOLING, PostprocessType.FIRST_TOKEN)


class PostprocessInstances(ApiModel):
    """Instances of the postprocess step."""

    count: Annotated[int, Field(ge=1, le=MAX_INSTANCES, description="Processes in a pod.")] = 1


class Postprocess(ApiModel):
    """The step after the model."""

    model_name: Annotated[TritonName, Field(description="Name in the model repository.")] = "postprocess"
    type: Annotated[
        PostprocessType | None,
        Field(
            description="None (the default): the model's outputs are the pipeline's. Softmax, Sigmoid: probabilities and labels. MeanPooling, FirstToken: an embedding."
        ),
    ] = None
    from_: Annotated[TensorReference | None, Field(alias="from", description="The tensor it reads. Default: the model's first output.")] = None
    mask_from: Annotated[TensorReference | None, Field(description="Mask for MeanPooling. Default: the tokenizer's AttentionMask.")] = None
    labels: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
        Field(max_length=4096, description="Names of the classes, in the model's order.", json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = ()
    top_k: Annotated[int | None, Field(ge=1, le=4096, description="How many labels and scores are answered, best first. Default 1.")] = None
    normalize: Annotated[Switch | None, Field(description="Enabled (the default): embeddings have unit length.")] = None
    instances: Annotated[PostprocessInstances, Field(description="How many processes a pod runs.")] = PostprocessInstances()
    dynamic_batching: Annotated[DynamicBatching | None, Field(description="Batching of this step. Default: on.")] = None

    rules = (
        Rule(
            cel="!(has(self.labels) && size(self.labels) > 0) || has(self.type) && self.type in ['Softmax', 'Sigmoid']",
            message="labels go with type Softmax or Sigmoid only",
            holds=lambda p: not p.labels or p.type in CLASSIFIERS,
            field="labels",
        ),
        Rule(
            cel="!has(self.topK) || has(self.labels) && self.topK <= size(self.labels)",
            message="topK needs labels, and is at most their number",
            holds=lambda p: p.top_k is None or p.top_k <= len(p.labels),
            field="topK",
        ),
        Rule(
            cel="!has(self.normalize) || has(self.type) && self.type in ['MeanPooling', 'FirstToken']",
            message="normalize goes with type MeanPooling or FirstToken only",
            holds=lambda p: p.normalize is None or p.type in POOLINGS,
            field="normalize",
        ),
        Rule(
            cel="!has(self.maskFrom) || has(self.type) && self.type == 'MeanPooling'",
            message="maskFrom goes with type MeanPooling only",
            holds=lambda p: p.mask_from is None or p.type is PostprocessType.MEAN_POOLING,
            field="maskFrom",
        ),
        Rule(
            cel="!has(self.from) || has(self.type) && self.type != 'None'",
            message="from needs a type other than None",
            holds=lambda p: p.from_ is None or p.type not in (None, PostprocessType.NONE),
            field="from",
        ),
    )
