"""Generate recording rules, alerts and the Grafana dashboard from one description.

``python -m hack.monitoring`` writes them. ``--check`` only reports differences (exit code 1).
Generated are:

- ``manifests/monitoring/rules.yaml``: a rule file for Prometheus, and a copy in the chart, which
  turns it into a PrometheusRule.
- ``manifests/monitoring/dashboard.json``: the dashboard, and a copy in the chart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from triton_pipelines.compile.render.prometheus_rules import (
    RUNBOOKS,
    alerts,
    groups,
    recording_rules,
)

__all__ = ["RUNBOOKS", "alerts", "dashboard", "files", "groups", "recording_rules"]

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "manifests" / "monitoring"
CHART_FILES: Final = ROOT / "charts" / "triton-pipelines" / "files"
HEADER: Final = "# Made by `python -m hack.monitoring`; edit that instead.\n"

# --- Dashboard ------------------------------------------------------------------------------------

_OWN: Final = 'namespace="$namespace", pipeline="$pipeline"'
# Triton's series have a pipeline label only with the PodMonitor's relabeling. Pods are always named
# after their pipeline.
_PODS: Final = 'namespace="$namespace", pod=~"$pipeline-.+"'
_VERDICTS: Final = "what limits the pipeline"

# Title, unit, description, and (expression, legend) pairs.
Panel = tuple[str, str, str, Sequence[tuple[str, str]]]
PANELS: Final[Sequence[tuple[str, Sequence[Panel]]]] = (
    (
        "Decision",
        (
            (
                "Verdict",
                "none",
                _VERDICTS,
                (((f"tritonpipe_pipeline_verdict{{{_OWN}}} == 1"), "{{verdict}}"),),
            ),
            (
                "Instances of scaled steps",
                "none",
                "desired per pod, and as reported by each pod's Triton",
                (
                    (f"tritonpipe_step_instances_desired{{{_OWN}}}", "{{step}} desired"),
                    (f"tritonpipe_step_instances{{{_OWN}}}", "{{step}} {{pod}}"),
                ),
            ),
            (
                "Starved GPU",
                "percentunit",
                ("time in which the GPU step was idle although work was queued"),
                ((f"tritonpipe:gpu_starved:ratio{{{_OWN}}}", "starved"),),
            ),
        ),
    ),
    (
        "Load",
        (
            (
                "Busy share of scaled steps",
                "percentunit",
                "corrected for batches",
                ((f"tritonpipe_step_busy_ratio{{{_OWN}}}", "{{step}}"),),
            ),
            (
                "Wait before scaled steps",
                "s",
                "by Little's law, live in a stall",
                (((f"tritonpipe_step_wait_seconds{{{_OWN}}}"), "{{step}}"),),
            ),
            (
                "Requests",
                "reqps",
                "arrivals and completions over all pods",
                (
                    (f"sum by (model) (tritonpipe:arrivals:rate{{{_PODS}}})", "{{model}} arriving"),
                    (
                        (f"sum by (model) (tritonpipe:throughput:rate{{{_PODS}}})"),
                        "{{model}} completed",
                    ),
                ),
            ),
            (
                "Waiting requests",
                "none",
                "",
                (((f"sum by (model) (tritonpipe:pending:sum{{{_PODS}}})"), "{{model}}"),),
            ),
            (
                "Requests per execution",
                "none",
                ("about 1 with requests waiting: batching is ineffective"),
                ((f"avg by (model) (tritonpipe:batch:mean{{{_PODS}}})", "{{model}}"),),
            ),
            (
                "Busy instances",
                "none",
                "per model, all pods",
                (((f"sum by (model) (tritonpipe:busy:instances{{{_PODS}}})"), "{{model}}"),),
            ),
        ),
    ),
    (
        "Machine",
        (
            (
                "GPU utilization",
                "percentunit",
                "busiest GPU of each pod",
                ((f"tritonpipe:gpu:ratio{{{_PODS}}}", "{{pod}}"),),
            ),
            (
                "CPU of the server",
                "none",
                "cores",
                ((f"tritonpipe:cpu:cores{{{_PODS}}}", "{{pod}}"),),
            ),
            (
                "Throttled CPU periods",
                "percentunit",
                "above 10 % nothing is added",
                (((f"tritonpipe:cpu_throttled:ratio{{{_PODS}}}"), "{{pod}}"),),
            ),
        ),
    ),
    (
        "Pods",
        (
            (
                "Pods",
                "none",
                "wanted, and there",
                (
                    (f"tritonpipe_pipeline_pods_desired{{{_OWN}}}", "wanted"),
                    (f"tritonpipe_pipeline_pods{{{_OWN}}}", "there"),
                ),
            ),
            (
                "CPU limit of each pod",
                "none",
                ("cores; wanted where live scaling grows it in place"),
                (
                    (f"tritonpipe_pod_cpu_limit_desired_cores{{{_OWN}}}", "wanted"),
                    (f"tritonpipe_pod_cpu_limit_cores{{{_OWN}}}", "{{pod}}"),
                ),
            ),
        ),
    ),
    (
        "Scaling itself",
        (
            (
                "Changes",
                "none",
                "per direction and reason, in the window shown",
                (
                    (
                        (
                            "sum by (step, direction, reason) "
                            f"(increase(tritonpipe_scaling_actions_total{{{_OWN}}}[$__range]))"
                        ),
                        "{{step}} {{direction}} {{reason}}",
                    ),
                    (
                        (
                            "sum by (step) "
                            f"(increase(tritonpipe_scaling_reversals_total{{{_OWN}}}[$__range]))"
                        ),
                        "{{step}} reversals",
                    ),
                ),
            ),
            (
                "Age of samples",
                "s",
                "oldest of the pods' newest samples",
                (((f"tritonpipe_scaling_sample_age_seconds{{{_OWN}}}"), "age"),),
            ),
            (
                "Errors",
                "none",
                "per kind, in the window shown",
                (
                    (
                        (
                            "sum by (kind) "
                            f"(increase(tritonpipe_scaling_errors_total{{{_OWN}}}[$__range]))"
                        ),
                        "{{kind}}",
                    ),
                ),
            ),
        ),
    ),
)
_WIDTH, _HEIGHT = 8, 7


def dashboard() -> dict[str, Any]:
    """Grafana's dashboard of one pipeline."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, members in PANELS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for index, (title, unit, description, queries) in enumerate(members):
            place = {
                "x": index % 3 * _WIDTH,
                "y": y + index // 3 * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            }
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
                {
                    "name": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                    "label": "Prometheus",
                },
                _variable(
                    "namespace", "label_values(tritonpipe_step_instances_desired, namespace)"
                ),
                _variable(
                    "pipeline",
                    (
                        'label_values(tritonpipe_step_instances_desired{namespace="$namespace"}, '
                        "pipeline)"
                    ),
                ),
            ]
        },
        "panels": panels,
    }


def _panel(
    number: int,
    title: str,
    unit: str,
    description: str,
    queries: Sequence[tuple[str, str]],
    place: dict[str, int],
) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "custom": {"drawStyle": "line", "lineInterpolation": "stepAfter"},
            },
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": expression,
                "legendFormat": legend,
            }
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


# --- Files ----------------------------------------------------------------------------------------


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
    stale = [
        path
        for path, content in files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != content
    ]
    check = "--check" in arguments
    for path in stale:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8")
        print(f"{'differs' if check else 'updated'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
