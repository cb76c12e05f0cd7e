"""Dashboards as values, and the JSON that Grafana reads.

The JSON follows Grafana's classic dashboard schema, as the package ``@grafana/schema`` describes
it. Grafana migrates older schema versions when it loads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from triton_pipelines.compile.render.prometheus_rules import DOCS_URL

SCHEMA_VERSION: Final = 41
"""That of Grafana 12.0; newer releases migrate it, Grafana 11 reads it as it is."""
COLUMNS: Final = 24
"""Width of Grafana's grid."""
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
TAG: Final = "triton-pipelines"
"""Tag by which the dashboards link to each other."""
_NO_LIMIT: Final = {"color": "text", "value": None}


class Kind(StrEnum):
    """Grafana's panel types that are used."""

    LINES = "timeseries"
    NUMBER = "stat"
    TABLE = "table"
    STATES = "state-timeline"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query of a panel."""

    expression: str
    """PromQL with Grafana's variables."""
    legend: str = ""
    """Name of each series; in tables, of the column with the value."""
    labels: tuple[str, ...] = ()
    """Labels that become columns of a table."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel and the question that it answers."""

    title: str
    description: str
    """Meaning of what is shown, and where it has no data."""
    unit: str
    """Grafana's name of the unit."""
    queries: tuple[Query, ...] = ()
    axis: str = ""
    """Label of the axis."""
    kind: Kind = Kind.LINES
    width: int = 8
    """Of 24 columns."""
    height: int = 8
    """Grid units of 38 pixels."""
    maximum: float | None = None
    """End of the axis; ``None``: as large as the values."""
    limits: Sequence[tuple[float, str]] = ()
    """Values from which on a number has a color."""
    no_value: str = ""
    """Shown instead of an empty number."""
    stacked: bool = False
    """Whether the series add up to something."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Units of single columns of a table, or of series, by name."""
    link: tuple[str, str] | None = None
    """Title and address of a link of every value."""
    text: str = ""
    """Markdown of a text panel."""


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    limits: Sequence[tuple[float, str]] = (),
    no_value: str = "",
) -> Panel:
    """Return a small panel with the newest value of a query."""
    return Panel(
        title,
        description,
        unit,
        (query,),
        kind=Kind.NUMBER,
        width=4,
        height=4,
        limits=limits,
        no_value=no_value,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable whose values Prometheus lists."""

    name: str
    label: str
    query: str
    several: bool = False
    """Whether several values, or all, can be selected."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard."""

    uid: str
    """Stays the same, so that links and bookmarks remain valid."""
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    def document(self) -> dict[str, Any]:
        """Return what Grafana imports."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG, "triton", "inference"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "browser",
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "links": [_other_dashboards(), _runbooks()],
            "templating": {"list": [_source_variable(), *map(_variable, self.variables), _docs()]},
            "annotations": {"list": []},
            "panels": list(_placed(self.rows)),
        }


def _placed(rows: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """Yield headings and panels, from left to right and from top to bottom."""
    number, top = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        left, top, tallest = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "options": _options(panel),
    }
    if panel.kind is Kind.TEXT:
        return shown
    shown |= {
        "datasource": SOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "targets": [_target(panel, index, query) for index, query in enumerate(panel.queries)],
    }
    if panel.kind is Kind.TABLE:
        shown["transformations"] = _table_columns(panel)
    return shown


def _defaults(panel: Panel) -> dict[str, Any]:
    """Return the settings of all fields of a panel."""
    steps = [{"color": color, "value": value} for value, color in panel.limits]
    made: dict[str, Any] = {
        "unit": panel.unit,
        "custom": _custom(panel),
        "color": {"mode": "thresholds" if panel.limits else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": [_NO_LIMIT, *steps]},
    }
    if panel.kind is not Kind.STATES:
        made["min"] = 0
    if panel.maximum is not None:
        made["max"] = panel.maximum
    if panel.no_value:
        made["noValue"] = panel.no_value
    if panel.link is not None:
        title, url = panel.link
        made["links"] = [{"title": title, "url": url}]
    return made


def _custom(panel: Panel) -> dict[str, Any]:
    """Return the settings that depend on the type of panel."""
    match panel.kind:
        case Kind.LINES:
            return {
                "drawStyle": "line",
                "lineInterpolation": "linear",
                "fillOpacity": 20 if panel.stacked else 5,
                "showPoints": "auto",
                "spanNulls": False,
                "axisLabel": panel.axis,
                "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            }
        case Kind.STATES:
            return {"fillOpacity": 70, "lineWidth": 0}
        case Kind.TABLE:
            return {"align": "auto", "filterable": True}
    return {}


def _options(panel: Panel) -> dict[str, Any]:
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
    match panel.kind:
        case Kind.LINES:
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case Kind.NUMBER:
            return {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "textMode": "name" if panel.queries[0].legend else "value",
                "colorMode": "value",
                "graphMode": "none",
            }
        case Kind.STATES:
            return {"legend": legend, "showValue": "never", "mergeValues": True, "rowHeight": 0.8}
        case Kind.TEXT:
            return {"mode": "markdown", "content": panel.text}
    return {"showHeader": True, "cellHeight": "sm"}


def _target(panel: Panel, index: int, query: Query) -> dict[str, Any]:
    is_table = panel.kind is Kind.TABLE
    # Over a range, a number or a table would also show series that no longer exist.
    is_instant = is_table or panel.kind is Kind.NUMBER
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "expr": query.expression,
        "legendFormat": "" if is_table else query.legend or panel.title,
        "format": "table" if is_table else "time_series",
        "instant": is_instant,
        "range": not is_instant,
    }


def _table_columns(panel: Panel) -> list[dict[str, Any]]:
    """Join the queries of a table by their common labels, and name the columns."""
    labels = dict.fromkeys(label for query in panel.queries for label in query.labels)
    values = [_value_column(panel, index) for index in range(len(panel.queries))]
    # A query without a legend has labels alone: its value is always 1.
    hidden = {
        value: True for value, query in zip(values, panel.queries, strict=True) if not query.legend
    }
    names = {
        value: query.legend
        for value, query in zip(values, panel.queries, strict=True)
        if query.legend
    }
    order = {name: number for number, name in enumerate((*labels, *values))}
    organize = {
        "excludeByName": {"Time": True, **hidden},
        "renameByName": names,
        "indexByName": order,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]


def _value_column(panel: Panel, index: int) -> str:
    """Return the name that Grafana gives to the values of a query in a table."""
    return "Value" if len(panel.queries) == 1 else f"Value #{chr(ord('A') + index)}"


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "unit", "value": unit}],
        }
        for name, unit in panel.units.items()
    ]


def _other_dashboards() -> dict[str, Any]:
    """Return the link to the other dashboards with the same tag."""
    return {
        "title": "Dashboards",
        "type": "dashboards",
        "tags": [TAG],
        "asDropdown": False,
        "keepTime": True,
        "includeVars": False,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "All pipelines, or one",
        "url": "",
    }


def _runbooks() -> dict[str, Any]:
    return {
        "title": "Runbooks",
        "type": "link",
        "url": "${docs_url}/runbooks/alerts.md",
        "tags": [],
        "asDropdown": False,
        "keepTime": False,
        "includeVars": False,
        "targetBlank": True,
        "icon": "doc",
        "tooltip": "What each alert means, and what to do",
    }


def _source_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "type": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "refresh": 1,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": variable.name,
        "type": "query",
        "label": variable.label,
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": variable.several,
        "includeAll": variable.several,
    }
    if variable.several:
        # One short expression for any number of values.
        made |= {"allValue": ".+", "current": {"text": ["All"], "value": ["$__all"]}}
    return made


def _docs() -> dict[str, Any]:
    return {
        "name": "docs_url",
        "type": "textbox",
        "label": "Docs URL",
        "description": "Address of the project's docs directory; runbook links start with it.",
        "query": DOCS_URL,
        "current": {"text": DOCS_URL, "value": DOCS_URL},
    }
