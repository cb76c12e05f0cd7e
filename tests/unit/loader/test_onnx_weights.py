"""Test the evaluation of models with ONNX's own evaluator."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.support import oddgraphs
from tests.support.raggedbackend import session
from tests.support.raggedgraphs import Encoder, Head, make
from triton_pipelines.loader.onnx_weights import open_with_mapped_weights

MIB = 1 << 20


def saved(model: Any, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    return path


def chain(length: int) -> Any:
    """A chain of additions, of which the last also adds the first."""
    nodes = [helper.make_node("Add", [f"v{n}", "v0"], [f"v{n + 1}"]) for n in range(length)]
    return helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["size"])],
        [helper.make_tensor_value_info(f"v{length}", TensorProto.FLOAT, ["size"])],
    )


def in_a_branch(graph: Any) -> Any:
    """The same nodes in the branches of an If; they read the input of the graph outside."""
    branch = helper.make_graph(graph.node, "branch", [], graph.output)
    condition = numpy_helper.from_array(np.array(True), "condition")
    node = helper.make_node(
        "If", ["condition"], [graph.output[0].name], then_branch=branch, else_branch=branch
    )
    return helper.make_graph([node], "outer", graph.input, graph.output, [condition])


@pytest.mark.parametrize("place", [lambda graph: graph, in_a_branch], ids=["graph", "branch"])
def test_a_tensor_is_held_until_its_last_reader(place: Any, tmp_path: Path) -> None:
    model = helper.make_model(place(chain(30)), opset_imports=[helper.make_opsetid("", 17)])
    run = open_with_mapped_weights(saved(model, tmp_path))
    value = np.ones(MIB // 4, np.float32)
    tracemalloc.start()
    try:
        outputs = run({"v0": value})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert outputs.keys() == {"v30"}
    np.testing.assert_array_equal(outputs["v30"], 31 * value)
    assert peak < 5 * MIB


@pytest.mark.parametrize(
    "oddity",
    [
        oddgraphs.branches_with_tables,
        oddgraphs.nested_branches,
        oddgraphs.loop,
        oddgraphs.initializer_as_output,
        oddgraphs.left_out_inputs,
        oddgraphs.sequences,
    ],
)
def test_bodies_get_what_they_read(oddity: Any, tmp_path: Path) -> None:
    encoder = Encoder(heads=(Head.HIDDEN, Head.LOGITS))
    model = make(encoder)
    oddity(model)
    fed = encoder.row(np.random.default_rng(0), 9)
    outputs = open_with_mapped_weights(saved(model, tmp_path))(fed)
    for name, expected in zip(outputs, session(model).run(list(outputs), fed), strict=True):
        np.testing.assert_allclose(outputs[name], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("axis", [1, -2])
def test_elements_are_gathered_along_axes_of_any_length(axis: int, tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> gather (float[n, m, k] data, int64[a, b, c] at) '
        f"=> (float[a, b, c] out) {{ out = GatherElements<axis = {axis}>(data, at) }}"
    )
    random = np.random.default_rng(0)
    fed: dict[str, Any] = {
        "data": random.normal(size=(2, 70, 5)).astype(np.float32),
        "at": random.integers(-70, 70, (1, 100, 5)),
    }
    outputs = open_with_mapped_weights(saved(model, tmp_path))(fed)
    np.testing.assert_array_equal(outputs["out"], session(model).run(["out"], fed)[0])


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64])
def test_the_error_function(kind: Any, tmp_path: Path) -> None:
    name = {np.float32: "float", np.float16: "float16", np.float64: "double"}[kind]
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> erf ({name}[n] x) => ({name}[n] out) '
        "{ out = Erf(x) }"
    )
    values = np.array([*np.linspace(-5, 5, 999), 0, np.inf, -np.inf, np.nan], kind)
    made = open_with_mapped_weights(saved(model, tmp_path))({"x": values})["out"]
    assert made.dtype == kind
    expected = np.array([math.erf(value) for value in values], kind)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-3 if kind is np.float16 else 1e-6)
