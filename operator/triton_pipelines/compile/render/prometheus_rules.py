"""Recording rules and alerts of live scaling. Pure.

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

Rule = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """One pipeline, whose series alone are looked at.

    Triton's series bear the label ``pipeline`` by the PodMonitor's relabelling, the operator's own
    and recorded ones do anyway. cAdvisor's and those of GPU exporters know the pod alone: pods are
    named after their pipeline, with two parts more, and those of a pipeline whose name begins alike
    have more parts.
    """

    namespace: str
    pipeline: str

    def of(self, expression: str) -> str:
        """The expression with every selector narrowed to the pipeline."""
        return _SELECTOR.sub(self._narrowed, expression)

    def _narrowed(self, found: re.Match[str]) -> str:
        metric, given = found["metric"], found["given"] or ""
        prefix = "exported_" if 'exported_pod!=""' in given else ""
        matchers = [f'{prefix}namespace="{self.namespace}"']
        # Names of pipelines are DNS labels: nothing in them means anything in a regular expression,
        # and quotes are none.
        by_pod = metric.startswith(("container_", "DCGM_"))
        matchers.append(
            f'{prefix}pod=~"{self.pipeline}-[0-9a-z]+-[0-9a-z]+"'
            if by_pod
            else f'pipeline="{self.pipeline}"'
        )
        return f"{metric}{{{','.join([given, *matchers] if given else matchers)}}}"


# A metric of ours, Triton's, cAdvisor's or a GPU exporter's, and its matchers.
_SELECTOR: Final = re.compile(
    r"\b(?P<metric>(?:nv_|container_|DCGM_|tritonpipe[_:])[\w:]+)(?:\{(?P<given>[^}]*)\})?"
)


def _rate(metric: str) -> str:
    return f"sum by ({BY}) (rate({metric}[{WINDOW}]))"


def _spent(*parts: str) -> str:
    return " + ".join(_rate(f"nv_inference_compute_{part}_duration_us") for part in parts)


# tritonpipe_step_instances by model; without that label the step's name stands for it, which is its
# default.
INSTANCES: Final = (
    'max by (namespace, pod, model) (tritonpipe_step_instances{model!=""} '
    'or label_replace(tritonpipe_step_instances{model=""}, "model", "$1", "step", "(.+)"))'
)


def recording_rules(scope: Scope | None = None) -> list[Rule]:
    """What people and autoscalers read.

    Per pod and model, so that sums (demand) and maxima (saturation) can follow.

    ``scope``: of one pipeline; ``None``: of all.
    """
    hits = f"({_rate('nv_cache_num_hits_per_model')} or 0 * tritonpipe:throughput:rate)"
    on = "on (namespace, pod, model) group_left ()"
    container = 'container="triton"'
    rules = {
        # Completions per second.
        "tritonpipe:throughput:rate": _rate("nv_inference_request_success"),
        # Requests that wait and are not executing.
        "tritonpipe:pending:sum": f"sum by ({BY}) (nv_inference_pending_request_count)",
        # Arrivals per second: completions and growth of the backlog.
        "tritonpipe:arrivals:rate": (
            f"tritonpipe:throughput:rate + sum by ({BY})"
            f" (deriv(nv_inference_pending_request_count[{WINDOW}]))"
        ),
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
    return [
        {"record": name, "expr": scope.of(expression) if scope else expression}
        for name, expression in rules.items()
    ]


def alerts(scope: Scope | None = None) -> list[Rule]:
    """The three alerts; each has a section in docs/runbooks/alerts.md.

    ``scope``: as for :func:`recording_rules`.
    """
    failing = 'increase(tritonpipe_scaling_errors_total{kind=~"Metrics.+|PrometheusError"}[2m]) > 0'
    made = [
        _alert(
            "TritonPipelineGPUStarved",
            "tritonpipe:gpu_starved:ratio > 0.2",
            "10m",
            "The GPU of {{ $labels.namespace }}/{{ $labels.pipeline }} idles while work waits"
            " before it",
            "In {{ $value | humanizePercentage }} of the last five minutes the GPU step idled"
            " while requests waited for a CPU step.",
        ),
        _alert(
            "TritonPipelineMetricsStale",
            "max by (namespace, pipeline) (tritonpipe_scaling_sample_age_seconds) > 60 or max by"
            f" (namespace, pipeline) ({failing})",
            "5m",
            "Scaling of {{ $labels.namespace }}/{{ $labels.pipeline }} has no usable metrics",
            "Counts hold, or rise to what was enough lately; none falls until metrics are back.",
        ),
        _alert(
            "TritonPipelineActuationFailing",
            (
                "sum by (namespace, pipeline) "
                '(increase(tritonpipe_scaling_errors_total{kind="ActuationFailed"}[15m])) >= 2'
            ),
            "1m",
            "Instance counts of {{ $labels.namespace }}/{{ $labels.pipeline }} cannot be changed",
            "Triton refused or did not prove a change {{ $value | humanize }} times within 15"
            " minutes; the instances that serve were kept.",
        ),
    ]
    return [{**rule, "expr": scope.of(rule["expr"])} for rule in made] if scope else made


def _alert(name: str, expression: str, wait: str, summary: str, description: str) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": summary,
            "description": description,
            "runbook": f"{RUNBOOKS}#{name.lower()}",
        },
    }


def groups(scope: Scope | None = None) -> dict[str, Any]:
    """A rule file, or the spec of a PrometheusRule."""
    return {
        "groups": [
            {"name": "triton-pipelines.rules", "rules": recording_rules(scope)},
            {"name": "triton-pipelines.alerts", "rules": alerts(scope)},
        ]
    }
