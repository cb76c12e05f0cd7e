"""Flatten a graph with its bodies into one list of operations with unique names.

The branches of an If may both call a value ``c``, and a body may hide a value of the graph around
it: their bare names would be ambiguous.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from triton_pipelines.loader.onnx_graph.graph_walk import STANDARD, bodies

_APART: Final = "\0"
"""Separates a body's own name from the body's number; no name of a graph contains it."""
_LINKED: Final = frozenset({"If", "Loop", "Scan"})
"""Operators whose bodies take the node's last inputs and return its last outputs, one for one."""


@dataclass(frozen=True)
class Operation:
    """A node, or the transfer of a value into or out of a body."""

    kind: str
    """Operator; for the transfer of a value, that of the node with the body."""
    domain: str
    """Domain of the operator."""
    inputs: tuple[str, ...]
    """Input names; empty for an input that is left out."""
    outputs: tuple[str, ...]
    """Output names; empty for an output that is left out."""
    node: Any
    """The ``onnx.NodeProto``."""
    top: bool
    """Whether it is in the graph itself rather than in a body."""

    @property
    def standard(self) -> bool:
        """Return whether the operator is one of ONNX itself."""
        return self.domain in STANDARD

    @property
    def made(self) -> tuple[str, ...]:
        """Return the outputs that have a name."""
        return tuple(name for name in self.outputs if name)

    def read(self, place: int) -> str | None:
        """Return the input at ``place``; ``None`` if it is left out."""
        return self.inputs[place] or None if place < len(self.inputs) else None


@dataclass(frozen=True)
class FlatGraph:
    """The operations of a graph and its bodies. Names of the graph itself are bare."""

    operations: list[Operation] = field(default_factory=list)
    """Operations in the order of their nodes."""
    constants: dict[str, Any] = field(default_factory=dict)
    """Name → tensor of initializers and Constant nodes."""


def flatten_graph(graph: Any) -> FlatGraph:
    """Return the operations of a graph and of all bodies in it.

    An If, Loop or Scan is not listed itself, but as the transfers of values into and out of its
    bodies.
    """
    result = FlatGraph()
    scopes = _Scopes(result)
    scopes.lay(graph, scopes.open(graph, ChainMap()))
    return result


@dataclass
class _Scope:
    """The names that a graph or body sees, and their names in the list."""

    number: int
    names: ChainMap[str, str]

    def define(self, name: str) -> str:
        if name:
            self.names.maps[0][name] = f"{name}{_APART}{self.number}" if self.number else name
        return self.names.get(name, "")

    def see(self, name: str) -> str:
        # A name that is not defined yet comes from a later node, in a graph with a wrong order.
        return self.names.get(name) or self.define(name)


class _Scopes:
    def __init__(self, result: FlatGraph) -> None:
        self._result, self._count = result, 0

    def open(self, graph: Any, outer: ChainMap[str, str]) -> _Scope:
        """Return a scope in which the graph's inputs and initializers are known."""
        scope = _Scope(self._count, outer.new_child())
        self._count += 1
        for value in graph.input:
            scope.define(value.name)
        for tensor in graph.initializer:
            self._result.constants[scope.define(tensor.name)] = tensor
        for sparse in graph.sparse_initializer:
            scope.define(sparse.values.name)
        return scope

    def lay(self, graph: Any, scope: _Scope) -> None:
        for node in graph.node:
            inputs = tuple(map(scope.see, node.input))
            linked = node.domain in STANDARD and node.op_type in _LINKED
            given: list[str] = []
            for body in bodies(node):
                inside = self.open(body, scope.names)
                if linked:
                    self._link(node, inputs, [inside.see(value.name) for value in body.input])
                self.lay(body, inside)
                given = [
                    *given,
                    *[inside.see(value.name) for value in body.output][-len(node.output) :],
                ]
            outputs = tuple(map(scope.define, node.output))
            if linked:
                self._link(node, given, outputs * (len(given) // max(len(outputs), 1)))
                continue
            self._result.operations.append(
                Operation(node.op_type, node.domain, inputs, outputs, node, not scope.number)
            )
            if node.op_type == "Constant" and node.domain in STANDARD and outputs:
                self._result.constants.update(
                    (outputs[0], attribute.t)
                    for attribute in node.attribute
                    if attribute.name == "value"
                )

    def _link(self, node: Any, sources: Iterable[str], targets: Iterable[str]) -> None:
        pairs = zip(reversed(list(sources)), reversed(list(targets)), strict=False)
        self._result.operations.extend(
            Operation(node.op_type, node.domain, (source,), (target,), node, False)
            for source, target in pairs
            if source
        )
