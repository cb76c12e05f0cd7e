"""The dashboard of one pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from triton_pipelines.compile.render.prometheus_rules import alerts as alert_rules
from triton_pipelines.compile.render.recording_rules import Scope

from . import alerts
from .expressions import (
    failed_share,
    gpu_memory_share,
    gpu_memory_used,
    latency_budget_used,
    mean_seconds,
    of_public_model,
    p99_of_slowest_pod,
    quantile_seconds,
    rate,
    requests,
)
from .grafana import Dashboard, Kind, Panel, Query, Row, Variable, number

UID: Final = "triton-pipelines-pipeline"
OWN: Final = 'namespace="$namespace", pipeline="$pipeline"'
# Series of cAdvisor and GPU exporters have no label for the pipeline. Names of pods are those of
# their pipeline and two parts; pods of a pipeline whose name starts with the same text have more.
_NAMES: Final = "$pipeline-[0-9a-z]+-[0-9a-z]+"
PODS: Final = f'namespace="$namespace", pod=~"{_NAMES}"'
EXPORTED_PODS: Final = f'exported_namespace="$namespace", exported_pod=~"{_NAMES}"'
NEEDS_SLO: Final = (
    " Only with spec.slo.p99Milliseconds: the pods then report quantiles of their last minute."
)
_BY: Final = "namespace, pipeline"
_STEPS: Final = f"{_BY}, model"
_SCOPE: Final = Scope("$namespace", "$pipeline")
_COMPUTE: Final = ("compute_input", "compute_infer", "compute_output")
_BUDGET: Final = f"max by ({_BY}) (tritonpipe_pipeline_latency_budget_seconds{{{OWN}}})"


def dashboard() -> Dashboard:
    """Return the dashboard of one pipeline."""
    return Dashboard(
        UID,
        "Triton pipelines: one pipeline",
        "Load, latency, errors, scaling and hardware of one pipeline.",
        (
            Variable(
                "namespace", "Namespace", "label_values(tritonpipe_pipeline_condition, namespace)"
            ),
            Variable(
                "pipeline",
                "Pipeline",
                'label_values(tritonpipe_pipeline_condition{namespace="$namespace"}, pipeline)',
            ),
        ),
        (_SUMMARY, _state(), _LATENCY, _ERRORS, _QUEUES, _SCALING, _GPU, _PODS),
    )


_VERDICT: Final = f"max by (verdict) (tritonpipe_pipeline_verdict{{{OWN}}} == 1)"
_SUMMARY: Final = Row(
    "Does it serve, and well?",
    (
        number(
            "Ready pods",
            "Pods that serve requests.",
            "short",
            Query(f'max by ({_BY}) (tritonpipe_pipeline_pods{{{OWN}, state="ready"}})'),
        ),
        number(
            "Requests",
            "Completed requests per second of the model that clients call, all pods.",
            "reqps",
            Query(requests(OWN, _BY)),
            no_value="0",
        ),
        number(
            "Failed requests",
            "Share of the requests to the model that clients call that failed. Triton counts a"
            " failed request of an ensemble twice: with few failures the true share is about"
            " half of this.",
            "percentunit",
            Query(of_public_model(failed_share(OWN, _STEPS), OWN)),
            limits=((0.01, "red"),),
            no_value="no requests",
        ),
        number(
            "p99 of the slowest pod",
            "99 of 100 requests of the last minute were faster, in the pod in which this is"
            " highest. Time in the server, without the network." + NEEDS_SLO,
            "s",
            Query(p99_of_slowest_pod(OWN, _BY)),
            no_value="no SLO or requests",
        ),
        number(
            "Latency budget used",
            "p99 of the slowest pod as a share of the latency budget, which is the SLO minus"
            " the time for network and queues. Above 100 % the SLO is violated." + NEEDS_SLO,
            "percentunit",
            Query(latency_budget_used(OWN)),
            limits=((0.8, "orange"), (1.0, "red")),
            no_value="no SLO or requests",
        ),
        number(
            "Verdict",
            "What limits the pipeline at present, as in the column BOTTLENECK of kubectl.",
            "short",
            Query(_VERDICT, "{{verdict}}"),
            no_value="not scaled",
        ),
    ),
)


def _state() -> Row:
    condition = f"tritonpipe_pipeline_condition{{{OWN}}}"
    labels = ("type", "status", "reason")
    about_pods = f'alertname=~"TritonPipeline.+", pipeline="", {PODS}'
    about_pipeline = f'alertname=~"TritonPipeline.+", {OWN}'
    rules = [rule for rule in alert_rules(_SCOPE) if "alert" in rule]
    return Row(
        "Conditions and alerts",
        (
            Panel(
                "Conditions",
                "The present conditions of the resource. docs/runbooks/reasons.md has a section"
                " for each reason.",
                "short",
                (Query(f"max by ({', '.join(labels)}) ({condition}) == 1", labels=labels),),
                kind=Kind.TABLE,
                width=12,
            ),
            alerts.active((about_pipeline, about_pods)),
            Panel(
                "Conditions over time",
                "Each bar is one status and reason of a condition, while it was in force.",
                "short",
                (
                    Query(
                        f"max by ({', '.join(labels)}) ({condition}) == 1",
                        "{{type}}={{status}}, {{reason}}",
                    ),
                ),
                kind=Kind.STATES,
                width=12,
                height=10,
            ),
            _tall(alerts.meanings(rules)),
        ),
    )


def _tall(panel: Panel) -> Panel:
    """Return a panel as tall as the conditions over time."""
    return replace(panel, height=10)


_SLO: Final = f"max by ({_BY}) (tritonpipe_pipeline_slo_seconds{{{OWN}}})"
_QUANTILES: Final = quantile_seconds("0.5|0.99", OWN)
_LATENCY: Final = Row(
    "Where does the time go?",
    (
        Panel(
            "Mean latency",
            "Mean time of successful requests in each model; the time in the model that clients"
            " call includes its steps. From counters: a mean, no percentile.",
            "s",
            (Query(mean_seconds(("request",), OWN, _STEPS), "{{model}}"),),
            axis="time per request",
        ),
        Panel(
            "Median and p99 of the slowest pod",
            "Quantiles of the last minute of the model that clients call, in the pod in which"
            " they are highest: quantiles of multiple pods cannot be combined." + NEEDS_SLO,
            "s",
            (
                Query(
                    f"max by (quantile) ({of_public_model(_QUANTILES, OWN)})",
                    "quantile {{quantile}}",
                ),
                Query(_BUDGET, "latency budget"),
                Query(_SLO, "SLO (p99)"),
            ),
            axis="time per request",
        ),
        Panel(
            "p99 of each step",
            "p99 of the last minute of each model, in the pod in which it is highest." + NEEDS_SLO,
            "s",
            (Query(f"max by (model) ({quantile_seconds('0.99', OWN)})", "{{model}}"),),
            axis="time per request",
        ),
        Panel(
            "Mean queue time and execution time of each step",
            "Where successful requests spent their time: before each step, and in its"
            " execution, of which all requests of a batch have the whole.",
            "s",
            (
                Query(mean_seconds(("queue",), OWN, _STEPS), "{{model}} queue"),
                Query(mean_seconds(_COMPUTE, OWN, _STEPS), "{{model}} execution"),
            ),
            axis="time per request",
        ),
        Panel(
            "p99 of each pod",
            "p99 of the last minute of the model that clients call. One slow pod is a"
            " problem of its node or of its share of the load." + NEEDS_SLO,
            "s",
            (
                Query(
                    f"max by (pod) ({of_public_model(quantile_seconds('0.99', OWN), OWN)})",
                    "{{pod}}",
                ),
                Query(_BUDGET, "latency budget"),
            ),
            axis="time per request",
        ),
        Panel(
            "Latency budget used",
            "p99 of the slowest pod as a share of the latency budget. Above 100 % the SLO is"
            " violated." + NEEDS_SLO,
            "percentunit",
            (Query(latency_budget_used(OWN), "used"),),
            axis="share of the budget",
        ),
    ),
)

_SCALING_ERRORS: Final = f"max by (kind) (tritonpipe_scaling_errors_total{{{OWN}}})"
_ERRORS: Final = Row(
    "What fails?",
    (
        Panel(
            "Failed requests of each step",
            "By reason. REJECTED: queue time-out; CANCELED: by the client; BACKEND: raised by"
            " the step; OTHER: everything else. Triton counts a failed request of an ensemble"
            " twice, and one rejected because of a full queue not at its step.",
            "reqps",
            (
                Query(
                    rate("nv_inference_request_failure", OWN, f"{_STEPS}, reason"),
                    "{{model}} {{reason}}",
                ),
            ),
            axis="failed requests",
        ),
        Panel(
            "Failed share of each step",
            "Failed requests as a share of all finished requests of the step.",
            "percentunit",
            (Query(failed_share(OWN, _STEPS), "{{model}}"),),
            axis="share of requests",
        ),
        Panel(
            "Errors of live scaling",
            "By kind, since the operator started: changes that failed (ActuationFailed) and"
            " metrics that cannot be used.",
            "short",
            (Query(_SCALING_ERRORS, "{{kind}}"),),
            axis="errors",
        ),
    ),
)

_QUEUES: Final = Row(
    "Where do requests wait?",
    (
        Panel(
            "Requests",
            "Arrivals (completions and growth of the backlog) and completions of each model,"
            " all pods. Failed and cached requests are not executed by later steps.",
            "reqps",
            (
                Query(f"sum by (model) (tritonpipe:arrivals:rate{{{OWN}}})", "{{model}} arriving"),
                Query(
                    f"sum by (model) (tritonpipe:throughput:rate{{{OWN}}})",
                    "{{model}} completed",
                ),
            ),
            axis="requests",
        ),
        Panel(
            "Waiting requests",
            "Requests in the queue of each step, all pods. The only value that also moves"
            " while no request completes.",
            "short",
            (Query(f"sum by (model) (tritonpipe:pending:sum{{{OWN}}})", "{{model}}"),),
            axis="requests",
        ),
        Panel(
            "Wait before scaled steps",
            "How long a request that arrives now will wait, from the waiting requests"
            " (Little's law). Also correct during a stall.",
            "s",
            (Query(f"max by (step) (tritonpipe_step_wait_seconds{{{OWN}}})", "{{step}}"),),
            axis="time",
        ),
        Panel(
            "Queue time of completed requests",
            "Mean queue time before each step, in the pod in which it is highest. Has no value"
            " while no request completes.",
            "s",
            (Query(f"max by (model) (tritonpipe:queue:seconds{{{OWN}}})", "{{model}}"),),
            axis="time per request",
        ),
        Panel(
            "Requests per execution",
            "Mean size of the batches that Triton forms. About 1 while requests wait: batching"
            " is ineffective.",
            "short",
            (Query(f"avg by (model) (tritonpipe:batch:mean{{{OWN}}})", "{{model}}"),),
            axis="requests",
        ),
        Panel(
            "Starved GPU",
            "Share of the last five minutes in which the GPU step was idle although requests"
            " waited for a CPU step.",
            "percentunit",
            (
                Query(
                    f"max by ({_BY}) (tritonpipe:gpu_starved:ratio{{{OWN}}})",
                    "idle while requests waited",
                ),
            ),
            axis="share of time",
            maximum=1,
        ),
    ),
)

_CHANGES: Final = f"tritonpipe_scaling_actions_total{{{OWN}}}"
_REVERSALS: Final = f"tritonpipe_scaling_reversals_total{{{OWN}}}"
_SCALING: Final = Row(
    "What does live scaling do?",
    (
        Panel(
            "Verdict over time",
            "What limited the pipeline. docs/user/scaling.md explains the verdicts.",
            "short",
            (
                Query(
                    f"max by (verdict) (tritonpipe_pipeline_verdict{{{OWN}}}) == 1",
                    "{{verdict}}",
                ),
            ),
            kind=Kind.STATES,
        ),
        Panel(
            "Instances of scaled steps",
            "Desired instances per pod, and those that each pod's Triton reports.",
            "short",
            (
                Query(
                    f"max by (step) (tritonpipe_step_instances_desired{{{OWN}}})",
                    "{{step}} desired",
                ),
                Query(
                    f"max by (step, pod) (tritonpipe_step_instances{{{OWN}}})",
                    "{{step}} {{pod}}",
                ),
            ),
            axis="instances per pod",
        ),
        Panel(
            "Busy share of scaled steps",
            "Share of time in which the instances of a step compute, corrected for batches."
            " Counts grow from 80 % on and aim at 70 %, unless the spec says otherwise.",
            "percentunit",
            (Query(f"max by (step) (tritonpipe_step_busy_ratio{{{OWN}}})", "{{step}}"),),
            axis="share of time",
        ),
        Panel(
            "Busy instances",
            "Instances of each model that compute at a time, all pods. For an ensemble: those of"
            " all its steps.",
            "short",
            (Query(f"sum by (model) (tritonpipe:busy:instances{{{OWN}}})", "{{model}}"),),
            axis="instances",
        ),
        Panel(
            "Changes",
            "Changes of counts, pods and CPU by direction and reason, and changes against the"
            " direction of the one before (reversals), since the operator started.",
            "short",
            (
                Query(
                    f"max by (step, direction, reason) ({_CHANGES})",
                    "{{step}} {{direction}} {{reason}}",
                ),
                Query(f"max by (step) ({_REVERSALS})", "{{step}} reversals"),
            ),
            axis="changes",
        ),
        Panel(
            "Age of samples",
            "Age of the oldest of the pods' newest samples, on which live scaling decides.",
            "s",
            (
                Query(
                    f"max by ({_BY}) (tritonpipe_scaling_sample_age_seconds{{{OWN}}})",
                    "oldest",
                ),
            ),
            axis="age",
        ),
    ),
)

_GPU_SOURCE: Final = (
    " From Triton, else from the DCGM exporter. No data with MIG, or without a GPU."
)
_GPU: Final = Row(
    "Are the GPUs used?",
    (
        Panel(
            "GPU utilization",
            "The busiest GPU of each pod: share of time in which it computed anything, not"
            " the share of its capacity." + _GPU_SOURCE,
            "percentunit",
            (Query(f"max by (pod) (tritonpipe:gpu:ratio{{{PODS}}})", "{{pod}}"),),
            axis="share of time",
            maximum=1,
        ),
        Panel(
            "GPU memory",
            "Used memory of each GPU, by all processes on it." + _GPU_SOURCE,
            "bytes",
            (Query(gpu_memory_used(OWN, PODS, EXPORTED_PODS), "{{pod}} {{gpu_uuid}}"),),
            axis="memory",
        ),
        Panel(
            "Used share of GPU memory",
            "Used memory as a share of the memory of each GPU." + _GPU_SOURCE,
            "percentunit",
            (Query(gpu_memory_share(OWN, PODS, EXPORTED_PODS), "{{pod}} {{gpu_uuid}}"),),
            axis="share of memory",
            maximum=1,
        ),
    ),
)

_CONTAINER: Final = f'{PODS}, container="triton"'
_CPU_LIMITS: Final = f"max by (pod) (tritonpipe_pod_cpu_limit_cores{{{OWN}}})"
_PODS: Final = Row(
    "Do the pods have what they need?",
    (
        Panel(
            "Pods",
            "Pods by state, and the desired number. updated: of the newest revision.",
            "short",
            (
                Query(f"max by (state) (tritonpipe_pipeline_pods{{{OWN}}})", "{{state}}"),
                Query(f"max by ({_BY}) (tritonpipe_pipeline_pods_desired{{{OWN}}})", "desired"),
            ),
            axis="pods",
        ),
        Panel(
            "CPU of the server",
            "CPU usage of Triton's container, its limit in force, and the desired limit where"
            " live scaling sets it (cpuResize).",
            "short",
            (
                Query(f"max by (pod) (tritonpipe:cpu:cores{{{PODS}}})", "{{pod}} used"),
                Query(_CPU_LIMITS, "{{pod}} limit"),
                Query(
                    f"max by ({_BY}) (tritonpipe_pod_cpu_limit_desired_cores{{{OWN}}})",
                    "desired limit",
                ),
            ),
            axis="cores",
        ),
        Panel(
            "Throttled CPU periods",
            "Share of the CFS periods in which the container had used up its CPU limit. Above"
            " 10 % live scaling adds no instances.",
            "percentunit",
            (Query(f"max by (pod) (tritonpipe:cpu_throttled:ratio{{{PODS}}})", "{{pod}}"),),
            axis="share of periods",
            maximum=1,
        ),
        Panel(
            "Memory of the server",
            "Working set of Triton's container, which counts against its limit.",
            "bytes",
            (
                Query(
                    f"max by (pod) (container_memory_working_set_bytes{{{_CONTAINER}}})",
                    "{{pod}}",
                ),
            ),
            axis="memory",
        ),
        Panel(
            "Revisions",
            "Newest revision of the pipeline, and the revision that serves. They differ during a"
            " rollout and after a rollback.",
            "short",
            (
                Query(
                    f"max by (revision, serving) (tritonpipe_pipeline_revision_info{{{OWN}}}) == 1",
                    labels=("revision", "serving"),
                ),
            ),
            kind=Kind.TABLE,
        ),
        Panel(
            "Security advisories of the server",
            "Known NVIDIA security bulletins that affect the Triton release of the pipeline.",
            "short",
            (
                Query(
                    f"max by (severity) (tritonpipe_pipeline_server_advisories{{{OWN}}})",
                    "bulletins",
                    labels=("severity",),
                ),
            ),
            kind=Kind.TABLE,
        ),
    ),
)
