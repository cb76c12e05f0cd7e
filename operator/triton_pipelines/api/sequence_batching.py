"""Triton's sequence batcher of one step: strategy, control inputs and states."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, Dimension, FieldRule, Switch, TensorName
from .batching import BatchSizes, QueueDelay
from .tensors import ATOMIC, BY_NAME, MAX_DIMS, DataType, by_key


class SequenceStrategy(StrEnum):
    """How Triton's sequence batcher places sequences."""

    DIRECT = "Direct"
    OLDEST = "Oldest"


class ControlKind(StrEnum):
    """Signals of the sequence batcher, named as Triton names them."""

    START = "START"
    READY = "READY"
    END = "END"
    CORRID = "CORRID"


FLAG_TYPES = (DataType.INT32, DataType.FP32, DataType.BOOL)
CORRELATION_TYPES = (
    DataType.UINT64,
    DataType.INT64,
    DataType.UINT32,
    DataType.INT32,
    DataType.STRING,
)


class SequenceControl(ApiModel):
    """An input of the model that the sequence batcher fills."""

    name: Annotated[
        TensorName, Field(description="Name of the input. Do not list it under inputs.")
    ]
    kind: Annotated[
        ControlKind,
        Field(
            description=(
                "START and END mark the first and last request of a sequence; READY, that the"
                " slot holds a request. CORRID is the sequence's ID."
            )
        ),
    ]
    data_type: Annotated[
        DataType | None,
        Field(
            description=(
                "INT32 (the default), FP32 or BOOL for START, READY and END. UINT64 (the "
                "default), INT64, UINT32, INT32 or STRING for CORRID."
            )
        ),
    ] = None

    rules = (
        FieldRule(
            cel=(
                "!has(self.dataType) || (self.kind == 'CORRID' ? self.dataType in ['UINT64',"
                " 'INT64', 'UINT32', 'INT32', 'STRING'] : self.dataType in ['INT32', 'FP32',"
                " 'BOOL'])"
            ),
            message=(
                "must be INT32, FP32 or BOOL for START, READY and END, and UINT64, INT64,"
                " UINT32, INT32 or STRING for CORRID"
            ),
            holds=lambda c: (
                c.data_type is None
                or c.data_type
                in (CORRELATION_TYPES if c.kind is ControlKind.CORRID else FLAG_TYPES)
            ),
            field="dataType",
        ),
    )


def control_type(control: SequenceControl) -> DataType:
    """Return the element type of a control, with its default."""
    if control.data_type is not None:
        return control.data_type
    return DataType.UINT64 if control.kind is ControlKind.CORRID else DataType.INT32


class InitialState(StrEnum):
    """Content of a state when a sequence starts."""

    ZERO = "Zero"
    UNDEFINED = "Undefined"


class SequenceState(ApiModel):
    """A tensor that Triton keeps from one request of a sequence to the next."""

    input_name: Annotated[
        TensorName, Field(description="Input of the model that receives the state.")
    ]
    output_name: Annotated[
        TensorName, Field(description="Output of the model that is the next state.")
    ]
    data_type: Annotated[DataType, Field(description="Element type.")]
    dims: Annotated[
        tuple[Dimension, ...],
        Field(
            min_length=1,
            max_length=MAX_DIMS,
            description="Shape without the batch axis. -1 means any length.",
            json_schema_extra=ATOMIC,
        ),
    ]
    initial: Annotated[
        InitialState | None,
        Field(
            description=(
                "If Zero, a sequence starts with zeros (the default if every dim is fixed). If "
                "Undefined, the model sets the initial state."
            )
        ),
    ] = None


class SequenceBatching(ApiModel):
    """Triton's sequence batcher: all requests of a sequence go to the same instance.

    Such a step is never scaled live.
    """

    strategy: Annotated[
        SequenceStrategy,
        Field(
            description=(
                "If Direct, each sequence has a fixed slot in the batch. If Oldest, batches "
                "are formed from the oldest requests."
            )
        ),
    ]
    max_sequence_idle_microseconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=86_400_000_000,
            description=(
                "Time without a request after which a sequence ends, in microseconds. Default: "
                "Triton's default of 1 s."
            ),
        ),
    ] = None
    controls: Annotated[
        tuple[SequenceControl, ...],
        Field(
            max_length=8,
            description="Inputs of the model that the batcher fills.",
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    states: Annotated[
        tuple[SequenceState, ...],
        Field(
            max_length=32,
            description="Tensors kept between the requests of a sequence.",
            json_schema_extra=by_key("inputName"),
        ),
    ] = ()
    max_candidate_sequences: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description=(
                "Maximum number of concurrent sequences in one instance. Required for strategy "
                "Oldest, not allowed for Direct."
            ),
        ),
    ] = None
    preferred_batch_sizes: Annotated[
        BatchSizes,
        Field(description="Batch sizes that are executed immediately, for strategy Oldest."),
    ] = ()
    max_queue_delay_microseconds: QueueDelay = None
    minimum_slot_utilization_percent: Annotated[
        int | None,
        Field(
            ge=0,
            le=100,
            description=(
                "Percentage of slots that must be filled for a batch to run before its delay "
                "ends, for strategy Direct."
            ),
        ),
    ] = None
    preserve_ordering: Annotated[
        Switch | None,
        Field(
            description=(
                "If Enabled, responses are returned in the order of the requests. Only for "
                "strategy Oldest."
            )
        ),
    ] = None

    rules = (
        FieldRule(
            cel="(self.strategy == 'Oldest') == has(self.maxCandidateSequences)",
            message="required for strategy Oldest and not allowed for Direct",
            holds=lambda s: (
                (s.strategy is SequenceStrategy.OLDEST) == (s.max_candidate_sequences is not None)
            ),
            field="maxCandidateSequences",
        ),
        FieldRule(
            cel=(
                "self.strategy == 'Oldest' || !(has(self.preferredBatchSizes) ||"
                " has(self.preserveOrdering))"
            ),
            message=(
                "preferredBatchSizes and preserveOrdering are allowed only with strategy Oldest"
            ),
            holds=lambda s: (
                s.strategy is SequenceStrategy.OLDEST
                or not (s.preferred_batch_sizes or s.preserve_ordering)
            ),
            field="strategy",
        ),
        FieldRule(
            cel="self.strategy == 'Direct' || !has(self.minimumSlotUtilizationPercent)",
            message="allowed only with strategy Direct",
            holds=lambda s: (
                s.strategy is SequenceStrategy.DIRECT or s.minimum_slot_utilization_percent is None
            ),
            field="minimumSlotUtilizationPercent",
        ),
    )
