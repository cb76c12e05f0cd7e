"""Objects of the Prometheus operator for one pipeline.

Who is to scrape its pods, and which rules hold for its series. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .objects import child
from .prometheus_rules import DOCS_URL, groups
from .recording_rules import Scope

API_VERSION: Final = "monitoring.coreos.com/v1"
# Growth reacts within two scrapes.
SCRAPE_INTERVAL: Final = "5s"
# The pod's label as service discovery spells it.
_DISCOVERED: Final = "__meta_kubernetes_pod_label_" + "".join(
    char if char.isalnum() else "_" for char in names.LABEL_PIPELINE
)


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """What the operator is configured to write into these objects."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of every object, for the selectors of the Prometheus that is to find them."""
    docs_url: str = DOCS_URL
    """Address of the docs folder; links of alerts to their runbooks start with it."""


def pod_monitor(pipeline: InferencePipeline, settings: MonitoringSettings) -> dict[str, Any]:
    """Return the PodMonitor of the pods, which adds the label ``pipeline`` to their series."""
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
    return _labelled(child(pipeline, API_VERSION, "PodMonitor", pipeline.name, spec=spec), settings)


def prometheus_rule(pipeline: InferencePipeline, settings: MonitoringSettings) -> dict[str, Any]:
    """Return the recording rules and alerts, limited to the series of this pipeline."""
    spec = groups(Scope(pipeline.namespace, pipeline.name), settings.docs_url)
    return _labelled(
        child(pipeline, API_VERSION, "PrometheusRule", pipeline.name, spec=spec), settings
    )


def _labelled(item: dict[str, Any], settings: MonitoringSettings) -> dict[str, Any]:
    # The operator's own labels win: by them its objects are found again.
    item["metadata"]["labels"] = {**settings.labels, **item["metadata"]["labels"]}
    return item
