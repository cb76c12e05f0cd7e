"""What a graph itself says about its inputs: how many ids a table knows, how many positions there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onnx import numpy_helper

from triton_pipelines.loader.ragged.walk import STANDARD, bodies, constants, nodes

_CARRIES: Final = frozenset({"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand"})
"""Operators whose output holds the elements of their first input."""
_CONVERTS: Final = frozenset({"Cast", "Identity", "DequantizeLinear"})
"""Operators that give a table in another element type."""
_COUNTS: Final = frozenset({"Add", "Sub", "Mul", "Where", "Min", "Max", "Clip", "Concat", "Slice", "Transpose", "Tile", "Gather", "CumSum"})
"""Operators that make indices out of indices."""
_INDEXED: Final = frozenset({"Gather", "GatherElements", "GatherND", "GatherBlockQuantized"})
_MICROSOFT: Final = "com.microsoft"
_EMBEDDINGS: Final = frozenset({"EmbedLayerNormalization", "QEmbedLayerNormalization"})
"""Fused embeddings of ONNX Runtime's optimizer. Their inputs: ids, segment ids, word table, position table, segment table, …"""


def table_size(graph: Any, name: str) -> int | None:
    """The rows of the smallest table that the values of input ``name`` index; None where none is found.

    Follows the input through operators that only reshape or convert it, into the bodies of If, Loop and Scan too, to lookups along axis 0 of a
    constant (quantized or not), and to the fused embedding of ONNX Runtime's optimizer.
    """
    tables, names, sizes = _tables(graph), {name}, []
    for node in nodes(graph):
        if node.domain in STANDARD and node.op_type in _CARRIES and node.input[0] in names:
            names.add(node.output[0])
        elif node.op_type in ("Gather", "GatherBlockQuantized") and node.input[1] in names and _axis(node) == 0:
            sizes += _rows(tables, node.input[0])
        elif node.domain == _MICROSOFT and node.op_type in _EMBEDDINGS:
            for value, table in ((0, 2), (1, 4)):
                if len(node.input) > table and node.input[value] in names:
                    sizes += _rows(tables, node.input[table])
    return min(sizes, default=None)


def indexes(graph: Any, name: str) -> bool:
    """Whether values computed from input ``name`` choose elements of another tensor: then a value out of range is an error of the whole run.

    Comparisons end the way: what they give is 0 or 1.
    """
    names = {name}
    for node in nodes(graph):
        read = names.intersection(node.input)
        if node.op_type in _INDEXED and len(node.input) > 1 and node.input[1] in names:
            return True
        if read and node.op_type in _CARRIES | _COUNTS:
            names.update(node.output)
    return False


def positions(graph: Any) -> int | None:
    """How many tokens a row may have by the graph's own table of positions; None where it does not show.

    Seen are tables that are cut to length (Slice), tables indexed by a constant list of positions that is cut to length, and by
    a Range. Positions that are computed otherwise (from the mask or the ids, as RoBERTa does) do not show: see :func:`computed_positions`.
    """
    fixed, tables = constants(graph), _tables(graph)
    makers = {name: node for node in graph.node for name in node.output}
    sizes: list[int] = []
    for node in graph.node:
        if node.domain == _MICROSOFT and node.op_type in _EMBEDDINGS and len(node.input) > 3:
            sizes += _rows(tables, node.input[3])
        if node.domain not in STANDARD:
            continue
        if node.op_type == "Slice" and len(node.input) > 2 and node.input[0] in tables and node.input[2] not in fixed:
            axis = _sliced_axis(node, fixed)
            shape = tuple(tables[node.input[0]].dims)
            if axis is not None and -len(shape) <= axis < len(shape):
                sizes.append(int(shape[axis]))
        elif node.op_type == "Gather" and _axis(node) == 0 and (rows := _rows(tables, node.input[0])) and _counted(node.input[1], makers):
            sizes += rows
    return min((size for size in sizes if size > 1), default=None)


def computed_positions(graph: Any) -> int | None:
    """The rows of the smallest table that is indexed by a running sum (CumSum): about as many tokens as a row may have, some rows being kept for padding."""
    tables, summed, sizes = _tables(graph), set[str](), []
    for node in nodes(graph):
        if node.op_type == "CumSum" or (node.op_type in _CARRIES | _COUNTS and summed.intersection(node.input)):
            summed.update(node.output)
        if node.op_type == "Gather" and _axis(node) == 0 and node.input[1] in summed:
            sizes += _rows(tables, node.input[0])
            summed.difference_update(node.output)
    return min(sizes, default=None)


def _tables(graph: Any) -> dict[str, Any]:
    """Name → tensor of what is fixed, in bodies too, and of what is that in another element type."""
    found = constants(graph)
    for node in nodes(graph):
        for body in bodies(node):
            found.update(constants(body))
        if node.op_type in _CONVERTS and node.input and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


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
