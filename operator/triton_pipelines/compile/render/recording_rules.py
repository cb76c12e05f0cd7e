"""Render recording rules: for all pipelines, or for a single one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

# Four scrapes of 30 s: with fewer than two samples in the window a series vanishes.
WINDOW: Final = "2m"
# cAdvisor refreshes every 10 to 15 s with jitter and is usually scraped every 30 s.
CPU_WINDOW: Final = "2m"
BY: Final = "namespace, pipeline, pod, model"

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


_REJECTED: Final = 'nv_inference_request_failure{reason="REJECTED"}'


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
    rules = {**_load_rules(), **_cpu_rules(), **_gpu_rules(), **_slo_rules(), **_rejection_rules()}
    return [
        {"record": name, "expr": scope.of(expression) if scope else expression}
        for name, expression in rules.items()
    ]


def _load_rules() -> dict[str, str]:
    """Return the rules about requests and instances, from Triton's metrics."""
    hits = f"({_rate('nv_cache_num_hits_per_model')} or 0 * tritonpipe:throughput:rate)"
    growth = _queued(f"deriv({{}}[{WINDOW}])")
    rejected = f"{_rate(_REJECTED)} or 0 * tritonpipe:throughput:rate"
    on = "on (namespace, pod, model) group_left ()"
    return {
        # Completions per second.
        "tritonpipe:throughput:rate": _rate("nv_inference_request_success"),
        # Requests that wait and are not executing.
        "tritonpipe:pending:sum": f"sum by ({BY}) ({_queued()})",
        # Arrivals per second: completions, growth of the backlog and rejected requests.
        "tritonpipe:arrivals:rate": (
            f"tritonpipe:throughput:rate + sum by ({BY}) ({growth}) + ({rejected})"
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
    }


def _rejection_rules() -> dict[str, str]:
    """Return the rule about rejected requests: the share in the step that rejects most."""
    by = "namespace, pipeline, model"
    return {
        "tritonpipe:rejected:ratio": (
            f"max by (namespace, pipeline) (sum by ({by}) ({_rate(_REJECTED)})"
            f" / (sum by ({by}) (tritonpipe:arrivals:rate) > 0))"
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
