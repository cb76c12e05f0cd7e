"""Build ONNX graphs with the standard operators of one opset.

Equal arguments give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET: Final = 17
# The IR version that came with opset 17: servers with an old ONNX Runtime refuse files of a newer
# one.
IR_VERSION: Final = 8


class Graph:
    """Collects nodes and initializers under names that stand for themselves in a graph viewer."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._names: set[str] = set()

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """An initializer, stored once per name."""
        if name not in self._names:
            self._names.add(name)
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def scalar(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        """An INT64 vector, named by its values."""
        return self.constant(
            "int64_" + "_".join(str(value) for value in values), np.array(values, np.int64)
        )

    def node(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """A node with one output of the same name."""
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def model(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return the checked ``onnx.ModelProto`` with these inputs and outputs.

        Both are ``onnx.ValueInfoProto``.
        """
        made = helper.make_graph(self.nodes, name, inputs, outputs, self.initializers)
        model = helper.make_model(
            made,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="triton-pipelines",
            producer_version="1",
        )
        onnx.checker.check_model(model)
        return model


def serialize(model: Any) -> bytes:
    """The file's bytes; the same model gives the same bytes."""
    data: bytes = model.SerializeToString(deterministic=True)
    return data
