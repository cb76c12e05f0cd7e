"""Objects of the Prometheus operator for one pipeline.

Who is to scrape its pods, and which rules hold for its series. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .objects import child
from .prometheus_rules import Scope, groups

API_VERSION: Final = "monitoring.coreos.com/v1"
# Growth reacts within two scrapes.
SCRAPE_INTERVAL: Final = "5s"
# The pod's label as service discovery spells it.
_DISCOVERED: Final = "__meta_kubernetes_pod_label_" + "".join(
    char if char.isalnum() else "_" for char in names.LABEL_PIPELINE
)


def pod_monitor(pipeline: InferencePipeline, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the PodMonitor of the pods, which adds the label ``pipeline`` to their series.

    ``labels``: what that Prometheus selects by.
    """
    endpoint = {
        "port": "metrics",
        "path": "/metrics",
        "interval": SCRAPE_INTERVAL,
        "scrapeTimeout": SCRAPE_INTERVAL,
        "relabelings": [{"sourceLabels": [_DISCOVERED], "targetLabel": "pipeline"}],
    }
    spec = {
        "selector": {"matchLabels": names.selector(pipeline.name)},
        "podMetricsEndpoints": [endpoint],
    }
    return _labelled(child(pipeline, API_VERSION, "PodMonitor", pipeline.name, spec=spec), labels)


def prometheus_rule(pipeline: InferencePipeline, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the recording rules and alerts, limited to the series of this pipeline."""
    spec = groups(Scope(pipeline.namespace, pipeline.name))
    return _labelled(
        child(pipeline, API_VERSION, "PrometheusRule", pipeline.name, spec=spec), labels
    )


def _labelled(item: dict[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    # The operator's own labels win: by them its objects are found again.
    item["metadata"]["labels"] = {**labels, **item["metadata"]["labels"]}
    return item
