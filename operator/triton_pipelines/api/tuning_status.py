"""Tuning part of the status: what the tuner measured, and the paddings it verified."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import ApiModel
from .status_types import ATOMIC, Count, Long, Short


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
        tuple[VerifiedPaddingStatus, ...],
        Field(
            max_length=16,
            description=(
                "Padding modes that tuning runs verified. Auto uses each mode only for the spec "
                "that it was measured with."
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
                "Kind of the point: current, recommended, latency first, throughput first or a"
                " candidate."
            )
        ),
    ]
    max_batch_size: Annotated[
        Count, Field(description="Maximum rows per batch of the model step.")
    ] = 0
    queue_delay_microseconds: Annotated[
        Count, Field(description=("Delays execution to fill a batch."))
    ] = 0
    model_instances: Annotated[
        Count, Field(description="Instances of the model step in the measured pod.")
    ] = 0
    tokenizer_instances: Annotated[
        Count,
        Field(description="Instances of the tokenizer in the measured pod; 0: no tokenizer."),
    ] = 0
    padding: Annotated[
        Short,
        Field(
            description=("The padding used in the measurement, if it differs from the pipeline's.")
        ),
    ] = ""
    requests_per_second: Annotated[
        Count,
        Field(description="Requests per second sustained within the SLO, or at the tested rate."),
    ] = 0
    p99_microseconds: Annotated[
        Count,
        Field(
            description=(
                "Measured p99; omitted if more than one request in a hundred received no response."
            )
        ),
    ] = 0
    predicted_p99_microseconds: Annotated[Count, Field(description="Predicted p99; 0: none.")] = 0
    outcome: Annotated[Short, Field(description="WithinSLO, BreaksSLO or Predicted.")] = ""


class TuningStatus(ApiModel):
    """The tuner's measurements and recommendation; the operator never changes the spec."""

    request: Annotated[Short, Field(description="The value of spec.tuning.request.")] = ""
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
    message: Annotated[Long, Field(description="The result, or why the run failed.")] = ""
    advice: Annotated[
        Long, Field(description=("What limits the pipeline, and which field to change."))
    ] = ""
    padding: Annotated[
        Short,
        Field(
            description=(
                "The padding mode with the lowest measured cost for the model step, and the "
                "milliseconds that a full batch takes in each mode."
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
        Field(max_length=32, description="What was measured.", json_schema_extra=ATOMIC),
    ] = ()
