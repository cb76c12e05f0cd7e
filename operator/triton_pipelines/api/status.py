"""Status of the resource, as a schema; the controller writes plain dictionaries of this shape."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import ApiModel, Switch
from .scaling_status import ScalingStatus
from .status_types import Count, Long, Short, Time
from .tensors import ATOMIC, BY_NAME, by_key
from .tuning_status import PaddingStatus, TuningStatus


class ConditionStatus(ApiModel):
    """One condition."""

    type: Annotated[
        str,
        Field(max_length=64, description="Ready, Available, Reconciling, Stalled or ModelsReady."),
    ]
    status: Annotated[
        Literal["True", "False", "Unknown"], Field(description="True, False or Unknown.")
    ]
    reason: Annotated[
        str,
        Field(
            max_length=128,
            description="Reason for the condition's last transition, in CamelCase.",
        ),
    ]
    message: Annotated[
        Long, Field(description="Explanation of the reason, with values and a remedy.")
    ]
    observed_generation: Annotated[
        int,
        Field(
            ge=0,
            le=2**53,
            description="Generation of the spec that the condition describes.",
            json_schema_extra={"format": "int64"},
        ),
    ] = 0
    last_transition_time: Annotated[
        Time, Field(description="Time of the last transition from one status to another.")
    ]


class Endpoints(ApiModel):
    """Addresses for clients inside the cluster."""

    http: Annotated[Short, Field(description="HTTP address.")] = ""
    grpc: Annotated[Short, Field(description="gRPC address.")] = ""
    metrics: Annotated[Short, Field(description="Address of Triton's metrics.")] = ""


class TensorStatus(ApiModel):
    """A tensor of the public interface."""

    name: Annotated[Short, Field(description="Name of the tensor in client requests.")]
    data_type: Annotated[
        Short, Field(description="Element type in client requests (BYTES for text).")
    ]
    shape: Annotated[
        tuple[Annotated[int, Field(ge=-1, le=2**31 - 1)], ...],
        # One more than the spec's dims allow: the batch axis.
        Field(
            max_length=17,
            description="Shape including the batch axis. -1 means any length.",
            json_schema_extra=ATOMIC,
        ),
    ]
    optional: Annotated[
        Switch | None, Field(description="If Enabled, a request can omit this input.")
    ] = None


class EnsembleStatus(ApiModel):
    """Model name and tensors for clients."""

    model_name: Annotated[Short, Field(description="Name of the model that clients call.")] = ""
    inputs: Annotated[
        tuple[TensorStatus, ...],
        Field(
            max_length=64, description="Inputs of the model, in order.", json_schema_extra=ATOMIC
        ),
    ] = ()
    outputs: Annotated[
        tuple[TensorStatus, ...],
        Field(
            max_length=64, description="Outputs of the model, in order.", json_schema_extra=ATOMIC
        ),
    ] = ()


class StepStatus(ApiModel):
    """Status of one step across all pods."""

    name: Annotated[Short, Field(description="Name of the step.")]
    model_name: Annotated[
        Short, Field(description="Name of the step's model in the model repository.")
    ]
    role: Annotated[Short, Field(description="Tokenizer, Model or Postprocess.")]
    ready_pods: Annotated[
        Count, Field(description="Number of pods in which Triton reports the model as READY.")
    ] = 0
    pods: Annotated[Count, Field(description="Number of pods that were queried.")] = 0
    reason: Annotated[Long, Field(description="Triton's reason if a model is not ready.")] = ""
    instances: Annotated[Count, Field(description="Instances in each pod.")] = 0
    desired_instances: Annotated[Count, Field(description="Desired instances in each pod.")] = 0
    pods_with_desired_instances: Annotated[
        Count, Field(description="Number of pods that report the desired number of instances.")
    ] = 0
    verdict: Annotated[
        Short,
        Field(
            description=(
                "Verdict on what limits the step, if it is scaled, such as TokenizerBound, "
                "GPUBound or Balanced."
            )
        ),
    ] = ""
    verdict_reason: Annotated[
        Long, Field(description="Explanation of the verdict, with values.")
    ] = ""


class TokenizerStatus(ApiModel):
    """The tokenizer's instance count, as a readable summary."""

    instances: Annotated[Count, Field(description="Instances in each pod.")] = 0
    desired_instances: Annotated[Count, Field(description="Desired instances in each pod.")] = 0
    summary: Annotated[
        Short, Field(description="Desired and maximum number of instances, such as 2/4.")
    ] = ""


class SourceStatus(ApiModel):
    """The resolved version of a source."""

    step: Annotated[Short, Field(description="Name of the step.")]
    uri: Annotated[
        Annotated[str, Field(max_length=1024)],
        Field(description="URI of the source, as written in the spec."),
    ]
    resolved_revision: Annotated[Short, Field(description="Commit, object version or ETag.")] = ""
    sha256: Annotated[Short, Field(description="SHA-256 of the file.")] = ""


class WarningStatus(ApiModel):
    """A setting that works but is probably unintended."""

    path: Annotated[Short, Field(description="Path of the affected field.")]
    message: Annotated[Long, Field(description="Description of the problem and its remedy.")]


class Status(ApiModel):
    """The observed state of the pipeline."""

    conditions: Annotated[
        tuple[ConditionStatus, ...],
        Field(
            max_length=16,
            description="Conditions by type: Ready, Available and others.",
            json_schema_extra=by_key("type"),
        ),
    ] = ()
    observed_generation: Annotated[
        int,
        Field(
            ge=-1,
            le=2**53,
            description=(
                "Generation of the spec that was last processed. -1 means that none has been "
                "processed yet."
            ),
            json_schema_extra={"format": "int64"},
        ),
    ] = 0
    revision: Annotated[Short, Field(description="Revision of the latest spec.")] = ""
    serving_revision: Annotated[Short, Field(description="Revision that serves requests.")] = ""
    replicas: Annotated[Count, Field(description="Pods.")] = 0
    ready_replicas: Annotated[Count, Field(description="Pods in which the ensemble is ready.")] = 0
    updated_replicas: Annotated[
        Count, Field(description="Number of pods of the latest revision.")
    ] = 0
    selector: Annotated[
        Short, Field(description="Label selector of the pods, for the scale subresource.")
    ] = ""
    endpoints: Annotated[
        Endpoints, Field(description="Addresses for clients inside the cluster.")
    ] = Endpoints()
    ensemble: Annotated[
        EnsembleStatus, Field(description="Model name and tensors for clients.")
    ] = EnsembleStatus()
    steps: Annotated[
        tuple[StepStatus, ...],
        Field(
            max_length=64,
            description="Status of each step across all pods.",
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    tokenizer: Annotated[TokenizerStatus, Field(description="The tokenizer's instance count.")] = (
        TokenizerStatus()
    )
    sources: Annotated[
        tuple[SourceStatus, ...],
        Field(
            max_length=64,
            description="Resolved versions of the sources.",
            json_schema_extra=by_key("step"),
        ),
    ] = ()
    scaling: Annotated[
        ScalingStatus, Field(description="Signals and decisions of live scaling.")
    ] = ScalingStatus()
    padding: Annotated[PaddingStatus, Field(description="Padding mode of the tokens.")] = (
        PaddingStatus()
    )
    tuning: Annotated[
        TuningStatus, Field(description="Measurements and recommendations of the tuner.")
    ] = TuningStatus()
    warnings: Annotated[
        tuple[WarningStatus, ...],
        Field(
            max_length=20,
            description="Settings that are valid but probably unintended.",
            json_schema_extra=ATOMIC,
        ),
    ] = ()
