"""Decide whether a graph can compute without padding, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from triton_pipelines.loader.onnx_graph.model_runner import GraphInput
from triton_pipelines.loader.onnx_store import Stored
from triton_pipelines.loader.ragged.eligibility import Adaptable
from triton_pipelines.loader.ragged.padding_free.placement import Placement, place_nodes
from triton_pipelines.loader.ragged.padding_free.shape_probe import probe_shapes
from triton_pipelines.loader.ragged.padding_free.tensor_facts import Axis, Facts, TensorFacts

LEAST_SHARE: Final = 0.5
"""Share of the matrix products with weights that have to run on flat tokens.

Below it, laying tensors out costs about what it saves.
"""
CUTS: Final = 1
"""How often rows are cut into groups of similar length, for CPUs.

Each group repeats the operators of attention.
"""


@dataclass(frozen=True)
class PaddingFree:
    """How a graph computes without padding."""

    facts: Facts
    """Facts about the tensors of the stock graph."""
    placement: Placement
    """Where each node runs."""
    cuts: int = 0
    """How often rows of similar length are cut in two for what mixes tokens: 2^cuts groups."""

    def __str__(self) -> str:
        placement = self.placement
        groups = f", rows in up to {2**self.cuts} groups by length" if self.cuts else ""
        return (
            f"{placement.flat_products} of {placement.products} matrix products compute no "
            f"padding{groups}"
        )


@dataclass(frozen=True)
class Padded:
    """A graph that computes on batches padded to their longest row."""

    reason: str
    """Why it cannot compute without padding."""

    def __str__(self) -> str:
        return f"batches are padded to their longest row, because {self.reason}"


def analyze(
    stored: Stored, graph_inputs: Sequence[GraphInput], adaptable: Adaptable
) -> PaddingFree | Padded:
    """Return how a stock graph can compute without padding, or why it cannot.

    Args:
        stored: the model; its weights are taken out of it.
        graph_inputs: its inputs.
        adaptable: what it can be adapted for.
    """
    nodes = list(stored.model.graph.node)
    outputs = [value.name for value in stored.model.graph.output]
    try:
        facts = probe_shapes(stored, graph_inputs, adaptable)
    except MemoryError:
        return Padded("there is not enough memory to find the axes of its tensors")
    except Exception as error:
        # The evaluator has no common error type for what it does not support.
        reason = str(error).strip().partition("\n")[0][:200]
        return Padded(f"the axes of its tensors cannot be found ({type(error).__name__}: {reason})")
    placement = place_nodes(nodes, facts, [item.name for item in graph_inputs if item.per_token])
    if not placement.products:
        return Padded(
            "it has no matrix products with weights that process each token independently"
        )
    if placement.flat_products < LEAST_SHARE * placement.products:
        return Padded(
            f"only {placement.flat_products} of {placement.products} matrix products "
            "process each token independently; the first one that does not is "
            f"{placement.blocker}"
        )
    cuts = CUTS if all(_can_be_joined(facts[name]) for name in outputs) else 0
    return PaddingFree(facts, placement, cuts)


def _can_be_joined(fact: TensorFacts) -> bool:
    """Return whether an output can be put together from groups of rows."""
    by_row = fact.dims[:1] == (Axis.ROWS,) and all(isinstance(dim, int) for dim in fact.dims[1:])
    return fact.is_neutral or fact.tokens is not None or by_row
