"""Tuning part of the status: what the tuner measured, and the paddings it verified."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import ApiModel
from .status_types import Count, Long, Short, Time
from .tensors import ATOMIC


class VerifiedPaddingStatus(ApiModel):
    """A padding mode that a tuning run verified for one spec."""

    fingerprint: Annotated[
        Short,
        Field(description="Hash of all spec fields that affect the cost of padding."),
    ] = ""
    padding: Annotated[Short, Field(description="Ragged, Fixed, Bucketed or Longest.")] = ""
    buckets: Annotated[
        tuple[Count, ...],
        Field(
            max_length=32,
            description="Bucket lengths in tokens, for Bucketed.",
            json_schema_extra=ATOMIC,
        ),
    ] = ()
    reason: Annotated[Short, Field(description="Gain that was verified on the server.")] = ""
    request: Annotated[
        Short,
        Field(description=("spec.tuning.request of the tuning run that verified this padding.")),
    ] = ""
    time: Annotated[Time | None, Field(description="Time at which that run ended.")] = None
    revert_reason: Annotated[
        Short,
        Field(
            description=(
                "Why this padding was reverted. It is not used again until another run "
                "verifies it. Empty if it was not reverted."
            )
        ),
    ] = ""


class PaddingStatus(ApiModel):
    """How tokens are padded."""

    chosen: Annotated[Short, Field(description="Padding mode in use.")] = ""
    reason: Annotated[Short, Field(description="Reason why this mode was chosen.")] = ""
    measured: Annotated[
        tuple[VerifiedPaddingStatus, ...],
        Field(
            max_length=16,
            description=(
                "Padding modes that tuning runs verified. Auto uses a mode only for the spec "
                "with which it was measured."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = ()


class TuningPoint(ApiModel):
    """One setting that was measured or predicted."""

    name: Annotated[
        Short,
        Field(
            description=(
                "Kind of this point: current, recommended, latency first, throughput first, or "
                "candidate."
            )
        ),
    ]
    max_batch_size: Annotated[
        Count, Field(description="Maximum number of rows per batch of the model step.")
    ] = 0
    queue_delay_microseconds: Annotated[
        Count, Field(description="Time for which execution is delayed to fill a batch.")
    ] = 0
    model_instances: Annotated[
        Count, Field(description="Number of instances of the model step in the measured pod.")
    ] = 0
    tokenizer_instances: Annotated[
        Count,
        Field(description=("Tokenizer instances in the measured pod. 0: there is no tokenizer.")),
    ] = 0
    padding: Annotated[
        Short,
        Field(description="Padding mode of the measurement, if it differs from the pipeline's."),
    ] = ""
    requests_per_second: Annotated[
        Count,
        Field(
            description=(
                "Requests per second that were sustained within the SLO, or the tested rate."
            )
        ),
    ] = 0
    p99_microseconds: Annotated[
        Count,
        Field(
            description=(
                "Measured p99 latency. Omitted if more than one request in a hundred got no "
                "response."
            )
        ),
    ] = 0
    predicted_p99_microseconds: Annotated[Count, Field(description="Predicted p99; 0: none.")] = 0
    outcome: Annotated[Short, Field(description="WithinSLO, BreaksSLO or Predicted.")] = ""


class TuningStatus(ApiModel):
    """The tuner's measurements and recommendation; the operator never changes the spec."""

    request: Annotated[Short, Field(description="The value of spec.tuning.request.")] = ""
    state: Annotated[Short, Field(description="Pending, Running, Succeeded or Failed.")] = ""
    start_time: Annotated[Time | None, Field(description="Time at which the run began.")] = None
    completion_time: Annotated[Time | None, Field(description="Time at which the run ended.")] = (
        None
    )
    revision: Annotated[Short, Field(description="Revision that the run measured.")] = ""
    message: Annotated[
        Long, Field(description="Result of the run, or the reason why it failed.")
    ] = ""
    advice: Annotated[
        Long, Field(description="Bottleneck of the pipeline, and the field to change.")
    ] = ""
    padding: Annotated[
        Short,
        Field(
            description=(
                "Padding mode with the lowest measured cost for the model step, and the time "
                "that a full batch takes in each mode, in milliseconds."
            )
        ),
    ] = ""
    patch: Annotated[
        Long,
        Field(
            description=(
                "Merge patch for the spec, as YAML, ready to commit. Empty if no better setting "
                "was verified, or if only the padding changed, which Auto applies itself."
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
        Field(
            max_length=32, description="Settings that the run measured.", json_schema_extra=ATOMIC
        ),
    ] = ()
