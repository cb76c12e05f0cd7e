"""Generate recording rules, alerts and Grafana dashboards, each from one description.

``python -m hack.monitoring`` writes them. ``--check`` only reports differences (exit code 1).
Generated are:

- ``manifests/monitoring/rules.yaml``: a rule file for Prometheus, and a copy in the chart, which
  turns it into a PrometheusRule.
- ``manifests/monitoring/dashboards/*.json``: the dashboards, and copies in the chart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from hack.dashboards import dashboards
from triton_pipelines.compile.render.prometheus_rules import RUNBOOKS, alerts, groups
from triton_pipelines.compile.render.recording_rules import recording_rules

__all__ = ["RUNBOOKS", "alerts", "dashboards", "files", "groups", "recording_rules"]

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "manifests" / "monitoring"
CHART_FILES: Final = ROOT / "charts" / "triton-pipelines" / "files"
HEADER: Final = "# Made by `python -m hack.monitoring`; edit that instead.\n"


def files() -> dict[Path, str]:
    """Return every generated file with the content that it should have."""
    rules = HEADER + yaml.safe_dump(groups(), sort_keys=False, width=150)
    made = {"rules.yaml": rules}
    for name, document in dashboards().items():
        made[f"dashboards/{name}.json"] = json.dumps(document, indent=2) + "\n"
    return {
        folder / name: content for folder in (FOLDER, CHART_FILES) for name, content in made.items()
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
