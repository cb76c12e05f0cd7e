"""Add nodes to a graph, with unique names and with each constant built once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


class NodeBuilder:
    """Collects nodes and constants under one prefix."""

    def __init__(self, taken: set[str], opset: int, prefix: str) -> None:
        """Create the builder.

        Args:
            taken: names that exist in the graph.
            opset: the graph's version of the standard operators.
            prefix: prefix of all new names.
        """
        self._opset = opset
        self.prefix = prefix
        while any(name.startswith(self.prefix) for name in taken):
            self.prefix = f"_{self.prefix}"
        self.nodes: list[Any] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Any] = {}
        self._count = 0

    @property
    def constants(self) -> list[Any]:
        """Return every constant that was used, as initializers."""
        return list(self._constants.values())

    def name(self, name: str) -> str:
        """Return ``name`` under the prefix."""
        return self.prefix + name

    def constant(self, value: NDArray[Any]) -> str:
        """Return the name of a constant."""
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(
                value, self.name(f"constant_{len(self._constants)}")
            )
        return str(self._constants[key].name)

    def integers(self, *values: int) -> str:
        """Return the name of a list of INT64."""
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: int) -> str:
        """Return the name of one INT64 without axes."""
        return self.constant(np.array(value, np.int64))

    def add(self, operator: str, *inputs: str, named: str = "", **attributes: Any) -> str:
        """Add a node of a standard operator with one output; return the output's name."""
        self._count += 1
        made = self.name(named or f"{operator}_{self._count}")
        self.nodes.append(helper.make_node(operator, list(inputs), [made], name=made, **attributes))
        return made

    def add_as(self, output: str, operator: str, *inputs: str, **attributes: Any) -> None:
        """Add a node of a standard operator whose output has a name already."""
        self._count += 1
        name = self.name(f"{operator}_{self._count}")
        self.nodes.append(
            helper.make_node(operator, list(inputs), [output], name=name, **attributes)
        )

    def add_many(
        self, operator: str, *inputs: str, outputs: int, **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs; return their names."""
        self._count += 1
        name = self.name(f"{operator}_{self._count}")
        made = tuple(f"{name}_{number}" for number in range(outputs))
        self.nodes.append(
            helper.make_node(operator, list(inputs), list(made), name=name, **attributes)
        )
        return made

    def join(self, parts: Sequence[str], axis: int = 0) -> str:
        """Return tensors laid end to end; a single one as it is."""
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=axis)

    def cast(self, value: str, to: int = TensorProto.INT64) -> str:
        """Return ``value`` as another element type, by default INT64."""
        return self.add("Cast", value, to=to)

    def reduce(self, operator: str, value: str, axis: int) -> str:
        """Apply ReduceMin or ReduceMax over one axis, which stays with length 1.

        The axes became an input with opset 18.
        """
        if self._opset < 18:
            return self.add(operator, value, axes=[axis], keepdims=1)
        return self.add(operator, value, self.integers(axis), keepdims=1)

    def total(self, value: str, axis: int) -> str:
        """Return the sum over one axis, which stays with length 1.

        The axes became an input with opset 13.
        """
        if self._opset < 13:
            return self.add("ReduceSum", value, axes=[axis], keepdims=1)
        return self.add("ReduceSum", value, self.integers(axis), keepdims=1)

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Return ``value`` with axes of length 1 added."""
        return self.add("Unsqueeze", value, self.integers(*axes))

    def all_of(self, conditions: list[str]) -> str:
        """Return the logical and of at least one condition."""
        result = conditions[0]
        for other in conditions[1:]:
            result = self.add("And", result, other)
        return result
