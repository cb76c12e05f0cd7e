"""The ways of padding that a pipeline could have: by its own graph, and by what the server that is measured can show. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from triton_pipelines.api.base import Severity
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph, Implementation
from triton_pipelines.compile.graph.resource_patch import (
    PaddingSetting,
    padding_fields,
    patch_pipeline,
)
from triton_pipelines.compile.graph.step_checks import check_tokenizer
from triton_pipelines.compile.render.errors import RefusedError

from .knobs import equal_shapes, model_of
from .padding_cost import Way
from .prediction import Shape

OTHER_FILES: Final = (
    "an ONNX file is adapted to ragged batches, or left as it is, when it is loaded, so this server cannot change to it;"
    " write it and measure again, unless status.padding says that the file was refused"
)

Rebuild = Callable[[InferencePipeline], Graph]


def longest_of(graph: Graph) -> int:
    """Tokens of the longest row that the project's tokenizer makes; 0: another makes them."""
    settings = graph.tokenizer.tokenizer if graph.tokenizer is not None else None
    return settings.max_length if settings is not None else 0


def shape_of(graph: Graph, longest: int) -> Shape:
    """What the graph's own padding makes of the steps."""
    choice = graph.padding
    buckets = tuple(sorted({*(choice.buckets if choice is not None else ()), longest}))
    return Shape(
        choice.chosen if choice is not None else None,
        buckets,
        frozenset(step.name for step in graph.steps if equal_shapes(step)),
    )


def in_force(graph: Graph) -> PaddingSetting | None:
    """The padding of the graph; ``None``: nothing is known of it, since other code makes the tokens."""
    tokenizer, choice = graph.tokenizer, graph.padding
    if (
        choice is None
        or choice.chosen is Padding.AUTO
        or tokenizer is None
        or tokenizer.implementation is not Implementation.TOKENIZER
    ):
        return None
    return PaddingSetting(choice.chosen.value, choice.buckets)


def other_files(graph: Graph, other: Graph) -> bool:
    """Whether the graphs differ in which files are adapted to ragged batches."""
    return {step.name: step.flat or {} for step in graph.models} != {
        step.name: step.flat or {} for step in other.models
    }


def way_of(
    pipeline: InferencePipeline, graph: Graph, rebuild: Rebuild, padded: PaddingSetting
) -> tuple[Way, Shape] | None:
    """A padding as the pipeline would have it, and what it makes of the steps; ``None``: the pipeline cannot have it."""
    try:
        wanted = patch_pipeline(pipeline, {"spec": {"tokenizer": padding_fields(pipeline, padded)}})
        other = rebuild(wanted)
    except (ValueError, RefusedError):
        return None
    if any(finding.severity is Severity.ERROR for finding in check_tokenizer(wanted, other)):
        return None
    hindrance = OTHER_FILES if other_files(graph, other) else ""
    return Way(padded, equal_shapes(model_of(other)), hindrance), shape_of(other, longest_of(other))
