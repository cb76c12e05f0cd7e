"""Walk and rename in ONNX graphs, with the bodies of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import onnx

STANDARD = ("", "ai.onnx")
"""The two names of the standard operators' domain."""


def bodies(node: Any) -> Iterator[Any]:
    """Yield the graphs that a node holds: branches and loop bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes(graph: Any) -> Iterator[Any]:
    """Yield every node of a graph and of its bodies."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from nodes(body)


def every_node(model: Any) -> Iterator[Any]:
    """Yield every node of a model, with those of its local functions."""
    yield from nodes(model.graph)
    for function in model.functions:
        for node in function.node:
            yield node
            for body in bodies(node):
                yield from nodes(body)


def opset(model: Any) -> int:
    """Return the version of the standard operators; 0 if the model names none."""
    return max(
        (entry.version for entry in model.opset_import if entry.domain in STANDARD), default=0
    )


def inputs(graph: Any) -> dict[str, Any]:
    """Return the inputs that a caller has to fill, by name; an initializer fills the others."""
    filled = _fixed(graph)
    return {value.name: value for value in graph.input if value.name not in filled}


def _fixed(graph: Any) -> set[str]:
    """Return the names of a graph's initializers, with sparse ones."""
    return {tensor.name for tensor in graph.initializer} | {
        tensor.values.name for tensor in graph.sparse_initializer
    }


def dims(value: Any) -> tuple[int | str | None, ...] | None:
    """Return the shape of an input or output: number, axis name or ``None`` per axis.

    ``None`` as a whole if the graph states no shape.
    """
    if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.HasField(
        "shape"
    ):
        return None
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else (dim.dim_param or None)
        for dim in value.type.tensor_type.shape.dim
    )


def values(graph: Any) -> set[str]:
    """Return every name of a value in a graph and its bodies."""
    found = {value.name for value in (*graph.input, *graph.output, *graph.value_info)} | _fixed(
        graph
    )
    for node in graph.node:
        found |= {*node.input, *node.output}
        for body in bodies(node):
            found |= values(body)
    return found - {""}


def rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename values of a graph where nodes read and write them, bodies that see them included.

    Inputs and outputs of the graph keep their names.
    """
    if not names:
        return
    for node in graph.node:
        _rename_in_node(node, names)
    for value in graph.value_info:
        value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)


def _rename_in_node(node: Any, names: Mapping[str, str]) -> None:
    for part in (node.input, node.output):
        for place, name in enumerate(part):
            if name in names:
                part[place] = names[name]
    for body in bodies(node):
        own = _defined(body)
        visible = {old: new for old, new in names.items() if old not in own}
        rename(body, visible)
        for output in body.output:
            output.name = visible.get(output.name, output.name)


def _defined(graph: Any) -> set[str]:
    """Return the names that a body defines and that hide the same names outside."""
    made = {name for node in graph.node for name in node.output}
    return made | {value.name for value in graph.input} | _fixed(graph)


def reached(graph: Any, start: Collection[str]) -> set[str]:
    """Return every value that depends on the values of ``start``.

    A node with bodies depends on everything that these read.
    """
    found = set(start)
    for node in graph.node:
        if names_read(node) & found:
            found.update(node.output)
    return found


def names_read(node: Any) -> set[str]:
    """Return all names that a node reads, those in its bodies included."""
    read = set(node.input)
    for body in bodies(node):
        read |= values(body)
    return read - {""}


def element_type(value: Any) -> int:
    """Return the element type (TensorProto.DataType) of an input or output.

    UNDEFINED if it is not a tensor.
    """
    return (
        int(value.type.tensor_type.elem_type)
        if value.type.WhichOneof("value") == "tensor_type"
        else onnx.TensorProto.UNDEFINED
    )
