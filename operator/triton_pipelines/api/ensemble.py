"""The public interface of the pipeline: model name, tensors, entry point, response cache."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule, Switch, TritonName
from .batching import MaxBatchSize
from .step_names import StepName
from .tensors import PublicInput, PublicOutput, TensorList


class Ensemble(ApiModel):
    """Name, inputs and outputs of the pipeline, as clients see them."""

    model_name: Annotated[
        TritonName | None,
        Field(description="Name of the model that clients call. Default: metadata.name."),
    ] = None
    inputs: Annotated[
        TensorList[PublicInput],
        Field(
            description=(
                "Inputs of the pipeline, in this order. Default: the tokenizer's texts "
                "(STRING, dims [1]), then the tensors that steps read from pipeline."
            )
        ),
    ] = ()
    outputs: Annotated[
        TensorList[PublicOutput],
        Field(
            description="Outputs that clients receive, in this order, from any step. Default: all"
            " outputs of the last step."
        ),
    ] = ()
    max_batch_size: Annotated[
        MaxBatchSize | None,
        Field(
            description=(
                "Maximum number of rows per request. 0 means that dims include the batch axis. "
                "Default: the minimum over all steps."
            )
        ),
    ] = None
    entry_point: Annotated[
        StepName | None,
        Field(
            description=(
                "Name of a step that calls the other steps itself (business logic "
                "scripting). Clients call its model; no ensemble is created."
            )
        ),
    ] = None
    max_inflight_requests: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**31 - 1,
            description=(
                "Maximum number of requests in flight between two steps. Requires Triton 25.11 "
                "or later. Default: 0, which means no limit."
            ),
        ),
    ] = None
    response_cache: Annotated[
        Switch | None,
        Field(
            description=(
                "If Enabled, identical requests are served from Triton's local response cache. "
                "Default: Disabled."
            )
        ),
    ] = None

    rules = (
        FieldRule(
            cel=(
                "!has(self.entryPoint) || !(has(self.modelName) || has(self.inputs) ||"
                " has(self.outputs) || has(self.maxBatchSize) || has(self.maxInflightRequests))"
            ),
            message=(
                "the step replaces the ensemble and determines the name, tensors and batch "
                "size; remove the other ensemble fields"
            ),
            holds=lambda e: (
                e.entry_point is None
                or not (
                    e.model_name
                    or e.inputs
                    or e.outputs
                    or e.max_batch_size is not None
                    or e.max_inflight_requests is not None
                )
            ),
            field="entryPoint",
        ),
    )
