"""Rewrite the nodes of a graph so that position-wise ones run on flat tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from triton_pipelines.loader.onnx_graph.graph_walk import names_read, rename
from triton_pipelines.loader.onnx_graph.node_builder import NodeBuilder
from triton_pipelines.loader.ragged.padding_free.empty_groups import GroupResult
from triton_pipelines.loader.ragged.padding_free.placement import Placement
from triton_pipelines.loader.ragged.padding_free.position_wise import FlatOperator, Reading
from triton_pipelines.loader.ragged.padding_free.tensor_facts import Axis, Facts, TokenAxes
from triton_pipelines.loader.ragged.padding_free.token_maps import PaddedView, TokenMaps


class GraphRewriter:
    """Adds the nodes of a graph to a builder, in their new form.

    A tensor that depends on the inputs has a padded form in each view of the rows, a flat form, or
    all of them. Each is made where a node first needs it.
    """

    def __init__(
        self, build: NodeBuilder, maps: TokenMaps, facts: Facts, sources: Mapping[str, bool]
    ) -> None:
        """Create the rewriter.

        Args:
            build: where the nodes are added.
            maps: index tensors of the batch.
            facts: facts about the graph's tensors.
            sources: inputs of the graph, and whether they have an axis of places.
        """
        self._build, self._maps, self._facts = build, maps, facts
        self._padded: dict[str, list[str]] = {
            name: [self._source(name, view, has_places) for view in maps.views]
            for name, has_places in sources.items()
        }
        self._flat: dict[str, str] = {}
        self._spread: dict[str, str] = {}
        self._lists: dict[str, str] = {}
        self.group_results: list[GroupResult] = []
        """Results of groups that may be empty."""

    def _source(self, name: str, view: PaddedView, has_places: bool) -> str:
        """Return an input's rows of a view."""
        if not view.rows:
            return name
        build = self._build
        rows = build.add("Gather", name, view.rows, axis=0)
        if not has_places:
            return rows
        end = build.unsqueeze(view.width, 0)
        return build.add("Slice", rows, build.integers(0), end, build.integers(1))

    def rewrite(self, nodes: Sequence[Any], placement: Placement) -> None:
        """Add all nodes."""
        for number, node in enumerate(nodes):
            if number in placement.neutral:
                self._build.nodes.append(node)
            elif (operator := placement.flat.get(number)) is not None:
                self._add_flat(node, operator)
            elif node.op_type == "Shape" and node.input[0] in self._flat.keys() - self._padded:
                self._add_shape(node)
            else:
                self._add_padded(node)

    def add_output(self, name: str) -> None:
        """Add the padded form of a tensor with all rows of the batch, under the tensor's name."""
        fact, build = self._facts[name], self._build
        is_split = len(self._maps.views) > 1
        if fact.is_neutral or self._padded.get(name) == [name]:
            return
        if name in self._flat or (fact.tokens is not None and is_split):
            build.add_as(name, "Identity", self._pad(name, self._maps.whole, self._laid_flat(name)))
        else:
            whole = build.join(self._padded[name])
            build.add_as(name, "Gather", whole, self._maps.row_order, axis=0)

    def _add_padded(self, node: Any) -> None:
        """Add a node once for each padded view."""
        read = sorted(names_read(node))
        for name in read:
            self._need_padded(name)
        for number in range(len(self._maps.views)):
            names = {name: self._padded[name][number] for name in read if name in self._padded}
            names |= {name: self._view_name(name, number) for name in node.output if name}
            copy = helper.make_graph([node], "copy", [], [])
            rename(copy, names)
            if number:
                copy.node[0].name = self._view_name(node.name, number)
            self._build.nodes.append(copy.node[0])
        for name in node.output:
            self._padded[name] = [
                self._view_name(name, number) for number in range(len(self._maps.views))
            ]

    def _view_name(self, name: str, number: int) -> str:
        """Return the name of a tensor in a view; with a single view it is the tensor's own."""
        if len(self._maps.views) == 1 or not name:
            return name
        return self._build.name(f"group{number}/{name}")

    def _need_padded(self, name: str) -> None:
        """Add the padded forms of a tensor if only its flat form exists."""
        if name in self._flat and name not in self._padded:
            self._padded[name] = [
                self._pad(name, view, self._flat[name]) for view in self._maps.views
            ]

    def _pad(self, name: str, view: PaddedView, flat: str) -> str:
        build, fact, tokens = self._build, self._facts[name], self._tokens(name)
        index = view.to_padded
        if tokens.is_merged:
            index = build.add("Reshape", index, build.integers(-1))
        else:
            flat = self._listed(flat, tokens)
        padded = build.add("Gather", flat, index, axis=tokens.first)
        if fact.filler is None:
            return padded
        ones = [1 for _ in tokens.behind]
        is_token = view.is_token
        if tokens.is_merged:
            is_token = build.add("Reshape", is_token, build.integers(-1, *ones))
        elif ones:
            is_token = build.unsqueeze(is_token, *range(2, 2 + len(ones)))
        filler = build.constant(np.array(fact.filler, fact.dtype))
        return build.add("Where", is_token, padded, filler)

    def _listed(self, flat: str, tokens: TokenAxes) -> str:
        """Return a flat tensor with its tokens along one axis."""
        if flat not in self._lists:
            shape = self._build.integers(*tokens.with_tokens(-1))
            self._lists[flat] = self._build.add("Reshape", flat, shape)
        return self._lists[flat]

    def _add_shape(self, node: Any) -> None:
        """Add the shape that the padded form of a tensor would have."""
        build, tokens = self._build, self._tokens(node.input[0])
        limits = {attribute.name: attribute.i for attribute in node.attribute}
        ends = limits.get("start", 0), limits.get("end", tokens.rank)
        name = node.output[0]
        self._padded[name] = []
        for number, view in enumerate(self._maps.views):
            shape = build.add("Shape", view.to_padded)
            if tokens.is_merged:
                shape = build.unsqueeze(build.add("Size", view.to_padded), 0)
            parts = build.integers(*tokens.before), shape, build.integers(*tokens.behind)
            whole = build.add("Concat", *parts, axis=0)
            made = self._view_name(name, number)
            build.add_as(made, "Slice", whole, *(build.integers(end) for end in ends))
            self._padded[name].append(made)

    def _tokens(self, name: str) -> TokenAxes:
        """Return where a tensor that has a flat form has its tokens."""
        tokens = self._facts[name].tokens
        assert tokens is not None
        return tokens

    def _add_flat(self, node: Any, operator: FlatOperator) -> None:
        inputs = [
            self._read(name, reading)
            for name, reading in zip(node.input, operator.readings, strict=False)
        ]
        outputs = [self._build.name(f"flat/{name}") if name else "" for name in node.output]
        if operator.operator:
            shape = self._build.integers(*operator.shape)
            made = helper.make_node(operator.operator, [inputs[0], shape], outputs, name=node.name)
        else:
            made = type(node).FromString(node.SerializeToString())
            del made.input[:], made.output[:]
            made.input.extend(inputs)
            made.output.extend(outputs)
        self._build.nodes.append(made)
        self._flat.update(
            (name, flat) for name, flat in zip(node.output, outputs, strict=True) if name
        )

    def _read(self, name: str, reading: Reading) -> str:
        if reading is Reading.FLAT:
            return self._laid_flat(name)
        return self._spread_over_tokens(name) if reading is Reading.SPREAD else name

    def _laid_flat(self, name: str) -> str:
        """Return the flat form of a tensor, made from the padded ones if there is none."""
        if name not in self._flat:
            build, tokens = self._build, self._tokens(name)
            listed = build.integers(*tokens.with_tokens(-1))
            parts = self._padded[name]
            if not tokens.is_merged:
                parts = [build.add("Reshape", part, listed) for part in parts]
            index = self._maps.to_flat
            if not tokens.is_merged:
                index = build.unsqueeze(index, 0)
            shape, dtype = tuple(tokens.with_tokens(1)), self._facts[name].dtype
            self.group_results += [
                GroupResult(part, view.is_empty, shape, dtype)
                for part, view in zip(parts, self._maps.views, strict=True)
                if view.is_empty
            ]
            joined = build.join(parts, axis=tokens.first)
            self._flat[name] = build.add("Gather", joined, index, axis=tokens.first)
        return self._flat[name]

    def _spread_over_tokens(self, name: str) -> str:
        """Return a tensor with one entry per row, or per place, as one with an entry per token."""
        if name not in self._spread:
            build, dims = self._build, self._facts[name].dims
            axis = next(number for number, dim in enumerate(dims) if isinstance(dim, Axis))
            is_place = dims[axis] is Axis.PLACES
            index = self._maps.place_of if is_place else self._maps.row_of
            # The other of the two token axes has length 1, if it exists, and is replaced.
            first = max(axis - 1, 0) if is_place else axis
            last = axis if is_place else axis + 1
            others = [*dims[:first], *dims[last + 1 :]]
            kept = [dim for dim in others if isinstance(dim, int)]
            shape = build.integers(*kept[:first], -1, *kept[first:])
            parts = [build.add("Reshape", part, shape) for part in self._padded[name]]
            self._spread[name] = build.add("Gather", build.join(parts, first), index, axis=first)
        return self._spread[name]
