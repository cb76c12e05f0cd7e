"""Recording rules and alerts.

promtool evaluates them on given series. They and the dashboards name no metric that nothing
produces.
"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from e2e.local import packages
from hack import monitoring
from tests.support import builders, dashboards
from tests.support.prometheus import packages_path
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.autoscaling.metrics.metrics_page import FIELDS
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.render.prometheus_rules import groups
from triton_pipelines.compile.render.recording_rules import Scope
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline_metrics import PipelineMetrics
from triton_pipelines.controllers.spec_metrics import SpecMetrics

pytestmark = pytest.mark.integration

RUNBOOK = monitoring.ROOT / monitoring.RUNBOOKS
# Series of Triton, cAdvisor and the DCGM exporter. Other tests verify those of the first two on
# real ones.
FOREIGN = re.compile(r"(?:nv|container|DCGM)_\w+|ALERTS")


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    packages.install(packages.PROMETHEUS)


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [packages_path("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def own_metrics() -> set[str]:
    """Names of series of the operator, with the endings that counters and histograms get."""
    registry = CollectorRegistry()
    ScalingMetrics(registry)
    store = Store()
    store.put(INFERENCE_PIPELINES, builders.document())
    registry.register(PipelineMetrics(store))
    registry.register(SpecMetrics(Handover()))
    names = set()
    for family in (*registry.collect(), *OperatorMetrics().registry.collect()):
        names |= {
            family.name,
            f"{family.name}_total",
            f"{family.name}_info",
            f"{family.name}_bucket",
            f"{family.name}_sum",
            f"{family.name}_count",
        }
    return names


def used(expression: str) -> set[str]:
    """Names of metrics in an expression; label names and strings are none."""
    bare = re.sub(
        r'"[^"]*"|\{[^}]*\}|\bby \([^)]*\)|\bon \([^)]*\)', "", re.sub(r"\{[^}]*\}", "", expression)
    )
    return {
        name
        for name in re.findall(r"[a-zA-Z_][\w:]*", bare)
        if ":" in name or dashboards.METRIC.fullmatch(name)
    }


def test_generated_files_are_those_of_their_description() -> None:
    assert {path: path.read_text() for path in monitoring.files()} == monitoring.files()


def test_rules_give_what_was_worked_out_by_hand() -> None:
    promtool("check", "rules", monitoring.FOLDER / "rules.yaml")
    assert "SUCCESS" in promtool("test", "rules", Path(__file__).with_name("rules_test.yaml"))


def test_rules_of_one_pipeline_are_about_its_series_alone(tmp_path: Path) -> None:
    """Rules of one pipeline ignore the series of similar pipelines.

    There are two pipelines in one namespace whose names share a prefix, and one with the same name
    in another namespace.
    """
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups(Scope("n", "p"))))
    promtool("check", "rules", tmp_path / "rules.yaml")
    places = [
        ("n", "p", "p-6d4c-x7k2p"),
        ("n", "p-b", "p-b-6d4c-x7k2p"),
        ("m", "p", "p-6d4c-x7k2p"),
    ]
    series = [
        {
            "series": (
                f'{metric}{{namespace="{namespace}",'
                f'pod="{pod}"{more.replace("PIPELINE", pipeline)}}}'
            ),
            "values": "0+300x20",
        }
        for namespace, pipeline, pod in places
        for metric, more in (
            ("nv_inference_request_success", ',pipeline="PIPELINE",model="tok",version="1"'),
            ("container_cpu_usage_seconds_total", ',container="triton"'),
        )
    ]
    expected = {
        "tritonpipe:throughput:rate": (
            '{namespace="n",pipeline="p",pod="p-6d4c-x7k2p",model="tok"}',
            10,
        ),
        "tritonpipe:cpu:cores": ('{namespace="n",pod="p-6d4c-x7k2p"}', 10),
    }
    asked = [
        {
            "expr": name,
            "eval_time": "8m",
            "exp_samples": [{"labels": f"{name}{labels}", "value": value}],
        }
        for name, (labels, value) in expected.items()
    ]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "30s",
        "tests": [{"interval": "30s", "input_series": series, "promql_expr_test": asked}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "test.yaml")


def test_every_rule_is_tested_and_every_alert_has_a_runbook() -> None:
    tests = Path(__file__).with_name("rules_test.yaml").read_text()
    for rule in monitoring.recording_rules():
        # Others of these stand on it, or it is a mean of one gauge.
        assert rule["record"] in tests or rule["record"] in {
            "tritonpipe:pending:sum",
            "tritonpipe:service:seconds",
            "tritonpipe:gpu_starved:ratio",
        }
    headings = {
        re.sub(r"\W", "", line).lower()
        for line in RUNBOOK.read_text().splitlines()
        if line.startswith("## ")
    }
    assert headings == {alert["alert"].lower() for alert in monitoring.alerts()}
    for alert in monitoring.alerts():
        assert f"alertname: {alert['alert']}" in tests


def test_every_expression_names_existing_metrics() -> None:
    recorded = {rule["record"] for rule in monitoring.recording_rules()}
    shown = [query.expression for query in dashboards.queries()]
    rules = [rule["expr"] for rule in (*monitoring.recording_rules(), *monitoring.alerts())]
    for expression in (*shown, *rules):
        assert used(expression), expression
        strange = {
            name
            for name in used(expression)
            if name not in recorded | own_metrics() | set(FIELDS) and not FOREIGN.fullmatch(name)
        }
        assert not strange, expression
