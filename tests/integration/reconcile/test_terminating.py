"""A reconcile in a namespace that a real API server is terminating ends quietly."""

from __future__ import annotations

import datetime as dt

import pytest
import structlog

from tests.support import builders
from tests.support.operators import NAMESPACES, healthy
from tests.support.reconcilers import reconciler_of
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import Forbidden, NamespaceTerminating
from triton_pipelines.cluster.resources import CONFIG_MAPS, EVENTS, INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store, relist
from triton_pipelines.controllers.pipeline.child_writer import CHILD_RESOURCES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
]
MESSAGE = "namespace is terminating; nothing is applied"


async def test_a_terminating_namespace_is_left_alone(bare: Client, bare_namespace: str) -> None:
    document = builders.document()
    metadata = {"name": document["metadata"]["name"], "namespace": bare_namespace}
    await bare.create({**document, "metadata": metadata})
    held = {"name": "held", "namespace": bare_namespace, "finalizers": ["example.com/hold"]}
    await bare.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": held})
    await bare.delete(NAMESPACES, None, bare_namespace)
    namespace = await bare.get(NAMESPACES, None, bare_namespace)
    assert namespace["status"]["phase"] == "Terminating"

    child = {"name": "child", "namespace": bare_namespace}
    with pytest.raises(NamespaceTerminating) as caught:
        await bare.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": child})
    assert isinstance(caught.value, Forbidden)

    store = Store()
    await relist(bare, store, INFERENCE_PIPELINES, namespace=bare_namespace)
    reconciler = reconciler_of(bare, store, prober=healthy, clock=lambda: dt.datetime.now(dt.UTC))
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            result = await reconciler.reconcile((bare_namespace, metadata["name"]))
            assert (result.outcome, result.requeue_after) == ("terminating", None)
    assert len([entry for entry in logs if entry["event"] == MESSAGE]) == 1
    assert not [entry for entry in logs if entry["log_level"] in ("warning", "error")]
    assert not (await bare.list(EVENTS, bare_namespace)).items
    for resource in CHILD_RESOURCES:
        names = [
            item["metadata"]["name"] for item in (await bare.list(resource, bare_namespace)).items
        ]
        assert names == (["held"] if resource == CONFIG_MAPS else [])
