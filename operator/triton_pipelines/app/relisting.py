"""Compare lists of the API server with the store: Kopf's watches may miss deletions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, WATCHED_CHILDREN, Resource
from triton_pipelines.cluster.store import Key, Store, relist
from triton_pipelines.cluster.watch_lists import Scope
from triton_pipelines.cluster.watches import WATCHING_SECONDS, selector_of

# A pipeline is stored after its objects, so that it is never reconciled with a part of them.
_KINDS: Final = (*WATCHED_CHILDREN, INFERENCE_PIPELINES)
_uniform: Final[Callable[[float, float], float]] = random.uniform
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Relisting:
    """Lists all watched kinds again."""

    client: Client
    """Reads the lists."""
    store: Store
    """The operator's caches."""
    scopes: tuple[Scope, ...]
    """The watched namespaces; ``None`` stands for all."""
    seconds: float
    """Time between two comparisons."""
    metrics: OperatorMetrics
    """Counts what the watches missed."""
    enqueue: Callable[[Key], None]
    """Makes a pipeline due."""
    is_listed: Callable[[Scope], bool] = lambda _: True
    """Returns whether every kind has been listed in a scope. Others are left to the watches."""
    _outdated: set[Scope] = field(default_factory=set, init=False)
    """Scopes whose pipelines are not stored, because their other objects may be outdated."""

    async def restart(self, scope: Scope) -> None:
        """Compare the lists of all kinds in one of the scopes with a store that may be outdated.

        If that fails, the scope has no pipelines until :meth:`run` succeeds in it.

        Raises:
            ClusterError: a kind cannot be listed.
        """
        try:
            for resource in _KINDS:
                await self._relist(resource, scope)
        except ClusterError:
            self._outdated.add(scope)
            since = self.store.mark()
            self.store.replace(INFERENCE_PIPELINES, (), since=since, namespace=scope)
            raise

    async def _relist(self, resource: Resource, scope: Scope) -> set[Key]:
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
            for scope in filter(self.is_listed, self.scopes):
                await self._compare(scope)

    async def _compare(self, scope: Scope) -> None:
        """Compare the lists of a scope; a kind that cannot be listed does not affect others."""
        is_complete = True
        for resource in _KINDS:
            if resource == INFERENCE_PIPELINES and not is_complete and scope in self._outdated:
                return
            try:
                missed = await self._relist(resource, scope)
            except ClusterError as error:
                is_complete = False
                await _log.awarning(
                    "list failed", resource=resource.plural, namespace=scope, error=str(error)
                )
                continue
            self.metrics.watch_missed.labels(resource.plural).inc(len(missed))
            for pipeline in missed:
                self.enqueue(pipeline)
        if is_complete:
            self._outdated.discard(scope)


def jittered(seconds: float) -> float:
    """Return the time ± 10 %, so that several operators and kinds do not synchronize."""
    return _uniform(0.9 * seconds, 1.1 * seconds)
