"""Rewrite the nodes of a graph so that position-wise ones run on flat tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from triton_pipelines.loader.ragged.node_builder import NodeBuilder
from triton_pipelines.loader.ragged.padding_free.placement import Placement
from triton_pipelines.loader.ragged.padding_free.position_wise import FlatOperator, Reading
from triton_pipelines.loader.ragged.padding_free.shape_probe import names_read
from triton_pipelines.loader.ragged.padding_free.tensor_facts import Axis, Facts, TokenAxes
from triton_pipelines.loader.ragged.padding_free.token_maps import TokenMaps


class GraphRewriter:
    """Adds the nodes of a graph to a builder, in their new form.

    A padded tensor keeps its name. Its flat form has a name of its own. Each is made where a node
    first needs it.
    """

    def __init__(self, build: NodeBuilder, maps: TokenMaps, facts: Facts) -> None:
        """Create the rewriter.

        Args:
            build: where the nodes are added.
            maps: index tensors of the batch.
            facts: facts about the graph's tensors.
        """
        self._build, self._maps, self._facts = build, maps, facts
        self._padded = set[str]()
        self._flat: dict[str, str] = {}
        self._spread: dict[str, str] = {}

    def rewrite(self, nodes: Sequence[Any], placement: Placement) -> None:
        """Add all nodes."""
        for number, node in enumerate(nodes):
            operator = placement.flat.get(number)
            if operator is not None:
                self._add_flat(node, operator)
            elif node.op_type == "Shape" and node.input[0] in self._flat.keys() - self._padded:
                self._add_shape(node)
            else:
                for name in sorted(names_read(node)):
                    self.need_padded(name)
                self._build.nodes.append(node)

    def _add_shape(self, node: Any) -> None:
        """Add the shape that the padded form of a tensor would have."""
        build, tokens = self._build, self._tokens(node.input[0])
        index = self._maps.to_padded_list if tokens.is_merged else self._maps.to_padded
        whole = build.add(
            "Concat",
            build.integers(*tokens.before),
            build.add("Shape", index),
            build.integers(*tokens.behind),
            axis=0,
        )
        limits = {attribute.name: attribute.i for attribute in node.attribute}
        ends = limits.get("start", 0), limits.get("end", tokens.rank)
        build.add_as(node.output[0], "Slice", whole, *(build.integers(end) for end in ends))

    def _tokens(self, name: str) -> TokenAxes:
        """Return where a tensor that has a flat form has its tokens."""
        tokens = self._facts[name].tokens
        assert tokens is not None
        return tokens

    def need_padded(self, name: str) -> None:
        """Add the padded form of a tensor if only its flat form exists."""
        if name in self._padded or name not in self._flat:
            return
        self._padded.add(name)
        build, fact, tokens = self._build, self._facts[name], self._tokens(name)
        flat, index = self._flat[name], self._maps.to_padded_list
        if not tokens.is_merged:
            flat = build.add("Reshape", flat, build.integers(*tokens.with_tokens(-1)))
            index = self._maps.to_padded
        if fact.filler is None:
            build.add_as(name, "Gather", flat, index, axis=tokens.first)
            return
        padded = build.add("Gather", flat, index, axis=tokens.first)
        build.add_as(name, "Where", self._is_token(tokens), padded, self._filler(name))

    def _is_token(self, tokens: TokenAxes) -> str:
        build = self._build
        ones = [1 for _ in tokens.behind]
        if tokens.is_merged:
            return build.add("Reshape", self._maps.is_token, build.integers(-1, *ones))
        if not ones:
            return self._maps.is_token
        return build.unsqueeze(self._maps.is_token, *range(2, 2 + len(ones)))

    def _filler(self, name: str) -> str:
        fact = self._facts[name]
        return self._build.constant(np.array(fact.filler, fact.dtype))

    def _add_flat(self, node: Any, operator: FlatOperator) -> None:
        inputs = [
            self._read(name, reading, node)
            for name, reading in zip(node.input, operator.readings, strict=False)
        ]
        outputs = [self._flat_name(name) if name else "" for name in node.output]
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

    def _flat_name(self, name: str) -> str:
        return self._build.name(f"flat/{name}")

    def _read(self, name: str, reading: Reading, node: Any) -> str:
        if reading is Reading.FLAT:
            return self._laid_flat(name)
        return self._spread_over_tokens(name, node) if reading is Reading.SPREAD else name

    def _laid_flat(self, name: str) -> str:
        """Return the flat form of a tensor, made from the padded one if there is none."""
        if name not in self._flat:
            build, tokens = self._build, self._tokens(name)
            self._padded.add(name)
            padded, index = name, self._maps.to_flat_list
            if not tokens.is_merged:
                padded = build.add("Reshape", name, build.integers(*tokens.with_tokens(-1)))
                index = self._maps.to_flat
            self._flat[name] = build.add("Gather", padded, index, axis=tokens.first)
        return self._flat[name]

    def _spread_over_tokens(self, name: str, node: Any) -> str:
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
            listed = build.add("Reshape", name, build.integers(*kept[:first], -1, *kept[first:]))
            self._spread[name] = build.add("Gather", listed, index, axis=first)
        return self._spread[name]
