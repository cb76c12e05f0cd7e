"""Test the ONNX runner with every kind of tensor.

Covered are several outputs, small integers, BOOL and FP16, optional inputs, reshapes, and models
without a batch axis.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.python_backend import InferenceRequest, start_model

Shape = list[str | int]


def write(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, Shape]],
    outputs: dict[str, tuple[int, Shape]],
    constants: dict[str, np.ndarray] | None = None,
) -> None:
    """A graph from its parts; a constant whose name is an input's is that input's default."""
    made = helper.make_graph(
        nodes,
        "tensors",
        [
            helper.make_tensor_value_info(name, data_type, shape)
            for name, (data_type, shape) in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, data_type, shape)
            for name, (data_type, shape) in outputs.items()
        ],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    (folder / "1").mkdir(parents=True)
    onnx.save(model, str(folder / "1" / "model.onnx"))


def tensor(name: str, data_type: str, *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def start(
    folder: Path,
    inputs: list[dict[str, Any]],
    outputs: list[dict[str, Any]],
    max_batch_size: int = 8,
    **parameters: str,
) -> Any:
    config = {"max_batch_size": max_batch_size, "input": inputs, "output": outputs}
    return start_model(
        "onnx_runner",
        folder,
        config,
        {f"tritonpipe.{key}": value for key, value in parameters.items()},
    )


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that reads ids and mask in INT32 and has three outputs.

    They are double [batch, tokens] in FP16, marked [batch, tokens] in BOOL, and count [batch] in
    INT32.
    """
    folder = tmp_path_factory.mktemp("tagger")
    node = helper.make_node
    nodes = [
        node("Mul", ["ids", "mask"], ["kept"]),
        node("Cast", ["kept"], ["half"], to=TensorProto.FLOAT16),
        node("Add", ["half", "half"], ["double"]),
        node("Cast", ["mask"], ["marked"], to=TensorProto.BOOL),
        node("ReduceSum", ["mask", "axis"], ["count"], keepdims=0),
    ]
    tokens: Shape = ["batch", "tokens"]
    write(
        folder,
        nodes,
        {"ids": (TensorProto.INT32, tokens), "mask": (TensorProto.INT32, tokens)},
        {
            "double": (TensorProto.FLOAT16, tokens),
            "marked": (TensorProto.BOOL, tokens),
            "count": (TensorProto.INT32, ["batch"]),
        },
        {"axis": np.array([1], np.int64)},
    )
    return folder


TAGGER_IN = [tensor("ids", "TYPE_INT32", -1), tensor("mask", "TYPE_INT32", -1)]
TAGGER_OUT = [
    tensor("count", "TYPE_INT32", 1, reshape={"shape": []}),
    tensor("double", "TYPE_FP16", -1),
    tensor("marked", "TYPE_BOOL", -1),
]


def test_token_level_outputs_of_padded_runs_are_cut_back(
    tagger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = start(tagger, TAGGER_IN, TAGGER_OUT, pad_inputs='{"ids": 0, "mask": 0}')
    runs: list[tuple[int, ...]] = []
    run = model._runner._run
    monkeypatch.setattr(
        model._runner, "_run", lambda feed: runs.append(feed["ids"].shape) or run(feed)
    )
    rows = [[[7, 8, 9]], [[1, 2, 3, 4], [5, 6, 7, 8]], [[3, 3]]]
    feeds = [
        {"ids": np.array(ids, np.int32), "mask": np.ones((len(ids), len(ids[0])), np.int32)}
        for ids in rows
    ]
    responses = model.execute([InferenceRequest(feed) for feed in feeds])
    assert runs == [(4, 4)]
    for response, ids in zip(responses, rows, strict=True):
        answer = response.arrays()
        assert list(answer) == ["count", "double", "marked"]
        assert {name: array.dtype for name, array in answer.items()} == {
            "count": np.int32,
            "double": np.float16,
            "marked": np.bool_,
        }
        assert answer["double"].tolist() == [[2 * i for i in row] for row in ids]
        assert answer["marked"].tolist() == [[True] * len(row) for row in ids]
        assert answer["count"].tolist() == [len(row) for row in ids]


def test_without_batching_the_batch_axis_stands_in_dims(tagger: Path) -> None:
    model = start(
        tagger,
        [tensor("ids", "TYPE_INT32", -1, -1), tensor("mask", "TYPE_INT32", 1, 2)],
        [tensor("count", "TYPE_INT32", -1), tensor("double", "TYPE_FP16", -1, -1)],
        max_batch_size=0,
        pad_inputs='{"ids": 0, "mask": 0}',
    )
    first, second = model.execute(
        [
            InferenceRequest(
                {"ids": np.array([[1, 2]], np.int32), "mask": np.array([[1, 1]], np.int32)}
            ),
            InferenceRequest(
                {"ids": np.array([[3, 4], [5, 6]], np.int32), "mask": np.array([[1, 1]], np.int32)}
            ),
        ]
    )
    assert (first.arrays()["double"].tolist(), first.arrays()["count"].tolist()) == ([[2, 4]], [2])
    # Rows may differ between inputs here: the graph broadcasts.
    assert second.arrays()["double"].tolist() == [[6, 8], [10, 12]]


@pytest.fixture(scope="module")
def defaulted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of y = x * scale + shift: scale defaults to 10, shift to 0.5."""
    folder = tmp_path_factory.mktemp("defaulted")
    rows: Shape = ["batch", "width"]
    write(
        folder,
        [
            helper.make_node("Mul", ["x", "scale"], ["scaled"]),
            helper.make_node("Add", ["scaled", "shift"], ["y"]),
        ],
        {
            "x": (TensorProto.FLOAT, rows),
            "scale": (TensorProto.FLOAT, ["rows", "one"]),
            "shift": (TensorProto.FLOAT, ["rows", "one"]),
        },
        {"y": (TensorProto.FLOAT, rows)},
        {"scale": np.array([[10]], np.float32), "shift": np.array([[0.5]], np.float32)},
    )
    return folder


OPTIONAL = [
    tensor("x", "TYPE_FP32", -1),
    tensor("scale", "TYPE_FP32", 1, optional=True),
    tensor("shift", "TYPE_FP32", 1, optional=True),
]
Y = [tensor("y", "TYPE_FP32", -1)]


@pytest.mark.parametrize("parameters", [{}, {"pad_inputs": '{"x": 0}'}], ids=["plain", "padded"])
def test_optional_inputs_left_out_take_their_default(
    defaulted: Path, parameters: dict[str, str]
) -> None:
    model = start(defaulted, OPTIONAL, Y, **parameters)
    requests: list[tuple[dict[str, Any], list[list[float]]]] = [
        ({"x": [[1, 2]]}, [[10.5, 20.5]]),
        ({"x": [[1, 2]], "scale": [[2]]}, [[2.5, 4.5]]),
        ({"x": [[3, 4], [5, 6]], "scale": [[2], [3]], "shift": [[0], [1]]}, [[6, 8], [16, 19]]),
        ({"x": [[7]]}, [[70.5]]),
        ({"x": [[2, 1]]}, [[20.5, 10.5]]),
        ({"x": [[1]], "shift": [[4]]}, [[14]]),
    ]
    responses = model.execute(
        [
            InferenceRequest({name: np.array(rows, np.float32) for name, rows in feed.items()})
            for feed, _ in requests
        ]
    )
    for response, (_, expected) in zip(responses, requests, strict=True):
        assert response.arrays()["y"].tolist() == expected


def test_requests_that_leave_an_input_out_are_never_padded(
    defaulted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was proven with every input says nothing of a default."""
    model = start(defaulted, OPTIONAL, Y, pad_inputs='{"x": 0}')
    assert model._runner.pads == {"x": 0}
    shapes: list[tuple[int, ...]] = []
    run = model._runner._run
    monkeypatch.setattr(
        model._runner, "_run", lambda feed: shapes.append(feed["x"].shape) or run(feed)
    )
    model.execute(
        [InferenceRequest({"x": np.ones((1, length), np.float32)}) for length in (2, 3, 2)]
    )
    assert sorted(shapes) == [(1, 3), (2, 2)]


def test_without_any_input_the_request_fails(defaulted: Path) -> None:
    model = start(
        defaulted, [{**entry, "optional": True} for entry in OPTIONAL[1:]] + OPTIONAL[:1], Y
    )
    (response,) = model.execute([InferenceRequest({"scale": np.ones((1, 1), np.float32)})])
    assert "input x is missing" in response.error().message()


@pytest.mark.parametrize(
    ("inputs", "outputs", "max_batch_size", "fragment"),
    [
        (
            [{**OPTIONAL[0], "optional": True}],
            Y,
            8,
            "inputs ['x'] are optional in the config, but the graph has no default for these",
        ),
        (
            OPTIONAL[1:],
            Y,
            8,
            "input names differ: the config has ['scale', 'shift'], the graph ['scale', "
            "'shift', 'x']",
        ),
        (
            [{**OPTIONAL[0], "data_type": "TYPE_BF16"}],
            Y,
            8,
            "input x is TYPE_BF16, which this runner cannot pass to ONNX Runtime",
        ),
        (
            [tensor("x", "TYPE_FP32", -1, -1)],
            Y,
            8,
            "input x has 3 dimensions in the config (batch included), but ['batch', 'width'] "
            "in the graph",
        ),
        (
            [tensor("x", "TYPE_FP32", 4, reshape={"shape": [2, 2]})],
            Y,
            8,
            "input x has 3 dimensions",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused_at_load(
    defaulted: Path,
    inputs: list[dict[str, Any]],
    outputs: list[dict[str, Any]],
    max_batch_size: int,
    fragment: str,
) -> None:
    with pytest.raises(ValueError) as caught:
        start(defaulted, inputs, outputs, max_batch_size)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "dims", "max_batch_size", "fragment"),
    [
        (
            [1, 4],
            [4],
            8,
            "input x has the fixed shape [1, 4] in the graph; set max_batch_size to 0",
        ),
        (["n", 4], [3], 8, "input x has dims [3] in the config, but ['n', 4] in the graph"),
        ([1, 4], [2, 4], 0, "input x has dims [2, 4] in the config, but [1, 4] in the graph"),
        ([1, 4], [1, 4], 0, ""),
        ([1, 4], [-1, -1], 0, ""),
        (["n", 4], [4], 8, ""),
    ],
)
def test_fixed_axes_of_the_graph(
    tmp_path: Path, shape: Shape, dims: list[int], max_batch_size: int, fragment: str
) -> None:
    write(
        tmp_path,
        [helper.make_node("Add", ["x", "x"], ["y"])],
        {"x": (TensorProto.FLOAT, shape)},
        {"y": (TensorProto.FLOAT, shape)},
    )
    config = [tensor("x", "TYPE_FP32", *dims)], [tensor("y", "TYPE_FP32", *dims)]
    if fragment:
        with pytest.raises(ValueError) as caught:
            start(tmp_path, *config, max_batch_size)
        assert fragment in str(caught.value)
        return
    (response,) = start(tmp_path, *config, max_batch_size).execute(
        [InferenceRequest({"x": np.ones((1, 4), np.float32)})]
    )
    assert response.arrays()["y"].tolist() == [[2, 2, 2, 2]]
