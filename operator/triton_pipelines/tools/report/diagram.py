"""Place the steps of a pipeline and the tensors between them on a drawing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from triton_pipelines.api.wording import truncate
from triton_pipelines.compile.graph.graph import PIPELINE, Graph, Role, Step

REQUEST: Final = "request"
RESPONSE: Final = "response"
# Pixels of the SVG.
BOX_WIDTH: Final = 190
BOX_HEIGHT: Final = 64
_COLUMN: Final = 350
_ROW: Final = 104
_LANE: Final = 26
_MARGIN: Final = 14
_LABEL_CHARACTERS_MAX: Final = 22

Edges = dict[tuple[str, str], list[str]]


@dataclass(frozen=True, slots=True)
class DiagramBox:
    """A step, the request or the response."""

    name: str
    """Name of the step."""
    kind: str
    """``request``, ``response``, ``cpu`` or ``gpu``."""
    detail: str
    """What runs the step."""
    x: int
    """Left edge, in pixels."""
    y: int
    """Upper edge, in pixels."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """Tensors that one box passes to another."""

    tensors: tuple[str, ...]
    """Their names; empty for a call from code."""
    label: str
    """The names, shortened."""
    path: str
    """Path data of the SVG."""
    x: int
    """Middle of the label, in pixels."""
    y: int
    """Base line of the label, in pixels."""


@dataclass(frozen=True, slots=True)
class Diagram:
    """The drawing."""

    boxes: tuple[DiagramBox, ...]
    arrows: tuple[Arrow, ...]
    width: int
    """Pixels."""
    height: int
    """Pixels."""


def diagram(graph: Graph) -> Diagram:
    """Return the steps in columns from the request to the response.

    A step stands right of all steps that it reads from.
    """
    edges = _edges(graph)
    columns = _columns(graph, edges)
    rows: dict[int, int] = {}
    boxes = []
    for name, column in columns.items():
        row = rows.get(column, 0)
        rows[column] = row + 1
        kind, detail = _describe(graph, name)
        boxes.append(
            DiagramBox(name, kind, detail, _MARGIN + column * _COLUMN, _MARGIN + row * _ROW)
        )
    by_name = {box.name: box for box in boxes}
    bottom = _MARGIN + (max(rows.values()) - 1) * _ROW + BOX_HEIGHT
    arrows = []
    for (source, target), tensors in edges.items():
        if columns[target] - columns[source] > 1:
            # Past the boxes between them, in a lane of its own below all boxes.
            bottom += _LANE
            arrows.append(_detour(by_name[source], by_name[target], tuple(tensors), bottom))
        else:
            arrows.append(_arrow(by_name[source], by_name[target], tuple(tensors)))
    width = 2 * _MARGIN + max(columns.values()) * _COLUMN + BOX_WIDTH
    return Diagram(tuple(boxes), tuple(arrows), width, bottom + _MARGIN)


def _edges(graph: Graph) -> Edges:
    """Return the names of the tensors between each two boxes."""
    edges: Edges = {}
    if graph.entry is not None:
        # A step that calls the others itself: no tensors are wired.
        edges[REQUEST, graph.entry] = [tensor.name for tensor in graph.inputs]
        edges |= {(graph.entry, step.name): [] for step in graph.steps if step.name != graph.entry}
        edges[graph.entry, RESPONSE] = [output.tensor.name for output in graph.outputs]
        return edges
    for step in graph.steps:
        for entry in step.inputs:
            if entry.source is not None:
                source = REQUEST if entry.source.step == PIPELINE else entry.source.step
                edges.setdefault((source, step.name), []).append(entry.source.tensor)
    for output in graph.outputs:
        source = REQUEST if output.source.step == PIPELINE else output.source.step
        edges.setdefault((source, RESPONSE), []).append(output.tensor.name)
    return edges


def _columns(graph: Graph, edges: Mapping[tuple[str, str], list[str]]) -> dict[str, int]:
    """Return the column of each box; the steps are in data-flow order."""
    columns = {REQUEST: 0}
    steps = [step.name for step in graph.steps]
    if graph.entry is not None:
        steps.sort(key=lambda name: name != graph.entry)
    for name in steps:
        sources = [columns[source] for source, target in edges if target == name]
        columns[name] = 1 + max(sources, default=0)
    columns[RESPONSE] = 1 + max(columns.values())
    return columns


def _describe(graph: Graph, name: str) -> tuple[str, str]:
    """Return the kind of a box and what runs it."""
    step = graph.step(name)
    if step is None:
        tensors = graph.inputs if name == REQUEST else [item.tensor for item in graph.outputs]
        return name, truncate(", ".join(tensor.name for tensor in tensors), _LABEL_CHARACTERS_MAX)
    return (
        "cpu" if _on_cpu(step) else "gpu"
    ), f"{step.role.value}, {step.backend or step.platform}"


def _on_cpu(step: Step) -> bool:
    return step.computes_on_cpu or step.role is Role.TOKENIZER


def _arrow(source: DiagramBox, target: DiagramBox, tensors: tuple[str, ...]) -> Arrow:
    x1, y1 = source.x + BOX_WIDTH, source.y + BOX_HEIGHT // 2
    x2, y2 = target.x, target.y + BOX_HEIGHT // 2
    middle = (x1 + x2) // 2
    return Arrow(
        tensors,
        truncate(", ".join(tensors), _LABEL_CHARACTERS_MAX) or "calls",
        f"M {x1} {y1} C {middle} {y1}, {middle} {y2}, {x2 - 6} {y2}",
        # Just before the target's column; arrows to several targets are apart there.
        x2 - (_COLUMN - BOX_WIDTH) // 2,
        y1 + 3 * (y2 - y1) // 4 - 8,
    )


def _detour(source: DiagramBox, target: DiagramBox, tensors: tuple[str, ...], lane: int) -> Arrow:
    """Return an arrow that runs at the height ``lane``, in pixels."""
    x1, y1 = source.x + BOX_WIDTH, source.y + BOX_HEIGHT // 2
    x2, y2 = target.x, target.y + BOX_HEIGHT // 2
    gap = _COLUMN - BOX_WIDTH
    return Arrow(
        tensors,
        truncate(", ".join(tensors), _LABEL_CHARACTERS_MAX) or "calls",
        f"M {x1} {y1} C {x1 + gap // 2} {y1}, {x1 + gap // 4} {lane}, {x1 + gap} {lane}"
        f" L {x2 - gap} {lane} C {x2 - gap // 4} {lane}, {x2 - gap // 2} {y2}, {x2 - 6} {y2}",
        (x1 + x2) // 2,
        lane - 6,
    )
