"""Adapt a stock graph so that it takes ragged batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

from triton_pipelines.api.loadplan import shape_input
from triton_pipelines.loader.onnx_graph.graph_walk import dims, element_type, inputs, rename, values
from triton_pipelines.loader.onnx_graph.node_builder import NodeBuilder
from triton_pipelines.loader.ragged.eligibility import Adaptable
from triton_pipelines.loader.ragged.input_padding import pad_inputs
from triton_pipelines.loader.ragged.output_flattening import Dims, OutputFlattener
from triton_pipelines.loader.ragged.padding_free.analysis import PaddingFree
from triton_pipelines.loader.ragged.padding_free.rewriting import add_without_padding

ROWS, TOKENS = "rows", "tokens"


def adapt(model: Any, adaptable: Adaptable, without_padding: PaddingFree | None = None) -> Any:
    """Adapt a model, which is changed and returned.

    Inputs become flat and keep their names and element types. Their lengths are added as further
    inputs. Outputs keep their names. A copy of a large model would not fit into the loader's
    memory. Weights, external or not, stay as they are.

    Args:
        model: an ``onnx.ModelProto``.
        adaptable: what :func:`.eligibility.check_eligibility` returned for it.
        without_padding: how to compute without padding; ``None`` to compute on padded matrices.
    """
    graph = model.graph
    build = NodeBuilder(values(graph), adaptable.opset, "ragged/")
    graph_inputs = inputs(graph)
    planned = [item.name for item in adaptable.plan.inputs]
    types = {name: element_type(graph_inputs[name]) for name in planned}
    matrices, rows = pad_inputs(build, adaptable, types)
    inner = {value.name: build.name(f"inner_{value.name}") for value in graph.output}
    names = matrices | inner
    rename(graph, names)
    if without_padding is None:
        build.nodes.extend(graph.node)
    else:
        add_without_padding(build, rows, graph, without_padding, names)
    flattener = OutputFlattener(build, rows)
    for value in graph.output:
        shape, kind = dims(value) or (), element_type(value)
        if value.name in adaptable.plan.token_outputs:
            flattener.token_output(inner[value.name], value.name, kind, shape)
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, [None, *shape[2:]]))
        else:
            flattener.row_output(inner[value.name], value.name, kind, len(shape))
            stated = _stated(shape, adaptable.output_dims.get(value.name, ()))
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, stated))
    del graph.node[:]
    graph.node.extend(build.nodes)
    graph.initializer.extend(build.constants)
    _inputs(graph, planned, types)
    graph.value_info.extend(
        helper.make_tensor_value_info(
            matrix, types[name], [f"{ROWS}_of_batch", f"{TOKENS}_of_longest"]
        )
        for name, matrix in matrices.items()
    )
    # Before version 4 every initializer had to be an input as well.
    model.ir_version = max(model.ir_version, 4)
    return model


def _stated(shape: Dims, declared: Sequence[int]) -> list[int | str | None]:
    """Return the shape that the graph states for an output per row.

    Triton compares it with the declared dims. Up to version 1.23, ONNX Runtime cannot infer the
    shape of an output behind the adapter's nodes, so an axis that has only a name would not match.
    """
    if len(shape) != len(declared) + 1:
        return list(shape)
    return [
        shape[0],
        *(
            size if size >= 0 and not isinstance(dim, int) else dim
            for dim, size in zip(shape[1:], declared, strict=True)
        ),
    ]


def _inputs(graph: Any, planned: list[str], types: dict[str, int]) -> None:
    """Put flat inputs in the places of the matrices, and the lengths after all others."""
    for value in graph.input:
        if value.name in planned:
            value.CopyFrom(
                helper.make_tensor_value_info(
                    value.name, types[value.name], [f"{TOKENS}_of_{value.name}"]
                )
            )
    graph.input.extend(
        helper.make_tensor_value_info(shape_input(name), TensorProto.INT32, [ROWS, 1])
        for name in planned
    )
