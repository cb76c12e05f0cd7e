"""Metrics of the autoscaler: series after decisions and changes, and after a deletion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from tests.support.flows import NOW, Flow, sample
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, MetricsProblem
from triton_pipelines.autoscaling.types import (
    ScalingDecision,
    ScalingState,
    StepDecision,
    StepFigures,
    Verdict,
)
from triton_pipelines.controllers.autoscaler.pod_sizes import PodSizes
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.handover import ScalingView

KEY = ("nlp", "sentiment")
LABELS = {"namespace": "nlp", "pipeline": "sentiment"}


def view(
    *pods: str, verdict: Verdict = Verdict.TOKENIZER_BOUND, gpu: float | None = 0.2
) -> ScalingView:
    figures = StepFigures(busy=0.9, wait=0.5, service=0.01)
    decision = ScalingDecision(
        (StepDecision("tokenizer", 3, verdict, "", figures),), verdict, ScalingState(), gpu_busy=gpu
    )
    return ScalingView(decision, ScalingMode.ACTIVE, {"tokenizer": dict.fromkeys(pods, 2)})


@pytest.fixture
def metrics() -> ScalingMetrics:
    return ScalingMetrics(CollectorRegistry())


def decided(metrics: ScalingMetrics, seen: ScalingView) -> None:
    found = sample(Flow(10.0), now=NOW - 3)
    pods = seen.counts["tokenizer"]
    metrics.observe_decision(
        KEY,
        seen,
        {"tokenizer": "tok"},
        replace(found, pods=dict.fromkeys(pods, found.pods["pod-0"])),
        NOW,
    )


def value(metrics: ScalingMetrics, name: str, **labels: str) -> float | None:
    sizes = (metrics.pods_desired, metrics.cpu, metrics.cpu_desired)
    for family in (
        metrics.instances,
        metrics.desired,
        metrics.busy,
        metrics.wait,
        metrics.verdict,
        metrics.starved,
        metrics.age,
        *sizes,
    ):
        for one in family.collect():
            for found in one.samples:
                if found.name == name and found.labels == {**LABELS, **labels}:
                    return float(found.value)
    return None


def test_a_decision_is_on_the_page(metrics: ScalingMetrics) -> None:
    decided(metrics, view("a", "b"))
    assert value(metrics, "tritonpipe_step_instances", step="tokenizer", model="tok", pod="b") == 2
    assert value(metrics, "tritonpipe_step_instances_desired", step="tokenizer") == 3
    assert value(metrics, "tritonpipe_step_busy_ratio", step="tokenizer") == 0.9
    assert value(metrics, "tritonpipe_step_wait_seconds", step="tokenizer") == 0.5
    assert value(metrics, "tritonpipe_pipeline_verdict", verdict="TokenizerBound") == 1
    assert value(metrics, "tritonpipe_pipeline_verdict", verdict="Idle") == 0
    assert value(metrics, "tritonpipe_scaling_sample_age_seconds") == pytest.approx(3)


def test_series_go_with_their_pod_and_their_pipeline(metrics: ScalingMetrics) -> None:
    decided(metrics, view("a", "b"))
    decided(metrics, view("b"))
    assert (
        value(metrics, "tritonpipe_step_instances", step="tokenizer", model="tok", pod="a") is None
    )
    metrics.forget(KEY)
    assert (
        value(metrics, "tritonpipe_step_instances", step="tokenizer", model="tok", pod="b") is None
    )
    assert value(metrics, "tritonpipe_pipeline_verdict", verdict="TokenizerBound") is None
    metrics.forget(KEY)


@pytest.mark.parametrize(("gpu", "starved"), [(0.2, True), (0.9, False), (None, False)])
def test_a_gpu_that_idles_while_work_waits_is_starved(
    metrics: ScalingMetrics, gpu: float | None, starved: bool
) -> None:
    for _ in range(100):
        decided(metrics, view("a", gpu=gpu))
    share = value(metrics, "tritonpipe_gpu_starved_ratio")
    assert share is not None
    assert (share > 0.9) == starved


def test_without_metrics_the_error_is_counted_and_no_figure_is_made_up(
    metrics: ScalingMetrics,
) -> None:
    metrics.observe_decision(
        KEY, view("a"), {"tokenizer": "tok"}, MetricsFailure(MetricsProblem.STALE, "old"), NOW
    )
    (found,) = [
        one
        for family in metrics.errors.collect()
        for one in family.samples
        if one.name.endswith("_total")
    ]
    assert (found.labels["kind"], found.value) == ("MetricsStale", 1)
    assert value(metrics, "tritonpipe_gpu_starved_ratio") is None


def test_pods_that_have_yet_to_start_are_no_fault_of_metrics(metrics: ScalingMetrics) -> None:
    """Else every rollout from nothing, and every pod without a node, would alert."""
    decided(metrics, view("a"))
    metrics.observe_decision(
        KEY,
        replace(view(), metrics_failure="NoPods"),
        {"tokenizer": "tok"},
        MetricsFailure(MetricsProblem.MISSING, "no pod is ready"),
        NOW + 300,
    )
    assert errors(metrics) == []
    assert value(metrics, "tritonpipe_scaling_sample_age_seconds") is None, (
        "there is no pod that samples could come from"
    )


def test_counters_go_with_their_pipeline(metrics: ScalingMetrics) -> None:
    metrics.observe_decision(
        KEY, view("a"), {"tokenizer": "tok"}, MetricsFailure(MetricsProblem.STALE, "old"), NOW
    )
    for direction in ("up", "down"):
        metrics.observe_action(KEY, "tokenizer", direction, "Proven", 1.0)
    metrics.forget(KEY)
    assert [
        one
        for family in (metrics.errors, metrics.actions, metrics.reversals)
        for one in family.collect()[0].samples
    ] == []
    metrics.observe_action(KEY, "tokenizer", "up", "Proven", 1.0)
    assert metrics.reversals.collect()[0].samples == [], "the one before was of another pipeline"


def errors(metrics: ScalingMetrics) -> list[str]:
    """Kinds of errors that are on the page."""
    return [
        one.labels["kind"]
        for family in metrics.errors.collect()
        for one in family.samples
        if one.name.endswith("_total")
    ]


def test_the_age_of_samples_grows_while_none_comes(metrics: ScalingMetrics) -> None:
    decided(metrics, view("a", "b"))
    metrics.observe_decision(
        KEY,
        view("a"),
        {"tokenizer": "tok"},
        MetricsFailure(MetricsProblem.ERROR, "no Prometheus"),
        NOW + 57,
    )
    assert value(metrics, "tritonpipe_scaling_sample_age_seconds") == pytest.approx(60)
    metrics.forget(KEY)
    metrics.observe_decision(
        KEY,
        view("a"),
        {"tokenizer": "tok"},
        MetricsFailure(MetricsProblem.ERROR, "no Prometheus"),
        NOW + 59,
    )
    assert value(metrics, "tritonpipe_scaling_sample_age_seconds") is None, (
        "of samples that nobody has seen"
    )


def test_a_pod_that_is_left_out_of_samples_grows_old_and_one_that_is_gone_does_not(
    metrics: ScalingMetrics,
) -> None:
    both, one = sample(Flow(10.0), pods=2), sample(Flow(10.0), now=NOW + 30)
    metrics.observe_decision(KEY, view("pod-0", "pod-1"), {"tokenizer": "tok"}, both, NOW)
    metrics.observe_decision(KEY, view("pod-0", "pod-1"), {"tokenizer": "tok"}, one, NOW + 30)
    assert value(metrics, "tritonpipe_scaling_sample_age_seconds") == pytest.approx(30)
    metrics.observe_decision(KEY, view("pod-0"), {"tokenizer": "tok"}, one, NOW + 30)
    assert value(metrics, "tritonpipe_scaling_sample_age_seconds") == pytest.approx(0)


def test_a_change_against_the_last_is_a_reversal(metrics: ScalingMetrics) -> None:
    for direction in ("up", "up", "down", "up"):
        metrics.observe_action(KEY, "tokenizer", direction, "Proven", 1.0)
    (found,) = [
        one
        for family in metrics.reversals.collect()
        for one in family.samples
        if one.name.endswith("_total")
    ]
    assert found.value == 2


def test_pods_and_their_cpu_are_on_the_page_as_they_are_and_as_they_should_be(
    metrics: ScalingMetrics,
) -> None:
    metrics.observe_pods(KEY, PodSizes({"a": 1350, "b": None, "c": 2000}, 4, 3350))
    assert value(metrics, "tritonpipe_pipeline_pods_desired") == 4
    assert value(metrics, "tritonpipe_pod_cpu_limit_cores", pod="a") == 1.35
    assert value(metrics, "tritonpipe_pod_cpu_limit_cores", pod="b") is None, "no kubelet tells it"
    assert value(metrics, "tritonpipe_pod_cpu_limit_desired_cores") == 3.35
    metrics.observe_pods(KEY, PodSizes({"c": 2000}, 1, None))
    assert value(metrics, "tritonpipe_pod_cpu_limit_cores", pod="a") is None, "its pod is gone"
    assert value(metrics, "tritonpipe_pod_cpu_limit_desired_cores") is None, (
        "it is nobody's to scale any more"
    )
    metrics.forget(KEY)
    assert value(metrics, "tritonpipe_pipeline_pods_desired") is None
    assert value(metrics, "tritonpipe_pod_cpu_limit_cores", pod="c") is None
