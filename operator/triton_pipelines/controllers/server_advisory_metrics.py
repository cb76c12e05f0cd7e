"""The metric of security advisories that affect the servers of pipelines."""

from __future__ import annotations

from collections import Counter

from prometheus_client import CollectorRegistry, Gauge

from triton_pipelines.cluster.store import Key
from triton_pipelines.compile.graph.advisories import AdvisorySeverity, advisories_of
from triton_pipelines.compile.graph.server_settings import server_version
from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec


class ServerAdvisoryMetrics:
    """Number of known advisories by pipeline and severity.

    A pipeline whose server is not affected has zeros. Without an effective spec, or if the release
    of its server is unknown, it has no series.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.advisories = Gauge(
            "tritonpipe_pipeline_server_advisories",
            "Number of known NVIDIA security bulletins that affect the pipeline's Triton release.",
            ("namespace", "pipeline", "severity"),
            registry=registry,
        )

    def observe(self, key: Key, effective: EffectiveSpec | None) -> None:
        """Set the series of a pipeline, or remove them if it has no effective spec."""
        release = None
        if effective is not None:
            version = effective.pipeline.spec.server.version
            release = server_version(version, effective.server_image)
        if release is None:
            self.advisories.remove_by_labels({"namespace": key[0], "pipeline": key[1]})
            return
        counts = Counter(one.severity for one in advisories_of(release))
        for severity in AdvisorySeverity:
            self.advisories.labels(*key, severity.value).set(counts[severity])
