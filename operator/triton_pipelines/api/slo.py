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

    def latency_budget_milliseconds(
        self, p99: float | None = None, network_and_queue: float | None = None
    ) -> float | None:
        """Return what the SLO leaves for the server: the SLO minus network and queue.

        Args:
            p99: SLO in milliseconds to use instead of ``p99_milliseconds``.
            network_and_queue: Milliseconds to subtract instead of
                ``network_and_queue_budget_milliseconds``.

        Returns:
            Milliseconds, 0 or less if nothing is left; ``None`` without an SLO.
        """
        if p99 is None:
            p99 = self.p99_milliseconds
        if network_and_queue is None:
            network_and_queue = self.network_and_queue_budget_milliseconds
        return None if p99 is None else p99 - network_and_queue
