"""What a graph itself says about its inputs: how many ids a table knows, how many positions there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from triton_pipelines.loader.ragged.walk import STANDARD, constants

_CARRIES: Final = frozenset({"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand"})
"""Operators whose output holds the elements of their first input."""
_MICROSOFT: Final = "com.microsoft"


def table_size(graph: Any, name: str) -> int | None:
    """The rows of the smallest table that the values of input ``name`` index; None where none is found.

    Follows the input through operators that only reshape or convert it to ``Gather`` along axis 0 of a constant, and to the fused
    embedding of ONNX Runtime's optimizer.
    """
    fixed = constants(graph)
    names, sizes = {name}, []
    for node in graph.node:
        if node.domain in STANDARD and node.op_type in _CARRIES and node.input[0] in names:
            names.add(node.output[0])
        elif node.domain in STANDARD and node.op_type == "Gather" and node.input[1] in names and _axis(node) == 0:
            sizes += _rows(fixed, node.input[0])
        elif node.domain == _MICROSOFT and node.op_type == "EmbedLayerNormalization":
            # Its inputs: ids, segment ids, word table, position table, segment table, …
            for value, table in ((0, 2), (1, 4)):
                if len(node.input) > table and node.input[value] in names:
                    sizes += _rows(fixed, node.input[table])
    return min(sizes, default=None)


def positions(graph: Any) -> int | None:
    """How many tokens a row may have by the graph's own table of positions; None where it does not show.

    Seen are tables that are cut to length (Slice), tables indexed by a constant list of positions that is cut to length, and by
    a Range. Positions that are computed otherwise (from the mask or the ids, as RoBERTa does) do not show.
    """
    fixed, makers = constants(graph), {name: node for node in graph.node for name in node.output}
    sizes: list[int] = []
    for node in graph.node:
        if node.domain == _MICROSOFT and node.op_type == "EmbedLayerNormalization" and len(node.input) > 3:
            sizes += _rows(fixed, node.input[3])
        if node.domain not in STANDARD:
            continue
        if node.op_type == "Slice" and len(node.input) > 2 and node.input[0] in fixed and node.input[2] not in fixed:
            axis = _sliced_axis(node, fixed)
            shape = tuple(fixed[node.input[0]].dims)
            if axis is not None and -len(shape) <= axis < len(shape):
                sizes.append(int(shape[axis]))
        elif node.op_type == "Gather" and _axis(node) == 0 and (rows := _rows(fixed, node.input[0])) and _counted(node.input[1], makers):
            sizes += rows
    return min((size for size in sizes if size > 1), default=None)


def _counted(name: str, makers: dict[str, Any]) -> bool:
    """Whether a value is 0, 1, 2, … of a Range."""
    while (node := makers.get(name)) is not None and node.domain in STANDARD and node.op_type in _CARRIES:
        name = node.input[0]
    return node is not None and node.domain in STANDARD and node.op_type == "Range"


def _sliced_axis(node: Any, fixed: dict[str, Any]) -> int | None:
    """The one axis that a Slice cuts; None where it does not show or there are several."""
    if len(node.input) < 4 or not node.input[3]:
        return 0
    tensor = fixed.get(node.input[3])
    if tensor is None or list(tensor.dims) not in ([], [1]) or tensor.external_data:
        return None
    from onnx import numpy_helper

    return int(numpy_helper.to_array(tensor).reshape(-1)[0])


def _axis(node: Any) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), 0)


def _rows(fixed: dict[str, Any], name: str) -> list[int]:
    tensor = fixed.get(name)
    return [int(tensor.dims[0])] if tensor is not None and len(tensor.dims) >= 2 else []


def company(model_nodes: Iterator[Any]) -> dict[str, str]:
    """Operator → why answers of a row hang on the other rows of its batch, or on chance, for the operators found that do so."""
    found: dict[str, str] = {}
    for node in model_nodes:
        if node.op_type in _DYNAMIC:
            found[node.op_type] = "its scale is taken over the whole batch (dynamic quantization): a row's answer hangs on the other rows"
        elif node.domain in STANDARD and node.op_type in _RECURRENT and not (len(node.input) > 4 and node.input[4]):
            found[node.op_type] = "a recurrent layer without sequence_lens reads the padding behind a row"
        elif node.domain in STANDARD and node.op_type in _RANDOM:
            found[node.op_type] = "its values are random"
        elif node.domain in STANDARD and node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute):
            found[node.op_type] = "in training mode it normalizes over the batch"
    return found


_DYNAMIC: Final = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
_RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})
_RANDOM: Final = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"})
