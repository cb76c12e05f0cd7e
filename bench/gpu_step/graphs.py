"""ONNX graphs of an encoder, one for each batch form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.gpu_step.encoder import CLASSES, GROUPS, EncoderShape, Feeds, Form


class GraphBuilder:
    """Collects nodes and constants of one graph."""

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        """Start an empty graph that computes in ``dtype``."""
        import onnx

        self.dtype = dtype
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._inputs: list[Any] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **more: Any) -> Any:
        """Add a node; returns its output's name, or a list of names where it has several."""
        names = [f"{kind}_{len(self._nodes)}_{number}" for number in range(outputs)]
        node = self._onnx.helper.make_node(kind, inputs, names, names[0], domain=domain, **more)
        self._nodes.append(node)
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, name: str | None = None) -> str:
        """Add a constant; ``value`` is an array, or an int or list of ints for int64."""
        array = np.asarray(value) if isinstance(value, np.ndarray) else np.array(value, np.int64)
        name = name or f"constant_{len(self._constants)}"
        if name not in self._constants:
            self._constants[name] = self._onnx.numpy_helper.from_array(array, name)
        return name

    def real(self, value: float) -> str:
        """Add a scalar in the graph's floating type."""
        return self.constant(np.array(value, self.dtype))

    def input(self, name: str, dtype: Any, dims: Sequence[str]) -> str:
        """Declare a graph input."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(dims)))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Convert to a numpy type."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return str(self.op("Cast", value, to=kind))

    def axes(self, value: str, *axes: int) -> str:
        """Insert axes of size 1."""
        return str(self.op("Unsqueeze", value, self.constant(list(axes))))

    def model(self, outputs: Mapping[str, tuple[str, Any, Sequence[Any]]]) -> Any:
        """Return the model; outputs by name are (value, numpy type, dims)."""
        helper = self._onnx.helper
        infos = []
        for name, (value, dtype, dims) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [value], [name]))
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            infos.append(helper.make_tensor_value_info(name, kind, list(dims)))
        graph = helper.make_graph(
            self._nodes, "encoder", self._inputs, infos, list(self._constants.values())
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@dataclass(frozen=True)
class View:
    """A padded view [rows, width] of flat tokens."""

    gather: str
    """Flat token of each cell, int64; cells of padding name any token."""
    valid: str
    """Which cells are tokens, in the graph's floating type."""


@dataclass(frozen=True)
class Maps:
    """Index maps between flat tokens and the padded views of their rows."""

    positions: str
    """Of each flat token within its row, int64."""
    views: Sequence[View]
    """One, or one per length group."""
    scatter: str
    """Cell of each flat token in the flattened views, one view after the other, int64."""
    order: str | None = None
    """Which row of the views each row of the batch is; ``None``: the same."""
    token_offset: str | None = None
    cumulative: str | None = None


class EncoderGraph:
    """Builds an encoder in one form."""

    def __init__(
        self, shape: EncoderShape, form: Form, dtype: type[np.floating[Any]], weights: Feeds
    ) -> None:
        """``weights`` are those of `draw_weights`."""
        self._shape, self._form, self._weights = shape, form, weights
        self.build = GraphBuilder(dtype)

    def model(self) -> Any:
        """Return the ONNX model; its output is ``logits`` [rows, CLASSES]."""
        build = self.build
        if self._form in (Form.PADDED, Form.PADDED_FUSED, Form.REMOVE_PADDING):
            logits = self._head(self._padded())
        else:
            logits = self._head(self._flat())
        return build.model({"logits": (logits, build.dtype, ["rows", CLASSES])})

    def _padded(self) -> str:
        build = self.build
        ids = build.input("input_ids", np.int64, ["rows", "width"])
        mask = build.input("attention_mask", np.int64, ["rows", "width"])
        width = build.op("Gather", build.op("Shape", ids), build.constant(1))
        positions = build.op("Range", build.constant(0), width, build.constant(1))
        valid = build.cast(mask, build.dtype)
        state = self._embed(ids, positions)
        if self._form is Form.PADDED:
            bias = self._bias(valid)
            state = self._layers(state, lambda q, k, v: self._attention(q, k, v, bias))
            return self._mean(state, valid)
        counts = build.op("ReduceSum", build.cast(mask, np.int32), build.constant([1]), keepdims=0)
        if self._form is Form.PADDED_FUSED:
            state = self._layers(state, lambda q, k, v: self._fused(q, k, v, counts))
            return self._mean(state, valid)
        state, offset, cumulative, _ = build.op(
            "RemovePadding", state, counts, outputs=4, domain="com.microsoft"
        )
        state = self._layers(state, lambda q, k, v: self._packed(q, k, v, offset, cumulative))
        state = build.op("RestorePadding", state, offset, domain="com.microsoft")
        return self._mean(state, valid)

    def _flat(self) -> str:
        build = self.build
        ids = build.input("input_ids", np.int64, ["tokens"])
        maps = self._maps(ids)
        state = self._embed(ids, maps.positions)
        if self._form in (Form.PACKED, Form.PACKED_HOST):
            offset, cumulative = str(maps.token_offset), str(maps.cumulative)
            state = self._layers(state, lambda q, k, v: self._packed(q, k, v, offset, cumulative))
        else:
            biases = [self._bias(view.valid) for view in maps.views]
            state = self._layers(state, lambda q, k, v: self._in_views(q, k, v, maps, biases))
        means = [
            self._mean(build.op("Gather", state, view.gather), view.valid) for view in maps.views
        ]
        if maps.order is None:
            return means[0]
        return str(build.op("Gather", build.op("Concat", *means, axis=0), maps.order))

    def _maps(self, ids: str) -> Maps:
        build = self.build
        if self._form in (Form.FLAT, Form.PACKED):
            lengths = build.input("lengths", np.int32, ["rows"])
            return graph_maps(build, ids, lengths, packed=self._form is Form.PACKED)
        positions = build.input("positions", np.int64, ["tokens"])
        groups = GROUPS if self._form is Form.FLAT_GROUPS else 1
        views = [
            View(
                build.input(f"gather_{group}", np.int64, [f"rows_{group}", f"width_{group}"]),
                build.input(f"valid_{group}", build.dtype, [f"rows_{group}", f"width_{group}"]),
            )
            for group in range(groups)
        ]
        if self._form is Form.PACKED_HOST:
            return Maps(
                positions,
                views,
                "",
                token_offset=build.input("token_offset", np.int32, ["rows_0", "width_0"]),
                cumulative=build.input("cumulative", np.int32, ["ends"]),
            )
        scatter = build.input("scatter", np.int64, ["tokens"])
        order = build.input("order", np.int64, ["rows"]) if groups > 1 else None
        return Maps(positions, views, scatter, order)

    def _embed(self, ids: str, positions: str) -> str:
        words = self.build.op("Gather", self._weight("words"), ids)
        places = self.build.op("Gather", self._weight("places"), positions)
        return self._normalize(self.build.op("Add", words, places))

    def _layers(self, state: str, attend: Callable[[str, str, str], str]) -> str:
        build = self.build
        for layer in range(self._shape.layers):
            projected = [
                self._linear(state, f"{layer}.{part}") for part in ("query", "key", "value")
            ]
            context = attend(projected[0], projected[1], projected[2])
            state = self._normalize(
                build.op("Add", self._linear(context, f"{layer}.output"), state)
            )
            inner = self._gelu(self._linear(state, f"{layer}.inner"))
            state = self._normalize(build.op("Add", self._linear(inner, f"{layer}.outer"), state))
        return state

    def _attention(self, query: str, key: str, value: str, bias: str) -> str:
        """[rows, width, hidden] each; products, softmax and mask as exports write them."""
        build, heads = self.build, self._shape.heads
        size = self._shape.hidden // heads
        split = build.constant([0, 0, heads, size], "split")
        rows = [build.op("Reshape", part, split) for part in (query, key, value)]
        first = build.op("Transpose", rows[0], perm=[0, 2, 1, 3])
        second = build.op("Transpose", rows[1], perm=[0, 2, 3, 1])
        third = build.op("Transpose", rows[2], perm=[0, 2, 1, 3])
        scores = build.op("Div", build.op("MatMul", first, second), build.real(size**0.5))
        weights = build.op("Softmax", build.op("Add", scores, bias), axis=-1)
        context = build.op("Transpose", build.op("MatMul", weights, third), perm=[0, 2, 1, 3])
        joined = build.constant([0, 0, self._shape.hidden], "joined")
        return str(build.op("Reshape", context, joined))

    def _in_views(self, query: str, key: str, value: str, maps: Maps, biases: Sequence[str]) -> str:
        """[tokens, hidden] each; attention within padded views."""
        build = self.build
        flat = build.constant([-1, self._shape.hidden], "flat")
        contexts = []
        for view, bias in zip(maps.views, biases, strict=True):
            parts = [build.op("Gather", part, view.gather) for part in (query, key, value)]
            context = self._attention(parts[0], parts[1], parts[2], bias)
            contexts.append(build.op("Reshape", context, flat))
        cells = build.op("Concat", *contexts, axis=0) if len(contexts) > 1 else contexts[0]
        return str(build.op("Gather", cells, maps.scatter))

    def _fused(self, query: str, key: str, value: str, counts: str) -> str:
        return str(
            self.build.op(
                "MultiHeadAttention",
                query,
                key,
                value,
                "",
                counts,
                domain="com.microsoft",
                num_heads=self._shape.heads,
            )
        )

    def _packed(self, query: str, key: str, value: str, offset: str, cumulative: str) -> str:
        return str(
            self.build.op(
                "PackedMultiHeadAttention",
                query,
                key,
                value,
                "",
                offset,
                cumulative,
                domain="com.microsoft",
                num_heads=self._shape.heads,
            )
        )

    def _bias(self, valid: str) -> str:
        build = self.build
        missing = build.op("Sub", build.real(1.0), valid)
        return build.axes(build.op("Mul", missing, build.real(-1e4)), 1, 2)

    def _mean(self, state: str, valid: str) -> str:
        build = self.build
        weights = build.axes(valid, 2)
        total = build.op(
            "ReduceSum", build.op("Mul", state, weights), build.constant([1]), keepdims=0
        )
        return str(
            build.op("Div", total, build.op("ReduceSum", weights, build.constant([1]), keepdims=0))
        )

    def _head(self, state: str) -> str:
        return self._linear(state, "head")

    def _linear(self, state: str, name: str) -> str:
        product = self.build.op("MatMul", state, self._weight(f"{name}.weight"))
        return str(self.build.op("Add", product, self._weight(f"{name}.bias")))

    def _gelu(self, state: str) -> str:
        build = self.build
        error = build.op("Erf", build.op("Div", state, build.real(2**0.5)))
        scaled = build.op("Mul", state, build.op("Add", error, build.real(1.0)))
        return str(build.op("Mul", scaled, build.real(0.5)))

    def _normalize(self, state: str) -> str:
        hidden, dtype = self._shape.hidden, self.build.dtype
        one = self.build.constant(np.ones(hidden, dtype), "ones")
        zero = self.build.constant(np.zeros(hidden, dtype), "zeros")
        return str(self.build.op("LayerNormalization", state, one, zero, axis=-1, epsilon=1e-5))

    def _weight(self, name: str) -> str:
        return self.build.constant(self._weights[name].astype(self.build.dtype), name)


def graph_maps(build: GraphBuilder, ids: str, lengths: str, packed: bool) -> Maps:
    """Add the nodes that compute the index maps from the lengths of the rows, int32 [rows]."""
    zero, one = build.constant(0), build.constant(1)
    count = build.cast(lengths, np.int64)
    end = build.op("CumSum", count, zero)
    start = build.op("Sub", end, count)
    longest = build.op("ReduceMax", count, keepdims=0)
    place = build.op("Range", zero, longest, one)
    valid = build.op("Less", build.axes(place, 0), build.axes(count, 1))
    cell = build.op("Add", build.axes(start, 1), build.axes(place, 0))
    view = View(build.op("Where", valid, cell, zero), build.cast(valid, build.dtype))
    tokens = build.op("Gather", build.op("Shape", ids), zero)
    token = build.op("Range", zero, tokens, one)
    passed = build.op("GreaterOrEqual", build.axes(token, 1), build.axes(end, 0))
    row = build.op("ReduceSum", build.cast(passed, np.int64), build.constant([1]), keepdims=0)
    positions = build.op("Sub", token, build.op("Gather", start, row))
    scatter = build.op("Add", build.op("Mul", row, longest), positions)
    if not packed:
        return Maps(positions, [view], scatter)
    empty = build.op("Not", build.op("Reshape", valid, build.constant([-1])))
    padding = build.op("Reshape", build.op("NonZero", empty), build.constant([-1]))
    offset = build.op("Concat", scatter, padding, axis=0)
    offset = build.cast(build.op("Reshape", offset, build.op("Shape", valid)), np.int32)
    cumulative = build.cast(build.op("Concat", build.constant([0]), end, axis=0), np.int32)
    return Maps(positions, [view], scatter, token_offset=offset, cumulative=cumulative)
