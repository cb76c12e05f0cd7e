"""Rewrite the body of an adapted graph so that it computes only real tokens where it can."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from triton_pipelines.loader.ragged.input_padding import RowValues
from triton_pipelines.loader.ragged.node_builder import NodeBuilder
from triton_pipelines.loader.ragged.padding_free.graph_rewriter import GraphRewriter
from triton_pipelines.loader.ragged.padding_free.placement import place_nodes
from triton_pipelines.loader.ragged.padding_free.shape_probe import names_read
from triton_pipelines.loader.ragged.padding_free.tensor_facts import Facts
from triton_pipelines.loader.ragged.padding_free.token_maps import build_token_maps


def add_without_padding(
    build: NodeBuilder,
    rows: RowValues,
    graph: Any,
    facts: Facts,
    ends: tuple[Collection[str], Collection[str]],
) -> None:
    """Add the nodes of a graph to a builder, the position-wise ones on flat tokens.

    Args:
        build: where the nodes are added.
        rows: values that describe the rows of the batch.
        graph: the graph; value infos of tensors that no longer exist are removed.
        facts: facts about its tensors.
        ends: its padded matrices, and its outputs.
    """
    matrices, outputs = ends
    placement = place_nodes(graph.node, facts, list(matrices))
    maps = build_token_maps(build, rows.taken, rows.width)
    rewriter = GraphRewriter(build, maps, facts)
    before = len(build.nodes)
    rewriter.rewrite(graph.node, placement)
    for name in outputs:
        rewriter.need_padded(name)
    build.nodes[before:] = _needed(build.nodes[before:], outputs)
    made = {name for node in build.nodes for name in node.output}
    kept = [value for value in graph.value_info if value.name in made]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _needed(nodes: list[Any], outputs: Collection[str]) -> list[Any]:
    """Return the nodes that the outputs depend on, in the same order."""
    needed, kept = set(outputs), list[Any]()
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed |= names_read(node)
            kept.append(node)
    return kept[::-1]
