"""Metrics of the pipelines' status: conditions, pods and revisions. Read from the cache.

kube-state-metrics shows the status of built-in kinds in the same way, but not that of this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from triton_pipelines.api.conditions import ConditionType
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store

_PIPELINE: Final = ("namespace", "pipeline")
# State of pods → field of the status.
_PODS: Final = {"all": "replicas", "ready": "readyReplicas", "updated": "updatedReplicas"}
_TYPES: Final = frozenset(ConditionType)


@dataclass(slots=True, eq=False)
class PipelineMetrics(Collector):
    """Series of all pipelines in the cache, computed for each scrape.

    So a deleted pipeline leaves no series behind.
    """

    store: Store

    def collect(self) -> Iterable[Metric]:
        """Return the families; they are empty until the cache is filled."""
        conditions = GaugeMetricFamily(
            "tritonpipe_pipeline_condition",
            "1 for the current status and reason of each condition.",
            labels=(*_PIPELINE, "type", "status", "reason"),
        )
        pods = GaugeMetricFamily(
            "tritonpipe_pipeline_pods",
            "Number of pods of the pipeline: all pods, ready pods, and pods of the newest "
            "revision.",
            labels=(*_PIPELINE, "state"),
        )
        revisions = InfoMetricFamily(
            "tritonpipe_pipeline_revision",
            "Newest revision of the pipeline, and the revision that serves.",
            labels=_PIPELINE,
        )
        for key in self.store.pipelines():
            status = (self.store.get(INFERENCE_PIPELINES, *key) or {}).get("status") or {}
            for kind, value, reason in _conditions(status):
                conditions.add_metric((*key, kind, value, reason), 1)
            for state, field in _PODS.items():
                pods.add_metric((*key, state), int(status.get(field) or 0))
            revisions.add_metric(
                key,
                {
                    "revision": str(status.get("revision") or ""),
                    "serving": str(status.get("servingRevision") or ""),
                },
            )
        return conditions, pods, revisions


def _conditions(status: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Yield type, status and reason of the conditions that the operator writes."""
    for item in status.get("conditions") or ():
        if item.get("type") in _TYPES:
            yield item["type"], str(item.get("status", "")), str(item.get("reason", ""))
