"""Build the leader elector from the operator's options."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.leader_election import LeaderElector
from triton_pipelines.cluster.transport import Login, RequestObserver


@asynccontextmanager
async def leader_elector(
    config: OperatorConfig, login: Login, observe: RequestObserver
) -> AsyncIterator[LeaderElector | None]:
    """Yield the elector; ``None`` without leader election.

    Args:
        config: the operator's options.
        login: returns the API server's address and credentials.
        observe: called once per attempt of a request, for metrics.
    """
    if not config.leader_elect:
        yield None
        return
    # A client of its own: requests that hang or wait must not delay a renewal.
    options = ClientOptions(
        timeout_seconds=config.leader_elect_renew_deadline_seconds / 2,
        max_in_flight=1,
        attempts=1,
    )
    async with Client(login, options=options, observe=observe) as client:
        yield LeaderElector(
            client,
            config.operator_namespace,
            config.leader_elect_lease,
            config.instance,
            config.lease_timing,
        )
