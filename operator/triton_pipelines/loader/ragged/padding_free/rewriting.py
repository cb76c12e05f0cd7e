"""Rewrite the body of an adapted graph so that it computes only real tokens where it can."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from triton_pipelines.loader.onnx_graph.graph_walk import inputs as graph_inputs
from triton_pipelines.loader.onnx_graph.graph_walk import names_read
from triton_pipelines.loader.onnx_graph.node_builder import NodeBuilder
from triton_pipelines.loader.ragged.input_padding import RowValues
from triton_pipelines.loader.ragged.padding_free.analysis import PaddingFree
from triton_pipelines.loader.ragged.padding_free.empty_groups import skip_empty_groups
from triton_pipelines.loader.ragged.padding_free.graph_rewriter import GraphRewriter
from triton_pipelines.loader.ragged.padding_free.token_maps import build_token_maps


def add_without_padding(
    build: NodeBuilder,
    rows: RowValues,
    graph: Any,
    plan: PaddingFree,
    names: Mapping[str, str],
) -> None:
    """Add the nodes of a graph to a builder, the position-wise ones on flat tokens.

    Args:
        build: where the nodes are added.
        rows: values that describe the rows of the batch.
        graph: the graph; value infos of tensors that no longer exist are removed.
        plan: where each node runs.
        names: names that the graph's inputs and outputs have now.
    """
    facts = {names.get(name, name): fact for name, fact in plan.facts.items()}
    outputs = {names[value.name] for value in graph.output}
    matrices = set(names.values()) - outputs
    sources = {names.get(name, name): names.get(name) in matrices for name in graph_inputs(graph)}
    before = len(build.nodes)
    maps = build_token_maps(build, rows.taken, rows.width, plan.cuts)
    rewriter = GraphRewriter(build, maps, facts, sources)
    rewriter.rewrite(graph.node, plan.placement)
    for name in sorted(outputs):
        rewriter.add_output(name)
    needed = _needed(build.nodes[before:], outputs)
    build.nodes[before:] = skip_empty_groups(needed, rewriter.group_results, outputs)
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
