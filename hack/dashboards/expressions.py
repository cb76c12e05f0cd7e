"""PromQL that both dashboards use.

Arguments named ``scope`` are matchers of the labels ``namespace`` and ``pipeline``; ``by`` are the
labels that remain. Recording rules are used where they fit. Their window is two minutes; other
rates use the interval that Grafana chooses for the scrape interval and the time shown.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = "$__rate_interval"
MODEL: Final = "namespace, pipeline, model"
_BY_GPU: Final = "max by (namespace, pod, gpu_uuid)"
_MEBIBYTE: Final = 1024 * 1024


def public_model(scope: str) -> str:
    """Return 1 for the model of each pipeline that clients call."""
    return f"max by ({MODEL}) (tritonpipe_pipeline_model_info{{{scope}}})"


def of_public_model(expression: str, scope: str) -> str:
    """Return only those series of an expression that are about the models that clients call."""
    return f"({expression}) * on ({MODEL}) group_left () {public_model(scope)}"


def rate(metric: str, scope: str, by: str) -> str:
    """Return the increase per second of a counter."""
    return f"sum by ({by}) (rate({metric}{{{scope}}}[{WINDOW}]))"


def requests(scope: str, by: str) -> str:
    """Return the completed requests per second of the public models."""
    return f"sum by ({by}) ({of_public_model(f'tritonpipe:throughput:rate{{{scope}}}', scope)})"


def mean_seconds(parts: tuple[str, ...], scope: str, by: str) -> str:
    """Return the mean time of successful requests in one or several parts of their way.

    Triton has counters of microseconds, which add a batch's time to each of its requests: divided
    by the number of requests they are the time that a request experiences.
    """
    spent = " + ".join(rate(f"nv_inference_{part}_duration_us", scope, by) for part in parts)
    total = f"({spent})" if len(parts) > 1 else spent
    return f"1e-6 * {total} / ({rate('nv_inference_request_success', scope, by)} > 0)"


def failed_share(scope: str, by: str) -> str:
    """Return failed requests as a share of all finished requests, 0 to 1."""
    failed = rate("nv_inference_request_failure", scope, by)
    succeeded = rate("nv_inference_request_success", scope, by)
    return f"{failed} / ({failed} + {succeeded} > 0)"


def quantile_seconds(quantile: str, scope: str) -> str:
    """Return a quantile that the pods report, by pod and model: there is none over pods.

    Args:
        quantile: Regular expression of the label's value.
        scope: Matchers of the pipelines.
    """
    return (
        f"1e-6 * max by ({MODEL}, pod, quantile)"
        f' (nv_inference_request_summary_us{{{scope}, quantile=~"{quantile}"}})'
    )


def p99_of_slowest_pod(scope: str, by: str) -> str:
    """Return the p99 of the public models in the pod in which it is highest."""
    return f"max by ({by}) ({of_public_model(quantile_seconds('0.99', scope), scope)})"


def latency_budget_used(scope: str) -> str:
    """Return the p99 of the slowest pod as a share of the latency budget, by pipeline."""
    return f"tritonpipe:latency_budget_used:ratio{{{scope}}}"


def by_pipeline(expression: str, scope: str) -> str:
    """Add the label ``pipeline`` to series that have only the pod's name.

    Args:
        expression: Series with the labels ``namespace`` and ``pod``.
        scope: Matchers of the pipelines.
    """
    pods = f"group by (namespace, pipeline, pod) (tritonpipe:pending:sum{{{scope}}})"
    return f"({expression}) * on (namespace, pod) group_left (pipeline) {pods}"


def gpu_memory_used(triton: str, pods: str, exported_pods: str) -> str:
    """Return the used memory of each GPU in bytes: Triton's figure, else the DCGM exporter's.

    Args:
        triton: Matchers of Triton's series.
        pods: Matchers of an exporter's series that have the labels of the pod.
        exported_pods: The same for ``exported_namespace`` and ``exported_pod``.
    """
    used = f"{_MEBIBYTE} * DCGM_FI_DEV_FB_USED{{MATCHERS}}"
    return (
        f"{_BY_GPU} (nv_gpu_memory_used_bytes{{{triton}}})"
        f" or {_from_exporter(used, pods, exported_pods)}"
    )


def gpu_memory_share(triton: str, pods: str, exported_pods: str) -> str:
    """Return the used share of each GPU's memory; arguments as for :func:`gpu_memory_used`."""
    used, free = "DCGM_FI_DEV_FB_USED{MATCHERS}", "DCGM_FI_DEV_FB_FREE{MATCHERS}"
    return (
        f"{_BY_GPU} (nv_gpu_memory_used_bytes{{{triton}}}"
        f" / (nv_gpu_memory_total_bytes{{{triton}}} > 0))"
        f" or {_from_exporter(f'{used} / ({used} + {free} > 0)', pods, exported_pods)}"
    )


def _from_exporter(expression: str, pods: str, exported_pods: str) -> str:
    """Return a figure of the DCGM exporter with Triton's labels, however it names the pod.

    Args:
        expression: PromQL with ``MATCHERS`` for the matchers of its selectors.
        pods: See :func:`gpu_memory_used`.
        exported_pods: See :func:`gpu_memory_used`.
    """
    direct = expression.replace("MATCHERS", f'exported_pod="", pod!="", {pods}')
    exported = expression.replace("MATCHERS", f'exported_pod!="", {exported_pods}')
    for label in ("namespace", "pod"):
        exported = f'label_replace({exported}, "{label}", "$1", "exported_{label}", "(.+)")'
    return " or ".join(
        f'{_BY_GPU} (label_replace({one}, "gpu_uuid", "$1", "UUID", "(.+)"))'
        for one in (direct, exported)
    )
