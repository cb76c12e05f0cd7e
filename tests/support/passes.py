"""Run the real reconciler over the modeled world.

The API server is simulated and accepts whatever the test sets.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

from tests.support.copies import copied
from tests.support.reconcilers import reconciler_of
from tests.support.tuningworld import Tuning
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError, NotFound
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.pipeline.child_writer import RESOURCE_OF_KIND
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import ModelState, Probe


class Recording(Client):
    """Accept what is written and keep it in the world.

    Where the test has set an error, it answers the live ConfigMap or the status with that error.

    ``writes`` lists the writes of children and of the status in order, ``posted`` the reasons of
    the events.
    """

    def __init__(
        self,
        world: Tuning,
        error: ClusterError | None = None,
        status_error: ClusterError | None = None,
    ) -> None:
        self.world, self.error, self.status_error = world, error, status_error
        self.writes: list[tuple[str, str]] = []
        self.posted: list[str] = []

    async def apply(self, obj: Object, *, dry_run: bool = False, **_: Any) -> Object:
        if dry_run:  # a look at what is there
            known = self.world.secrets.get(obj["metadata"]["name"])
            return obj if known is None else seen(known)
        self.writes.append(("apply", obj["metadata"]["name"]))
        if self.error is not None and obj["metadata"]["name"] == names.live_name(self.world.name):
            raise self.error
        self.world.take(obj)
        return seen(self.world.children.get((obj["kind"], obj["metadata"]["name"]), obj))

    async def get(self, resource: Resource, namespace: str | None, name: str, **_: Any) -> Object:
        replica_sets = {
            (item["kind"], item["metadata"]["name"]): item
            for item in (*self.world.replica_sets, *self.world.canary_sets)
        }
        found = {**self.world.children, **replica_sets}.get((resource.kind, name))
        if found is None:
            raise NotFound(
                404, "NotFound", f'{resource.plural} "{name}" not found', object_name=name
            )
        return seen(found)

    async def replace(self, obj: Object, **_: Any) -> Object:
        return await self.apply(obj)

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        self.writes.append(("status", str((obj["status"].get("tuning") or {}).get("state", ""))))
        if self.status_error is not None:
            raise self.status_error
        self.world.document["status"] = copied(obj["status"])
        return seen(self.world.document)

    async def delete(self, resource: Resource, namespace: str | None, name: str, **_: Any) -> bool:
        self.writes.append(("delete", resource.kind))
        self.world.children.pop((resource.kind, name), None)
        return True

    async def create(self, obj: Object, **_: Any) -> Object:
        self.posted.append(obj["reason"])
        return obj


async def passed(world: Tuning, client: Recording) -> list[tuple[str, str]]:
    """Run one reconcile of the operator over the world; return what it wrote to the API server."""
    reconciler = reconciler_of(
        client, cached(world), prober=good, clock=lambda: world.now, options=world.options
    )
    with contextlib.suppress(ClusterError):
        await reconciler.reconcile(("nlp", world.name))
    return client.writes


def cached(world: World) -> Store:
    """The caches of an operator that watches the world."""
    store = Store()
    store.put(INFERENCE_PIPELINES, seen(world.document))
    for (kind, _), item in world.children.items():
        store.put(RESOURCE_OF_KIND[kind], seen(item))
    observed = world.observed()
    for pod in (*observed.pods, *observed.tuning_pods, *observed.preflight_pods):
        store.put(PODS, seen(pod.raw))
    return store


def seen(item: Object) -> Object:
    """An object as the caches hold it."""
    return {**item, "metadata": {"namespace": "nlp", "resourceVersion": "1", **item["metadata"]}}


async def good(target: ProbeTarget, now: dt.datetime) -> Probe:
    """A pod that answers well."""
    return Probe(now, True, (ModelState("model", "READY"),), inference_error="")
