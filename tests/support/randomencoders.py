"""Encoders of random structure, put together from the parts that exporters write.

Each part exists in several spellings. All encoders take ``input_ids`` and ``attention_mask``, and
honor the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from triton_pipelines.api.loadplan import PlanAdapt, PlanRaggedInput
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.graph import Tensor

INPUTS = ("input_ids", "attention_mask")
VOCABULARY, POSITIONS, HEADS, SIZE, LABELS = 50, 40, 2, 4, 3
WIDTH = HEADS * SIZE
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


class Norm(StrEnum):
    """How a graph normalizes each token."""

    OPERATOR = "LayerNormalization"
    DECOMPOSED = "ReduceMean, Sub, Pow, Sqrt, Div"
    POOLED = "GlobalAveragePool for the mean"
    NONE = "not at all"


class Activation(StrEnum):
    """The activation of the feed-forward layer."""

    ERF = "the exact GELU"
    TANH = "the approximate GELU"
    RELU = "Relu"


class Projection(StrEnum):
    """How the attention's inputs are projected."""

    SEPARATE = "three products"
    JOINED = "one product, and Split"
    MERGED = "rows and places merged for the product, shapes computed from Shape"


class Masking(StrEnum):
    """How scores of padding are hidden."""

    BIAS = "(1 - mask) * -10000, added"
    WHERE = "Where on the expanded mask"
    OUTER = "mask of rows times mask of columns"


class Embedding(StrEnum):
    """What happens to the looked-up tokens."""

    PLAIN = "nothing"
    MASKED = "multiplied by the mask"
    PADS_CLEARED = "those of token 0 are replaced by zeros"


class Pooling(StrEnum):
    """How a row's answer is made of its tokens."""

    FIRST = "the first token"
    SLICED = "the first token by Slice"
    MEAN = "the mean over the mask"
    MAX = "the maximum, padding at -10000"
    WEIGHTED = "a Softmax over the places"
    TOKENS = "none: one answer for each token"


@dataclass(frozen=True)
class Structure:
    """One encoder to make."""

    layers: int = 1
    norm: Norm = Norm.OPERATOR
    activation: Activation = Activation.ERF
    projection: Projection = Projection.SEPARATE
    masking: Masking = Masking.BIAS
    embedding: Embedding = Embedding.PLAIN
    pooling: Pooling = Pooling.MEAN
    opset: int = 17
    seed: int = 0

    @property
    def is_per_token(self) -> bool:
        """Whether the output has an axis of tokens."""
        return self.pooling is Pooling.TOKENS

    @property
    def products(self) -> int:
        """Matrix products of tokens with weights."""
        projections = 1 if self.projection is Projection.JOINED else 3
        head = 1 if self.pooling in {Pooling.TOKENS, Pooling.WEIGHTED} else 0
        return self.layers * (projections + 3) + head

    @property
    def declared(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs as a resource declares them."""
        dims = (-1, LABELS) if self.is_per_token else (LABELS,)
        return tuple(Tensor(name, DataType.INT64, (-1,)) for name in INPUTS), (
            Tensor("logits", DataType.FP32, dims),
        )

    def plan(self) -> PlanAdapt:
        """What the loader is asked to do with it."""
        return PlanAdapt(
            step="model",
            path="model/1/model.onnx",
            inputs=tuple(PlanRaggedInput(name=name) for name in INPUTS),
            token_outputs=("logits",) if self.is_per_token else (),
        )


def row(random: np.random.Generator, length: int) -> dict[str, Any]:
    """A request of one row."""
    ids = random.integers(1, VOCABULARY, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


class _Nodes:
    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.random = np.random.default_rng(structure.seed)
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def constant(self, value: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.tensors)}"))
        return str(self.tensors[-1].name)

    def real(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.normal(size=shape).astype(np.float32))

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"v{len(self.nodes)}"
        name = f"node{len(self.nodes)}_{operator}"
        self.nodes.append(
            helper.make_node(operator, list(inputs), [output], name=name, **attributes)
        )
        return output

    def mean(self, value: str) -> str:
        if self.structure.opset < 18:
            return self.add("ReduceMean", value, axes=[-1], keepdims=1)
        return self.add("ReduceMean", value, self.ints(-1), keepdims=1)

    def dense(self, value: str, rows: int, columns: int) -> str:
        product = self.add("MatMul", value, self.weight(rows, columns))
        return self.add("Add", product, self.weight(columns))

    def norm(self, value: str) -> str:
        scale, bias = self.weight(WIDTH), self.weight(WIDTH)
        match self.structure.norm:
            case Norm.NONE:
                return self.add("Tanh", value)
            case Norm.OPERATOR:
                return self.add("LayerNormalization", value, scale, bias, axis=-1)
            case Norm.DECOMPOSED:
                around = self.add("Sub", value, self.mean(value))
                spread = self.mean(self.add("Pow", around, self.real(2)))
            case Norm.POOLED:
                around = self.add("Sub", value, self.add("GlobalAveragePool", value))
                spread = self.add("GlobalAveragePool", self.add("Mul", around, around))
        root = self.add("Sqrt", self.add("Add", spread, self.real(1e-5)))
        scaled = self.add("Mul", self.add("Div", around, root), scale)
        return self.add("Add", scaled, bias)

    def activation(self, value: str) -> str:
        match self.structure.activation:
            case Activation.RELU:
                return self.add("Relu", value)
            case Activation.ERF:
                inner = self.add("Erf", self.add("Div", value, self.real(2**0.5)))
            case Activation.TANH:
                cube = self.add("Mul", self.add("Pow", value, self.real(3)), self.real(0.044715))
                scaled = self.add("Mul", self.add("Add", value, cube), self.real(0.797885))
                inner = self.add("Tanh", scaled)
        shifted = self.add("Add", inner, self.real(1))
        return self.add("Mul", self.add("Mul", value, shifted), self.real(0.5))

    def mask(self) -> str:
        return self.add("Cast", "attention_mask", to=FLOAT)

    def embedded(self) -> str:
        words = self.add("Gather", self.weight(VOCABULARY, WIDTH), "input_ids")
        length = self.add("Slice", self.add("Shape", "input_ids"), self.ints(1), self.ints(2))
        table = self.weight(POSITIONS, WIDTH)
        places = self.add("Slice", table, self.ints(0), length, self.ints(0))
        value = self.norm(self.add("Add", words, places))
        match self.structure.embedding:
            case Embedding.MASKED:
                mask = self.add("Unsqueeze", self.mask(), self.ints(2))
                return self.add("Mul", value, mask)
            case Embedding.PADS_CLEARED:
                pads = self.add("Equal", "input_ids", self.constant(np.array(0, np.int64)))
                pads = self.add("Unsqueeze", pads, self.ints(-1))
                return self.add("Where", pads, self.real(0), value)
        return value

    def projected(self, value: str) -> list[str]:
        """Query, key and value: [rows, places, heads, size]."""
        match self.structure.projection:
            case Projection.SEPARATE:
                parts = [self.dense(value, WIDTH, WIDTH) for _ in range(3)]
            case Projection.JOINED:
                joined = self.dense(value, WIDTH, 3 * WIDTH)
                parts = [f"v{len(self.nodes)}_{part}" for part in range(3)]
                split = helper.make_node(
                    "Split", [joined, self.ints(WIDTH, WIDTH, WIDTH)], parts, axis=2
                )
                self.nodes.append(split)
            case Projection.MERGED:
                return self._merged(value)
        return [self.add("Reshape", part, self.ints(0, 0, HEADS, SIZE)) for part in parts]

    def _merged(self, value: str) -> list[str]:
        shape = self.add("Shape", value)
        rows, places = (
            self.add("Unsqueeze", self.add("Gather", shape, self.constant(axis)), self.ints(0))
            for axis in (np.array(0), np.array(1))
        )
        target = self.add("Concat", rows, places, self.ints(HEADS), self.ints(SIZE), axis=0)
        flat = self.add("Reshape", value, self.ints(-1, WIDTH))
        products = [
            self.add("Gemm", flat, self.weight(WIDTH, WIDTH), self.weight(WIDTH)) for _ in range(3)
        ]
        return [self.add("Reshape", product, target) for product in products]

    def masked(self, scores: str) -> str:
        row = self.add("Unsqueeze", self.mask(), self.ints(1, 2))
        match self.structure.masking:
            case Masking.WHERE:
                wide = self.add("Expand", row, self.add("Shape", scores))
                hidden = self.add("Equal", wide, self.real(0))
                return self.add("Where", hidden, self.real(-1e9), scores)
            case Masking.OUTER:
                column = self.add("Unsqueeze", self.mask(), self.ints(1, 3))
                row = self.add("Mul", row, column)
        bias = self.add("Mul", self.add("Sub", self.real(1), row), self.real(-10000))
        return self.add("Add", scores, bias)

    def layer(self, value: str) -> str:
        query, key, content = self.projected(value)
        query, content = (
            self.add("Transpose", part, perm=[0, 2, 1, 3]) for part in (query, content)
        )
        scores = self.add("MatMul", query, self.add("Transpose", key, perm=[0, 2, 3, 1]))
        scores = self.add("Div", scores, self.real(SIZE**0.5))
        shares = self.add("Softmax", self.masked(scores), axis=-1)
        mixed = self.add("Transpose", self.add("MatMul", shares, content), perm=[0, 2, 1, 3])
        joined = self.add("Reshape", mixed, self.ints(0, 0, WIDTH))
        value = self.norm(self.add("Add", self.dense(joined, WIDTH, WIDTH), value))
        inner = self.activation(self.dense(value, WIDTH, 2 * WIDTH))
        return self.norm(self.add("Add", self.dense(inner, 2 * WIDTH, WIDTH), value))

    def total(self, value: str) -> str:
        return self.add("ReduceSum", value, self.ints(1), keepdims=0)

    def pooled(self, value: str) -> str:
        """[rows, width]."""
        mask = self.add("Unsqueeze", self.mask(), self.ints(2))
        hidden = self.add("Mul", self.add("Sub", self.real(1), mask), self.real(-10000))
        match self.structure.pooling:
            case Pooling.FIRST:
                return self.add("Gather", value, self.constant(np.array(0)), axis=1)
            case Pooling.SLICED:
                first = self.add("Slice", value, self.ints(0), self.ints(1), self.ints(1))
                return self.add("Squeeze", first, self.ints(1))
            case Pooling.MEAN:
                return self.add("Div", self.total(self.add("Mul", value, mask)), self.total(mask))
            case Pooling.MAX:
                shifted = self.add("Add", value, hidden)
                if self.structure.opset < 18:
                    return self.add("ReduceMax", shifted, axes=[1], keepdims=0)
                return self.add("ReduceMax", shifted, self.ints(1), keepdims=0)
        scores = self.add("Add", self.add("MatMul", value, self.weight(WIDTH, 1)), hidden)
        weights = self.add("Softmax", scores, axis=1)
        return self.total(self.add("Mul", weights, value))


def make(structure: Structure) -> Any:
    """The encoder as a checked ``onnx.ModelProto``."""
    nodes = _Nodes(structure)
    value = nodes.embedded()
    for _ in range(structure.layers):
        value = nodes.layer(value)
    if not structure.is_per_token:
        value = nodes.pooled(value)
    nodes.add("MatMul", value, nodes.weight(WIDTH, LABELS), output="logits")
    shape = ["batch", "sequence", LABELS] if structure.is_per_token else ["batch", LABELS]
    graph = helper.make_graph(
        nodes.nodes,
        "encoder",
        [helper.make_tensor_value_info(name, INT64, ["batch", "sequence"]) for name in INPUTS],
        [helper.make_tensor_value_info("logits", FLOAT, shape)],
        nodes.tensors,
    )
    opset = [helper.make_opsetid("", structure.opset)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.checker.check_model(model)
    return model
