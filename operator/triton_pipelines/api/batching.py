"""Triton's schedulers of one step: dynamic batcher, sequence batcher, custom batching library."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, Dimension, FieldRule, Switch, TensorName
from .source import SourceSpec
from .tensors import ATOMIC, MAX_DIMS, DataType

MAX_BATCH = 65536
MAX_DELAY_MICROSECONDS = 60_000_000
MAX_PRIORITY_LEVELS = 256
# A path below a model's folder.
LIBRARY_PATTERN = r"^[A-Za-z0-9_][-A-Za-z0-9_./]*$"


class TimeoutAction(StrEnum):
    """What happens to a request that waited too long in the queue."""

    REJECT = "REJECT"
    DELAY = "DELAY"


class QueuePolicy(ApiModel):
    """Bounds of a step's queue. Without them Triton's queue is unbounded."""

    max_queue_size: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**31 - 1,
            description=(
                "Requests that may wait; further requests are rejected with 503. 0: no limit."
            ),
        ),
    ] = None
    timeout_action: Annotated[
        TimeoutAction | None,
        Field(
            description=(
                "REJECT (default) rejects a request that waited too long; DELAY moves it behind all"
                " others."
            )
        ),
    ] = None
    default_timeout_microseconds: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**31 - 1,
            description="Longest wait in the queue, in microseconds. 0: no limit.",
        ),
    ] = None
    allow_timeout_override: Annotated[
        Switch | None, Field(description="Enabled: a request may set a shorter timeout.")
    ] = None

    @property
    def delays(self) -> bool:
        """Whether a request that waited too long is moved behind all others."""
        return (
            self.timeout_action is TimeoutAction.DELAY
            and (self.default_timeout_microseconds or 0) > 0
        )


class PriorityQueuePolicy(QueuePolicy):
    """Bounds of the queue of one priority level.

    An omitted bound means no limit, regardless of queuePolicy.
    """

    priority: Annotated[
        int, Field(ge=1, le=MAX_PRIORITY_LEVELS, description="The level, 1 being the most urgent.")
    ]


_DELAYS = (
    "has({0}.timeoutAction) && {0}.timeoutAction == 'DELAY' && has({0}.defaultTimeoutMicroseconds)"
    " && {0}.defaultTimeoutMicroseconds > 0"
)


class DynamicBatching(ApiModel):
    """Triton's dynamic batcher of one step.

    If omitted, it is on with Triton's defaults (unless sequenceBatching is set).
    """

    mode: Annotated[Switch, Field(description="Disabled: the step runs one request at a time.")] = (
        Switch.ENABLED
    )
    preferred_batch_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_BATCH)], ...],
        Field(
            max_length=16,
            description="Sizes at which a batch runs immediately.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    max_queue_delay_microseconds: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_DELAY_MICROSECONDS,
            description="Longest time that a request waits to be batched, in microseconds.",
        ),
    ] = None
    preserve_ordering: Annotated[
        Switch | None,
        Field(description="Enabled: responses are sent in the order of the requests."),
    ] = None
    priority_levels: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_PRIORITY_LEVELS,
            description=(
                "Number of priorities that a request may have, 1 being the most urgent. Default: no"
                " priorities."
            ),
        ),
    ] = None
    default_priority_level: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_PRIORITY_LEVELS,
            description="Priority of a request without one. Required with priorityLevels.",
        ),
    ] = None
    queue_policy: Annotated[
        QueuePolicy | None,
        Field(description="Limits of the queue, and of each priority without its own policy."),
    ] = None
    priority_queue_policies: Annotated[
        tuple[PriorityQueuePolicy, ...],
        Field(
            max_length=16,
            description="Limits of the queues of single priorities.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["priority"],
            },
        ),
    ] = ()

    rules = (
        FieldRule(
            cel=(
                "!has(self.mode) || self.mode != 'Disabled' || !(has(self.preferredBatchSizes) ||"
                " has(self.maxQueueDelayMicroseconds) || has(self.preserveOrdering) ||"
                " has(self.queuePolicy) || has(self.priorityLevels) ||"
                " has(self.defaultPriorityLevel) || has(self.priorityQueuePolicies))"
            ),
            message=(
                "mode Disabled allows no other settings, because Triton has no queue policy"
                " without a batcher; remove them or set mode to Enabled"
            ),
            holds=lambda b: (
                b.mode is Switch.ENABLED
                or not (
                    b.preferred_batch_sizes
                    or b.max_queue_delay_microseconds is not None
                    or b.preserve_ordering
                    or b.queue_policy
                    or b.priority_levels
                    or b.default_priority_level
                    or b.priority_queue_policies
                )
            ),
            field="mode",
        ),
        FieldRule(
            cel=(
                "!(has(self.preserveOrdering) && self.preserveOrdering == 'Enabled' &&"
                f" has(self.queuePolicy) && {_DELAYS.format('self.queuePolicy')})"
            ),
            message=(
                "preserveOrdering excludes timeoutAction DELAY with a timeout, because a delayed"
                " request would break the order; use REJECT"
            ),
            holds=lambda b: (
                not (
                    b.preserve_ordering is Switch.ENABLED
                    and b.queue_policy is not None
                    and b.queue_policy.delays
                )
            ),
            field="preserveOrdering",
        ),
        FieldRule(
            cel=(
                "!(has(self.preserveOrdering) && self.preserveOrdering == 'Enabled' &&"
                " has(self.priorityLevels) && self.priorityLevels > 1)"
            ),
            message=(
                "preserveOrdering excludes more than one priority level, because an urgent request"
                " would overtake others; remove one of them"
            ),
            holds=lambda b: (
                not (b.preserve_ordering is Switch.ENABLED and (b.priority_levels or 0) > 1)
            ),
            field="preserveOrdering",
        ),
        FieldRule(
            cel="has(self.priorityLevels) == has(self.defaultPriorityLevel)",
            message=(
                "priorityLevels and defaultPriorityLevel need each other, because requests may omit"
                " their priority"
            ),
            holds=lambda b: (b.priority_levels is None) == (b.default_priority_level is None),
            field="defaultPriorityLevel",
        ),
        FieldRule(
            cel=(
                "!has(self.priorityLevels) || !has(self.defaultPriorityLevel) ||"
                " self.defaultPriorityLevel <= self.priorityLevels"
            ),
            message="defaultPriorityLevel must be at most priorityLevels",
            holds=lambda b: (
                b.priority_levels is None
                or b.default_priority_level is None
                or b.default_priority_level <= b.priority_levels
            ),
            field="defaultPriorityLevel",
        ),
        FieldRule(
            cel="!has(self.priorityQueuePolicies) || size(self.priorityQueuePolicies) == 0"
            " || has(self.priorityLevels) && self.priorityQueuePolicies.all(p, p.priority <="
            " self.priorityLevels)",
            message=(
                "priorityQueuePolicies needs priorityLevels, and each priority must be at most"
                " priorityLevels"
            ),
            holds=lambda b: all(
                policy.priority <= (b.priority_levels or 0) for policy in b.priority_queue_policies
            ),
            field="priorityQueuePolicies",
        ),
    )


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
        TensorName, Field(description="Name of the input; it is not listed under inputs.")
    ]
    kind: Annotated[
        ControlKind,
        Field(
            description=(
                "START, END: first and last request of a sequence; READY: the slot holds a request;"
                " CORRID: id of the sequence."
            )
        ),
    ]
    data_type: Annotated[
        DataType | None,
        Field(
            description=(
                "START, READY, END: INT32 (the default), FP32 or BOOL. CORRID: UINT64 (the"
                " default), INT64, UINT32, INT32 or STRING."
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
                "dataType must be INT32, FP32 or BOOL for START, READY and END; UINT64, INT64,"
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
            description="Shape without the batch axis; -1: any length.",
            json_schema_extra=ATOMIC,
        ),
    ]
    initial: Annotated[
        InitialState | None,
        Field(
            description=(
                "Zero: a sequence starts with zeros (default if every dim is fixed); Undefined: the"
                " model sets the initial state."
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
                "Direct: each sequence has a fixed slot in the batch; Oldest: batches are formed"
                " from the oldest requests."
            )
        ),
    ]
    max_sequence_idle_microseconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=86_400_000_000,
            description=(
                "Microseconds without a request after which a sequence ends. Default: that of"
                " Triton, 1 s."
            ),
        ),
    ] = None
    controls: Annotated[
        tuple[SequenceControl, ...],
        Field(
            max_length=8,
            description="Inputs that the batcher fills.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = ()
    states: Annotated[
        tuple[SequenceState, ...],
        Field(
            max_length=32,
            description="Tensors kept from one request of a sequence to the next.",
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["inputName"],
            },
        ),
    ] = ()
    max_candidate_sequences: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="Oldest: most concurrent sequences of one instance. Required for Oldest.",
        ),
    ] = None
    preferred_batch_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_BATCH)], ...],
        Field(
            max_length=16,
            description="Oldest: sizes at which a batch runs immediately.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    max_queue_delay_microseconds: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_DELAY_MICROSECONDS,
            description="Longest time that a request waits to be batched, in microseconds.",
        ),
    ] = None
    minimum_slot_utilization_percent: Annotated[
        int | None,
        Field(
            ge=0,
            le=100,
            description=(
                "Direct: percentage of slots that must be filled for a batch to run before its"
                " delay ends."
            ),
        ),
    ] = None
    preserve_ordering: Annotated[
        Switch | None,
        Field(description="Oldest. Enabled: responses are sent in the order of the requests."),
    ] = None

    rules = (
        FieldRule(
            cel="(self.strategy == 'Oldest') == has(self.maxCandidateSequences)",
            message=(
                "maxCandidateSequences is required for strategy Oldest and not allowed for Direct"
            ),
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
            message="preferredBatchSizes and preserveOrdering need strategy Oldest",
            holds=lambda s: (
                s.strategy is SequenceStrategy.OLDEST
                or not (s.preferred_batch_sizes or s.preserve_ordering)
            ),
            field="strategy",
        ),
        FieldRule(
            cel="self.strategy == 'Direct' || !has(self.minimumSlotUtilizationPercent)",
            message="minimumSlotUtilizationPercent needs strategy Direct",
            holds=lambda s: (
                s.strategy is SequenceStrategy.DIRECT or s.minimum_slot_utilization_percent is None
            ),
            field="minimumSlotUtilizationPercent",
        ),
    )


class BatchStrategy(ApiModel):
    """A custom batching library.

    Its C functions decide which requests join a batch, on top of the dynamic batcher.
    """

    source: Annotated[
        SourceSpec | None,
        Field(
            description=(
                "The shared library; it becomes batchstrategy.so in the model's folder, where"
                " Triton looks for it."
            )
        ),
    ] = None
    path: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            pattern=LIBRARY_PATTERN,
            description=(
                "A library in the model's source: its path below the model's folder, such as"
                " 1/libvolume.so."
            ),
        ),
    ] = None

    rules = (
        FieldRule(
            cel="has(self.source) != has(self.path)",
            message="exactly one of batchStrategy.source and batchStrategy.path is required",
            holds=lambda b: (b.source is None) != (b.path is None),
        ),
        FieldRule(
            cel="!has(self.path) || !self.path.contains('..')",
            message="path must be inside the model's folder, without '..'",
            holds=lambda b: b.path is None or ".." not in b.path,
            field="path",
        ),
    )
