"""Which operators treat each token by itself, decided by their axes.

A tensor of shape [rows, places, …] is laid out flat as [1, tokens, …], and [rows × places, …] as
[tokens, …]. The axes keep their numbers, so that most operators run on the flat tensor as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from onnx import helper

from triton_pipelines.loader.onnx_graph.graph_walk import STANDARD
from triton_pipelines.loader.ragged.padding_free.tensor_facts import (
    Axis,
    Facts,
    TensorFacts,
    TokenAxes,
)


class Reading(Enum):
    """How an operator on flat tensors reads one of its inputs."""

    FLAT = "laid out flat"
    AS_IS = "unchanged, because it is the same for all tokens"
    SPREAD = "the value of its row or position for each token"


@dataclass(frozen=True)
class FlatOperator:
    """How a node runs on flat tensors."""

    readings: tuple[Reading, ...]
    """One for each input of the node."""
    operator: str = ""
    """Operator that replaces the node's, with ``shape`` as its second input; empty to keep it."""
    shape: tuple[int, ...] = ()
    """The shape for Reshape or Expand."""


ELEMENTWISE: Final = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "Max", "Min", "Sum", "Mean", "PRelu"),
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not"),
        *("Cast", "CastLike", "Identity", "Dropout", "Clip", "Sqrt", "Reciprocal", "Neg", "Abs"),
        *("Exp", "Log", "Erf", "Tanh", "Sigmoid", "Relu", "LeakyRelu", "Elu", "Selu", "Celu"),
        *("Gelu", "HardSigmoid", "HardSwish", "Mish", "Softplus", "Softsign", "ThresholdedRelu"),
        *("Sign", "Floor", "Ceil", "Round", "Sin", "Cos", "IsNaN", "IsInf", "Swish"),
        *("QuantizeLinear", "DequantizeLinear"),
    }
)
"""Operators that combine elements in the same place, with numpy's broadcasting."""
HEAVY: Final = frozenset({"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"})
"""Operators whose time decides that of a model."""
_ONE_AXIS: Final = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "ArgMax": 0, "ArgMin": 0}
"""Operators along one axis, with the default of their attribute ``axis`` since opset 13."""
_NORMALIZING: Final = frozenset({"LayerNormalization", "RMSNormalization"})
_REDUCING: Final = frozenset(
    {
        *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare"),
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
    }
)
_RESHAPING: Final = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def flat_operator(node: Any, facts: Facts) -> FlatOperator | None:
    """Return how a node runs on flat tensors; ``None`` if it may combine tokens.

    Args:
        node: an ``onnx.NodeProto``.
        facts: facts about the tensors of its graph.
    """
    if node.domain not in STANDARD:
        return None
    made = [facts[name] for name in node.output if name in facts]
    if len(made) < sum(map(bool, node.output)) or not all(fact.tokens for fact in made):
        return None
    rule = _RULES.get(node.op_type)
    return rule(_NodeCase(node, facts)) if rule is not None else None


class _NodeCase:
    """A node with the facts about its inputs and its first output."""

    def __init__(self, node: Any, facts: Facts) -> None:
        self.node, self._facts = node, facts
        tokens = facts[node.output[0]].tokens
        assert tokens is not None
        self.made: TokenAxes = tokens

    def fact(self, place: int) -> TensorFacts | None:
        name = self.node.input[place] if place < len(self.node.input) else ""
        return self._facts.get(name)

    def tokens(self, place: int) -> TokenAxes | None:
        fact = self.fact(place)
        return None if fact is None else fact.tokens

    def is_neutral(self, *places: int) -> bool:
        """Whether these inputs are the same for all tokens; those left out are."""
        return all(
            (fact := self.fact(place)) is not None and fact.is_neutral
            for place in places
            if place < len(self.node.input) and self.node.input[place]
        )

    def attribute(self, name: str, default: Any = None) -> Any:
        return next(
            (
                helper.get_attribute_value(attribute)
                for attribute in self.node.attribute
                if attribute.name == name
            ),
            default,
        )

    def integers(self, place: int, attribute: str = "") -> list[int] | None:
        """Return axes or the like from a neutral input, or from an attribute."""
        fact = self.fact(place)
        if fact is not None:
            return None if fact.value is None else [int(item) for item in fact.value.reshape(-1)]
        given = self.attribute(attribute) if attribute else None
        return None if given is None else [int(item) for item in given]

    def first_flat(self) -> FlatOperator | None:
        """Return the operator unchanged: the first input is flat, and the others neutral."""
        others = range(1, len(self.node.input))
        if not self.is_neutral(*others):
            return None
        return FlatOperator((Reading.FLAT, *(Reading.AS_IS for _ in others)))


def _elementwise(case: _NodeCase) -> FlatOperator | None:
    readings: list[Reading] = []
    for place, name in enumerate(case.node.input):
        fact = case.fact(place)
        if not name:
            readings.append(Reading.AS_IS)
            continue
        reading = None if fact is None else _broadcast(fact, case.made)
        if reading is None:
            return None
        readings.append(reading)
    if Reading.FLAT not in readings or not _scalar_scales(case):
        return None
    return FlatOperator(tuple(readings))


def _scalar_scales(case: _NodeCase) -> bool:
    """Return whether a quantization has one scale: along an axis, it does not broadcast."""
    if case.node.op_type not in {"QuantizeLinear", "DequantizeLinear"}:
        return True
    return all(
        (fact := case.fact(place)) is None or fact.dims in {(), (1,)}
        for place in range(1, len(case.node.input))
    )


def _broadcast(fact: TensorFacts, made: TokenAxes) -> Reading | None:
    """Return how an input is read whose axes are aligned with the output's, from the last one."""
    offset = made.rank - len(fact.dims)
    first, last = made.first - offset, made.last - offset
    ours = tuple(fact.dims[axis] if axis >= 0 else 1 for axis in range(first, last + 1))
    others = [dim for axis, dim in enumerate(fact.dims) if not first <= axis <= last]
    if not all(isinstance(dim, int) for dim in others):
        return None
    if ours == ((Axis.ALL_PLACES,) if made.is_merged else (Axis.ROWS, Axis.PLACES)):
        return Reading.FLAT
    if all(dim == 1 for dim in ours):
        return Reading.AS_IS if fact.is_neutral else None
    if not made.is_merged and ours in {(1, Axis.PLACES), (Axis.ROWS, 1)}:
        return Reading.SPREAD
    return None


def _product(case: _NodeCase) -> FlatOperator | None:
    """MatMul of tokens with a matrix that is the same for all."""
    tokens = case.tokens(0)
    quantized = case.node.op_type == "QLinearMatMul"
    matrix = case.fact(3 if quantized else 1)
    if tokens is None or not tokens.behind or matrix is None or len(matrix.dims) > 2:
        return None
    small = (1, 2, 4, 5, 6, 7) if quantized else (2, 3)
    scales = (case.fact(place) for place in small)
    if case.node.op_type != "MatMul" and any(
        scale is not None and len(scale.dims) > 1 for scale in scales
    ):
        return None
    return case.first_flat()


def _gemm(case: _NodeCase) -> FlatOperator | None:
    tokens, added = case.tokens(0), case.fact(2)
    if tokens is None or tokens.first or case.attribute("transA", 0):
        return None
    if added is not None and len(added.dims) > 1 and added.dims[0] != 1:
        return None
    return case.first_flat()


def _normalization(case: _NodeCase) -> FlatOperator | None:
    tokens = case.tokens(0)
    return case.first_flat() if tokens and _behind(case, tokens, -1) else None


def _behind(case: _NodeCase, tokens: TokenAxes, default: int) -> bool:
    """Return whether the attribute ``axis`` is behind the tokens."""
    axis = int(case.attribute("axis", default))
    return (axis + tokens.rank if axis < 0 else axis) > tokens.last


def _one_axis(case: _NodeCase) -> FlatOperator | None:
    tokens = case.tokens(0)
    if tokens is None or not _behind(case, tokens, _ONE_AXIS[case.node.op_type]):
        return None
    return case.first_flat()


def _reduction(case: _NodeCase) -> FlatOperator | None:
    tokens, axes = case.tokens(0), case.integers(1, "axes")
    return case.first_flat() if tokens and axes and _spares_tokens(tokens, axes) else None


def _spares_tokens(tokens: TokenAxes, axes: list[int]) -> bool:
    taken = {axis + tokens.rank if axis < 0 else axis for axis in axes}
    return taken.isdisjoint({tokens.first, tokens.last})


def _pool(case: _NodeCase) -> FlatOperator | None:
    """GlobalAveragePool over all axes but the first two, which some exporters use for a mean."""
    tokens = case.tokens(0)
    is_first = tokens is not None and not tokens.first and not tokens.is_merged
    return case.first_flat() if is_first else None


def _reshaping(case: _NodeCase) -> FlatOperator | None:
    """Fixed axes before and behind the tokens may be cut otherwise, but not mixed with them."""
    read, made = case.tokens(0), case.made
    if read is None or not _same_size(read.before, made.before):
        return None
    if not _same_size(read.behind, made.behind):
        return None
    return FlatOperator((Reading.FLAT,), "Reshape", tuple(made.flat_shape()))


def _same_size(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return _size(one) == _size(other)


def _size(dims: tuple[int, ...]) -> int:
    size = 1
    for dim in dims:
        size *= dim
    return size


def _expansion(case: _NodeCase) -> FlatOperator | None:
    read, made = case.tokens(0), case.made
    if read is None or read.is_merged != made.is_merged or read.from_end != made.from_end:
        return None
    shape = made.with_tokens(*(1 for _ in range(made.first, made.last + 1)))
    return FlatOperator((Reading.FLAT,), "Expand", tuple(shape))


def _transposition(case: _NodeCase) -> FlatOperator | None:
    read, made = case.tokens(0), case.made
    perm = case.attribute("perm")
    if read is None or perm is None or read.is_merged != made.is_merged:
        return None
    kept = [int(perm[axis]) for axis in (made.first, made.last)]
    return case.first_flat() if kept == [read.first, read.last] else None


def _concatenation(case: _NodeCase) -> FlatOperator | None:
    axis, made = int(case.attribute("axis", 0)), case.made
    alike = all(
        (tokens := case.tokens(place)) is not None
        and (tokens.first, tokens.last, tokens.rank) == (made.first, made.last, made.rank)
        for place in range(len(case.node.input))
    )
    if not alike or not _spares_tokens(made, [axis]):
        return None
    return FlatOperator(tuple(Reading.FLAT for _ in case.node.input))


def _splitting(case: _NodeCase) -> FlatOperator | None:
    tokens, axis = case.tokens(0), int(case.attribute("axis", 0))
    return case.first_flat() if tokens and _spares_tokens(tokens, [axis]) else None


def _slice(case: _NodeCase) -> FlatOperator | None:
    tokens, axes = case.tokens(0), case.integers(3)
    return case.first_flat() if tokens and axes and _spares_tokens(tokens, axes) else None


def _lookup(case: _NodeCase) -> FlatOperator | None:
    """Gather: the tokens choose rows of a table, or a list chooses among what each token has."""
    if case.is_neutral(0) and case.tokens(1) is not None:
        return FlatOperator((Reading.AS_IS, Reading.FLAT))
    return _splitting(case)


_RULES: Final[Mapping[str, Callable[[_NodeCase], FlatOperator | None]]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    "Gemm": _gemm,
    **dict.fromkeys(_NORMALIZING, _normalization),
    **dict.fromkeys(_ONE_AXIS, _one_axis),
    **dict.fromkeys(_REDUCING, _reduction),
    "GlobalAveragePool": _pool,
    **dict.fromkeys(_RESHAPING, _reshaping),
    "Expand": _expansion,
    "Transpose": _transposition,
    "Concat": _concatenation,
    "Split": _splitting,
    "Slice": _slice,
    "Gather": _lookup,
}
