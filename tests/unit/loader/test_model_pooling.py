"""Pooling that the loader adds to a file returns what the postprocess step returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper

from tests.support.python_backend import load_runtime
from tests.support.raggedbackend import session
from triton_pipelines.api.loadplan import PlanPool
from triton_pipelines.loader.model_pooling import add_pooling, pool_file

step = load_runtime("postprocess")
WIDTH = 4
TYPES = {
    np.float16: TensorProto.FLOAT16,
    np.float32: TensorProto.FLOAT,
    np.float64: TensorProto.DOUBLE,
}
ODD = (np.nan, np.inf, -np.inf)
"""What a model may leave in padding."""


def plan(mask: str | None = "mask", *, normalize: bool = True, **rest: Any) -> PlanPool:
    fields = {"tokens": "hidden", "embedding": "EMBEDDING", "width": WIDTH, **rest}
    return PlanPool(step="model", path="model.onnx", mask=mask, normalize=normalize, **fields)


def stock(kind: int = TensorProto.FLOAT, opset: int = 17, shape: Any = ("r", "t", WIDTH)) -> Any:
    """A graph that returns its input as token vectors, and the mask's type as it is sent."""
    matrix = ["r", "t"]
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["x"], ["hidden"]),
            helper.make_node("Identity", ["mask"], ["seen"]),
        ],
        "stock",
        [
            helper.make_tensor_value_info("x", kind, ["r", "t", WIDTH]),
            helper.make_tensor_value_info("mask", TensorProto.INT64, matrix),
        ],
        [
            helper.make_tensor_value_info("hidden", kind, shape),
            helper.make_tensor_value_info("seen", TensorProto.INT64, matrix),
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=min(8, opset - 6)
    )


def pooled(model: Any, asked: PlanPool) -> Any:
    add_pooling(model, asked)
    onnx.checker.check_model(model, full_check=True)
    return session(model)


SESSIONS = {
    (dtype, opset, mask, normalize): pooled(stock(kind, opset), plan(mask, normalize=normalize))
    for dtype, kind in TYPES.items()
    for opset in (9, 17)
    for mask in ("mask", None)
    for normalize in (True, False)
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[Any, Any]:
    """Token vectors, a mask with at least the first token or none, and odd values behind it."""
    dtype = draw(st.sampled_from(list(TYPES)))
    rows, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    limit = 1e3 if dtype is np.float16 else 1e18
    values = draw(
        arrays.arrays(
            np.float64, (rows, tokens, WIDTH), elements=st.floats(-limit, limit, allow_nan=False)
        )
    ).astype(dtype)
    mask = draw(arrays.arrays(np.int64, (rows, tokens), elements=st.integers(0, 1)))
    if draw(st.booleans()):
        values[mask == 0] = draw(st.sampled_from(ODD))
    return values, mask


@pytest.mark.proves("spec.postprocess.placement", "behaviour")
@settings(max_examples=300, deadline=None)
@given(batches(), st.sampled_from([9, 17]), st.booleans(), st.booleans())
def test_a_pooled_file_returns_what_the_step_returns(
    batch: tuple[Any, Any], opset: int, takes_mean: bool, normalize: bool
) -> None:
    values, mask = batch
    if not takes_mean:
        values = np.where(np.isfinite(values), values, 1).astype(values.dtype)
    key = (values.dtype.type, opset, "mask" if takes_mean else None, normalize)
    (answer,) = SESSIONS[key].run(["EMBEDDING"], {"x": values, "mask": mask})
    expected = step.mean_pooling(values, mask) if takes_mean else step.first_token(values)
    expected = (step.normalize(expected) if normalize else expected).astype(np.float32)
    assert answer.dtype == np.float32
    assert answer.shape == (len(values), WIDTH)
    # Where tokens cancel out, the mean has the rounding of the largest token.
    largest = np.abs(np.where(mask[..., None] != 0, values, 0)).max(axis=(1, 2))[:, None]
    if not normalize or not takes_mean:
        scale = 1.0 if normalize else np.maximum(largest, 1.0)
        np.testing.assert_array_less(np.abs(answer - expected) / scale, 1e-5)
        return
    mean = np.abs(step.mean_pooling(values, mask)).max(axis=1)[:, None]
    steady = ((mean > 0.1 * largest) | (largest == 0))[:, 0]
    np.testing.assert_allclose(answer[steady], expected[steady], rtol=0, atol=1e-5)


def test_a_row_without_tokens_becomes_zeros() -> None:
    values = np.full((2, 3, WIDTH), 2, np.float32)
    mask = np.array([[0, 0, 0], [1, 1, 0]])
    for normalize, each in ((True, 0.5), (False, 2.0)):
        run = SESSIONS[np.float32, 17, "mask", normalize]
        (answer,) = run.run(["EMBEDDING"], {"x": values, "mask": mask})
        np.testing.assert_allclose(answer, [[0] * WIDTH, [each] * WIDTH])


def test_a_real_token_that_is_not_finite_shows() -> None:
    """A step fails the request; a graph can only return the value."""
    values = np.ones((2, 2, WIDTH), np.float32)
    values[0, 0, 0] = np.nan
    feed = {"x": values, "mask": np.ones((2, 2), np.int64)}
    (answer,) = SESSIONS[np.float32, 17, "mask", True].run(["EMBEDDING"], feed)
    assert np.isnan(answer[0]).all()
    np.testing.assert_allclose(answer[1], 0.5)


def test_a_mask_weighs() -> None:
    values = np.array([[[1, 0, 0, 0], [0, 1, 0, 0]]], np.float32)
    feed = {"x": values, "mask": np.array([[3, 1]])}
    (answer,) = SESSIONS[np.float32, 17, "mask", False].run(["EMBEDDING"], feed)
    np.testing.assert_allclose(answer, [[0.75, 0.25, 0, 0]])


def test_the_file_is_replaced_and_keeps_its_other_outputs(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(stock(), str(file))
    assert pool_file(file, plan()) == ""
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]
    outputs = onnx.load(str(file)).graph.output
    assert [value.name for value in outputs] == ["EMBEDDING", "seen"]
    assert [dim.dim_value or dim.dim_param for dim in outputs[0].type.tensor_type.shape.dim] == [
        "r",
        WIDTH,
    ]


@pytest.mark.parametrize(
    ("model", "asked", "reason"),
    [
        (stock(opset=8), plan(), "the model has opset 8, but at least 9 is required"),
        (stock(), plan(tokens="other"), "the model has no output 'other'"),
        (stock(TensorProto.BFLOAT16), plan(), "output 'hidden' is not FP16, FP32 or FP64"),
        (
            stock(shape=["r", WIDTH]),
            plan(),
            "the shape of output 'hidden' is not [rows, tokens, 4]",
        ),
        (stock(), plan("other"), "the model has no input 'other'"),
        (stock(), plan(embedding="seen"), "the graph already has a value with the name 'seen'"),
    ],
)
def test_a_file_that_resists_stays_as_it_is(
    model: Any, asked: PlanPool, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(model, str(file))
    before = file.read_bytes()
    assert pool_file(file, asked) == reason
    assert file.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]


def test_names_of_the_graph_are_never_taken() -> None:
    model = stock()
    model.graph.node[0].output[0] = "pooling/Sqrt_1"
    model.graph.node.append(helper.make_node("Identity", ["pooling/Sqrt_1"], ["hidden"]))
    pooled(model, plan())
