"""Step time of BERT-like encoders on a GPU, for every way to batch texts of different lengths.

    python -m bench.gpu_step OUT_FOLDER [--minutes N] [--blocks MODEL:PRECISION,...] [--rehearse]
    python -m bench.gpu_step --report FILE [--plot NAME]

It measures ONNX Runtime's CUDA execution provider (and PyTorch, where installed) with random
weights in the shapes of all-MiniLM-L6-v2 and BERT-base, and writes ``OUT_FOLDER/gpu-step.json``.
All times include what a Triton step does per execution: preparing the inputs in host memory, the
copies to and from the GPU, and waiting for the answer. The file needs numpy, onnx and onnxruntime
only, so that it also runs alone on a GPU machine: ``python gpu_step.py OUT_FOLDER``.

Every block (a model at a precision) runs in a process of its own: a CUDA error cannot be cleared
within a process. A graph that ends its process is left out when the block runs again.
``--rehearse`` runs tiny shapes on the CPU, where graphs with CUDA-only operators report that no
kernel exists.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SEED = 7
CLASSES = 8
"""Outputs of the linear head."""
WORDS = 2048
"""Rows of the embedding table; fewer than in the real models, which a lookup does not notice."""
MOST_TOKENS = 512
MEDIAN_TOKENS, SIGMA = 32, 0.6
DOCUMENT_TOKENS = (400, 512)
GROUPS = 4
"""Length groups of the attention view: 1/2, 1/4, 1/8 and 1/8 of the rows, shortest first."""
BATCHES = 4
"""Drawn per number of rows; the rounds take turns."""
OFFLINE_TEXTS = 4096
OFFLINE_ROWS = 64
OFFLINE_TOKENS = 16384
"""Padded tokens per execution of the offline run that is cut by tokens instead of rows."""
NODE_COUNTS = ("providers", "copies", "onCpu")
RESULT = "gpu-step.json"
POISONED = 3
"""Exit status of a block in which a graph broke the CUDA context."""

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


class Precision(StrEnum):
    """How a block computes."""

    FP16 = "FP16"
    FP32 = "FP32"
    """TF32 off."""
    TF32 = "TF32"
    """FP32 weights, products with TF32, which is ONNX Runtime's default."""


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of a BERT-like encoder."""

    name: str
    hidden: int
    layers: int
    heads: int
    inner: int


MINILM = EncoderShape("MiniLM-L6", 384, 6, 12, 1536)
BERT = EncoderShape("BERT-base", 768, 12, 12, 3072)
TINY = EncoderShape("Tiny", 32, 2, 4, 64)
SHAPES = {shape.name: shape for shape in (MINILM, BERT, TINY)}


class Form(StrEnum):
    """A graph of the encoder; all have the same weights."""

    PADDED = "padded"
    PADDED_FUSED = "padded-fused"
    """Attention by com.microsoft MultiHeadAttention."""
    FLAT = "flat"
    """[tokens, hidden] outside attention, standard operators, index maps computed in the graph."""
    FLAT_HOST = "flat-host"
    """As FLAT, index maps computed on the host."""
    FLAT_GROUPS = "flat-groups"
    """As FLAT_HOST, attention in GROUPS length groups."""
    PACKED = "packed"
    """com.microsoft PackedMultiHeadAttention, index maps computed in the graph."""
    PACKED_HOST = "packed-host"
    REMOVE_PADDING = "remove-padding"
    """Padded inputs and outputs; RemovePadding, PackedMultiHeadAttention and RestorePadding."""


CUDA_ONLY = (Form.PACKED, Form.PACKED_HOST, Form.REMOVE_PADDING)


@dataclass(frozen=True)
class Batch:
    """Rows of token ids without padding."""

    ids: Array
    """All rows' ids one after the other, int64."""
    lengths: Array
    """Tokens per row, int64."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max())

    def take(self, rows: Sequence[int]) -> Batch:
        """Return some rows as a batch of their own."""
        ends = np.cumsum(self.lengths)
        parts = [self.ids[ends[row] - self.lengths[row] : ends[row]] for row in rows]
        return Batch(np.concatenate(parts), self.lengths[list(rows)])


def draw_batch(rows: int, seed: int, documents: bool = False) -> Batch:
    """Return rows of random tokens: lognormal lengths, or those of documents cut off at 512."""
    order = np.random.default_rng(seed)
    lengths = (
        order.integers(*DOCUMENT_TOKENS, size=rows, endpoint=True)
        if documents
        else np.clip(np.rint(order.lognormal(np.log(MEDIAN_TOKENS), SIGMA, rows)), 1, MOST_TOKENS)
    ).astype(np.int64)
    return Batch(order.integers(0, WORDS, int(lengths.sum()), dtype=np.int64), lengths)


# Graphs ------------------------------------------------------------------------------------------


@cache
def draw_weights(shape: EncoderShape) -> dict[str, Array]:
    """Return the encoder's weights in FP32; attention is far from uniform with them."""
    order = np.random.default_rng(SEED)

    def normal(rows: int, columns: int, scale: float | None = None) -> Array:
        values = order.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(scale or rows**-0.5)

    hidden, weights = shape.hidden, {}
    weights["words"] = normal(WORDS, hidden, 1.0)
    weights["places"] = normal(MOST_TOKENS, hidden, 0.3)
    for layer in range(shape.layers):
        for part, rows, columns in (
            ("query", hidden, hidden),
            ("key", hidden, hidden),
            ("value", hidden, hidden),
            ("output", hidden, hidden),
            ("inner", hidden, shape.inner),
            ("outer", shape.inner, hidden),
        ):
            weights[f"{layer}.{part}.weight"] = normal(rows, columns)
            weights[f"{layer}.{part}.bias"] = normal(1, columns, 0.1)[0]
    weights["head.weight"] = normal(hidden, CLASSES)
    weights["head.bias"] = normal(1, CLASSES, 0.1)[0]
    return weights


class GraphBuilder:
    """Collects nodes and constants of one graph."""

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        """Start an empty graph that computes in ``dtype``."""
        import onnx

        self.dtype = dtype
        self.onnx_dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
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


# Inputs ------------------------------------------------------------------------------------------


def padded_view(lengths: Array, start: Array, width: int) -> tuple[Array, Array]:
    """Return (flat token of each cell, whether it is one), both [rows, width]."""
    places = np.arange(width)
    valid = places < lengths[:, None]
    return np.where(valid, start[:, None] + places, 0), valid


def prepare(form: Form, batch: Batch, width: int, dtype: type[np.floating[Any]]) -> Feeds:
    """Return the inputs of a graph; ``width`` is what padded forms pad to."""
    if form in (Form.FLAT, Form.PACKED):
        return {"input_ids": batch.ids, "lengths": batch.lengths.astype(np.int32)}
    lengths = batch.lengths
    start = np.cumsum(lengths) - lengths
    if form in (Form.PADDED, Form.PADDED_FUSED, Form.REMOVE_PADDING):
        gather, valid = padded_view(lengths, start, width)
        ids = np.where(valid, batch.ids[gather], 0)
        return {"input_ids": ids, "attention_mask": valid.astype(np.int64)}
    positions = np.arange(len(batch.ids)) - np.repeat(start, lengths)
    feeds: Feeds = {"input_ids": batch.ids, "positions": positions}
    if form is Form.FLAT_GROUPS:
        return feeds | _grouped(lengths, start, positions, dtype)
    gather, valid = padded_view(lengths, start, batch.longest)
    feeds |= {"gather_0": gather, "valid_0": valid.astype(dtype)}
    scatter = np.repeat(np.arange(batch.rows) * batch.longest, lengths) + positions
    if form is Form.FLAT_HOST:
        return feeds | {"scatter": scatter}
    offset = np.concatenate([scatter, np.flatnonzero(~valid)])
    return feeds | {
        "token_offset": offset.reshape(valid.shape).astype(np.int32),
        "cumulative": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
    }


def _grouped(
    lengths: Array, start: Array, positions: Array, dtype: type[np.floating[Any]]
) -> Feeds:
    rows = len(lengths)
    by_length = np.argsort(lengths, kind="stable")
    cuts = [rows - (rows >> group) for group in range(GROUPS)] + [rows]
    feeds: Feeds = {}
    first_cell = np.zeros(rows, np.int64)
    cells = 0
    for group in range(GROUPS):
        members = by_length[cuts[group] : cuts[group + 1]]
        width = int(lengths[members].max())
        gather, valid = padded_view(lengths[members], start[members], width)
        feeds |= {f"gather_{group}": gather, f"valid_{group}": valid.astype(dtype)}
        first_cell[members] = cells + np.arange(len(members)) * width
        cells += len(members) * width
    feeds["scatter"] = np.repeat(first_cell, lengths) + positions
    feeds["order"] = np.argsort(by_length, kind="stable")
    return feeds


# Variants ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepCost:
    """The law of a padded step, from two measured shapes."""

    launch_s: float
    """Seconds per execution."""
    token_s: float
    """Seconds per padded token."""


@dataclass(frozen=True)
class Execution:
    """One run of a graph."""

    batch: Batch
    width: int
    """Tokens that padded forms pad to."""
    rows: Sequence[int]
    """Which rows of the whole batch these are."""


def _whole(batch: Batch, width: int | None = None) -> list[Execution]:
    return [Execution(batch, width or batch.longest, range(batch.rows))]


def _split(batch: Batch, parts: Iterable[Sequence[int]], bucket: bool = False) -> list[Execution]:
    executions = []
    for rows in parts:
        one = batch.take(rows)
        width = bucket_of(one.longest) if bucket else one.longest
        executions.append(Execution(one, width, rows))
    return executions


def bucket_of(tokens: int) -> int:
    """Return the next power of two, at least 16."""
    return max(16, 1 << (tokens - 1).bit_length())


def plan_alone(batch: Batch, _: StepCost) -> list[Execution]:
    """Every row by itself."""
    return _split(batch, [[row] for row in range(batch.rows)])


def plan_fixed(batch: Batch, _: StepCost) -> list[Execution]:
    """One execution, padded to the most tokens that the model takes."""
    return _whole(batch, MOST_TOKENS)


def plan_longest(batch: Batch, _: StepCost) -> list[Execution]:
    """One execution, as wide as its longest row."""
    return _whole(batch)


def plan_buckets(batch: Batch, _: StepCost) -> list[Execution]:
    """One execution for each power of two that a length falls under."""
    parts: dict[int, list[int]] = {}
    for row, length in enumerate(batch.lengths.tolist()):
        parts.setdefault(bucket_of(length), []).append(row)
    return _split(batch, parts.values(), bucket=True)


def plan_sorted(batch: Batch, cost: StepCost) -> list[Execution]:
    """Sorted by length and cut where that makes the sum of the executions cheapest."""
    order = np.argsort(batch.lengths, kind="stable").tolist()
    lengths = [int(batch.lengths[row]) for row in order]
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end, width in enumerate(lengths, 1):
        best.append(
            min(
                (best[first][0] + cost.launch_s + cost.token_s * width * (end - first), first)
                for first in range(end)
            )
        )
    parts, end = [], batch.rows
    while end:
        first = best[end][1]
        parts.append(order[first:end])
        end = first
    return _split(batch, parts)


Plan = Callable[[Batch, StepCost], list[Execution]]


@dataclass(frozen=True)
class StepVariant:
    """A way to compute a batch of rows of different lengths."""

    name: str
    form: Form
    plan: Plan
    meaning: str


BASELINE = "padded-longest"
VARIANTS = (
    StepVariant(BASELINE, Form.PADDED, plan_longest, "one execution, padded to its longest row"),
    StepVariant("fixed-512", Form.PADDED, plan_fixed, "one execution, padded to 512 tokens"),
    StepVariant("row-alone", Form.PADDED, plan_alone, "one execution per row, no padding"),
    StepVariant("buckets", Form.PADDED, plan_buckets, "one execution per power-of-two bucket"),
    StepVariant(
        "sorted", Form.PADDED, plan_sorted, "sorted by length, cut into the cheapest executions"
    ),
    StepVariant(
        "padded-fused", Form.PADDED_FUSED, plan_longest, "padded, com.microsoft MultiHeadAttention"
    ),
    StepVariant(
        "padding-free", Form.FLAT, plan_longest, "standard operators, index maps in the graph"
    ),
    StepVariant(
        "padding-free-host",
        Form.FLAT_HOST,
        plan_longest,
        "standard operators, index maps from the host",
    ),
    StepVariant(
        "padding-free-groups",
        Form.FLAT_GROUPS,
        plan_longest,
        f"as padding-free-host, attention in {GROUPS} length groups",
    ),
    StepVariant(
        "packed", Form.PACKED, plan_longest, "PackedMultiHeadAttention, index maps in the graph"
    ),
    StepVariant(
        "packed-host",
        Form.PACKED_HOST,
        plan_longest,
        "PackedMultiHeadAttention, index maps from the host",
    ),
    StepVariant(
        "remove-padding",
        Form.REMOVE_PADDING,
        plan_longest,
        "padded inputs, RemovePadding, PackedMultiHeadAttention, RestorePadding",
    ),
    StepVariant(
        "padding-free-sorted",
        Form.FLAT,
        plan_sorted,
        "padding-free, sorted and cut into executions as in sorted",
    ),
)


# Sessions ----------------------------------------------------------------------------------------


@dataclass
class Settings:
    """What one process measures."""

    shape: EncoderShape
    precision: Precision
    without: Sequence[Form]
    """Forms that ended an earlier process of this block."""
    deadline: float
    """`time.monotonic` after which no new section begins."""
    rehearse: bool
    rows: Sequence[int] = (32, 8, 64, 128)
    grid_rows: Sequence[int] = (1, 4, 8, 16, 32, 64)
    grid_tokens: Sequence[int] = (16, 32, 64, 128, 256, 512)
    offline_texts: int = OFFLINE_TEXTS
    seconds: float = 3.0
    """For the rounds of one number of rows."""
    document_rows: Sequence[int] = (32, 8)
    counts_nodes: bool = True

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """The graphs' floating type."""
        return np.float16 if self.precision is Precision.FP16 else np.float32

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


class PartFile:
    """Results of one process, written again after every change."""

    def __init__(self, path: Path) -> None:
        """Begin an empty document at ``path``."""
        self._path = path
        self.data: dict[str, Any] = {"errors": {}}

    def save(self) -> None:
        """Write the file so that a reader never sees half of it."""
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(self.data), encoding="utf-8")
        draft.replace(self._path)

    def put(self, key: str, value: Any) -> None:
        """Set a key and write."""
        self.data[key] = value
        self.save()

    @contextmanager
    def attempting(self, form: Form) -> Iterator[None]:
        """Name the form that runs, for the parent process to read should this one end."""
        self.put("attempting", form)
        yield
        self.put("attempting", None)

    def error(self, key: str, error: Exception) -> None:
        """Record an error, print it and go on."""
        text = f"{type(error).__name__}: {error}"[:1500]
        say(f"  ERROR {key}: {text[:400]}")
        self.data["errors"].setdefault(key, text)
        self.save()


_BEGIN = time.monotonic()


def say(text: str) -> None:
    """Print progress with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGIN:6.1f}] {text}", flush=True)


@cache
def load_onnxruntime() -> Any:
    """Return onnxruntime with CUDA's libraries loaded, from PyTorch's packages where present."""
    with suppress(ImportError):
        import torch  # type: ignore[import-not-found]  # noqa: F401
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        onnxruntime.preload_dlls()
    return onnxruntime


def open_session(model: bytes, settings: Settings, profile: Path | None = None) -> Any:
    """Return an ONNX Runtime session on the GPU, or on the CPU in a rehearsal.

    Raises:
        RuntimeError: the session fell back to the CPU.
    """
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if settings.rehearse:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    tf32 = "1" if settings.precision is Precision.TF32 else "0"
    session = onnxruntime.InferenceSession(
        model, options, providers=[("CUDAExecutionProvider", {"use_tf32": tf32})]
    )
    if "CUDAExecutionProvider" not in session.get_providers():
        raise RuntimeError("no CUDAExecutionProvider: onnxruntime fell back to the CPU")
    return session


class Sessions:
    """The sessions of one block by form; a form that fails has none."""

    def __init__(self, settings: Settings, part: PartFile) -> None:
        """Build every form, compute one small batch and count nodes per provider."""
        self._settings, self._part = settings, part
        self._open: dict[Form, Any] = {}
        self.placement: dict[str, Any] = {}
        weights = draw_weights(settings.shape)
        for form in Form:
            if form in settings.without:
                part.data["errors"][form] = "left out: it ended an earlier process"
                continue
            try:
                with part.attempting(form):
                    self._add(form, weights)
            except Exception as error:
                self.failed(form, error)

    def _add(self, form: Form, weights: Feeds) -> None:
        settings = self._settings
        begin = time.monotonic()
        model = EncoderGraph(settings.shape, form, settings.dtype, weights).model()
        data = model.SerializeToString()
        self._open[form] = open_session(data, settings)
        answers = self.run(form, Execution(draw_batch(8, SEED), 512, range(8)))
        if not np.isfinite(answers).all():
            raise ValueError("answers are not finite")
        if settings.counts_nodes:
            try:
                self.placement[form] = count_nodes(data, settings, prepare_small(form, settings))
            except Exception as error:
                self._part.error(f"{form} profile", error)
        nodes = {key: self.placement[form][key] for key in NODE_COUNTS if form in self.placement}
        say(f"  {form}: session in {time.monotonic() - begin:.1f} s {nodes or ''}")

    def __contains__(self, form: Form) -> bool:
        """Whether the form has a session."""
        return form in self._open

    def run(self, form: Form, execution: Execution) -> Array:
        """Return the logits [rows, CLASSES] of one execution."""
        feeds = prepare(form, execution.batch, execution.width, self._settings.dtype)
        return np.asarray(self._open[form].run(None, feeds)[0])

    def session(self, form: Form) -> Any:
        """Return the session itself."""
        return self._open[form]

    def failed(self, form: Form, error: Exception) -> None:
        """Drop a form; ends the process where the error broke the CUDA context."""
        self._part.error(form, error)
        self._open.pop(form, None)
        if form is Form.PADDED:
            raise SystemExit(f"the plain graph fails: {error}")
        try:
            self.run(Form.PADDED, Execution(draw_batch(2, SEED), 512, range(2)))
        except Exception as broken:
            self._part.put("attempting", form)
            self._part.error("context", broken)
            raise SystemExit(POISONED) from error
        self._part.put("attempting", None)


def prepare_small(form: Form, settings: Settings) -> Feeds:
    """Return inputs of a small batch, 8 rows of lognormal lengths."""
    batch = draw_batch(8, SEED)
    return prepare(form, batch, batch.longest, settings.dtype)


def count_nodes(model: bytes, settings: Settings, feeds: Feeds) -> dict[str, Any]:
    """Return nodes per provider, copies between host and GPU, and what runs on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(model, settings, Path(folder) / "profile")
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    providers: dict[str, int] = {}
    copies: dict[str, int] = {}
    on_cpu: dict[str, int] = {}
    kinds: dict[str, int] = {}
    for event in events:
        detail = event.get("args") or {}
        if event.get("cat") != "Node" or not event.get("name", "").endswith("_kernel_time"):
            continue
        kind, provider = detail.get("op_name", "?"), detail.get("provider", "?")
        providers[provider] = providers.get(provider, 0) + 1
        kinds[kind] = kinds.get(kind, 0) + 1
        if kind.startswith("Memcpy"):
            copies[kind] = copies.get(kind, 0) + 1
        elif provider == "CPUExecutionProvider":
            on_cpu[kind] = on_cpu.get(kind, 0) + 1
    return {"providers": providers, "copies": copies, "onCpu": on_cpu, "kinds": kinds}


# Measurement -------------------------------------------------------------------------------------


def summarize(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 10th and 90th percentile in milliseconds, and the number of samples."""
    low, middle, high = np.percentile(np.asarray(seconds) * 1e3, [10, 50, 90])
    return {
        "medianMs": round(float(middle), 4),
        "p10Ms": round(float(low), 4),
        "p90Ms": round(float(high), 4),
        "samples": len(seconds),
    }


def time_run(function: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def repeat(function: Callable[[], object], seconds: float, most: int = 40) -> list[float]:
    """Return the seconds of calls: two to warm up, then at least 5 and until the time is over."""
    for _ in range(2):
        function()
    end = time.monotonic() + seconds
    samples: list[float] = []
    while len(samples) < 5 or (time.monotonic() < end and len(samples) < most):
        samples.append(time_run(function))
    return samples


def interleave(
    cases: Mapping[str, Sequence[Callable[[], object]]], seconds: float, most: int = 60
) -> dict[str, list[float]]:
    """Return the seconds of every case by round.

    Each round runs every case once, in another order; a case is a sequence of calls that the
    rounds take in turn, one per drawn batch.
    """
    order = random.Random(SEED)
    samples: dict[str, list[float]] = {name: [] for name in cases}
    end = time.monotonic() + seconds
    rounds = 0
    while rounds < BATCHES or (time.monotonic() < end and rounds < most):
        for name in order.sample(list(cases), len(cases)):
            calls = cases[name]
            samples[name].append(time_run(calls[rounds % len(calls)]))
        rounds += 1
    return samples


def compare(samples: Mapping[str, Sequence[float]], baseline: str) -> dict[str, Any]:
    """Return each case's step time, and how many times faster than the baseline, by round."""
    found: dict[str, Any] = {}
    for name, seconds in samples.items():
        gains = [base / one for base, one in zip(samples[baseline], seconds, strict=True)]
        found[name] = summarize(seconds) | {
            "gain": round(statistics.median(gains), 3),
            "gainP10": round(float(np.percentile(gains, 10)), 3),
            "gainP90": round(float(np.percentile(gains, 90)), 3),
        }
    return found


def step_cost(sessions: Sessions) -> StepCost:
    """Measure a small and a large shape of the plain graph."""
    small, large = Batch(np.ones(16, np.int64), np.array([16])), equal_batch(32, 128)
    times = [
        statistics.median(
            repeat(lambda b=one: sessions.run(Form.PADDED, _whole(b)[0]), 0.2)  # type: ignore[misc]
        )
        for one in (small, large)
    ]
    token = max(1e-9, (times[1] - times[0]) / (32 * 128 - 16))
    return StepCost(max(1e-6, times[0] - 16 * token), token)


def equal_batch(rows: int, tokens: int) -> Batch:
    """Return rows of equal length."""
    ids = np.random.default_rng(SEED).integers(0, WORDS, rows * tokens, dtype=np.int64)
    return Batch(ids, np.full(rows, tokens, np.int64))


def measure_grid(sessions: Sessions, settings: Settings, part: PartFile) -> None:
    """Measure the plain graph at fixed shapes, with host copies and with inputs on the GPU."""
    cells: list[dict[str, Any]] = []
    each = min(0.25, settings.seconds / 12)
    for tokens in settings.grid_tokens:
        for rows in settings.grid_rows:
            if settings.left_s < 0:
                return
            feeds = prepare(Form.PADDED, equal_batch(rows, tokens), tokens, settings.dtype)
            session = sessions.session(Form.PADDED)
            cell: dict[str, Any] = {"rows": rows, "tokens": tokens}
            cell |= summarize(repeat(lambda f=feeds, s=session: s.run(None, f), each))  # type: ignore[misc]
            if rows in (1, 32) and not settings.rehearse:
                cell["bound"] = summarize(repeat(_bound(session, feeds), each))
            cells.append(cell)
        line = " ".join(f"{cell['medianMs']:.2f}" for cell in cells if cell["tokens"] == tokens)
        say(f"  grid {tokens} tokens x rows {list(settings.grid_rows)}: {line} ms")
        part.put("grid", cells)


def _bound(session: Any, feeds: Feeds) -> Callable[[], object]:
    """Return a call with inputs and output kept in GPU memory."""
    import onnxruntime

    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(
            name, onnxruntime.OrtValue.ortvalue_from_numpy(value, "cuda", 0)
        )
    binding.bind_output("logits", "cuda", 0)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return run


def answer(sessions: Sessions, form: Form, executions: Sequence[Execution]) -> Array:
    """Return the logits of the whole batch, in its order of rows."""
    rows = sum(execution.batch.rows for execution in executions)
    logits = np.zeros((rows, CLASSES), np.float32)
    for execution in executions:
        logits[list(execution.rows)] = sessions.run(form, execution)
    return logits


@dataclass
class References:
    """Answers of the plain FP32 graph (TF32 off), each row alone."""

    sessions: Sessions | None
    settings: Settings
    known: dict[tuple[int, bool], Array] = field(default_factory=dict)

    def get(self, rows: int, documents: bool) -> Array:
        """Return the answers to the first batch of ``rows`` rows."""
        key = (rows, documents)
        if key not in self.known:
            batch = draw_batch(rows, batch_seed(rows, 0), documents)
            plan = plan_alone(batch, StepCost(0, 0))
            assert self.sessions is not None
            self.known[key] = answer(self.sessions, Form.PADDED, plan)
        return self.known[key]


def batch_seed(rows: int, number: int) -> int:
    """Return the seed of a drawn batch."""
    return 1000 * rows + number


def make_references(settings: Settings, part: PartFile) -> References:
    """Compute all reference answers with a plain FP32 session of their own."""
    exact = Settings(
        settings.shape,
        Precision.FP32,
        [form for form in Form if form is not Form.PADDED],
        settings.deadline,
        settings.rehearse,
        counts_nodes=False,
    )
    quiet = PartFile(Path(tempfile.mkdtemp()) / "reference.json")
    references = References(Sessions(exact, quiet), settings)
    for rows in settings.rows:
        references.get(rows, documents=False)
    for rows in settings.document_rows:
        references.get(rows, documents=True)
    references.sessions = None
    part.put("referenceSize", float(np.abs(references.get(settings.rows[0], False)).max()))
    return references


def measure_variants(
    sessions: Sessions, rows: int, documents: bool, cost: StepCost, references: References
) -> dict[str, Any]:
    """Measure every variant on the same batches, interleaved; adds the largest difference."""
    settings = references.settings
    batches = [draw_batch(rows, batch_seed(rows, n), documents) for n in range(BATCHES)]
    cases: dict[str, list[Callable[[], object]]] = {}
    notes: dict[str, dict[str, Any]] = {}
    for variant in VARIANTS:
        if variant.form not in sessions:
            continue
        plans = [variant.plan(batch, cost) for batch in batches]
        try:
            with sessions._part.attempting(variant.form):
                found = [answer(sessions, variant.form, plan) for plan in plans]
        except Exception as error:
            sessions.failed(variant.form, error)
            continue
        difference = np.abs(found[0] - references.get(rows, documents)).max()
        notes[variant.name] = {
            "maxDifference": float(f"{difference:.3g}"),
            "executions": statistics.mean(len(plan) for plan in plans),
        }
        cases[variant.name] = [
            lambda f=variant.form, p=plan: answer(sessions, f, p)  # type: ignore[misc]
            for plan in plans
        ]
    compared = compare(interleave(cases, settings.seconds), BASELINE)
    for name, one in compared.items():
        one |= notes[name]
    fill = [batch.lengths.sum() / (batch.rows * batch.longest) for batch in batches]
    return {
        "rows": rows,
        "lengths": "documents" if documents else "lognormal",
        "meanTokens": round(float(np.mean([batch.lengths.mean() for batch in batches])), 1),
        "fill": round(float(np.mean(fill)), 3),
        "variants": compared,
    }


def show_variants(found: Mapping[str, Any]) -> None:
    """Print one line per variant."""
    say(f"  {found['lengths']} rows {found['rows']}, fill {found['fill']}")
    for name, one in found["variants"].items():
        say(
            f"    {name:20} {one['medianMs']:8.2f} ms, gain {one['gain']:6.2f} "
            f"({one['gainP10']:.2f}-{one['gainP90']:.2f}), x{one['executions']:.1f}, "
            f"max diff {one['maxDifference']}"
        )


def measure_offline(
    sessions: Sessions, settings: Settings, cost: StepCost
) -> dict[str, dict[str, float]]:
    """Measure one pass over many texts: as they come, and sorted by length (the upper limit)."""
    texts = draw_batch(settings.offline_texts, SEED)
    arrival = range(texts.rows)
    by_length = np.argsort(texts.lengths, kind="stable").tolist()
    chunks = {
        "arrival-64": _chunks(texts, arrival, OFFLINE_ROWS, None),
        "sorted-64": _chunks(texts, by_length, OFFLINE_ROWS, None),
        "sorted-tokens": _chunks(texts, by_length, texts.rows, OFFLINE_TOKENS),
        "arrival-tokens": _chunks(texts, arrival, texts.rows, OFFLINE_TOKENS),
    }
    pairs = [
        (Form.PADDED, "arrival-64"),
        (Form.PADDED, "sorted-64"),
        (Form.PADDED, "sorted-tokens"),
        (Form.FLAT, "arrival-64"),
        (Form.FLAT, "sorted-64"),
        (Form.PACKED_HOST, "arrival-64"),
        (Form.PACKED_HOST, "arrival-tokens"),
        (Form.PACKED_HOST, "sorted-64"),
        (Form.PACKED_HOST, "sorted-tokens"),
        (Form.PADDED_FUSED, "sorted-tokens"),
    ]
    found: dict[str, dict[str, float]] = {}
    for form, cut in pairs:
        if form not in sessions or settings.left_s < 0:
            continue
        executions = _split(texts, chunks[cut])

        def run(f: Form = form, parts: list[Execution] = executions) -> None:
            for execution in parts:
                sessions.run(f, execution)

        try:
            run()
            seconds = min(time_run(run) for _ in range(2))
        except Exception as error:
            sessions.failed(form, error)
            continue
        found[f"{form} {cut}"] = {
            "executions": len(executions),
            "seconds": round(seconds, 4),
            "tokensPerSecond": round(float(texts.lengths.sum()) / seconds),
            "textsPerSecond": round(texts.rows / seconds),
        }
        say(f"  offline {form} {cut}: {found[f'{form} {cut}']}")
    return found


def _chunks(
    texts: Batch, order: Sequence[int], most_rows: int, most_tokens: int | None
) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    width = 0
    for row in order:
        width = max(width, int(texts.lengths[row]))
        full = len(parts[-1]) >= most_rows
        if full or (most_tokens and (len(parts[-1]) + 1) * width > most_tokens):
            parts.append([])
            width = int(texts.lengths[row])
        parts[-1].append(row)
    return [part for part in parts if part]


def run_block(settings: Settings, part: PartFile) -> None:
    """Measure one model at one precision: sections in the order of their value."""
    say(f"{settings.shape.name} {settings.precision}")
    references = make_references(settings, part)
    sessions = Sessions(settings, part)
    part.put("placement", sessions.placement)
    cost = step_cost(sessions)
    part.put("stepCost", {"launchUs": cost.launch_s * 1e6, "tokenUs": cost.token_s * 1e6})
    say(f"  step: {cost.launch_s * 1e6:.0f} us + {cost.token_s * 1e6:.3f} us per token")
    part.data["cases"] = []

    def variants(rows: int, documents: bool) -> None:
        if settings.left_s > 0:
            found = measure_variants(sessions, rows, documents, cost, references)
            show_variants(found)
            part.data["cases"].append(found)
            part.save()

    for rows in settings.rows[:2]:
        variants(rows, documents=False)
    measure_grid(sessions, settings, part)
    for rows in settings.rows[2:]:
        variants(rows, documents=False)
    variants(settings.document_rows[0], documents=True)
    if settings.left_s > 0:
        part.put("offline", measure_offline(sessions, settings, cost))
    for rows in settings.document_rows[1:]:
        variants(rows, documents=True)
    part.put("complete", settings.left_s > 0)


# PyTorch -----------------------------------------------------------------------------------------


class TorchEncoder:
    """The same encoder in PyTorch (eager), FP16, for comparison."""

    def __init__(self, shape: EncoderShape, device: str, half: bool = True) -> None:
        """Copy the weights to the device."""
        import torch

        self.torch = torch
        self._shape, self.device = shape, device
        self._dtype = torch.float16 if half else torch.float32
        self._weights = {
            name: torch.from_numpy(value.T.copy() if name.endswith("weight") else value).to(
                device, self._dtype
            )
            for name, value in draw_weights(shape).items()
        }

    def encode(self, ids: Any, positions: Any, attend: Callable[[Any, Any, Any], Any]) -> Any:
        """Return the hidden states of ids [...]; ``attend`` takes [..., heads, size] each."""
        weights, heads = self._weights, self._shape.heads
        state = self._normalize(weights["words"][ids] + weights["places"][positions])
        split = (*ids.shape, heads, self._shape.hidden // heads)
        for layer in range(self._shape.layers):
            parts = [
                self._linear(state, f"{layer}.{part}").view(split)
                for part in ("query", "key", "value")
            ]
            context = attend(parts[0], parts[1], parts[2]).reshape(state.shape)
            state = self._normalize(self._linear(context, f"{layer}.output") + state)
            inner = self.torch.nn.functional.gelu(self._linear(state, f"{layer}.inner"))
            state = self._normalize(self._linear(inner, f"{layer}.outer") + state)
        return state

    def head(self, state: Any) -> Array:
        """Return the logits in host memory."""
        return np.asarray(self._linear(state, "head").float().cpu().numpy())

    def tensor(self, value: Array) -> Any:
        """Copy an array to the device."""
        return self.torch.from_numpy(value).to(self.device)

    def _linear(self, state: Any, name: str) -> Any:
        weights = self._weights
        return self.torch.nn.functional.linear(
            state, weights[f"{name}.weight"], weights[f"{name}.bias"]
        )

    def _normalize(self, state: Any) -> Any:
        return self.torch.nn.functional.layer_norm(state, (self._shape.hidden,))

    def padded(self, batch: Batch) -> Array:
        """Padded to the longest row, scaled_dot_product_attention with a mask."""
        functional = self.torch.nn.functional
        feeds = prepare(Form.PADDED, batch, batch.longest, np.float32)
        ids, mask = self.tensor(feeds["input_ids"]), self.tensor(feeds["attention_mask"]).bool()
        positions = self.torch.arange(batch.longest, device=self.device).expand(ids.shape)

        def attend(query: Any, key: Any, value: Any) -> Any:
            rows = [part.transpose(1, 2) for part in (query, key, value)]
            context = functional.scaled_dot_product_attention(
                *rows, attn_mask=mask[:, None, None, :]
            )
            return context.transpose(1, 2)

        state = self.encode(ids, positions, attend)
        weights = mask.to(state.dtype)[:, :, None]
        return self.head((state * weights).sum(1) / weights.sum(1))

    def _flat(self, batch: Batch, attend: Callable[[Any, Any, Any, Any], Any]) -> Array:
        torch = self.torch
        lengths = self.tensor(batch.lengths)
        ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        rows = torch.repeat_interleave(
            torch.arange(batch.rows, device=self.device), lengths, output_size=len(batch.ids)
        )
        positions = torch.arange(len(batch.ids), device=self.device) - ends[rows].long()
        state = self.encode(
            self.tensor(batch.ids), positions, lambda q, k, v: attend(q, k, v, ends)
        )
        total = torch.zeros(batch.rows, state.shape[1], device=self.device).index_add_(
            0, rows, state.float()
        )
        return self.head((total / lengths[:, None]).to(self._dtype))

    def varlen(self, batch: Batch) -> Array:
        """Packed, torch.nn.attention.varlen."""
        from torch.nn.attention.varlen import varlen_attn  # type: ignore[import-not-found]

        longest = batch.longest
        return self._flat(batch, lambda q, k, v, e: varlen_attn(q, k, v, e, e, longest, longest))

    def flash(self, batch: Batch) -> Array:
        """Packed, the operator behind scaled_dot_product_attention."""
        longest, run = batch.longest, self.torch.ops.aten._flash_attention_forward
        return self._flat(
            batch,
            lambda q, k, v, e: run(q, k, v, e, e, longest, longest, 0.0, False, False)[0],
        )

    def jagged(self, batch: Batch) -> Array:
        """Packed, nested tensors of layout jagged."""
        torch = self.torch

        def attend(query: Any, key: Any, value: Any, ends: Any) -> Any:
            rows = [
                torch.nested.nested_tensor_from_jagged(
                    part, ends.long(), min_seqlen=1, max_seqlen=batch.longest
                ).transpose(1, 2)
                for part in (query, key, value)
            ]
            context = torch.nn.functional.scaled_dot_product_attention(*rows)
            return context.transpose(1, 2).values()

        return self._flat(batch, attend)


def run_torch_block(settings: Settings, part: PartFile) -> None:
    """Compare padded and packed attention in PyTorch."""
    try:
        import torch
    except ImportError:
        say("torch is not installed: section left out")
        part.put("skipped", "torch is not installed")
        return
    device = "cpu" if settings.rehearse else "cuda"
    say(f"{settings.shape.name} torch {torch.__version__} on {device}")
    part.data["cases"] = []
    with torch.inference_mode():
        encoder = TorchEncoder(settings.shape, device, half=not settings.rehearse)
        exact = TorchEncoder(settings.shape, device, half=False)
        for rows in settings.rows:
            if settings.left_s > 0:
                found = _torch_case(encoder, exact, rows, settings, part)
                show_variants(found)
                part.data["cases"].append(found)
                part.save()


def _torch_case(
    encoder: TorchEncoder, exact: TorchEncoder, rows: int, settings: Settings, part: PartFile
) -> dict[str, Any]:
    batches = [draw_batch(rows, batch_seed(rows, number)) for number in range(BATCHES)]
    alone = [exact.padded(batches[0].take([row])) for row in range(rows)]
    reference = np.concatenate(alone)
    variants: dict[str, Callable[[Batch], Array]] = {
        BASELINE: encoder.padded,
        "varlen": encoder.varlen,
        "flash": encoder.flash,
        "jagged": encoder.jagged,
    }
    cases: dict[str, list[Callable[[], object]]] = {}
    differences: dict[str, float] = {}
    for name, function in variants.items():
        try:
            firsts = [function(batch) for batch in batches]
        except Exception as error:
            part.error(f"torch {name}", error)
            continue
        differences[name] = float(f"{np.abs(firsts[0] - reference).max():.3g}")
        cases[name] = [lambda f=function, b=batch: f(b) for batch in batches]  # type: ignore[misc]
    compared = compare(interleave(cases, settings.seconds / 2), BASELINE)
    for name, one in compared.items():
        one |= {"maxDifference": differences[name], "executions": 1}
    fill = [batch.lengths.sum() / (batch.rows * batch.longest) for batch in batches]
    return {
        "rows": rows,
        "lengths": "lognormal",
        "fill": round(float(np.mean(fill)), 3),
        "variants": compared,
    }


# Processes ---------------------------------------------------------------------------------------

TORCH = "torch"
BLOCKS = (
    f"{MINILM.name}:{Precision.FP16}",
    f"{BERT.name}:{Precision.FP16}",
    f"{MINILM.name}:{Precision.FP32}",
    f"{BERT.name}:{Precision.FP32}",
    f"{MINILM.name}:{TORCH}",
    f"{BERT.name}:{TORCH}",
    f"{MINILM.name}:{Precision.TF32}",
    f"{BERT.name}:{Precision.TF32}",
)
REHEARSED = (f"{TINY.name}:{Precision.FP32}", f"{TINY.name}:{Precision.FP16}", f"{TINY.name}:torch")
SHARES = {Precision.FP16: 1.5, Precision.FP32: 1.2, Precision.TF32: 0.8, TORCH: 0.4}
"""Of the time that is left."""
MOST_OVERRUN_S = 25.0
"""After the time is over, before a process is killed."""


def child(block: str, path: Path, seconds: float, without: Sequence[str], rehearse: bool) -> None:
    """Measure one block in this process."""
    model, _, kind = block.partition(":")
    settings = Settings(
        SHAPES[model],
        Precision.FP16 if kind == TORCH else Precision(kind),
        [Form(form) for form in without],
        time.monotonic() + seconds,
        rehearse,
    )
    if rehearse:
        settings.rows, settings.grid_rows, settings.grid_tokens = (8,), (1, 4), (16, 32)
        settings.offline_texts, settings.seconds, settings.document_rows = 96, 0.3, (8,)
    part = PartFile(path)
    (run_torch_block if kind == TORCH else run_block)(settings, part)


def environment() -> dict[str, Any]:
    """Return what the numbers depend on besides this file."""
    from importlib import metadata

    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
    }
    for package in ("onnxruntime-gpu", "onnxruntime", "onnx", "numpy", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found["gpu"] = query_gpu("name,driver_version,memory.total,clocks.max.sm,power.limit")
    return found


def query_gpu(fields: str) -> list[str]:
    """Return the lines of ``nvidia-smi --query-gpu``, or the error in their place."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    return done.stdout.strip().splitlines()


def run_all(folder: Path, minutes: float, blocks: Sequence[str], rehearse: bool) -> dict[str, Any]:
    """Run every block in a process of its own and write the results after every change."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + minutes * 60
    results: dict[str, Any] = {"environment": environment(), "rehearsal": rehearse, "blocks": {}}
    say(json.dumps(results["environment"]))
    for number, block in enumerate(blocks):
        left = end - time.monotonic()
        if left < 10:
            say(f"time is over: {', '.join(blocks[number:])} left out")
            break
        shares = [SHARES[one.partition(":")[2]] for one in blocks[number:]]
        _run_block(block, left * shares[0] / sum(shares), folder, results, end)
    say(f"written: {folder / RESULT}")
    return results


def _run_block(
    block: str, seconds: float, folder: Path, results: dict[str, Any], end: float
) -> None:
    without: list[str] = []
    with tempfile.TemporaryDirectory() as parts:
        path = Path(parts) / "part.json"
        while True:
            path.unlink(missing_ok=True)
            command = [sys.executable, str(Path(__file__).resolve()), str(path)]
            command += ["--block", block, "--seconds", f"{seconds:.1f}"]
            command += ["--without", ",".join(without)] if without else []
            command += ["--rehearse"] if results["rehearsal"] else []
            status = _follow(command, path, block, folder, results, end)
            suspect = results["blocks"].get(block, {}).get("attempting")
            if status == 0 or not suspect or time.monotonic() > end - 10:
                break
            say(f"{block}: status {status}; again without {suspect}")
            if suspect == Form.PADDED or suspect in without:
                break
            without.append(suspect)
    gpu = query_gpu("clocks.sm,temperature.gpu,power.draw")
    results["blocks"].setdefault(block, {}).update(status=status, gpuAfter=gpu)
    _write(folder, results)


def _follow(
    command: Sequence[str],
    path: Path,
    block: str,
    folder: Path,
    results: dict[str, Any],
    end: float,
) -> int:
    """Wait for a process and copy its results every second; returns its exit status."""
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            if path.is_file():
                results["blocks"][block] = json.loads(path.read_text(encoding="utf-8"))
                _write(folder, results)
            if process.poll() is None and time.monotonic() > end + MOST_OVERRUN_S:
                say(f"{block}: killed, the time is over")
                process.kill()
        return process.wait()


def _write(folder: Path, results: Mapping[str, Any]) -> None:
    draft = folder / f"{RESULT}.draft"
    draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / RESULT)


# Report ------------------------------------------------------------------------------------------


def report(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results as lines of Markdown."""
    yield f"Environment: `{json.dumps(results['environment'])}`"
    for block, part in results["blocks"].items():
        yield from ("", f"## {block.replace(':', ' ')}", "")
        if "stepCost" in part:
            cost = part["stepCost"]
            yield f"Step: {cost['launchUs']:.0f} us + {cost['tokenUs']:.3f} us per padded token."
        for key, text in part.get("errors", {}).items():
            yield f"- `{key}`: {text.splitlines()[0][:200]}"
        for case in part.get("cases", []):
            yield from _case_table(case)
        yield from _grid_table(part.get("grid", []))
        yield from _offline_table(part.get("offline", {}))
        yield from _placement_table(part.get("placement", {}))


def _case_table(case: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{case['rows']} rows, {case['lengths']} lengths, {case['fill']:.0%} of the cells tokens:"
    yield ""
    yield "| variant | ms | gain | 10 to 90 % of the rounds | executions | largest difference |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, one in case["variants"].items():
        yield (
            f"| {name} | {one['medianMs']:.2f} | {one['gain']:.2f} | "
            f"{one['gainP10']:.2f}–{one['gainP90']:.2f} | {one['executions']:.1f} | "
            f"{one['maxDifference']:.1e} |"
        )


def _grid_table(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not cells:
        return
    rows = sorted({cell["rows"] for cell in cells})
    yield from ("", "Plain graph, ms (in brackets: inputs and output stay on the GPU):", "")
    yield "| tokens | " + " | ".join(f"{number} rows" for number in rows) + " |"
    yield "| --- " * (len(rows) + 1) + "|"
    for tokens in sorted({cell["tokens"] for cell in cells}):
        texts = []
        for number in rows:
            here = [c for c in cells if (c["rows"], c["tokens"]) == (number, tokens)]
            bound = f" ({here[0]['bound']['medianMs']:.2f})" if here and "bound" in here[0] else ""
            texts.append(f"{here[0]['medianMs']:.2f}{bound}" if here else "")
        yield f"| {tokens} | " + " | ".join(texts) + " |"


def _offline_table(offline: Mapping[str, Any]) -> Iterator[str]:
    if not offline:
        return
    yield from ("", "Offline, one pass over all texts:", "")
    yield "| graph and order | executions | tokens/s | texts/s |"
    yield "| --- | --- | --- | --- |"
    for name, one in offline.items():
        yield (
            f"| {name} | {one['executions']} | {one['tokensPerSecond']:,} | "
            f"{one['textsPerSecond']:,} |"
        )


def _placement_table(placement: Mapping[str, Any]) -> Iterator[str]:
    if not placement:
        return
    yield from ("", "Nodes of one execution:", "")
    yield "| graph | nodes per provider | copies | on the CPU |"
    yield "| --- | --- | --- | --- |"
    for form, one in placement.items():
        cells = [_counts(one[key]) for key in NODE_COUNTS]
        yield f"| {form} | " + " | ".join(cells) + " |"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items()) or "none"


PLOTTED = ("sorted", "padded-fused", "padding-free", "padding-free-groups", "packed-host")
MOST_GAIN = 2.5


def plot(name: str, results: Mapping[str, Any], rows: int = 32) -> None:
    """Draw the gains at ``rows`` rows of lognormal lengths as a plot of `bench.plots`."""
    from bench import plots

    groups = {
        block.replace(":", " "): {
            variant: case["variants"][variant]["gain"]
            for variant in PLOTTED
            if variant in case["variants"]
        }
        for block, part in results["blocks"].items()
        for case in part.get("cases", [])
        if (case["rows"], case["lengths"]) == (rows, "lognormal") and not block.endswith(TORCH)
    }
    gpu = results["environment"]["gpu"][-1].split(",")[0]
    title = f"Speed against padding to the longest of {rows} rows ({gpu})"
    plots.save(name, plots.Bars(title, groups, "times the speed", MOST_GAIN))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", nargs="?", type=Path, help="folder for the results")
    parser.add_argument("--minutes", type=float, default=6.0, help="bound of the whole run")
    parser.add_argument("--blocks", help=f"of {','.join(BLOCKS)}; default: all, in this order")
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--report", type=Path, help="print the Markdown tables of a results file")
    parser.add_argument("--plot", help="with --report: name of the plot to write")
    parser.add_argument("--block", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--without", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        results = json.loads(options.report.read_text(encoding="utf-8"))
        print("\n".join(report(results)))
        if options.plot:
            plot(options.plot, results)
        return
    if not options.out:
        parser.error("OUT_FOLDER is missing")
    if options.block:
        without = [form for form in options.without.split(",") if form]
        child(options.block, options.out, options.seconds, without, options.rehearse)
        return
    default = REHEARSED if options.rehearse else BLOCKS
    blocks = options.blocks.split(",") if options.blocks else default
    run_all(options.out, options.minutes, blocks, options.rehearse)


if __name__ == "__main__":
    main()
