"""Metrics of what the effective specs say: public model, SLO, and advisories of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from triton_pipelines.compile.graph.advisories import AdvisorySeverity, advisories_of
from triton_pipelines.compile.graph.server_settings import server_version
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.latency_figures import latency_budget_of

_PIPELINE: Final = ("namespace", "pipeline")


@dataclass(slots=True, eq=False)
class SpecMetrics(Collector):
    """Series of all pipelines with an effective spec, computed for each scrape.

    Triton's series have only a model's name: the first of these metrics says which of them are
    about the requests of clients. A pipeline whose server is not affected by advisories has zeros;
    if the release of its server is unknown, it has no series of them.
    """

    handover: Handover

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        models = GaugeMetricFamily(
            "tritonpipe_pipeline_model_info",
            "1 for the model that clients of the pipeline call.",
            labels=(*_PIPELINE, "model"),
        )
        slo = GaugeMetricFamily(
            "tritonpipe_pipeline_slo_seconds",
            "Latency that 99% of requests must not exceed (spec.slo.p99Milliseconds).",
            labels=_PIPELINE,
        )
        budgets = GaugeMetricFamily(
            "tritonpipe_pipeline_latency_budget_seconds",
            "Latency that the SLO allows for the server: the SLO minus the time for network "
            "and queues.",
            labels=_PIPELINE,
        )
        advisories = GaugeMetricFamily(
            "tritonpipe_pipeline_server_advisories",
            "Number of known NVIDIA security bulletins that affect the pipeline's Triton release.",
            labels=(*_PIPELINE, "severity"),
        )
        # A copy: scrapes run in threads of their own.
        for key, effective in tuple(self.handover.effective_specs.items()):
            pipeline = effective.pipeline
            models.add_metric((*key, pipeline.public_name), 1)
            if (milliseconds := pipeline.spec.slo.p99_milliseconds) is not None:
                slo.add_metric(key, milliseconds / 1000)
            if (budget := latency_budget_of(pipeline)) is not None:
                budgets.add_metric(key, budget / 1000)
            release = server_version(pipeline.spec.server.version, effective.server_image)
            if release is not None:
                counts = Counter(one.severity for one in advisories_of(release))
                for severity in AdvisorySeverity:
                    advisories.add_metric((*key, severity.value), counts[severity])
        return models, slo, budgets, advisories
