"""Render recording rules and alerts.

They cover all pipelines at once, as the chart installs them, or a single one. ``python -m
hack.monitoring`` generates ``manifests/monitoring/rules.yaml`` from them, and the operator creates
a PrometheusRule from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

# Four scrapes of 30 s: with fewer than two samples in the window a series vanishes.
WINDOW: Final = "2m"
# cAdvisor refreshes every 10 to 15 s with jitter and is usually scraped every 30 s.
CPU_WINDOW: Final = "2m"
BY: Final = "namespace, pipeline, pod, model"
RUNBOOKS: Final = "docs/runbooks/alerts.md"
# Placeholder for the address of the docs folder; the chart replaces it in its files.
DOCS_URL: Final = "https://example.com/triton-pipelines/docs"

Rule = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """The pipeline to which expressions are limited.

    Triton's series get the label ``pipeline`` from the PodMonitor's relabelling; the operator's own
    and the recorded series have it anyway. The series of cAdvisor and of GPU exporters, and those
    recorded from cAdvisor's, have only the pod: a pod's name is that of its pipeline plus two
    parts, and the pods of a pipeline whose name starts with the same text have more parts.
    """

    namespace: str
    """Namespace of the pipeline."""
    pipeline: str
    """Name of the pipeline."""

    def of(self, expression: str) -> str:
        """Return the expression with every selector limited to the pipeline."""
        return _SELECTOR.sub(self._narrowed, expression)

    def _narrowed(self, found: re.Match[str]) -> str:
        metric, given = found["metric"], found["given"] or ""
        prefix = "exported_" if 'exported_pod!=""' in given else ""
        matchers = [f'{prefix}namespace="{self.namespace}"']
        # Names of pipelines are DNS labels, which need no escaping in regular expressions and
        # contain no quotes.
        by_pod = metric.startswith(("container_", "DCGM_", "tritonpipe:cpu"))
        matchers.append(
            f'{prefix}pod=~"{self.pipeline}-[0-9a-z]+-[0-9a-z]+"'
            if by_pod
            else f'pipeline="{self.pipeline}"'
        )
        return f"{metric}{{{','.join([given, *matchers] if given else matchers)}}}"


# A metric of the operator, Triton, cAdvisor or a GPU exporter, and its matchers.
_SELECTOR: Final = re.compile(
    r"\b(?P<metric>(?:nv_|container_|DCGM_|tritonpipe[_:])[\w:]+)(?:\{(?P<given>[^}]*)\})?"
)


def _rate(metric: str) -> str:
    return f"sum by ({BY}) (rate({metric}[{WINDOW}]))"


def _spent(*parts: str) -> str:
    return " + ".join(_rate(f"nv_inference_compute_{part}_duration_us") for part in parts)


def _queued(function: str = "{}") -> str:
    """Return a function of both gauges of queued requests; a label distinguishes the series."""
    pending = function.format("nv_inference_pending_request_count")
    passed = function.format("tritonpipe_step_passed_requests")
    return f'{pending} or label_replace({passed}, "queue", "passed", "", "")'


# tritonpipe_step_instances by model. Without that label the step's name is used, which is the
# model's default name.
INSTANCES: Final = (
    'max by (namespace, pod, model) (tritonpipe_step_instances{model!=""} '
    'or label_replace(tritonpipe_step_instances{model=""}, "model", "$1", "step", "(.+)"))'
)


def recording_rules(scope: Scope | None = None) -> list[Rule]:
    """Return the series that people and autoscalers read.

    They are per pod and model, so that queries can sum (demand) or take the maximum (saturation).

    Args:
        scope: The pipeline to which the rules are limited; ``None`` for all pipelines.
    """
    rules = {**_load_rules(), **_cpu_rules(), **_gpu_rules(), **_slo_rules()}
    return [
        {"record": name, "expr": scope.of(expression) if scope else expression}
        for name, expression in rules.items()
    ]


def _load_rules() -> dict[str, str]:
    """Return the rules about requests and instances, from Triton's metrics."""
    hits = f"({_rate('nv_cache_num_hits_per_model')} or 0 * tritonpipe:throughput:rate)"
    growth = _queued(f"deriv({{}}[{WINDOW}])")
    on = "on (namespace, pod, model) group_left ()"
    return {
        # Completions per second.
        "tritonpipe:throughput:rate": _rate("nv_inference_request_success"),
        # Requests that wait and are not executing.
        "tritonpipe:pending:sum": f"sum by ({BY}) ({_queued()})",
        # Arrivals per second: completions and growth of the backlog.
        "tritonpipe:arrivals:rate": (f"tritonpipe:throughput:rate + sum by ({BY}) ({growth})"),
        # Requests per execution. Cache hits are excluded because they are not executed.
        "tritonpipe:batch:mean": (
            f"(tritonpipe:throughput:rate - {hits}) / ({_rate('nv_inference_exec_count')} > 0)"
        ),
        # Busy instances. Triton adds a batch's time once for each of its requests.
        "tritonpipe:busy:instances": (
            f"1e-6 * ({_spent('input', 'infer', 'output')}) / (tritonpipe:batch:mean > 0)"
        ),
        # Busy share of the instances of scaled steps.
        "tritonpipe:busy:ratio": f"tritonpipe:busy:instances / {on} {INSTANCES}",
        # Seconds of one instance per request.
        "tritonpipe:service:seconds": (
            "tritonpipe:busy:instances / (tritonpipe:throughput:rate > 0)"
        ),
        # Wait before the step by Little's law; the service time of the last quarter of an hour,
        # since none completes in a stall.
        "tritonpipe:wait:seconds": (
            f"tritonpipe:pending:sum * last_over_time(tritonpipe:service:seconds[15m]) / {on}"
            f" {INSTANCES}"
        ),
        # Mean queue time of completed requests. For diagnosis only: it has no value during a stall.
        "tritonpipe:queue:seconds": (
            f"1e-6 * {_rate('nv_inference_queue_duration_us')} / (tritonpipe:throughput:rate > 0)"
        ),
    }


def _cpu_rules() -> dict[str, str]:
    """Return the rules about the CPU of Triton's container, from cAdvisor's metrics."""
    container = 'container="triton"'
    return {
        "tritonpipe:cpu:cores": (
            "max by (namespace, pod)"
            f" (rate(container_cpu_usage_seconds_total{{{container}}}[{CPU_WINDOW}]))"
        ),
        "tritonpipe:cpu_throttled:ratio": (
            "max by (namespace, pod)"
            f" (rate(container_cpu_cfs_throttled_periods_total{{{container}}}[{CPU_WINDOW}]))"
            " / (max by (namespace, pod)"
            f" (rate(container_cpu_cfs_periods_total{{{container}}}[{CPU_WINDOW}])) > 0)"
        ),
    }


def _gpu_rules() -> dict[str, str]:
    """Return the rules about GPUs, from metrics of Triton, the DCGM exporter and the operator."""
    return {
        # The busiest GPU of a pod, 0 to 1: Triton's own figure, else the DCGM exporter's.
        "tritonpipe:gpu:ratio": (
            f"max by (namespace, pod) (avg_over_time(nv_gpu_utilization[{WINDOW}]))"
            " or max by (namespace, pod) "
            "(label_replace(label_replace("
            f'avg_over_time(DCGM_FI_DEV_GPU_UTIL{{exported_pod!=""}}[{WINDOW}]) / 100,'
            ' "namespace", "$1", "exported_namespace", "(.+)"), "pod", "$1", "exported_pod", '
            '"(.+)"))'
            " or max by (namespace, pod) "
            f'(avg_over_time(DCGM_FI_DEV_GPU_UTIL{{exported_pod="",pod!=""}}[{WINDOW}]) / 100)'
        ),
        # Share of the time in which the GPU step idled while work waited before it.
        "tritonpipe:gpu_starved:ratio": (
            "max by (namespace, pipeline) (avg_over_time(tritonpipe_gpu_starved_ratio[5m]))"
        ),
    }


def _slo_rules() -> dict[str, str]:
    """Return the rule about the SLO: the p99 of the slowest pod as a share of its budget."""
    by_model, by_pipeline = "namespace, pipeline, model", "namespace, pipeline"
    p99 = f'1e-6 * max by ({by_model}) (nv_inference_request_summary_us{{quantile="0.99"}})'
    public_model = f"max by ({by_model}) (tritonpipe_pipeline_model_info)"
    budget = f"max by ({by_pipeline}) (tritonpipe_pipeline_latency_budget_seconds)"
    return {
        # The model that clients call. Above 1 the SLO is violated. No value without an SLO.
        "tritonpipe:latency_budget_used:ratio": (
            f"max by ({by_pipeline}) ({p99} * on ({by_model}) group_left () {public_model})"
            f" / on ({by_pipeline}) ({budget} > 0)"
        ),
    }


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
    """Return the alerts about the latency, the release and the CPU of servers."""
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
