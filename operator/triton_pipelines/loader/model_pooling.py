"""Add pooling to an ONNX file, so that it returns one embedding per row.

The operators are standard ones and come after the graph, whose own nodes do not change. They
compute what the postprocess step computes (``runtime/postprocess/model.py``), as precisely.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from triton_pipelines.api.loadplan import PlanPool
from triton_pipelines.loader.files import replace_durably
from triton_pipelines.loader.onnx_graph.graph_walk import dims, element_type, inputs, opset, values
from triton_pipelines.loader.onnx_graph.node_builder import NodeBuilder
from triton_pipelines.loader.onnx_store import load_without_weights, save

OPSET: Final = 9
"""First opset with the operator Where."""
_FLOATS: Final = frozenset({TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE})


def pool_file(path: Path, plan: PlanPool) -> str:
    """Add pooling to the model at ``path``; return why that is not possible, or "".

    The new file takes its name only when it is complete. Large weights are copied from the mapped
    pages of the old file, and external ones stay where they are.

    Raises:
        OSError: the volume is full.
        google.protobuf.message.DecodeError: the file is not a model.
    """
    stored = load_without_weights(path)
    obstacle = _obstacle(stored.model, plan)
    if obstacle:
        return obstacle
    add_pooling(stored.model, plan)
    temporary = path.with_name(f".{path.name}.pooled")
    try:
        save(stored, temporary)
        replace_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return ""


def _obstacle(model: Any, plan: PlanPool) -> str:
    """Return why pooling cannot be added to a model, or ""."""
    graph = model.graph
    tokens = next((value for value in graph.output if value.name == plan.tokens), None)
    if opset(model) < OPSET:
        return f"the model has opset {opset(model)}, but at least {OPSET} is required"
    if tokens is None:
        return f"the model has no output {plan.tokens!r}"
    if element_type(tokens) not in _FLOATS:
        return f"output {plan.tokens!r} is not FP16, FP32 or FP64"
    if len(dims(tokens) or (0, 0, 0)) != 3:
        return f"the shape of output {plan.tokens!r} is not [rows, tokens, {plan.width}]"
    if plan.mask is not None and plan.mask not in inputs(graph):
        return f"the model has no input {plan.mask!r}"
    if plan.embedding in values(graph):
        return f"the graph already has a value with the name {plan.embedding!r}"
    return ""


def add_pooling(model: Any, plan: PlanPool) -> None:
    """Replace the output per token of a model, which is changed, by an embedding per row."""
    graph = model.graph
    index = next(i for i, value in enumerate(graph.output) if value.name == plan.tokens)
    tokens = onnx.ValueInfoProto.FromString(graph.output[index].SerializeToString())
    kind = element_type(tokens)
    build = NodeBuilder(values(graph), opset(model), "pooling/")
    if plan.mask is None:
        pooled = build.add("Gather", _wide(build, plan.tokens, kind), build.scalar(0), axis=1)
    else:
        pooled = _mean(build, _wide(build, plan.tokens, kind), plan, _wide_type(kind))
    if plan.normalize:
        pooled = _unit(build, pooled)
    # This node also gives the output its name.
    build.add_as(plan.embedding, "Cast", pooled, to=TensorProto.FLOAT)
    graph.node.extend(build.nodes)
    graph.initializer.extend(build.constants)
    if plan.tokens not in {value.name for value in graph.value_info}:
        graph.value_info.append(tokens)
    rows = (dims(tokens) or ("rows",))[0]
    graph.output[index].CopyFrom(
        helper.make_tensor_value_info(plan.embedding, TensorProto.FLOAT, [rows, plan.width])
    )
    # Before version 4 every initializer had to be an input as well.
    model.ir_version = max(model.ir_version, 4)


def _wide_type(kind: int) -> int:
    """Return the type of the arithmetic: FP32 at least."""
    return TensorProto.DOUBLE if kind == TensorProto.DOUBLE else TensorProto.FLOAT


def _wide(build: NodeBuilder, value: str, kind: int) -> str:
    return build.cast(value, TensorProto.FLOAT) if kind == TensorProto.FLOAT16 else value


def _mean(build: NodeBuilder, tokens: str, plan: PlanPool, kind: int) -> str:
    """Return the mean over tokens, weighted by the mask; zeros for a row without any weight.

    Masked tokens become 0 first: weight 0 times NaN or infinity, which a model may leave in
    padding, is NaN.
    """
    assert plan.mask is not None
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    zero, one = (build.constant(np.array(value, dtype)) for value in (0, 1))
    column = build.add("Reshape", plan.mask, build.integers(0, -1, 1))
    kept = build.add("Where", build.cast(column, TensorProto.BOOL), tokens, zero)
    weights = build.cast(build.add("Reshape", plan.mask, build.integers(0, 1, -1)), kind)
    total = build.total(weights, 2)
    divisor = build.add("Where", build.cast(total, TensorProto.BOOL), total, one)
    mean = build.add("MatMul", build.add("Div", weights, divisor), kept)
    return build.add("Reshape", mean, build.integers(0, plan.width))


def _unit(build: NodeBuilder, vectors: str) -> str:
    """Return vectors [rows, width] of length 1; a zero vector stays zero.

    In double precision: in FP32, squares overflow from 1.8e19.
    """
    wide = build.cast(vectors, TensorProto.DOUBLE)
    length = build.add("Sqrt", build.total(build.add("Mul", wide, wide), 1))
    one = build.constant(np.array(1, np.float64))
    divisor = build.add("Where", build.cast(length, TensorProto.BOOL), length, one)
    return build.add("Div", wide, divisor)
