"""The generated Grafana dashboards, as files that Grafana imports, and their queries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hack import monitoring

FILES = sorted((monitoring.FOLDER / "dashboards").glob("*.json"))
METRIC = re.compile(r"\b(?:tritonpipe[_:][\w:]+|(?:nv|container|DCGM|process)_\w+|ALERTS)\b")
"""A name of a metric in PromQL."""


@dataclass(frozen=True)
class ShownQuery:
    """A query of a panel."""

    dashboard: str
    panel: str
    expression: str
    """PromQL with Grafana's variables."""
    labels: frozenset[str]
    """Labels that its series are named after, or that are columns of the table."""

    def __str__(self) -> str:
        return f"{self.dashboard}, {self.panel}: {self.expression}"

    def with_values(self, values: Mapping[str, str]) -> str:
        """Return the expression with values instead of variables, as Grafana sends it."""
        return with_values(self.expression, values)


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return a text with values instead of variables; ``$1`` is a group of an expression."""
    return re.sub(
        r"\$(?:\{([a-z_]\w*)\}|([a-z_]\w*))", lambda found: values[found[1] or found[2]], text
    )


def documents() -> dict[str, dict[str, Any]]:
    """Return the dashboards by name of their files."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}


def panels(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard without the headings of rows."""
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries() -> list[ShownQuery]:
    """Return the queries of all panels."""
    return [
        ShownQuery(name, panel["title"], target["expr"], _labels(panel, target))
        for name, document in documents().items()
        for panel in panels(document)
        for target in panel.get("targets", ())
    ]


def _labels(panel: Mapping[str, Any], target: Mapping[str, Any]) -> frozenset[str]:
    if panel["type"] != "table":
        return frozenset(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    (by,) = set(re.findall(r"^max by \(([^)]*)\)", target["expr"])) or {""}
    return frozenset(name.strip() for name in by.split(",") if name.strip())
