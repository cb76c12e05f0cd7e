"""Metrics of what the effective specs say."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support import builders
from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec
from triton_pipelines.controllers.spec_metrics import SpecMetrics

KEY = ("nlp", "sentiment")
LABELS = {"namespace": "nlp", "pipeline": "sentiment"}


def effective(**spec: Any) -> EffectiveSpec:
    built = builders.built(**spec)
    return EffectiveSpec("uid", built.pipeline, built.graph, "x:24.10-py3")


def test_series_follow_the_effective_spec() -> None:
    registry = CollectorRegistry()
    metrics = SpecMetrics(registry)

    def found(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"tritonpipe_pipeline_{name}", {**LABELS, **labels})

    slo = {"p99Milliseconds": 50, "networkAndQueueBudgetMilliseconds": 8}
    with_slo = effective(slo=slo)
    first = with_slo.pipeline.public_name
    metrics.observe(KEY, with_slo)
    assert found("model_info", model=first) == 1
    assert found("slo_seconds") == pytest.approx(0.05)
    assert found("latency_budget_seconds") == pytest.approx(0.042)

    metrics.observe(KEY, effective(ensemble={"entryPoint": "tokenizer"}))
    assert found("model_info", model=first) is None
    assert found("model_info", model="tokenizer") == 1
    assert found("slo_seconds") is found("latency_budget_seconds") is None

    metrics.observe(KEY, None)
    assert found("model_info", model="tokenizer") is None


def test_a_budget_that_leaves_nothing_for_the_server_has_no_series() -> None:
    registry = CollectorRegistry()
    slo = {"p99Milliseconds": 5, "networkAndQueueBudgetMilliseconds": 5}
    SpecMetrics(registry).observe(KEY, effective(slo=slo))
    assert registry.get_sample_value("tritonpipe_pipeline_slo_seconds", LABELS) == 0.005
    assert registry.get_sample_value("tritonpipe_pipeline_latency_budget_seconds", LABELS) is None
