"""Boxes and arrows of a pipeline's drawing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.support import builders
from triton_pipelines.api import parse
from triton_pipelines.compile.graph import Graph, Options, build
from triton_pipelines.compile.graph.graph import PIPELINE, Reference
from triton_pipelines.tools.report.diagram import (
    BOX_HEIGHT,
    BOX_WIDTH,
    REQUEST,
    RESPONSE,
    diagram,
)

SAMPLES = sorted((Path(__file__).parents[3] / "manifests/samples").glob("*.yaml"))


def sample(file: Path) -> Graph:
    for document in yaml.safe_load_all(file.read_text()):
        if document and document.get("kind") == "InferencePipeline":
            pipeline, findings = parse(document)
            assert pipeline is not None, findings
            return build(pipeline, Options())
    raise AssertionError(f"{file} has no pipeline")


def test_a_step_stands_right_of_all_steps_that_it_reads_from() -> None:
    graph = builders.built().graph
    last = graph.steps[-1]
    request = replace(last.inputs[0], source=Reference(PIPELINE, graph.inputs[0].name))
    reads_request_too = replace(last, inputs=(request, *last.inputs))
    drawing = diagram(replace(graph, steps=(*graph.steps[:-1], reads_request_too)))
    place = {box.name: box.x for box in drawing.boxes}
    assert place[REQUEST] < place["tokenizer"] < place["model"] < place["postprocess"]
    assert place["postprocess"] < place[RESPONSE]


def test_steps_on_the_cpu_and_on_a_backend_differ() -> None:
    kinds = {box.name: box.kind for box in diagram(builders.built().graph).boxes}
    assert (kinds["tokenizer"], kinds["model"]) == ("cpu", "gpu")


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.stem)
def test_every_sample_is_drawn_without_overlapping_boxes(file: Path) -> None:
    graph = sample(file)
    drawing = diagram(graph)
    assert {box.name for box in drawing.boxes} == {
        REQUEST,
        RESPONSE,
        *(step.name for step in graph.steps),
    }
    assert len({(box.x, box.y) for box in drawing.boxes}) == len(drawing.boxes)
    for box in drawing.boxes:
        assert box.x + BOX_WIDTH <= drawing.width
        assert box.y + BOX_HEIGHT <= drawing.height
    assert drawing.arrows
