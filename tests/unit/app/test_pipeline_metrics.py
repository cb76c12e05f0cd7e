"""Metrics of the pipelines' status."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tests.support import builders
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.pipeline_metrics import PipelineMetrics

LABELS = {"namespace": "nlp", "pipeline": "sentiment"}
CONDITION = "tritonpipe_pipeline_condition"


def ready(status: str, reason: str) -> dict[str, object]:
    return {"conditions": [{"type": "Ready", "status": status, "reason": reason}]}


def test_the_series_are_those_of_the_present_status() -> None:
    store, registry = Store(), CollectorRegistry()
    registry.register(PipelineMetrics(store))
    document = builders.document(name="sentiment", namespace="nlp")

    def put(number: int, status: dict[str, object]) -> None:
        metadata = {**document["metadata"], "resourceVersion": str(number)}
        store.put(INFERENCE_PIPELINES, {**document, "metadata": metadata, "status": status})

    def found(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {**LABELS, **labels})

    put(1, {})
    assert found(CONDITION, type="Ready", status="False", reason="Loading") is None
    assert found("tritonpipe_pipeline_pods", state="ready") == 0
    put(2, ready("False", "Loading"))
    assert found(CONDITION, type="Ready", status="False", reason="Loading") == 1
    more = {"replicas": 3, "readyReplicas": 2, "revision": "b", "servingRevision": "a"}
    put(3, {**ready("True", "Succeeded"), **more})
    assert found(CONDITION, type="Ready", status="False", reason="Loading") is None
    assert found(CONDITION, type="Ready", status="True", reason="Succeeded") == 1
    assert found("tritonpipe_pipeline_pods", state="all") == 3
    assert found("tritonpipe_pipeline_pods", state="ready") == 2
    assert found("tritonpipe_pipeline_revision_info", revision="b", serving="a") == 1
    store.remove(INFERENCE_PIPELINES, "nlp", "sentiment")
    assert all(not family.samples for family in registry.collect())
