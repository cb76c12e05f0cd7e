"""Triton's dynamic batcher of one step and its queues."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule, Switch
from .tensors import AS_SET, by_key

MAX_BATCH = 65536
MAX_DELAY_MICROSECONDS = 60_000_000
MAX_PRIORITY_LEVELS = 256
MaxBatchSize = Annotated[int, Field(ge=0, le=MAX_BATCH)]
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH)]
BatchSizes = Annotated[
    tuple[BatchSize, ...],
    Field(max_length=16, json_schema_extra=AS_SET),
]
QueueDelay = Annotated[
    int | None,
    Field(
        ge=0,
        le=MAX_DELAY_MICROSECONDS,
        description="Maximum time that a request waits to be batched, in microseconds.",
    ),
]


class TimeoutAction(StrEnum):
    """What happens to a request that waited too long in the queue."""

    REJECT = "REJECT"
    DELAY = "DELAY"


class QueuePolicy(ApiModel):
    """Limits of a step's queue. Without them, Triton's queue is unbounded."""

    max_queue_size: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**31 - 1,
            description=(
                "Maximum number of queued requests. Additional requests are rejected with status "
                "503. 0 means no limit."
            ),
        ),
    ] = None
    timeout_action: Annotated[
        TimeoutAction | None,
        Field(
            description=(
                "What happens to a request that has waited too long. REJECT (the default) "
                "rejects it; DELAY moves it to the end of the queue."
            )
        ),
    ] = None
    default_timeout_microseconds: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**31 - 1,
            description=("Maximum wait in the queue, in microseconds. 0 means no limit."),
        ),
    ] = None
    allow_timeout_override: Annotated[
        Switch | None, Field(description="If Enabled, a request can set a shorter timeout.")
    ] = None

    @property
    def limits(self) -> bool:
        """Return whether the policy sets any limit."""
        return bool(
            self.max_queue_size
            or self.default_timeout_microseconds
            or self.allow_timeout_override is Switch.ENABLED
        )

    @property
    def delays(self) -> bool:
        """Return whether a request that waited too long is moved behind all others."""
        return (
            self.timeout_action is TimeoutAction.DELAY
            and (self.default_timeout_microseconds or 0) > 0
        )


class PriorityQueuePolicy(QueuePolicy):
    """Queue limits of one priority level.

    If a limit is omitted, the queue has no such limit, regardless of queuePolicy.
    """

    priority: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_PRIORITY_LEVELS,
            description="Priority level. Level 1 is the most urgent.",
        ),
    ]


_DELAYS = (
    "has({0}.timeoutAction) && {0}.timeoutAction == 'DELAY' && has({0}.defaultTimeoutMicroseconds)"
    " && {0}.defaultTimeoutMicroseconds > 0"
)


class DynamicBatching(ApiModel):
    """Triton's dynamic batcher for one step.

    If omitted, it is on with Triton's defaults (unless sequenceBatching is set).
    """

    mode: Annotated[
        Switch, Field(description="If Disabled, the step runs one request at a time.")
    ] = Switch.ENABLED
    preferred_batch_sizes: Annotated[
        BatchSizes, Field(description="Batch sizes that are executed immediately.")
    ] = ()
    max_queue_delay_microseconds: QueueDelay = None
    preserve_ordering: Annotated[
        Switch | None,
        Field(description="If Enabled, responses are returned in the order of the requests."),
    ] = None
    priority_levels: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_PRIORITY_LEVELS,
            description=(
                "Number of priority levels. Level 1 is the most urgent. Default: no priorities."
            ),
        ),
    ] = None
    default_priority_level: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_PRIORITY_LEVELS,
            description="Priority of requests that do not set one. Required with priorityLevels.",
        ),
    ] = None
    queue_policy: Annotated[
        QueuePolicy | None,
        Field(
            description=(
                "Limits of the queue. They also apply to each priority level without its own "
                "policy."
            )
        ),
    ] = None
    priority_queue_policies: Annotated[
        tuple[PriorityQueuePolicy, ...],
        Field(
            max_length=16,
            description="Queue limits for individual priorities.",
            json_schema_extra=by_key("priority"),
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
                "mode Disabled cannot be combined with other settings, because Triton applies "
                "them only in the dynamic batcher; remove the other settings, or set mode to "
                "Enabled"
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
                "preserveOrdering and timeoutAction DELAY with a timeout cannot be combined,"
                " because a delayed request would break the order; use REJECT"
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
                "preserveOrdering and more than one priority level cannot be combined, "
                "because an urgent request would overtake others; remove one of the two"
            ),
            holds=lambda b: (
                not (b.preserve_ordering is Switch.ENABLED and (b.priority_levels or 0) > 1)
            ),
            field="preserveOrdering",
        ),
        FieldRule(
            cel="has(self.priorityLevels) == has(self.defaultPriorityLevel)",
            message=(
                "priorityLevels and defaultPriorityLevel must be set together, because a request"
                " may omit its priority"
            ),
            holds=lambda b: (b.priority_levels is None) == (b.default_priority_level is None),
            field="defaultPriorityLevel",
        ),
        FieldRule(
            cel=(
                "!has(self.priorityLevels) || !has(self.defaultPriorityLevel) ||"
                " self.defaultPriorityLevel <= self.priorityLevels"
            ),
            message="must be at most priorityLevels",
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
            message="allowed only with priorityLevels, which no priority must exceed",
            holds=lambda b: all(
                policy.priority <= (b.priority_levels or 0) for policy in b.priority_queue_policies
            ),
            field="priorityQueuePolicies",
        ),
    )
