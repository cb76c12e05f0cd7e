"""Recording rules, alerts and the Grafana dashboard, from one description.

``python -m hack.monitoring`` writes, ``--check`` only says what differs (exit code 1):

- ``manifests/monitoring/rules.yaml``: a rule file as Prometheus loads it, and a copy in the chart, which makes a PrometheusRule of it;
- ``manifests/monitoring/dashboard.json``: the dashboard, and a copy in the chart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "manifests" / "monitoring"
CHART_FILES: Final = ROOT / "charts" / "triton-pipelines" / "files"
HEADER: Final = "# Made by `python -m hack.monitoring`; edit that instead.\n"

# Four scrapes of 30 s: with fewer than two samples in the window a series vanishes.
WINDOW: Final = "2m"
# cAdvisor refreshes every 10 to 15 s with jitter and is usually scraped every 30 s.
CPU_WINDOW: Final = "2m"
BY: Final = "namespace, pipeline, pod, model"
RUNBOOKS: Final = "docs/runbooks/alerts.md"

Rule = dict[str, Any]


def _rate(metric: str) -> str:
    return f"sum by ({BY}) (rate({metric}[{WINDOW}]))"


def _spent(*parts: str) -> str:
    return " + ".join(_rate(f"nv_inference_compute_{part}_duration_us") for part in parts)


# tritonpipe_step_instances by model; without that label the step's name stands for it, which is its default.
INSTANCES: Final = (
    'max by (namespace, pod, model) (tritonpipe_step_instances{model!=""} '
    'or label_replace(tritonpipe_step_instances{model=""}, "model", "$1", "step", "(.+)"))'
)


def recording_rules() -> list[Rule]:
    """What people and autoscalers read; per pod and model, so that sums (demand) and maxima (saturation) can follow."""
    hits = f"({_rate('nv_cache_num_hits_per_model')} or 0 * tritonpipe:throughput:rate)"
    on = "on (namespace, pod, model) group_left ()"
    container = 'container="triton"'
    rules = {
        # Completions per second.
        "tritonpipe:throughput:rate": _rate("nv_inference_request_success"),
        # Requests that wait and are not executing.
        "tritonpipe:pending:sum": f"sum by ({BY}) (nv_inference_pending_request_count)",
        # Arrivals per second: completions and growth of the backlog.
        "tritonpipe:arrivals:rate": f"tritonpipe:throughput:rate + sum by ({BY}) (deriv(nv_inference_pending_request_count[{WINDOW}]))",
        # Requests per execution; what the cache answered ran in none.
        "tritonpipe:batch:mean": f"(tritonpipe:throughput:rate - {hits}) / ({_rate('nv_inference_exec_count')} > 0)",
        # Busy instances. Triton adds a batch's time once for each of its requests.
        "tritonpipe:busy:instances": f"1e-6 * ({_spent('input', 'infer', 'output')}) / (tritonpipe:batch:mean > 0)",
        # Busy share of the instances of scaled steps.
        "tritonpipe:busy:ratio": f"tritonpipe:busy:instances / {on} {INSTANCES}",
        # Seconds of one instance per request.
        "tritonpipe:service:seconds": "tritonpipe:busy:instances / (tritonpipe:throughput:rate > 0)",
        # Wait before the step by Little's law; the service time of the last quarter of an hour, since none completes in a stall.
        "tritonpipe:wait:seconds": f"tritonpipe:pending:sum * last_over_time(tritonpipe:service:seconds[15m]) / {on} {INSTANCES}",
        # Mean time in the queue of requests that completed: for diagnosis only, it reads nothing in a stall.
        "tritonpipe:queue:seconds": f"1e-6 * {_rate('nv_inference_queue_duration_us')} / (tritonpipe:throughput:rate > 0)",
        "tritonpipe:cpu:cores": f"max by (namespace, pod) (rate(container_cpu_usage_seconds_total{{{container}}}[{CPU_WINDOW}]))",
        "tritonpipe:cpu_throttled:ratio": (
            f"max by (namespace, pod) (rate(container_cpu_cfs_throttled_periods_total{{{container}}}[{CPU_WINDOW}]))"
            f" / (max by (namespace, pod) (rate(container_cpu_cfs_periods_total{{{container}}}[{CPU_WINDOW}])) > 0)"
        ),
        # The busiest GPU of a pod, 0 to 1: Triton's own figure, else the DCGM exporter's.
        "tritonpipe:gpu:ratio": (
            f"max by (namespace, pod) (avg_over_time(nv_gpu_utilization[{WINDOW}]))"
            f' or max by (namespace, pod) (label_replace(label_replace(avg_over_time(DCGM_FI_DEV_GPU_UTIL{{exported_pod!=""}}[{WINDOW}]) / 100,'
            ' "namespace", "$1", "exported_namespace", "(.+)"), "pod", "$1", "exported_pod", "(.+)"))'
            f' or max by (namespace, pod) (avg_over_time(DCGM_FI_DEV_GPU_UTIL{{exported_pod="",pod!=""}}[{WINDOW}]) / 100)'
        ),
        # Share of the time in which the GPU step idled while work waited before it.
        "tritonpipe:gpu_starved:ratio": "max by (namespace, pipeline) (avg_over_time(tritonpipe_gpu_starved_ratio[5m]))",
    }
    return [{"record": name, "expr": expression} for name, expression in rules.items()]


def alerts() -> list[Rule]:
    """The three alerts; each has a section in docs/runbooks/alerts.md."""
    failing = 'increase(tritonpipe_scaling_errors_total{kind=~"Metrics.+|PrometheusError"}[2m]) > 0'
    return [
        _alert(
            "TritonPipelineGPUStarved",
            "tritonpipe:gpu_starved:ratio > 0.2",
            "10m",
            "The GPU of {{ $labels.namespace }}/{{ $labels.pipeline }} idles while work waits before it",
            "In {{ $value | humanizePercentage }} of the last five minutes the GPU step idled while requests waited for a CPU step.",
        ),
        _alert(
            "TritonPipelineMetricsStale",
            f"max by (namespace, pipeline) (tritonpipe_scaling_sample_age_seconds) > 60 or max by (namespace, pipeline) ({failing})",
            "5m",
            "Scaling of {{ $labels.namespace }}/{{ $labels.pipeline }} has no usable metrics",
            "Counts hold, or rise to what was enough lately; none falls until metrics are back.",
        ),
        _alert(
            "TritonPipelineActuationFailing",
            'sum by (namespace, pipeline) (increase(tritonpipe_scaling_errors_total{kind="ActuationFailed"}[15m])) >= 2',
            "1m",
            "Instance counts of {{ $labels.namespace }}/{{ $labels.pipeline }} cannot be changed",
            "Triton refused or did not prove a change {{ $value | humanize }} times within 15 minutes; the instances that serve were kept.",
        ),
    ]


def _alert(name: str, expression: str, wait: str, summary: str, description: str) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": "warning"},
        "annotations": {"summary": summary, "description": description, "runbook": f"{RUNBOOKS}#{name.lower()}"},
    }


def groups() -> dict[str, Any]:
    """The rule file."""
    return {
        "groups": [
            {"name": "triton-pipelines.rules", "rules": recording_rules()},
            {"name": "triton-pipelines.alerts", "rules": alerts()},
        ]
    }


# --- dashboard ---------------------------------------------------------------------------------------------------------

_OWN: Final = 'namespace="$namespace", pipeline="$pipeline"'
# Series of Triton know their pipeline by the PodMonitor's relabelling; pods are named after it in any case.
_PODS: Final = 'namespace="$namespace", pod=~"$pipeline-.+"'
_VERDICTS: Final = "what limits the pipeline"

# Title, unit, description, and (expression, legend) pairs.
Panel = tuple[str, str, str, Sequence[tuple[str, str]]]
PANELS: Final[Sequence[tuple[str, Sequence[Panel]]]] = (
    (
        "Decision",
        (
            ("Verdict", "none", _VERDICTS, ((f"tritonpipe_pipeline_verdict{{{_OWN}}} == 1", "{{verdict}}"),)),
            (
                "Instances of scaled steps",
                "none",
                "wanted per pod, and what each pod's Triton reports",
                (
                    (f"tritonpipe_step_instances_desired{{{_OWN}}}", "{{step}} wanted"),
                    (f"tritonpipe_step_instances{{{_OWN}}}", "{{step}} {{pod}}"),
                ),
            ),
            ("Starved GPU", "percentunit", "time in which the GPU step idled while work waited before it", (
                (f"tritonpipe:gpu_starved:ratio{{{_OWN}}}", "starved"),
            )),
        ),
    ),
    (
        "Load",
        (
            ("Busy share of scaled steps", "percentunit", "corrected for batches", ((f"tritonpipe_step_busy_ratio{{{_OWN}}}", "{{step}}"),)),
            ("Wait before scaled steps", "s", "by Little's law, live in a stall", ((f"tritonpipe_step_wait_seconds{{{_OWN}}}", "{{step}}"),)),
            (
                "Requests",
                "reqps",
                "arrivals and completions over all pods",
                (
                    (f"sum by (model) (tritonpipe:arrivals:rate{{{_PODS}}})", "{{model}} arriving"),
                    (f"sum by (model) (tritonpipe:throughput:rate{{{_PODS}}})", "{{model}} completed"),
                ),
            ),
            ("Requests that wait", "none", "", ((f"sum by (model) (tritonpipe:pending:sum{{{_PODS}}})", "{{model}}"),)),
            ("Requests per execution", "none", "about 1 with requests waiting: batching is defeated", (
                (f"avg by (model) (tritonpipe:batch:mean{{{_PODS}}})", "{{model}}"),
            )),
            ("Busy instances", "none", "per model, all pods", ((f"sum by (model) (tritonpipe:busy:instances{{{_PODS}}})", "{{model}}"),)),
        ),
    ),
    (
        "Machine",
        (
            ("GPU utilisation", "percentunit", "busiest GPU of each pod", ((f"tritonpipe:gpu:ratio{{{_PODS}}}", "{{pod}}"),)),
            ("CPU of the server", "none", "cores", ((f"tritonpipe:cpu:cores{{{_PODS}}}", "{{pod}}"),)),
            ("Throttled CPU periods", "percentunit", "above 10 % nothing is added", ((f"tritonpipe:cpu_throttled:ratio{{{_PODS}}}", "{{pod}}"),)),
        ),
    ),
    (
        "Scaling itself",
        (
            ("Changes", "none", "per direction and reason, in the window shown", (
                (f"sum by (step, direction, reason) (increase(tritonpipe_scaling_actions_total{{{_OWN}}}[$__range]))", "{{step}} {{direction}} {{reason}}"),
                (f"sum by (step) (increase(tritonpipe_scaling_reversals_total{{{_OWN}}}[$__range]))", "{{step}} reversals"),
            )),
            ("Age of samples", "s", "oldest of the pods' newest samples", ((f"tritonpipe_scaling_sample_age_seconds{{{_OWN}}}", "age"),)),
            ("Errors", "none", "per kind, in the window shown", (
                (f"sum by (kind) (increase(tritonpipe_scaling_errors_total{{{_OWN}}}[$__range]))", "{{kind}}"),
            )),
        ),
    ),
)  # fmt: skip
_WIDTH, _HEIGHT = 8, 7


def dashboard() -> dict[str, Any]:
    """Grafana's dashboard of one pipeline."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, members in PANELS:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []}
        )
        y += 1
        for index, (title, unit, description, queries) in enumerate(members):
            place = {"x": index % 3 * _WIDTH, "y": y + index // 3 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(len(panels) + 1, title, unit, description, queries, place))
        y += (len(members) + 2) // 3 * _HEIGHT
    return {
        "uid": "triton-pipelines",
        "title": "Triton pipelines",
        "tags": ["triton", "inference"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                _variable("namespace", "label_values(tritonpipe_step_instances_desired, namespace)"),
                _variable("pipeline", 'label_values(tritonpipe_step_instances_desired{namespace="$namespace"}, pipeline)'),
            ]
        },
        "panels": panels,
    }


def _panel(number: int, title: str, unit: str, description: str, queries: Sequence[tuple[str, str]], place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"drawStyle": "line", "lineInterpolation": "stepAfter"}}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(queries)
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": name.capitalize(),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


# --- files -------------------------------------------------------------------------------------------------------------


def files() -> dict[Path, str]:
    """Every generated file with the content it should have."""
    rules = HEADER + yaml.safe_dump(groups(), sort_keys=False, width=150)
    board = json.dumps(dashboard(), indent=2) + "\n"
    return {
        FOLDER / "rules.yaml": rules,
        FOLDER / "dashboard.json": board,
        CHART_FILES / "rules.yaml": rules,
        CHART_FILES / "dashboard.json": board,
    }


def main(arguments: Sequence[str]) -> int:
    """Command line."""
    stale = [path for path, content in files().items() if not path.exists() or path.read_text(encoding="utf-8") != content]
    check = "--check" in arguments
    for path in stale:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8")
        print(f"{'differs' if check else 'updated'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
