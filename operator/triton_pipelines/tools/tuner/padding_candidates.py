"""The padding modes that a pipeline could have. Pure.

They follow from its own graph, and from what the measured server can show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from triton_pipelines.api.base import Severity
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import (
    PaddingSetting,
    padding_fields,
    patch_pipeline,
)
from triton_pipelines.compile.graph.tokenizer_checks import check_tokenizer
from triton_pipelines.compile.render.errors import RefusedError

from .padding_cost import PaddingCandidate
from .prediction import PaddingEffect
from .settings import needs_equal_lengths, tuned_step

NEEDS_OTHER_FILES: Final = (
    "the ONNX file is adapted to ragged batches when it is loaded, so this server cannot "
    "switch to Ragged; set it in the resource and measure again, unless status.padding "
    "shows that the file was rejected"
)

Rebuild = Callable[[InferencePipeline], Graph]


def longest_row(graph: Graph) -> int:
    """Return the tokens of the longest row of the built-in tokenizer; 0 for custom code."""
    settings = graph.tokenizer.tokenizer if graph.tokenizer is not None else None
    return settings.max_length if settings is not None else 0


def padding_effect(graph: Graph, longest: int) -> PaddingEffect:
    """Return the effect of the graph's own padding on the steps."""
    choice = graph.padding
    buckets = tuple(sorted({*(choice.buckets if choice is not None else ()), longest}))
    return PaddingEffect(
        choice.chosen if choice is not None else None,
        buckets,
        frozenset(step.name for step in graph.steps if needs_equal_lengths(step)),
    )


def current_padding(graph: Graph) -> PaddingSetting | None:
    """Return the padding of the graph.

    ``None``: it is unknown, because custom code creates the tokens.
    """
    tokenizer, choice = graph.tokenizer, graph.padding
    if (
        choice is None
        or choice.chosen is Padding.AUTO
        or tokenizer is None
        or tokenizer.tokenizer is None
    ):
        return None
    return PaddingSetting(choice.chosen.value, choice.buckets)


def needs_other_files(graph: Graph, other: Graph) -> bool:
    """Return whether the graphs differ in which files are adapted to ragged batches."""
    return {step.name: step.flat or {} for step in graph.models} != {
        step.name: step.flat or {} for step in other.models
    }


def padding_candidate(
    pipeline: InferencePipeline, graph: Graph, rebuild: Rebuild, padding: PaddingSetting
) -> tuple[PaddingCandidate, PaddingEffect] | None:
    """Return a padding mode as a candidate, and its effect on the steps.

    ``None``: the pipeline cannot use it.
    """
    try:
        patched = patch_pipeline(
            pipeline, {"spec": {"tokenizer": padding_fields(pipeline, padding)}}
        )
        other = rebuild(patched)
    except (ValueError, RefusedError):
        return None
    if any(finding.severity is Severity.ERROR for finding in check_tokenizer(patched, other)):
        return None
    blocker = NEEDS_OTHER_FILES if needs_other_files(graph, other) else ""
    return PaddingCandidate(
        padding, needs_equal_lengths(tuned_step(other)), blocker
    ), padding_effect(other, longest_row(other))
