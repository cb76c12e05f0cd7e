"""Service level objectives of the pipeline."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import ApiModel


class Slo(ApiModel):
    """Service level objectives. Used by warnings, and by the tuner to choose batching."""

    p99_milliseconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=3_600_000,
            description="Latency in milliseconds that 99% of requests must not exceed.",
        ),
    ] = None
    network_and_queue_budget_milliseconds: Annotated[
        int,
        Field(
            ge=0,
            le=3_600_000,
            description=(
                "Part of the latency target that is reserved for the network and for queues in "
                "front of the server, in milliseconds."
            ),
        ),
    ] = 5
    min_throughput_per_second: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**31 - 1,
            description="Requests per second that one pod must sustain. Default: no requirement.",
        ),
    ] = None

    def latency_budget_milliseconds(self) -> float | None:
        """Return what the SLO leaves for the server: the SLO minus network and queue.

        Returns:
            Milliseconds, 0 or less if nothing is left; ``None`` without an SLO.
        """
        if self.p99_milliseconds is None:
            return None
        return self.p99_milliseconds - self.network_and_queue_budget_milliseconds
