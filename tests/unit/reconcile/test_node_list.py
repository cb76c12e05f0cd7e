"""Nodes are listed once for all pipelines, however many of their pods cannot be scheduled."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import ownership
from tests.support.reconcilers import KEY, AcceptingClient, ready_pod, reconciler_of, stored
from tests.support.worlds import START
from triton_pipelines.cluster.client import Object, ObjectList
from triton_pipelines.cluster.errors import ClusterError, Forbidden, Unavailable
from triton_pipelines.cluster.resources import (
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    NODES,
    PODS,
    Resource,
)
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.render.pod_scheduling import GPU_PRODUCT_LABEL
from triton_pipelines.controllers.pipeline.node_list import NODES_SECONDS, NodeList


def node(name: str) -> Object:
    return {
        "metadata": {"name": name, "labels": {GPU_PRODUCT_LABEL: "A100", "zone": "a"}},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"allocatable": {"nvidia.com/gpu": "1"}, "images": [{"names": ["x" * 1000]}]},
    }


class Cluster(AcceptingClient):
    """A fake API server that has nodes, keeps objects in the caches and counts lists of nodes."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store, self.nodes, self.lists = store, [node("a")], 0
        self.error: ClusterError | None = None
        self.now = START

    def clock(self) -> dt.datetime:
        return self.now

    async def apply(self, obj: Object, **_: Any) -> Object:
        uid = f"uid-{obj['metadata']['name']}"
        return {**obj, "metadata": {**obj["metadata"], "uid": uid, "resourceVersion": "1"}}

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        convert: Callable[[Object], Object] | None = None,
        **_: Any,
    ) -> ObjectList:
        assert resource == NODES
        assert convert is not None
        self.lists += 1
        if self.error is not None:
            raise self.error
        return ObjectList([convert(item) for item in self.nodes], "1")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(Store())


async def test_the_edits_of_a_pod_that_cannot_be_scheduled_cause_no_lists(cluster: Cluster) -> None:
    """Its owner may edit it any number of times, and a list may have thousands of nodes."""
    store = cluster.store
    store.put(INFERENCE_PIPELINES, stored())
    subject = reconciler_of(cluster, store, clock=cluster.clock)
    await subject.reconcile(KEY)
    deployment = store.get(DEPLOYMENTS, *KEY)
    assert deployment is not None
    template = deployment["spec"]["template"]
    made = ownership.replica_set(deployment, ownership.template_hash(template))
    cluster.replica_sets.append(made)
    pod = ready_pod(deployment)
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"] = {"phase": "Pending", "conditions": [{**condition, "message": message}]}
    for number in range(20):
        version = {"resourceVersion": str(10 + number)}
        store.put(PODS, {**pod, "metadata": {**pod["metadata"], **version}})
        await subject.reconcile(KEY)
        cluster.now += dt.timedelta(seconds=1)
    assert cluster.lists == 1
    cluster.now += dt.timedelta(seconds=NODES_SECONDS)
    await subject.reconcile(KEY)
    assert cluster.lists == 2


async def test_only_what_explains_a_pod_is_kept(cluster: Cluster) -> None:
    assert await NodeList(cluster, cluster.clock).read() == (
        {
            "metadata": {"name": "a", "labels": {GPU_PRODUCT_LABEL: "A100"}},
            "spec": {"unschedulable": False},
            "status": {"allocatable": {"nvidia.com/gpu": "1"}},
        },
    )


async def test_a_failed_list_leaves_the_last_one_and_is_not_repeated_at_once(
    cluster: Cluster,
) -> None:
    nodes = NodeList(cluster, cluster.clock)
    before = await nodes.read()
    assert before
    cluster.error = Unavailable(503, "ServiceUnavailable", "down")
    cluster.now += dt.timedelta(seconds=NODES_SECONDS)
    assert await nodes.read() == before
    assert await nodes.read() == before
    assert cluster.lists == 2


async def test_without_the_right_to_list_nodes_none_are_known(cluster: Cluster) -> None:
    nodes = NodeList(cluster, cluster.clock)
    await nodes.read()
    cluster.error = Forbidden(403, "Forbidden", "nodes is forbidden")
    cluster.now += dt.timedelta(seconds=NODES_SECONDS)
    assert await nodes.read() is None
