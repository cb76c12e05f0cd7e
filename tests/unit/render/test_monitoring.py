"""PodMonitor and PrometheusRule of a pipeline as they are rendered."""

from __future__ import annotations

import re

import pytest

from tests.support import builders
from triton_pipelines.api import names
from triton_pipelines.compile.render.monitoring import (
    MonitoringSettings,
    pod_monitor,
    prometheus_rule,
)
from triton_pipelines.compile.render.prometheus_rules import alerts
from triton_pipelines.compile.render.recording_rules import Scope, recording_rules

SETTINGS = MonitoringSettings(
    {"release": "kube-prometheus", names.LABEL_PIPELINE: "other"},
    "https://docs.example.org/triton-pipelines/",
)
SELECTOR = re.compile(r"\b(?:nv_|container_|DCGM_|tritonpipe[_:])[\w:]+(\{[^}]*\})?")


def test_alerts_link_to_the_configured_documentation() -> None:
    item = prometheus_rule(builders.pipeline(), SETTINGS)
    _, alert_group = item["spec"]["groups"]
    assert {rule["annotations"]["runbook_url"] for rule in alert_group["rules"]} == {
        f"https://docs.example.org/triton-pipelines/runbooks/alerts.md#{rule['alert'].lower()}"
        for rule in alert_group["rules"]
    }


def test_labels_are_added_and_take_nothing_from_the_operators_own() -> None:
    pipeline = builders.pipeline(name="sentiment", namespace="nlp")
    for item in (pod_monitor(pipeline, SETTINGS), prometheus_rule(pipeline, SETTINGS)):
        assert item["metadata"]["labels"] == {
            "release": "kube-prometheus",
            **names.labels("sentiment"),
        }
        assert (item["metadata"]["namespace"], item["metadata"]["name"]) == ("nlp", "sentiment")


def test_every_selector_of_a_pipelines_rules_names_the_pipeline() -> None:
    scope = Scope("nlp", "sentiment")
    for rule in (*recording_rules(scope), *alerts(scope)):
        selectors = [found[0] for found in SELECTOR.finditer(rule["expr"])]
        assert selectors, rule
        for selector in selectors:
            assert 'namespace="nlp"' in selector, selector
            assert 'pipeline="sentiment"' in selector or 'pod=~"sentiment-' in selector, selector


@pytest.mark.parametrize(
    ("pod", "mine"),
    [
        ("p-5f7d8c9b6d-x2v4k", True),
        ("p-b-5f7d8c9b6d-x2v4k", False),
        ("q-p-5f7d8c9b6d-x2v4k", False),
        ("p-5f7d8c9b6d", False),
    ],
)
def test_pods_are_told_by_their_names(pod: str, mine: bool) -> None:
    (found,) = re.findall(
        r'pod=~"([^"]+)"', Scope("n", "p").of("container_cpu_usage_seconds_total")
    )
    assert (re.fullmatch(found, pod) is not None) == mine


def test_rules_of_all_are_narrowed_to_no_one() -> None:
    assert all("sentiment" not in rule["expr"] for rule in (*recording_rules(), *alerts()))
