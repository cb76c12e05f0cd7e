"""Small encoders in the layouts that exporters write.

They cover every case that the ragged adapter has to handle.

Each is a one-layer encoder with seeded weights: embedding, positions, masked attention, heads.
``Layout`` chooses how positions and mask are made inside the graph; all of them compute the same
kind of thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from triton_pipelines.api.loadplan import PlanAdapt, PlanRaggedInput
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.graph import Tensor

VOCABULARY, TYPES, POSITIONS, WIDTH, CLASSES, TAGS = 50, 2, 40, 8, 3, 5


class Places(StrEnum):
    """How a graph makes its positions."""

    SLICED_TABLE = "the table is cut to the length that Shape says"
    BUFFER = "a constant list of positions is cut to length, and indexes the table"
    RANGE = "Range of the length"
    ONES = "the running sum of ConstantOfShape"
    MASK = "the running sum of the mask, as RoBERTa does"


class Masking(StrEnum):
    """How a graph masks its attention."""

    BIAS = "(1 - mask) * -10000, added"
    EXPANDED = "the mask expanded to the scores' shape, and minus infinity chosen by Where"
    BRANCH = "the bias is made in the branches of an If"


class Head(StrEnum):
    """What a graph answers."""

    LOGITS = "logits"  # [rows, classes] of the first token
    POOLED = "pooled"  # [rows, width], the mean over the mask
    HIDDEN = "hidden"  # [rows, tokens, width]
    TAGS = "tags"  # [rows, tokens] INT64, the best tag
    BEST = "best"  # [rows] INT64, the best class


PER_TOKEN = frozenset({Head.HIDDEN, Head.TAGS})


@dataclass(frozen=True)
class Encoder:
    """One graph to make."""

    opset: int = 17
    half: bool = False
    small_ids: bool = False
    types: bool = False
    places: Places = Places.SLICED_TABLE
    masking: Masking = Masking.BIAS
    heads: tuple[Head, ...] = (Head.LOGITS,)
    seed: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return ("input_ids", "attention_mask", *(("token_type_ids",) if self.types else ()))

    @property
    def per_token(self) -> tuple[str, ...]:
        """Outputs with a token axis."""
        return tuple(head.value for head in self.heads if head in PER_TOKEN)

    @property
    def declared(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs as a resource declares them."""
        kind, real = (
            (DataType.INT32 if self.small_ids else DataType.INT64),
            (DataType.FP16 if self.half else DataType.FP32),
        )
        shapes = {
            Head.LOGITS: (real, (CLASSES,)),
            Head.POOLED: (real, (WIDTH,)),
            Head.HIDDEN: (real, (-1, WIDTH)),
            Head.TAGS: (DataType.INT64, (-1,)),
            Head.BEST: (DataType.INT64, ()),
        }
        return tuple(Tensor(name, kind, (-1,)) for name in self.inputs), tuple(
            Tensor(head.value, *shapes[head]) for head in self.heads
        )

    def plan(self, **rest: Any) -> PlanAdapt:
        """What the loader is asked to do with it."""
        inputs = tuple(PlanRaggedInput(name=name) for name in self.inputs)
        return PlanAdapt(
            step="model",
            path="model/1/model.onnx",
            inputs=inputs,
            token_outputs=self.per_token,
            **rest,
        )

    def row(self, random: np.random.Generator, length: int) -> dict[str, NDArray[Any]]:
        """A request of one row."""
        kind = np.int32 if self.small_ids else np.int64
        made = {
            "input_ids": random.integers(0, VOCABULARY, (1, length)),
            "attention_mask": np.ones((1, length)),
        }
        if self.types:
            made["token_type_ids"] = random.integers(0, TYPES, (1, length))
        return {name: value.astype(kind) for name, value in made.items()}


class _Graph:
    """Nodes of one graph, in the operators of its opset."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.real = np.float16 if encoder.half else np.float32
        self.real_type = TensorProto.FLOAT16 if encoder.half else TensorProto.FLOAT
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def constant(self, value: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.tensors)}"))
        return str(self.tensors[-1].name)

    def weight(self, random: np.random.Generator, *shape: int) -> str:
        return self.constant(random.normal(size=shape).astype(self.real))

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(
                operator, list(inputs), [output], name=f"node{len(self.nodes)}", **attributes
            )
        )
        return output

    def unsqueeze(self, value: str, *axes: int) -> str:
        if self.encoder.opset < 13:
            return self.add("Unsqueeze", value, axes=list(axes))
        return self.add("Unsqueeze", value, self.constant(np.array(axes, np.int64)))

    def total(self, value: str, axis: int) -> str:
        if self.encoder.opset < 13:
            return self.add("ReduceSum", value, axes=[axis], keepdims=0)
        return self.add("ReduceSum", value, self.constant(np.array([axis], np.int64)), keepdims=0)

    def cut(self, value: str, end: str, axis: int) -> str:
        return self.add(
            "Slice",
            value,
            self.constant(np.array([0], np.int64)),
            end,
            self.constant(np.array([axis], np.int64)),
        )

    def places(self, random: np.random.Generator) -> str:
        table = random.normal(size=(POSITIONS, WIDTH)).astype(self.real)
        shape = self.add("Shape", "input_ids")
        length = self.cut(
            self.add("Slice", shape, *(self.constant(np.array([n], np.int64)) for n in (1, 2, 0))),
            self.constant(np.array([1], np.int64)),
            0,
        )
        match self.encoder.places:
            case Places.SLICED_TABLE:
                return self.unsqueeze(self.cut(self.constant(table), length, 0), 0)
            case Places.BUFFER:
                index = self.cut(
                    self.constant(np.arange(POSITIONS, dtype=np.int64)[None]), length, 1
                )
            case Places.RANGE:
                one = self.add("Gather", shape, self.constant(np.array(1, np.int64)), axis=0)
                index = self.unsqueeze(
                    self.add(
                        "Range",
                        self.constant(np.array(0, np.int64)),
                        one,
                        self.constant(np.array(1, np.int64)),
                    ),
                    0,
                )
                index = self.add("Expand", index, shape)
            case Places.ONES:
                ones = self.add(
                    "ConstantOfShape", shape, value=numpy_helper.from_array(np.array([1], np.int64))
                )
                index = self.add(
                    "Sub",
                    self.add("CumSum", ones, self.constant(np.array(1, np.int64))),
                    self.constant(np.array(1, np.int64)),
                )
            case Places.MASK:
                mask = self.add("Cast", "attention_mask", to=TensorProto.INT64)
                index = self.add(
                    "Mul", self.add("CumSum", mask, self.constant(np.array(1, np.int64))), mask
                )
                return self.add("Gather", self.constant(np.concatenate([table, table[:2]])), index)
        return self.add("Gather", self.constant(table), index)

    def masked(self, scores: str) -> str:
        mask = self.add("Cast", "attention_mask", to=self.real_type)
        one, low = self.constant(np.array(1, self.real)), self.constant(np.array(-10000, self.real))
        match self.encoder.masking:
            case Masking.BIAS:
                bias = self.add("Mul", self.add("Sub", one, mask), low)
                return self.add("Add", scores, self.unsqueeze(bias, 1))
            case Masking.EXPANDED:
                wide = self.add(
                    "Expand", self.unsqueeze("attention_mask", 1), self.add("Shape", scores)
                )
                off = self.add(
                    "Equal",
                    self.add("Cast", wide, to=TensorProto.INT64),
                    self.constant(np.array(0, np.int64)),
                )
                return self.add("Where", off, self.constant(np.array(-np.inf, self.real)), scores)
            case Masking.BRANCH:
                count = self.add("Size", "attention_mask")
                inverse = self.add("Sub", one, mask)
                branches = [self._branch("then", inverse, low), self._branch("else", inverse, low)]
                bias = self.add(
                    "If",
                    self.add("Less", count, self.constant(np.array(20, np.int64))),
                    then_branch=branches[0],
                    else_branch=branches[1],
                )
                return self.add("Add", scores, self.unsqueeze(bias, 1))

    def _branch(self, name: str, inverse: str, low: str) -> Any:
        """A body that reads an input of the outer graph itself, and a value of it."""
        cast = helper.make_node("Cast", ["attention_mask"], [f"{name}_mask"], to=self.real_type)
        zero = helper.make_node("Mul", [f"{name}_mask", inverse], [f"{name}_zero"])
        bias = helper.make_node("Mul", [inverse, low], [f"{name}_bias"])
        out = helper.make_node("Add", [f"{name}_zero", f"{name}_bias"], [f"{name}_out"])
        return helper.make_graph(
            [cast, zero, bias, out],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", self.real_type, None)],
        )

    def head(self, head: Head, hidden: str, random: np.random.Generator) -> Any:
        real = self.real_type
        match head:
            case Head.HIDDEN:
                self.add("Identity", hidden, output=head.value)
                return helper.make_tensor_value_info(head.value, real, ["batch", "sequence", WIDTH])
            case Head.TAGS:
                self.add(
                    "ArgMax",
                    self.add("MatMul", hidden, self.weight(random, WIDTH, TAGS)),
                    output=head.value,
                    axis=2,
                    keepdims=0,
                )
                return helper.make_tensor_value_info(
                    head.value, TensorProto.INT64, ["batch", "sequence"]
                )
            case Head.POOLED:
                mask = self.unsqueeze(self.add("Cast", "attention_mask", to=real), 2)
                self.add(
                    "Div",
                    self.total(self.add("Mul", hidden, mask), 1),
                    self.total(mask, 1),
                    output=head.value,
                )
                return helper.make_tensor_value_info(head.value, real, ["batch", WIDTH])
        first = self.add("Gather", hidden, self.constant(np.array(0, np.int64)), axis=1)
        if head is Head.LOGITS:
            self.add("MatMul", first, self.weight(random, WIDTH, CLASSES), output=head.value)
            return helper.make_tensor_value_info(head.value, real, ["batch", CLASSES])
        self.add(
            "ArgMax",
            self.add("MatMul", first, self.weight(random, WIDTH, CLASSES)),
            output=head.value,
            axis=1,
            keepdims=0,
        )
        return helper.make_tensor_value_info(head.value, TensorProto.INT64, ["batch"])


def make(encoder: Encoder) -> Any:
    """The encoder as a checked ``onnx.ModelProto``."""
    graph, random = _Graph(encoder), np.random.default_rng(encoder.seed)
    x = graph.add("Gather", graph.weight(random, VOCABULARY, WIDTH), "input_ids")
    x = graph.add("Add", x, graph.places(random))
    if encoder.types:
        x = graph.add(
            "Add", x, graph.add("Gather", graph.weight(random, TYPES, WIDTH), "token_type_ids")
        )
    query = graph.add("MatMul", x, graph.weight(random, WIDTH, WIDTH))
    scores = graph.add("MatMul", query, graph.add("Transpose", x, perm=[0, 2, 1]))
    scores = graph.add("Div", scores, graph.constant(np.array(WIDTH, graph.real)))
    attention = graph.add("Softmax", graph.masked(scores), axis=2)
    hidden = graph.add("Add", x, graph.add("MatMul", attention, x))
    outputs = [graph.head(head, hidden, random) for head in encoder.heads]
    kind = TensorProto.INT32 if encoder.small_ids else TensorProto.INT64
    made = helper.make_graph(
        graph.nodes,
        "encoder",
        [
            helper.make_tensor_value_info(name, kind, ["batch", "sequence"])
            for name in encoder.inputs
        ],
        outputs,
        graph.tensors,
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", encoder.opset)], ir_version=10
    )
    onnx.checker.check_model(model)
    return model


def as_calls(model: Any) -> None:
    """Move the lookup of the token ids into a local function that calls another one.

    Exporters write modules like this.
    """
    lookup = model.graph.node[0]
    inner = helper.make_function(
        "local",
        "Look",
        ["table", "ids"],
        ["x"],
        [helper.make_node("Gather", ["table", "ids"], ["x"])],
        model.opset_import,
    )
    outer = helper.make_function(
        "local",
        "Embed",
        ["table", "ids"],
        ["y"],
        [helper.make_node("Look", ["table", "ids"], ["y"], domain="local")],
        [*model.opset_import, helper.make_opsetid("local", 1)],
    )
    lookup.CopyFrom(
        helper.make_node("Embed", list(lookup.input), list(lookup.output), domain="local")
    )
    model.functions.extend([inner, outer])
    model.opset_import.append(helper.make_opsetid("local", 1))
