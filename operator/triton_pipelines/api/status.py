"""Status of the resource, as a schema; the controller writes plain dictionaries of this shape."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import ApiModel

MAP_BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
ATOMIC = {"x-kubernetes-list-type": "atomic"}
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Short = Annotated[str, Field(max_length=512)]
Long = Annotated[str, Field(max_length=4096)]


class ConditionStatus(ApiModel):
    """One condition."""

    type: Annotated[
        str,
        Field(max_length=64, description="Ready, Available, Reconciling, Stalled or ModelsReady."),
    ]
    status: Annotated[
        Literal["True", "False", "Unknown"], Field(description="True, False or Unknown.")
    ]
    reason: Annotated[str, Field(max_length=128, description="One CamelCase word for the cause.")]
    message: Annotated[Long, Field(description="Explanation with the numbers, and what to do.")]
    observed_generation: Annotated[
        int,
        Field(
            ge=0,
            le=2**53,
            description="Generation of the spec that it describes.",
            json_schema_extra={"format": "int64"},
        ),
    ] = 0
    last_transition_time: Annotated[
        str,
        Field(
            max_length=64,
            description="When the status value last changed.",
            json_schema_extra={"format": "date-time"},
        ),
    ]


class Endpoints(ApiModel):
    """Where clients find the pipeline, inside the cluster."""

    http: Annotated[Short, Field(description="HTTP address.")] = ""
    grpc: Annotated[Short, Field(description="gRPC address.")] = ""
    metrics: Annotated[Short, Field(description="Address of Triton's metrics.")] = ""


class TensorStatus(ApiModel):
    """A tensor of the public interface."""

    name: Annotated[Short, Field(description="Name that clients use.")]
    data_type: Annotated[
        Short, Field(description="Element type as clients send it (BYTES for text).")
    ]
    shape: Annotated[
        tuple[Annotated[int, Field(ge=-1, le=2**31 - 1)], ...],
        # One more than the spec's dims allow: the batch axis.
        Field(
            max_length=17,
            description="Shape with the batch axis; -1: any length.",
            json_schema_extra=ATOMIC,
        ),
    ]


class EnsembleStatus(ApiModel):
    """Model name and tensors for clients."""

    model_name: Annotated[Short, Field(description="Model that clients call.")] = ""
    inputs: Annotated[
        tuple[TensorStatus, ...],
        Field(max_length=64, description="Inputs, in order.", json_schema_extra=ATOMIC),
    ] = ()
    outputs: Annotated[
        tuple[TensorStatus, ...],
        Field(max_length=64, description="Outputs, in order.", json_schema_extra=ATOMIC),
    ] = ()


class StepStatus(ApiModel):
    """One step over all pods."""

    name: Annotated[Short, Field(description="Name of the step.")]
    model_name: Annotated[Short, Field(description="Its name in the model repository.")]
    role: Annotated[Short, Field(description="Tokenizer, Model or Postprocess.")]
    ready_pods: Annotated[Count, Field(description="Pods in which Triton says READY.")] = 0
    pods: Annotated[Count, Field(description="Pods that were queried.")] = 0
    reason: Annotated[Long, Field(description="Triton's reason if a model is not ready.")] = ""
    instances: Annotated[Count, Field(description="Instances in a pod.")] = 0
    desired_instances: Annotated[Count, Field(description="Instances that a pod should run.")] = 0
    pods_with_desired_instances: Annotated[
        Count, Field(description="Pods that report the desired number of instances.")
    ] = 0
    verdict: Annotated[
        Short,
        Field(
            description=(
                "What limits the step, if it is scaled: TokenizerBound, GPUBound, Balanced and"
                " more."
            )
        ),
    ] = ""
    verdict_reason: Annotated[
        Long, Field(description="The numbers behind the verdict, in words.")
    ] = ""


class TokenizerStatus(ApiModel):
    """The tokenizer's instance count, as a readable summary."""

    instances: Annotated[Count, Field(description="Instances in a pod.")] = 0
    desired_instances: Annotated[Count, Field(description="Instances that a pod should run.")] = 0
    summary: Annotated[
        Short, Field(description="Desired and highest number of instances, such as 2/4.")
    ] = ""


class SourceStatus(ApiModel):
    """What a source resolved to."""

    step: Annotated[Short, Field(description="Name of the step.")]
    uri: Annotated[Annotated[str, Field(max_length=1024)], Field(description="The URI as written.")]
    resolved_revision: Annotated[Short, Field(description="Commit, object version or ETag.")] = ""
    sha256: Annotated[Short, Field(description="SHA-256 of the file.")] = ""


class ProvenPadding(ApiModel):
    """A padding that a tuning run has verified for one spec."""

    fingerprint: Annotated[
        Short,
        Field(description="Hash of everything in the spec that the cost of padding depends on."),
    ] = ""
    padding: Annotated[Short, Field(description="Ragged, Fixed, Bucketed or Longest.")] = ""
    buckets: Annotated[
        tuple[Count, ...],
        Field(
            max_length=32,
            description="Tokens of the buckets of Bucketed.",
            json_schema_extra=ATOMIC,
        ),
    ] = ()
    reason: Annotated[Short, Field(description="The verified gain.")] = ""
    request: Annotated[Short, Field(description="Request of the tuning run that verified it.")] = ""
    time: Annotated[
        str | None,
        Field(
            max_length=64, description="When that ended.", json_schema_extra={"format": "date-time"}
        ),
    ] = None
    barred: Annotated[
        Short,
        Field(
            description=(
                "Why it was reverted; it is not used again until another run verifies it. Empty:"
                " not reverted."
            )
        ),
    ] = ""


class PaddingStatus(ApiModel):
    """How tokens are padded."""

    chosen: Annotated[Short, Field(description="The padding in force.")] = ""
    reason: Annotated[Short, Field(description="Why it was chosen.")] = ""
    measured: Annotated[
        tuple[ProvenPadding, ...],
        Field(
            max_length=16,
            description=(
                "Paddings that tuning runs verified; Auto uses one for the spec it was measured"
                " with."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = ()


class ScaleEvent(ApiModel):
    """A change of a count."""

    time: Annotated[
        str,
        Field(
            max_length=64,
            description="When it was decided.",
            json_schema_extra={"format": "date-time"},
        ),
    ]
    step: Annotated[Short, Field(description="Step whose count changed.")]
    from_: Annotated[Count, Field(alias="from", description="Instances before.")] = 0
    to: Annotated[Count, Field(description="Instances after.")] = 0
    reason: Annotated[Short, Field(description="Why, with the numbers that decided.")] = ""


class ScalingFigures(ApiModel):
    """Figures of a scaled step over all pods.

    They change only by more than a tenth; live numbers are in the metrics.
    """

    step: Annotated[Short, Field(description="Name of the scaled step.")]
    requests_per_second: Annotated[Count, Field(description="Arriving requests.")] = 0
    busy_percent: Annotated[
        Count, Field(description="Utilization of its instances in percent.")
    ] = 0
    wait_milliseconds: Annotated[Count, Field(description="Wait before it.")] = 0


class ScalingStatus(ApiModel):
    """Signals and decisions of live scaling."""

    bottleneck: Annotated[Short, Field(description="What limits the pipeline.")] = ""
    mode: Annotated[Short, Field(description="Mode in force: Active or Advisory.")] = ""
    last_scale_time: Annotated[
        str | None,
        Field(
            max_length=64,
            description="When a count last changed.",
            json_schema_extra={"format": "date-time"},
        ),
    ] = None
    history: Annotated[
        tuple[ScaleEvent, ...],
        Field(
            max_length=5, description="The last changes, newest first.", json_schema_extra=ATOMIC
        ),
    ] = ()
    figures: Annotated[
        tuple[ScalingFigures, ...],
        Field(
            max_length=64,
            description="Figures by step.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["step"],
            },
        ),
    ] = ()


class TuningPoint(ApiModel):
    """One setting that was measured, or whose figures were predicted."""

    name: Annotated[
        Short,
        Field(
            description=(
                "Kind of the point: current, recommended, latency first, throughput first or a"
                " candidate."
            )
        ),
    ]
    max_batch_size: Annotated[
        Count, Field(description="Most rows in a batch of the model step.")
    ] = 0
    queue_delay_microseconds: Annotated[Count, Field(description="Wait for a fuller batch.")] = 0
    model_instances: Annotated[
        Count, Field(description="Instances of the model step in the measured pod.")
    ] = 0
    tokenizer_instances: Annotated[
        Count,
        Field(description="Instances of the tokenizer in the measured pod; 0: no tokenizer."),
    ] = 0
    padding: Annotated[
        Short,
        Field(description="The padding it was tested with, if it differs from the pipeline's."),
    ] = ""
    requests_per_second: Annotated[
        Count,
        Field(description="Requests per second sustained within the SLO, or at the tested rate."),
    ] = 0
    p99_microseconds: Annotated[
        Count,
        Field(
            description=(
                "Measured p99; omitted if more than one request in a hundred got no response."
            )
        ),
    ] = 0
    predicted_p99_microseconds: Annotated[Count, Field(description="Predicted p99; 0: none.")] = 0
    outcome: Annotated[Short, Field(description="WithinSLO, BreaksSLO or Predicted.")] = ""


class TuningStatus(ApiModel):
    """What the tuner measured and recommends; only the user changes the spec."""

    request: Annotated[Short, Field(description="The request that it answers.")] = ""
    state: Annotated[Short, Field(description="Pending, Running, Succeeded or Failed.")] = ""
    start_time: Annotated[
        str | None,
        Field(
            max_length=64, description="When it began.", json_schema_extra={"format": "date-time"}
        ),
    ] = None
    completion_time: Annotated[
        str | None,
        Field(
            max_length=64, description="When it ended.", json_schema_extra={"format": "date-time"}
        ),
    ] = None
    revision: Annotated[Short, Field(description="Revision that was measured.")] = ""
    message: Annotated[Long, Field(description="What was found, or why it failed.")] = ""
    advice: Annotated[Long, Field(description="What limits the pipeline, and what to change.")] = ""
    padding: Annotated[
        Short,
        Field(
            description=(
                "The cheapest padding by the measured cost of the model step, with the"
                " milliseconds of a full batch for each mode."
            )
        ),
    ] = ""
    patch: Annotated[
        Long,
        Field(
            description=(
                "Merge patch of the spec as YAML, to commit. Empty: no better setting was"
                " verified, or only another padding, which Auto applies itself."
            )
        ),
    ] = ""
    gain_percent: Annotated[
        Count, Field(description="Requests per second gained over the current setting.")
    ] = 0
    recommended_revision: Annotated[
        Short,
        Field(description="Revision of the pipeline with that patch and the verified padding."),
    ] = ""
    points: Annotated[
        tuple[TuningPoint, ...],
        Field(max_length=32, description="What was measured.", json_schema_extra=ATOMIC),
    ] = ()


class WarningStatus(ApiModel):
    """A setting that works but is probably unintended."""

    path: Annotated[Short, Field(description="Path of the field that it concerns.")]
    message: Annotated[Long, Field(description="The problem, and what to write instead.")]


class Status(ApiModel):
    """The observed state of the pipeline."""

    conditions: Annotated[
        tuple[ConditionStatus, ...],
        Field(
            max_length=16,
            description="Conditions by type: Ready, Available and more.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = ()
    observed_generation: Annotated[
        int,
        Field(
            ge=-1,
            le=2**53,
            description="Generation of the spec that was last processed; -1: none yet.",
            json_schema_extra={"format": "int64"},
        ),
    ] = 0
    revision: Annotated[Short, Field(description="Revision of the latest spec.")] = ""
    serving_revision: Annotated[Short, Field(description="Revision that answers requests.")] = ""
    replicas: Annotated[Count, Field(description="Pods.")] = 0
    ready_replicas: Annotated[Count, Field(description="Pods whose ensemble is ready.")] = 0
    updated_replicas: Annotated[Count, Field(description="Pods of the latest revision.")] = 0
    selector: Annotated[
        Short, Field(description="Label selector of the pods, for the scale subresource.")
    ] = ""
    endpoints: Annotated[
        Endpoints, Field(description="Where clients find the pipeline, inside the cluster.")
    ] = Endpoints()
    ensemble: Annotated[
        EnsembleStatus, Field(description="Model name and tensors for clients.")
    ] = EnsembleStatus()
    steps: Annotated[
        tuple[StepStatus, ...],
        Field(max_length=64, description="Each step over all pods.", json_schema_extra=MAP_BY_NAME),
    ] = ()
    tokenizer: Annotated[
        TokenizerStatus, Field(description="The tokenizer's count, for people.")
    ] = TokenizerStatus()
    sources: Annotated[
        tuple[SourceStatus, ...],
        Field(
            max_length=64,
            description="What the sources resolved to.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["step"],
            },
        ),
    ] = ()
    scaling: Annotated[
        ScalingStatus, Field(description="Signals and decisions of live scaling.")
    ] = ScalingStatus()
    padding: Annotated[PaddingStatus, Field(description="How tokens are padded.")] = PaddingStatus()
    tuning: Annotated[
        TuningStatus, Field(description="What the tuner measured and recommends.")
    ] = TuningStatus()
    warnings: Annotated[
        tuple[WarningStatus, ...],
        Field(
            max_length=20,
            description="Settings that work but are probably unintended.",
            json_schema_extra=ATOMIC,
        ),
    ] = ()
