"""Triton's dynamic batcher of one step, as a user writes it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, Rule, Switch

MAX_BATCH = 65536


class TimeoutAction(StrEnum):
    """What happens to a request whose time in the queue is over."""

    REJECT = "REJECT"
    DELAY = "DELAY"


class QueuePolicy(ApiModel):
    """Bounds of a step's queue. Without them Triton's queue is unbounded."""

    max_queue_size: Annotated[
        int | None, Field(ge=0, le=2**31 - 1, description="Requests that may wait; more are refused with 503. 0: no limit.")
    ] = None
    timeout_action: Annotated[TimeoutAction | None, Field(description="REJECT a request that waited too long, or DELAY it behind all others.")] = None
    default_timeout_microseconds: Annotated[
        int | None, Field(ge=0, le=2**31 - 1, description="Longest wait in the queue, in microseconds. 0: no limit.")
    ] = None
    allow_timeout_override: Annotated[Switch | None, Field(description="Enabled: a request may ask for a shorter timeout.")] = None


class DynamicBatching(ApiModel):
    """Triton's dynamic batcher of one step. Left out, it is on with Triton's defaults."""

    mode: Annotated[Switch, Field(description="Disabled: the step runs request by request.")] = Switch.ENABLED
    preferred_batch_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_BATCH)], ...],
        Field(max_length=16, description="Sizes at which a batch is sent at once.", json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = ()
    max_queue_delay_microseconds: Annotated[
        int | None, Field(ge=0, le=60_000_000, description="Longest time that a request waits for company, in microseconds.")
    ] = None
    preserve_ordering: Annotated[Switch | None, Field(description="Enabled: answers leave in the order in which requests came.")] = None
    queue_policy: Annotated[QueuePolicy | None, Field(description="Bounds of the queue.")] = None

    rules = (
        Rule(
            cel="!has(self.mode) || self.mode != 'Disabled' || !(has(self.preferredBatchSizes) || has(self.maxQueueDelayMicroseconds) || has(self.preserveOrdering) || has(self.queuePolicy))",
            message="mode Disabled takes no further settings: without a batcher Triton has no queue policy; remove them or set mode to Enabled",
            holds=lambda b: (
                b.mode is Switch.ENABLED
                or not (b.preferred_batch_sizes or b.max_queue_delay_microseconds is not None or b.preserve_ordering or b.queue_policy)
            ),
            field="mode",
        ),
        Rule(
            cel="!(has(self.preserveOrdering) && self.preserveOrdering == 'Enabled' && has(self.queuePolicy) && has(self.queuePolicy.timeoutAction)"
            " && self.queuePolicy.timeoutAction == 'DELAY' && has(self.queuePolicy.defaultTimeoutMicroseconds) && self.queuePolicy.defaultTimeoutMicroseconds > 0)",
            message="preserveOrdering cannot go with timeoutAction DELAY and a timeout: a delayed request would break the order; use REJECT",
            holds=lambda b: (
                not (
                    b.preserve_ordering is Switch.ENABLED
                    and b.queue_policy is not None
                    and b.queue_policy.timeout_action is TimeoutAction.DELAY
                    and (b.queue_policy.default_timeout_microseconds or 0) > 0
                )
            ),
            field="preserveOrdering",
        ),
    )
