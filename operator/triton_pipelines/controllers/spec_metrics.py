"""Metrics of what the effective specs say: the model that clients call, and the SLO."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from triton_pipelines.cluster.store import Key
from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec
from triton_pipelines.controllers.pipeline.latency_figures import latency_budget_of

_PIPELINE = ("namespace", "pipeline")


class SpecMetrics:
    """Series by pipeline; one without an effective spec has none.

    Triton's series have only a model's name: the first of these metrics says which of them are
    about the requests of clients.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.models = Gauge(
            "tritonpipe_pipeline_model_info",
            "1 for the model that clients of the pipeline call.",
            (*_PIPELINE, "model"),
            registry=registry,
        )
        self.slo = Gauge(
            "tritonpipe_pipeline_slo_seconds",
            "Latency that 99% of requests must not exceed (spec.slo.p99Milliseconds).",
            _PIPELINE,
            registry=registry,
        )
        self.budget = Gauge(
            "tritonpipe_pipeline_latency_budget_seconds",
            "Latency that the SLO allows for the server: the SLO minus the time for network "
            "and queues.",
            _PIPELINE,
            registry=registry,
        )
        self._models: dict[Key, str] = {}

    def observe(self, key: Key, effective: EffectiveSpec | None) -> None:
        """Set the series of a pipeline, or remove those that do not apply to it."""
        pipeline = None if effective is None else effective.pipeline
        self._set_model(key, None if pipeline is None else pipeline.public_name)
        milliseconds = None if pipeline is None else pipeline.spec.slo.p99_milliseconds
        budget = None if pipeline is None else latency_budget_of(pipeline)
        for family, value in ((self.slo, milliseconds), (self.budget, budget)):
            if value is None:
                family.remove_by_labels({"namespace": key[0], "pipeline": key[1]})
            else:
                family.labels(*key).set(value / 1000)

    def _set_model(self, key: Key, model: str | None) -> None:
        """Set the series of the public model, and remove that of the previous one."""
        previous = self._models.pop(key, None)
        if previous is not None and previous != model:
            self.models.remove(*key, previous)
        if model is not None:
            self._models[key] = model
            self.models.labels(*key, model).set(1)
