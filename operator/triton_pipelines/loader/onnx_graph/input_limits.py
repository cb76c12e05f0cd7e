"""Limits that a graph states about its inputs: how many ids a table has, how many positions."""

from __future__ import annotations

from typing import Any, Final

from onnx import numpy_helper

from triton_pipelines.loader.onnx_graph.scopes import FlatGraph, Operation, flatten_graph

_CARRIES: Final = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand", "If"}
)
"""Operators whose output holds the elements of their first input.

The output of an If is what its branch made.
"""
_CONVERTS: Final = frozenset({"Cast", "Identity", "DequantizeLinear"})
"""Operators that return a table in another element type."""
_COUNTS: Final = frozenset(
    {
        "Add",
        "Sub",
        "Mul",
        "Where",
        "Min",
        "Max",
        "Clip",
        "Concat",
        "Slice",
        "Split",
        "Transpose",
        "Tile",
        "Gather",
        "CumSum",
        "ReduceSum",
        "Loop",
        "Scan",
    }
)
"""Operators that make indices out of indices."""
_LOOKUPS: Final = frozenset({"Gather", "GatherBlockQuantized"})
_INDEXED: Final = _LOOKUPS | {"GatherElements", "GatherND", "ScatterElements", "ScatterND"}
_MICROSOFT: Final = "com.microsoft"
_EMBEDDINGS: Final = frozenset({"EmbedLayerNormalization", "QEmbedLayerNormalization"})
"""Fused embeddings of ONNX Runtime's optimizer.

Their inputs: ids, segment ids, word table, position table, segment table, …
"""


def table_size(graph: Any, name: str) -> int | None:
    """Return the rows of the smallest table that the values of input ``name`` index.

    Follows the input through operators that only reshape or convert it, into the bodies of If, Loop
    and Scan and out of the branches of an If, to lookups along axis 0 of a constant (quantized or
    not), and to the fused embedding of ONNX Runtime's optimizer. ``None`` if no table is found.
    """
    whole = flatten_graph(graph)
    tables, names, sizes = _tables(whole), {name}, list[int]()
    for one in whole.operations:
        if one.standard and one.kind in _CARRIES and one.read(0) in names:
            names.update(one.made)
        elif one.kind in _LOOKUPS and one.read(1) in names:
            sizes += _looked_up(tables, one)
        elif one.domain == _MICROSOFT and one.kind in _EMBEDDINGS:
            for value, table in ((0, 2), (1, 4)):
                if one.read(value) in names:
                    sizes += _rows(tables, one.read(table))
    return min(sizes, default=None)


def indexes(graph: Any, name: str) -> bool:
    """Return whether values computed from input ``name`` choose elements of another tensor.

    A value out of range then fails the whole run. Comparisons are not followed: their result is 0
    or 1.
    """
    names = {name}
    for one in flatten_graph(graph).operations:
        if one.kind in _INDEXED and one.read(1) in names:
            return True
        if one.kind in _CARRIES | _COUNTS and names.intersection(one.inputs):
            names.update(one.made)
    return False


def positions(graph: Any) -> int | None:
    """Return how many tokens a row may have by the graph's own table of positions.

    Recognizes tables that are cut to length (Slice), tables indexed by a constant list of positions
    that is cut to length, and tables indexed by a Range. ``None`` for positions that are computed
    otherwise (from the mask or the ids, as in RoBERTa): see :func:`computed_positions`.
    """
    whole = flatten_graph(graph)
    fixed, tables, top = (
        whole.constants,
        _tables(whole),
        [one for one in whole.operations if one.top],
    )
    producers = {name: one for one in top for name in one.made}
    sizes: list[int] = []
    for one in top:
        if one.domain == _MICROSOFT and one.kind in _EMBEDDINGS:
            sizes += _rows(tables, one.read(3))
        if not one.standard:
            continue
        if (
            one.kind == "Slice"
            and (table := tables.get(one.read(0) or "")) is not None
            and (end := one.read(2)) is not None
            and end not in fixed
        ):
            axis = _sliced_axis(one, fixed)
            shape = tuple(table.dims)
            if axis is not None and -len(shape) <= axis < len(shape):
                sizes.append(int(shape[axis]))
        elif (
            one.kind == "Gather"
            and (rows := _looked_up(tables, one))
            and _counted(one.read(1), producers)
        ):
            sizes += rows
    return min((size for size in sizes if size > 1), default=None)


def computed_positions(graph: Any) -> int | None:
    """Return the rows of the smallest table that is indexed by a running sum (CumSum).

    That is about as many tokens as a row may have; some rows are reserved for padding.
    """
    whole = flatten_graph(graph)
    tables, summed, sizes = _tables(whole), set[str](), list[int]()
    for one in whole.operations:
        if one.kind == "CumSum" or (
            one.kind in _CARRIES | _COUNTS and summed.intersection(one.inputs)
        ):
            summed.update(one.made)
        if one.kind == "Gather" and one.read(1) in summed:
            sizes += _looked_up(tables, one)
            summed.difference_update(one.made)
    return min(sizes, default=None)


def _tables(whole: FlatGraph) -> dict[str, Any]:
    """Return constants by name, in bodies too, with conversions to another element type."""
    found = dict(whole.constants)
    for one in whole.operations:
        if one.kind in _CONVERTS and (table := found.get(one.read(0) or "")) is not None:
            found.update(dict.fromkeys(one.made, table))
    return found


def _counted(name: str | None, producers: dict[str, Operation]) -> bool:
    """Return whether a value is 0, 1, 2, … of a Range."""
    # At most as many steps as there are values: an invalid graph may have cycles.
    for _ in range(len(producers) + 1):
        if (one := producers.get(name or "")) is None or not one.standard:
            return False
        if one.kind not in _CARRIES:
            return one.kind == "Range"
        name = one.read(0)
    return False


def _sliced_axis(one: Operation, fixed: dict[str, Any]) -> int | None:
    """Return the one axis that a Slice cuts; ``None`` if it is unknown or there are several."""
    if (name := one.read(3)) is None:
        return 0
    tensor = fixed.get(name)
    if tensor is None or list(tensor.dims) not in ([], [1]) or tensor.external_data:
        return None
    return int(numpy_helper.to_array(tensor).reshape(-1)[0])


def _looked_up(tables: dict[str, Any], one: Operation) -> list[int]:
    """Return the rows of the table that a lookup reads along the first axis."""
    name = "gather_axis" if one.domain == _MICROSOFT else "axis"
    axis = next((int(attribute.i) for attribute in one.node.attribute if attribute.name == name), 0)
    table = one.read(0)
    rank = len(tables[table].dims) if table in tables else 0
    return _rows(tables, table) if axis in (0, -rank) else []


def _rows(tables: dict[str, Any], name: str | None) -> list[int]:
    tensor = tables.get(name or "")
    return [int(tensor.dims[0])] if tensor is not None and len(tensor.dims) >= 2 else []
