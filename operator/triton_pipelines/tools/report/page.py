"""Build the report's HTML. Pure: the clock and everything read are passed in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jinja2
from markupsafe import Markup

from triton_pipelines.compile.graph.graph import Graph

from .diagram import BOX_HEIGHT, BOX_WIDTH, diagram

_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("triton_pipelines.tools.report"),
    # Fields of the status may be missing at any level.
    undefined=jinja2.ChainableUndefined,
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
# Conditions whose status False is the desired one.
_GOOD_WHEN_FALSE: Final = frozenset({"Reconciling", "Stalled", "ScalingLimited"})
_FILE_CHARACTERS_MAX: Final = 200_000
"""Characters of one file that the page shows."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """What a report shows."""

    pipeline: Mapping[str, Any]
    """The resource as the API server returned it."""
    explanation: Mapping[str, Any]
    """What limits the pipeline, as ``tritonpipe explain -o json`` prints it."""
    generated_at: dt.datetime
    """When the resource was read (UTC)."""
    version: str
    """Version of tritonpipe."""
    graph: Graph | None = None
    """The steps of the current spec; ``None`` if it is invalid."""
    errors: Sequence[str] = ()
    """What is wrong with the current spec."""
    warnings: Sequence[str] = ()
    """What works in the current spec but is probably unintended."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the operator rendered for the serving revision, by path."""
    notes: Sequence[str] = ()
    """What could not be read, and why."""
    tuning_plot: str = ""
    """The last tuning run as an SVG document of our own; empty without one."""


def page(data: ReportData) -> str:
    """Return the report as one HTML document that loads nothing from elsewhere."""
    metadata = data.pipeline["metadata"]
    status = data.pipeline.get("status") or {}
    return _ENVIRONMENT.get_template("report.html.j2").render(
        data=data,
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        generated_at=data.generated_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
        spec=data.pipeline.get("spec") or {},
        status=status,
        conditions=[
            {**item, "kind": _kind(item), "observed": item.get("observedGeneration", 0)}
            for item in status.get("conditions") or ()
        ],
        steps=_steps(data, status),
        drawing=None if data.graph is None else diagram(data.graph),
        box_width=BOX_WIDTH,
        box_height=BOX_HEIGHT,
        files={path: _bounded(text) for path, text in data.files.items()},
        # Drawn by matplotlib, which escapes its texts.
        tuning_plot=Markup(data.tuning_plot),  # noqa: S704
    )


def _kind(condition: Mapping[str, Any]) -> str:
    """Return ``good``, ``bad`` or ``unknown``."""
    if condition["status"] == "Unknown":
        return "unknown"
    good = "False" if condition["type"] in _GOOD_WHEN_FALSE else "True"
    return "good" if condition["status"] == good else "bad"


def _steps(data: ReportData, status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of the status, each with its figures."""
    figures = {item["name"]: item.get("figures") or {} for item in data.explanation["steps"]}
    return [
        {**item, "figures": figures.get(item["name"], {})} for item in status.get("steps") or ()
    ]


def _bounded(text: str) -> str:
    if len(text) <= _FILE_CHARACTERS_MAX:
        return text
    rest = len(text) - _FILE_CHARACTERS_MAX
    return f"{text[:_FILE_CHARACTERS_MAX]}\n… {rest} more characters"
