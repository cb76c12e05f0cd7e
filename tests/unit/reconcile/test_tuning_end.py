"""The end of a tuning run: what it has proven is recorded before anything that it measured with goes."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from typing import Any

import pytest
import yaml

from tests.support import builders
from tests.support.tuningworld import RENDERED, RESULT, Tuning
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError, Forbidden
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.reconcile.observed import ModelState, Probe
from triton_pipelines.reconcile.reconciler import RESOURCE_OF_KIND, ProbeTarget, Reconciler

PATCH = {"spec": {"tokenizer": {"padding": "Bucketed", "buckets": [32, 128]}}}
MESSAGE = json.dumps(RESULT | {"patch": yaml.safe_dump(PATCH)})


def at_its_end() -> Tuning:
    """A run whose Job has ended, which no pass has seen."""
    world = Tuning(builders.document(model={"platform": "tensorrt_plan"}), rendered=RENDERED)
    world.settle()
    world.change(tuning={"request": "monday"}).step()
    world.canary_ready()
    ended = {"name": names.CONTAINER_TUNER, "state": {"terminated": {"exitCode": 0, "message": MESSAGE, "reason": "Completed"}}}
    world.pod("Job", phase="Succeeded", containerStatuses=[ended])
    return world


@pytest.mark.parametrize("writes", range(9))
def test_an_operator_that_is_killed_then_loses_nothing(writes: int) -> None:
    world = at_its_end()
    world.step(writes)
    if not world.left:
        world.run_pods_raw = []  # the garbage collector has been there
    elif not world.ours("Job"):
        world.run_pods_raw = [item for item in world.run_pods_raw if "tuner" not in item["metadata"]["name"]]
    world.settle()
    assert (world.run["state"], world.left) == ("Succeeded", [])
    assert names.KEY_MEASURED_PADDING in world.children["ConfigMap", names.live_name(world.name)]["data"]


class Recording(Client):
    """Stands in for an API server that takes whatever it is given, but answers the live ConfigMap with an error where there is one."""

    def __init__(self, error: ClusterError | None = None) -> None:
        self.error = error
        self.told: list[tuple[str, str]] = []

    async def apply(self, obj: Object, **_: Any) -> Object:
        self.told.append(("apply", obj["metadata"]["name"]))
        if self.error is not None and obj["metadata"]["name"] == names.live_name("sentiment"):
            raise self.error
        return obj

    async def apply_status(self, obj: Object, **_: Any) -> Object:
        return obj

    async def delete(self, resource: Resource, namespace: str | None, name: str, **_: Any) -> bool:
        self.told.append(("delete", resource.kind))
        return True

    async def create(self, obj: Object) -> Object:
        return obj


async def passed(world: Tuning, client: Recording) -> list[tuple[str, str]]:
    """One pass of the operator over the world; what it told the API server of children."""
    store = Store()
    store.put(INFERENCE_PIPELINES, seen(world.document))
    for (kind, _), item in world.children.items():
        store.put(RESOURCE_OF_KIND[kind], seen(item))
    observed = world.observed()
    for pod in (*observed.pods, *observed.tuning_pods):
        store.put(PODS, seen(pod.raw))
    reconciler = Reconciler(client, store, world.options, lambda uid, revision: f"key of {uid} {revision}", good, lambda: world.now, "test")
    with contextlib.suppress(ClusterError):
        await reconciler.reconcile(("nlp", "sentiment"))
    return client.told


def seen(item: Object) -> Object:
    """An object as the caches hold it."""
    return {**item, "metadata": {"namespace": "nlp", "resourceVersion": "1", **item["metadata"]}}


async def good(target: ProbeTarget, now: dt.datetime) -> Probe:
    return Probe(now, True, (ModelState("model", "READY"),), inference_error="")


LIVE = ("apply", names.live_name("sentiment"))
HELD = {("delete", kind) for kind in ("ConfigMap", "Deployment", "Job", "NetworkPolicy")}


async def test_the_record_comes_before_the_end_of_what_was_measured() -> None:
    told = await passed(at_its_end(), Recording())
    assert told[0] == LIVE
    assert set(told[1:]) == HELD


async def test_where_the_record_cannot_be_written_now_the_job_stays_for_the_next_pass() -> None:
    assert await passed(at_its_end(), Recording(ClusterError(500, "InternalError", "etcd has no leader"))) == [LIVE]


async def test_where_the_record_is_refused_nothing_is_held_for_it() -> None:
    told = await passed(at_its_end(), Recording(Forbidden(403, "Forbidden", "exceeded quota")))
    assert told[0] == LIVE
    assert set(told[1:]) == HELD
