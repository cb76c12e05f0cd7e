"""Small graphs whose output shape ONNX Runtime infers, or does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Made = tuple[list[Any], list[Any]]


def _integers(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _weight() -> Any:
    return numpy_helper.from_array(np.ones((4, 4), np.float32), "w")


def _product() -> Made:
    return [helper.make_node("MatMul", ["x", "w"], ["y"])], [_weight()]


def _reshaped_by_constants() -> Made:
    nodes = [
        helper.make_node("Concat", ["open", "four"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    return nodes, [_integers("open", -1), _integers("four", 4)]


def _reshaped_by_its_own_axis() -> Made:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Slice", ["sizes", "one", "two"], ["last"]),
        helper.make_node("Concat", ["open", "last"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    return nodes, [_integers("open", -1), _integers("one", 1), _integers("two", 2)]


def _as_many_as_values() -> Made:
    """An axis whose size depends on values."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "zero"], ["total"], keepdims=0),
        helper.make_node("Cast", ["total"], ["kept"], to=TensorProto.BOOL),
        helper.make_node("Compress", ["x", "kept"], ["y"], axis=1),
    ]
    return nodes, [_integers("zero", 0)]


def _fused() -> Made:
    """An operator of ONNX Runtime, whose shape the onnx package does not know."""
    nodes = [
        helper.make_node("FusedMatMul", ["x", "w"], ["product"], domain="com.microsoft"),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    return nodes, [_weight()]


GRAPHS: Final[dict[str, Callable[[], Made]]] = {
    "a product with a weight": _product,
    "a shape of constants": _reshaped_by_constants,
    "a shape of the tensor's own axis": _reshaped_by_its_own_axis,
    "a size that depends on values": _as_many_as_values,
    "an operator of ONNX Runtime": _fused,
}


def shape_graph(graph: str) -> Any:
    """A model from x [batch, 4] to y [batch, n], which is 4 except where it depends on values."""
    nodes, tensors = GRAPHS[graph]()
    return _model(nodes, tensors, ["batch", "n"])


def _model(nodes: list[Any], tensors: list[Any], shape: list[Any]) -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    made = helper.make_graph(nodes, "shapes", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


CONSTANTS: Final[dict[str, tuple[str, tuple[int, ...], bool]]] = {
    "Reshape": ("Reshape", (-1, 4), True),
    "ReduceSum": ("ReduceSum", (1,), True),
    "Expand": ("Expand", (1, 4), True),
    "Unsqueeze": ("Unsqueeze", (1,), True),
    "Gather": ("Gather", (0, 1), False),
}
"""Case → operator, its integers, and whether the shape of its result depends on them."""


def constant_graph(case: str) -> Any:
    """A model with an operator that reads integers."""
    operator, integers, _ = CONSTANTS[case]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node(operator, ["product", "integers"], ["y"]),
    ]
    rank = {"Unsqueeze": 3}.get(case, 2)
    return _model(nodes, [_weight(), _integers("integers", *integers)], [None] * rank)


def save_beside(model: Any, file: Path, least: int = 0) -> None:
    """Save a model with its constants in a file beside it, those of at least so many bytes."""
    onnx.save(
        model,
        str(file),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=least,
    )
