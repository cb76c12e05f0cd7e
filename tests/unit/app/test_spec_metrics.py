"""Metrics of what the effective specs say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support import builders
from triton_pipelines.compile.graph.advisories import AdvisorySeverity, advisories_of
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec
from triton_pipelines.controllers.spec_metrics import SpecMetrics

KEY = ("nlp", "sentiment")
Found = Callable[..., float | None]


def effective(image: str = "x:24.10-py3", **spec: Any) -> EffectiveSpec:
    built = builders.built(**spec)
    return EffectiveSpec("uid", built.pipeline, built.graph, image)


def scraped(handover: Handover) -> Found:
    """Return what finds the value of a series of the pipeline."""
    registry = CollectorRegistry()
    registry.register(SpecMetrics(handover))
    names = dict(zip(("namespace", "pipeline"), KEY, strict=True))
    return lambda name, **labels: registry.get_sample_value(
        f"tritonpipe_pipeline_{name}", {**names, **labels}
    )


def test_series_follow_the_effective_spec() -> None:
    handover = Handover()
    found = scraped(handover)
    with_slo = effective(slo={"p99Milliseconds": 50, "networkAndQueueBudgetMilliseconds": 8})
    first = with_slo.pipeline.public_name
    handover.effective_specs[KEY] = with_slo
    assert found("model_info", model=first) == 1
    assert found("slo_seconds") == pytest.approx(0.05)
    assert found("latency_budget_seconds") == pytest.approx(0.042)

    handover.effective_specs[KEY] = effective(ensemble={"entryPoint": "tokenizer"})
    assert found("model_info", model=first) is None
    assert found("model_info", model="tokenizer") == 1
    assert found("slo_seconds") is found("latency_budget_seconds") is None

    del handover.effective_specs[KEY]
    assert found("model_info", model="tokenizer") is None


def test_a_budget_that_leaves_nothing_for_the_server_has_no_series() -> None:
    handover = Handover()
    slo = {"p99Milliseconds": 5, "networkAndQueueBudgetMilliseconds": 5}
    handover.effective_specs[KEY] = effective(slo=slo)
    found = scraped(handover)
    assert found("slo_seconds") == 0.005
    assert found("latency_budget_seconds") is None


def test_advisories_are_those_of_the_image_that_runs() -> None:
    handover = Handover()
    found = scraped(handover)
    handover.effective_specs[KEY] = effective("x:24.10-py3")
    critical = [one for one in advisories_of((24, 10)) if one.severity is AdvisorySeverity.CRITICAL]
    assert found("server_advisories", severity="Critical") == len(critical) > 0
    assert found("server_advisories", severity="Low") == 0
    handover.effective_specs[KEY] = effective("x:latest")
    assert found("server_advisories", severity="Critical") is None
