"""Compare lists of the API server with the store: Kopf's watches may miss deletions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Final

import structlog

from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.resources import Resource
from triton_pipelines.cluster.store import Key, Store, relist
from triton_pipelines.cluster.watches import WATCHED, WATCHING_SECONDS, selector_of

_uniform: Final[Callable[[float, float], float]] = random.uniform
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Relisting:
    """Lists all watched kinds again."""

    client: Client
    """Reads the lists."""
    store: Store
    """The operator's caches."""
    scopes: tuple[str | None, ...]
    """The watched namespaces; ``None`` stands for all."""
    seconds: float
    """Time between two comparisons."""
    metrics: OperatorMetrics
    """Counts what the watches missed."""
    enqueue: Callable[[Key], None]
    """Makes a pipeline due."""

    async def relist(self, resource: Resource, scope: str | None) -> set[Key]:
        """Compare the list of a kind in one of the scopes with the store.

        Returns:
            Pipelines of which the watch had missed a change.

        Raises:
            ClusterError: it cannot be listed.
        """
        return await relist(
            self.client,
            self.store,
            resource,
            namespace=scope,
            label_selector=selector_of(resource),
            metadata_only=True,
        )

    async def run(self) -> None:
        """Compare periodically, forever.

        After a 410, Kopf lists again, but does not report what was deleted meanwhile. This can
        happen to its first watch, so the first comparison comes soon.
        """
        seconds = min(WATCHING_SECONDS, self.seconds)
        while True:
            await asyncio.sleep(jittered(seconds))
            seconds = self.seconds
            for resource, scope in product(WATCHED, self.scopes):
                try:
                    missed = await self.relist(resource, scope)
                except ClusterError as error:
                    await _log.awarning(
                        "list failed",
                        resource=resource.plural,
                        namespace=scope,
                        error=str(error),
                    )
                    continue
                self.metrics.watch_missed.labels(resource.plural).inc(len(missed))
                for pipeline in missed:
                    self.enqueue(pipeline)


def jittered(seconds: float) -> float:
    """Return the time ± 10 %, so that several operators and kinds do not synchronize."""
    return _uniform(0.9 * seconds, 1.1 * seconds)
