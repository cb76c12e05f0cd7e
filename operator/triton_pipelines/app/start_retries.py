"""Repeat steps of the start-up until the API server accepts them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.work_queue import TRANSIENT

T = TypeVar("T")
_log = structlog.get_logger(__name__)


async def retry_start(step: str, call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a step of the start-up until the API server accepts it.

    An operator that exits instead would only be restarted.

    Args:
        step: What is being done, for the log.
        call: Does it.
    """
    failures = 0
    while True:
        try:
            return await call()
        except ClusterError as error:
            failures += 1
            delay = TRANSIENT.delay(failures, random.uniform)
            await _log.awarning(
                "start-up waits for the API server",
                step=step,
                error=str(error),
                retry_seconds=round(delay, 1),
            )
            await asyncio.sleep(delay)
