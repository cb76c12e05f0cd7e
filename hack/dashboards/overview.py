"""The dashboard of all pipelines, and of the operator itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from triton_pipelines.compile.render.prometheus_rules import alerts as alert_rules

from . import alerts
from .expressions import (
    MODEL,
    WINDOW,
    by_pipeline,
    failed_share,
    gpu_memory_share,
    latency_budget_used,
    mean_seconds,
    of_public_model,
    requests,
)
from .grafana import COLUMNS, Dashboard, Kind, Panel, Query, Row, Variable, number
from .pipeline import NEEDS_SLO
from .pipeline import UID as PIPELINE_UID

UID: Final = "triton-pipelines-overview"
OWN: Final = 'namespace=~"$namespace", pipeline=~"$pipeline"'
# Series of cAdvisor and GPU exporters have no label for the pipeline; it is joined by the pod.
PODS: Final = 'namespace=~"$namespace"'
EXPORTED_PODS: Final = 'exported_namespace=~"$namespace"'
MOST: Final = 20
"""Pipelines shown in one panel: those with the highest values."""
_BY: Final = "namespace, pipeline"
_NAME: Final = "{{namespace}}/{{pipeline}}"
_WHICH: Final = f" The {MOST} pipelines with the highest values."


def _link(namespace: str, pipeline: str) -> tuple[str, str]:
    """Return the link to the dashboard of a pipeline; arguments are Grafana's expressions."""
    return (
        "Dashboard of the pipeline",
        f"/d/{PIPELINE_UID}?var-datasource=${{datasource}}&var-namespace=${{{namespace}}}"
        f"&var-pipeline=${{{pipeline}}}&${{__url_time_range}}",
    )


_SERIES_LINK: Final = _link("__field.labels.namespace", "__field.labels.pipeline")


def dashboard() -> Dashboard:
    """Return the dashboard of all pipelines."""
    return Dashboard(
        UID,
        "Triton pipelines: overview",
        "State, load and hardware of all pipelines, and the operator itself.",
        (
            Variable(
                "namespace",
                "Namespace",
                "label_values(tritonpipe_pipeline_condition, namespace)",
                several=True,
            ),
            Variable(
                "pipeline",
                "Pipeline",
                'label_values(tritonpipe_pipeline_condition{namespace=~"$namespace"}, pipeline)',
                several=True,
            ),
        ),
        (_SUMMARY, _pipelines(), _LOAD, _SCALING, _hardware(), _RECONCILES, _PROCESS),
    )


def _highest(
    title: str,
    description: str,
    unit: str,
    expression: str,
    axis: str,
    maximum: float | None = None,
) -> Panel:
    """Return a panel with one line for each of the pipelines with the highest values."""
    query = Query(f"topk({MOST}, {expression})", _NAME)
    return Panel(
        title,
        description + _WHICH,
        unit,
        (query,),
        axis=axis,
        maximum=maximum,
        link=_SERIES_LINK,
    )


def _in_one_line(title: str, panels: tuple[Panel, ...]) -> Row:
    """Return a row whose panels share its width."""
    return Row(title, tuple(replace(panel, width=COLUMNS // len(panels)) for panel in panels))


def _with_condition(kind: str, status: str) -> str:
    """Return the number of pipelines with a condition."""
    labels = f'{OWN}, type="{kind}", status="{status}"'
    return f"count(group by ({_BY}) (tritonpipe_pipeline_condition{{{labels}}}))"


_FIRING: Final = f'ALERTS{{alertstate="firing", alertname=~"TritonPipeline.+", {PODS}}}'
_SUMMARY: Final = Row(
    "Is anything wrong?",
    (
        number(
            "Pipelines",
            "Pipelines that the operator has a status of.",
            "short",
            Query(f"count(group by ({_BY}) (tritonpipe_pipeline_condition{{{OWN}}}))"),
            no_value="0",
        ),
        number(
            "Available",
            "Pipelines of which at least one pod serves requests.",
            "short",
            Query(_with_condition("Available", "True")),
            no_value="0",
        ),
        number(
            "Not available",
            "Pipelines of which no pod serves requests, including suspended ones.",
            "short",
            Query(_with_condition("Available", "False")),
            limits=((1, "red"),),
            no_value="0",
        ),
        number(
            "Stalled",
            "Pipelines whose spec cannot be applied; retrying does not help.",
            "short",
            Query(_with_condition("Stalled", "True")),
            limits=((1, "orange"),),
            no_value="0",
        ),
        number(
            "Without usable metrics",
            "Pipelines whose instance counts are held because metrics are missing.",
            "short",
            Query(_with_condition("MetricsAvailable", "False")),
            limits=((1, "orange"),),
            no_value="0",
        ),
        number(
            "Firing alerts",
            "Needs the alerting rules of this project in Prometheus.",
            "short",
            Query(f"count({_FIRING})"),
            limits=((1, "red"),),
            no_value="0",
        ),
    ),
)


def _pipelines() -> Row:
    condition = f'tritonpipe_pipeline_condition{{{OWN}, type="Ready"}}'
    key = ("namespace", "pipeline")
    busiest = by_pipeline(f"tritonpipe:gpu:ratio{{{PODS}}}", OWN)
    return Row(
        "Pipelines and alerts",
        (
            Panel(
                "Pipelines",
                "Condition Ready and its reason, verdict, ready pods, completed requests per"
                " second, failed share, share of the latency budget (with spec.slo) and"
                " utilization of the busiest GPU. A value links to the pipeline's dashboard.",
                "short",
                (
                    Query(
                        f"max by ({_BY}, status, reason) ({condition})",
                        labels=(*key, "status", "reason"),
                    ),
                    Query(
                        f"max by ({_BY}, verdict) (tritonpipe_pipeline_verdict{{{OWN}}} == 1)",
                        labels=(*key, "verdict"),
                    ),
                    Query(
                        f'max by ({_BY}) (tritonpipe_pipeline_pods{{{OWN}, state="ready"}})',
                        "ready pods",
                        key,
                    ),
                    Query(requests(OWN, _BY), "requests", key),
                    Query(
                        f"max by ({_BY}) ({of_public_model(failed_share(OWN, MODEL), OWN)})",
                        "failed",
                        key,
                    ),
                    Query(latency_budget_used(OWN), "latency budget used", key),
                    Query(f"max by ({_BY}) ({busiest})", "GPU", key),
                ),
                kind=Kind.TABLE,
                width=24,
                height=10,
                units={
                    "requests": "reqps",
                    "failed": "percentunit",
                    "latency budget used": "percentunit",
                    "GPU": "percentunit",
                },
                link=_link("__data.fields.namespace", "__data.fields.pipeline"),
            ),
            # Alerts about the operator have no namespace.
            alerts.active(('alertname=~"TritonPipeline.+", namespace=~"$namespace|"',)),
            alerts.meanings(rule for rule in alert_rules() if "alert" in rule),
        ),
    )


_MEAN: Final = of_public_model(mean_seconds(("request",), OWN, MODEL), OWN)
_FAILED: Final = of_public_model(failed_share(OWN, MODEL), OWN)
_LOAD: Final = Row(
    "Load, errors and latency",
    (
        _highest(
            "Requests",
            "Completed requests per second of the model that clients call, all pods.",
            "reqps",
            requests(OWN, _BY),
            "requests",
        ),
        _highest(
            "Failed requests",
            "Share of the requests to the model that clients call that failed. Triton counts a"
            " failed request of an ensemble twice.",
            "percentunit",
            f"max by ({_BY}) ({_FAILED})",
            "share of requests",
        ),
        _highest(
            "Mean latency",
            "Mean time of successful requests in the server. From counters: a mean, no percentile.",
            "s",
            f"max by ({_BY}) ({_MEAN})",
            "time per request",
        ),
        _highest(
            "Latency budget used",
            "p99 of the slowest pod as a share of the latency budget: the SLO minus the time"
            " for network and queues. Above 100 % the SLO is violated." + NEEDS_SLO,
            "percentunit",
            latency_budget_used(OWN),
            "share of the budget",
        ),
        _highest(
            "Waiting requests",
            "Requests in the queues of all steps and pods.",
            "short",
            f"sum by ({_BY}) (tritonpipe:pending:sum{{{OWN}}})",
            "requests",
        ),
        _highest(
            "Longest wait",
            "How long a request that arrives now will wait before the scaled step where it"
            " waits longest.",
            "s",
            f"max by ({_BY}) (tritonpipe_step_wait_seconds{{{OWN}}})",
            "time",
        ),
    ),
)

_ACTIONS: Final = f"tritonpipe_scaling_actions_total{{{OWN}}}"
_ERRORS: Final = f"tritonpipe_scaling_errors_total{{{OWN}}}"
_SCALING: Final = Row(
    "Live scaling",
    (
        Panel(
            "Pipelines by verdict",
            "What limits the pipelines.",
            "short",
            (
                Query(
                    f"sum by (verdict) (max by ({_BY}, verdict)"
                    f" (tritonpipe_pipeline_verdict{{{OWN}}}) == 1)",
                    "{{verdict}}",
                ),
            ),
            axis="pipelines",
            stacked=True,
        ),
        _highest(
            "Instances of scaled steps",
            "Instances that the pods' Triton reports, all scaled steps and pods.",
            "short",
            f"sum by ({_BY}) (max by ({_BY}, step, pod) (tritonpipe_step_instances{{{OWN}}}))",
            "instances",
        ),
        Panel(
            "Changes",
            "Changes of counts, pods and CPU by direction and reason, since the operator started.",
            "short",
            (
                Query(
                    f"sum by (direction, reason) ({_ACTIONS})",
                    "{{direction}} {{reason}}",
                ),
            ),
            axis="changes",
        ),
        Panel(
            "Errors of live scaling",
            "By kind, since the operator started.",
            "short",
            (Query(f"sum by (kind) ({_ERRORS})", "{{kind}}"),),
            axis="errors",
        ),
        _highest(
            "Age of samples",
            "Age of the oldest samples on which live scaling decides.",
            "s",
            f"max by ({_BY}) (tritonpipe_scaling_sample_age_seconds{{{OWN}}})",
            "age",
        ),
        _highest(
            "Starved GPU",
            "Share of the last five minutes in which the GPU step was idle although requests"
            " waited for a CPU step.",
            "percentunit",
            f"max by ({_BY}) (tritonpipe:gpu_starved:ratio{{{OWN}}})",
            "share of time",
            1,
        ),
    ),
)


def _hardware() -> Row:
    def highest(expression: str) -> str:
        return f"max by ({_BY}) ({by_pipeline(expression, OWN)})"

    memory = f"max by (namespace, pod) ({gpu_memory_share(PODS, PODS, EXPORTED_PODS)})"
    cores = by_pipeline(f"tritonpipe:cpu:cores{{{PODS}}}", OWN)
    return _in_one_line(
        "GPUs and CPU",
        (
            _highest(
                "GPU utilization",
                "The busiest GPU of each pipeline: share of time in which it computed anything. No"
                " data with MIG, or without a GPU.",
                "percentunit",
                highest(f"tritonpipe:gpu:ratio{{{PODS}}}"),
                "share of time",
                1,
            ),
            _highest(
                "Used share of GPU memory",
                "The fullest GPU of each pipeline. No data with MIG, or without a GPU.",
                "percentunit",
                highest(memory),
                "share of memory",
                1,
            ),
            _highest(
                "CPU of the servers",
                "CPU usage of all pods of a pipeline.",
                "short",
                f"sum by ({_BY}) ({cores})",
                "cores",
            ),
            _highest(
                "Throttled CPU periods",
                "The most throttled pod of each pipeline. Above 10 % live scaling adds no"
                " instances to it.",
                "percentunit",
                highest(f"tritonpipe:cpu_throttled:ratio{{{PODS}}}"),
                "share of periods",
                1,
            ),
        ),
    )


def _quantile(quantile: float, histogram: str, by: str = "") -> str:
    """Return a quantile of one of the operator's histograms."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({quantile}, sum by ({labels}) (rate({histogram}_bucket[{WINDOW}])))"


_DURATION: Final = "tritonpipe_reconcile_duration_seconds"
_WAIT: Final = "tritonpipe_queue_wait_seconds"
_API_REQUESTS: Final = "tritonpipe_api_requests_total"
_API_DURATION: Final = "tritonpipe_api_request_duration_seconds"
_RECONCILES: Final = Row(
    "Does the operator keep up?",
    (
        Panel(
            "Reconciles",
            "Finished reconciles per second by result.",
            "ops",
            (
                Query(
                    f"sum by (result) (rate(tritonpipe_reconciles_total[{WINDOW}]))",
                    "{{result}}",
                ),
            ),
            axis="reconciles",
        ),
        Panel(
            "Duration of reconciles",
            "Percentiles of the duration, from a histogram. No data while nothing is reconciled.",
            "s",
            (
                Query(_quantile(0.5, _DURATION), "median"),
                Query(_quantile(0.99, _DURATION), "p99"),
            ),
            axis="time",
        ),
        Panel(
            "Queue",
            "Pipelines that are due, in work, and scheduled for later.",
            "short",
            (
                Query("sum(tritonpipe_queue_depth)", "due"),
                Query("sum(tritonpipe_queue_in_work)", "in work"),
                Query("sum(tritonpipe_queue_delayed)", "scheduled"),
            ),
            axis="pipelines",
        ),
        Panel(
            "Wait and longest reconcile",
            "p99 of the time from being due to the start of a reconcile, and age of the"
            " longest-running reconcile.",
            "s",
            (
                Query(_quantile(0.99, _WAIT), "p99 wait"),
                Query("max(tritonpipe_queue_longest_work_seconds)", "longest reconcile"),
            ),
            axis="time",
        ),
        Panel(
            "Requests to the API server",
            "Attempts per second by HTTP status.",
            "reqps",
            (Query(f"sum by (code) (rate({_API_REQUESTS}[{WINDOW}]))", "{{code}}"),),
            axis="requests",
        ),
        Panel(
            "p99 of requests to the API server",
            "By verb, from a histogram.",
            "s",
            (Query(_quantile(0.99, _API_DURATION, "verb"), "{{verb}}"),),
            axis="time",
        ),
    ),
)

_OPERATOR: Final = "and on (job, instance) tritonpipe_leading"
_PROCESS: Final = _in_one_line(
    "Is the operator healthy?",
    (
        Panel(
            "Leader",
            "1 for the replica that holds the Lease; 0 for replicas on standby.",
            "short",
            (Query("max by (instance) (tritonpipe_leading)", "{{instance}}"),),
            axis="leads",
            maximum=1,
        ),
        Panel(
            "Event loop lag",
            "p99 of how late the event loop runs a timer.",
            "s",
            (Query(_quantile(0.99, "tritonpipe_loop_lag_seconds"), "p99"),),
            axis="time",
        ),
        Panel(
            "CPU of the operator",
            "CPU usage of each replica.",
            "short",
            (
                Query(
                    f"max by (instance) (rate(process_cpu_seconds_total[{WINDOW}]) {_OPERATOR})",
                    "{{instance}}",
                ),
            ),
            axis="cores",
        ),
        Panel(
            "Memory of the operator",
            "Resident memory of each replica.",
            "bytes",
            (
                Query(
                    f"max by (instance) (process_resident_memory_bytes {_OPERATOR})", "{{instance}}"
                ),
            ),
            axis="memory",
        ),
    ),
)
