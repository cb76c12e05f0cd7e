"""Render alerts, and rule files with them and the recording rules.

They cover all pipelines at once, as the chart installs them, or a single one. ``python -m
hack.monitoring`` generates ``manifests/monitoring/rules.yaml`` from them, and the operator creates
a PrometheusRule from them.
"""

from __future__ import annotations

from typing import Any, Final

from .recording_rules import Rule, Scope, recording_rules

RUNBOOKS: Final = "docs/runbooks/alerts.md"
# Placeholder for the address of the docs folder; the chart replaces it in its files.
DOCS_URL: Final = "https://example.com/triton-pipelines/docs"


def alerts(scope: Scope | None = None, docs_url: str = DOCS_URL) -> list[Rule]:
    """Return the alerts; each has a section in docs/runbooks/alerts.md.

    Args:
        scope: The pipeline to which the alerts are limited; ``None`` for all pipelines, and the
            operator itself.
        docs_url: Address of the docs folder, with which the annotation ``runbook_url`` starts.
    """
    rules = [*_condition_alerts(), *_server_alerts(), *_scaling_alerts()]
    if scope is None:
        rules += _operator_alerts()
    return [
        {
            **rule,
            "expr": scope.of(rule["expr"]) if scope else rule["expr"],
            "annotations": {**rule["annotations"], "runbook_url": _runbook(rule, docs_url)},
        }
        for rule in rules
    ]


def _runbook(rule: Rule, docs_url: str) -> str:
    page = RUNBOOKS.removeprefix("docs/")
    return f"{docs_url.rstrip('/')}/{page}#{rule['alert'].lower()}"


_OF_PIPELINE: Final = "{{ $labels.namespace }}/{{ $labels.pipeline }}"


def _condition(kind: str, status: str) -> str:
    """Return the pipelines with a condition of this status.

    Without the reason, whose change would start the waiting time of the alert again.
    """
    series = f'tritonpipe_pipeline_condition{{type="{kind}",status="{status}"}}'
    return f"max by (namespace, pipeline) ({series})"


def _condition_alerts() -> list[Rule]:
    """Return the alerts about the conditions of pipelines."""
    return [
        _alert(
            "TritonPipelineNotAvailable",
            # Pipelines that are to have no pods are Ready: suspended ones, or with replicas 0.
            f"{_condition('Available', 'False')} unless {_condition('Ready', 'True')}",
            "5m",
            f"{_OF_PIPELINE} serves no requests",
            "No pod of the pipeline has been able to answer requests for five minutes.",
            severity="critical",
        ),
        _alert(
            "TritonPipelineStalled",
            _condition("Stalled", "True"),
            "10m",
            f"{_OF_PIPELINE} is stalled",
            "The operator cannot apply the spec, and retries do not help. The previous "
            "version, if any, still serves.",
        ),
        _alert(
            "TritonPipelineRolloutStuck",
            _condition("Reconciling", "True"),
            "30m",
            f"A change to {_OF_PIPELINE} has not been completed",
            "The operator has been rolling out a change, or waiting for resources that the change"
            " needs, for 30 minutes.",
        ),
    ]


def _server_alerts() -> list[Rule]:
    """Return the alerts about the latency, rejections, release and CPU of servers."""
    return [
        _alert(
            "TritonPipelineSLOViolated",
            "tritonpipe:latency_budget_used:ratio > 1",
            "10m",
            f"{_OF_PIPELINE} violates its SLO",
            "The p99 in the slowest pod is {{ $value | humanizePercentage }} of the latency "
            "that the SLO allows for the server.",
        ),
        _alert(
            "TritonPipelineRequestsRejected",
            "tritonpipe:rejected:ratio > 0.01",
            "10m",
            f"{_OF_PIPELINE} rejects requests",
            "A step rejects {{ $value | humanizePercentage }} of its requests, because its queue is"
            " full or they have waited too long.",
        ),
        _alert(
            "TritonPipelineServerAdvisory",
            "max by (namespace, pipeline)"
            ' (tritonpipe_pipeline_server_advisories{severity="Critical"}) > 0',
            "1h",
            f"The Triton release of {_OF_PIPELINE} has critical security advisories",
            "{{ $value }} known security bulletins of severity Critical affect the release.",
        ),
        _alert(
            "TritonPipelineCPUThrottled",
            "max by (namespace, pod) (tritonpipe:cpu_throttled:ratio) > 0.25",
            "15m",
            "The server of pod {{ $labels.namespace }}/{{ $labels.pod }} is throttled",
            "The container was throttled in {{ $value | humanizePercentage }} of its CFS "
            "periods. Its CPU limit is too low for its tokenizers.",
        ),
    ]


def _scaling_alerts() -> list[Rule]:
    """Return the alerts about live scaling."""
    failing = 'increase(tritonpipe_scaling_errors_total{kind=~"Metrics.+|PrometheusError"}[2m]) > 0'
    return [
        _alert(
            "TritonPipelineGPUStarved",
            "tritonpipe:gpu_starved:ratio > 0.2",
            "10m",
            "The GPU of {{ $labels.namespace }}/{{ $labels.pipeline }} is idle while requests wait"
            " for a CPU step",
            "During {{ $value | humanizePercentage }} of the last five minutes, the GPU step was"
            " idle while requests waited for a CPU step.",
        ),
        _alert(
            "TritonPipelineMetricsStale",
            "max by (namespace, pipeline) (tritonpipe_scaling_sample_age_seconds) > 60 or max by"
            f" (namespace, pipeline) ({failing})",
            "5m",
            "Scaling of {{ $labels.namespace }}/{{ $labels.pipeline }} has no usable metrics",
            "Instance counts remain unchanged or are raised to a recently sufficient level. "
            "They are not reduced until the metrics recover.",
        ),
        _alert(
            "TritonPipelineActuationFailing",
            (
                "sum by (namespace, pipeline) "
                '(increase(tritonpipe_scaling_errors_total{kind="ActuationFailed"}[15m])) >= 2'
            ),
            "1m",
            "Instance counts of {{ $labels.namespace }}/{{ $labels.pipeline }} cannot be changed",
            "Within 15 minutes, Triton rejected a change or the operator could not verify it "
            "{{ $value | humanize }} times. The serving instances were kept.",
        ),
    ]


def _operator_alerts() -> list[Rule]:
    """Return the alerts about the operator itself."""
    return [
        _alert(
            "TritonPipelinesOperatorDown",
            "absent(tritonpipe_leading)",
            "5m",
            "Prometheus has no metrics of the operator",
            "The operator is not running, or Prometheus cannot scrape it. Pipelines keep "
            "serving, but nothing is changed, scaled or repaired.",
            severity="critical",
        ),
        _alert(
            "TritonPipelinesNoLeader",
            "max(tritonpipe_leading) == 0",
            "2m",
            "The operator has no leader",
            "All replicas of the operator are on standby because none of them holds the Lease. "
            "Pipelines keep serving, but nothing is changed, scaled or repaired.",
            severity="critical",
        ),
        _alert(
            "TritonPipelinesReconcileErrors",
            'sum(rate(tritonpipe_reconciles_total{result=~"bug|transient"}[10m]))'
            " / sum(rate(tritonpipe_reconciles_total[10m])) > 0.1",
            "15m",
            "The operator's reconciles fail",
            "{{ $value | humanizePercentage }} of the reconciles ended in an error.",
        ),
        _alert(
            "TritonPipelinesReconcileHangs",
            # The operator cancels a reconcile after 300 s.
            "max(tritonpipe_queue_longest_work_seconds) > 120",
            "1m",
            "A reconcile hangs in the operator",
            "The longest-running reconcile started {{ $value | humanizeDuration }} ago.",
        ),
    ]


def _alert(
    name: str, expression: str, wait: str, summary: str, description: str, severity: str = "warning"
) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {
            "summary": summary,
            "description": description,
        },
    }


def groups(scope: Scope | None = None, docs_url: str = DOCS_URL) -> dict[str, Any]:
    """Return a rule file, which is also the spec of a PrometheusRule.

    Arguments as for :func:`alerts`.
    """
    return {
        "groups": [
            {"name": "triton-pipelines.rules", "rules": recording_rules(scope)},
            {"name": "triton-pipelines.alerts", "rules": alerts(scope, docs_url)},
        ]
    }
