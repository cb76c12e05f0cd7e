"""Test which graphs the verification of adapted files accepts and rejects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.support.raggedbackend import SimulatedBackend, config_of, session
from triton_pipelines.api.loadplan import PlanAdapt, PlanRaggedInput
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.graph import Tensor
from triton_pipelines.loader.onnx_graph.model_runner import Evaluator, GraphInput
from triton_pipelines.loader.ragged import (
    AdaptationRefusal,
    AdaptedFile,
    adapt_file,
    equivalence,
    file_adapter,
    reference_outputs,
)
from triton_pipelines.loader.ragged.eligibility import Adaptable
from triton_pipelines.loader.ragged.padding_free import shape_probe
from triton_pipelines.loader.ragged.padding_free.analysis import Padded, PaddingFree
from triton_pipelines.loader.ragged.padding_free.tensor_facts import Axis
from triton_pipelines.loader.ragged.reference_outputs import StockGraphError, reference_batches

WORDS, WIDTH = 60, 8
INPUTS = ("input_ids", "attention_mask")
DEPENDS = "a row's output depends on the other rows of its batch"

HEAD = """
<ir_version: 10, opset_import: ["" : 17]>
agraph (int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask{inputs})
=> (float[batch, {width}] pooled) {{
  zero = Constant<value_int = 0>()
  one = Constant<value_int = 1>()
  last_axes = Constant<value_ints = [1]>()
  x = Gather(words, input_ids)
  shape = Shape(input_ids)
  tokens = Gather(shape, one)
  places = Range(zero, tokens, one)
  real = Cast<to = 1>(attention_mask)
  reals = Unsqueeze(real, two_axes)
"""
MEAN = """
  kept = Mul(y, reals)
  summed = ReduceSum<keepdims = 0>(kept, last_axes)
  count = ReduceSum<keepdims = 0>(reals, last_axes)
  mean = Div(summed, count)
"""
ATTENTION = """
  turned = Transpose<perm = [0, 2, 1]>(x)
  query = MatMul(x, weights)
  scores = MatMul(query, turned)
"""


def model(body: str, inputs: str = "", width: int = WIDTH, **constants: Any) -> Any:
    """A model with the nodes of ``body``, which begins with the embedded tokens ``x``."""
    made = parser.parse_model(HEAD.format(inputs=inputs, width=width) + body + "}")
    random = np.random.default_rng(0)
    values = {
        "words": random.normal(size=(WORDS, WIDTH)).astype(np.float32),
        "weights": (random.normal(size=(WIDTH, WIDTH)) / 3).astype(np.float32),
        "two_axes": np.array([2]),
        **constants,
    }
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in values.items()
        if name in read
    )
    onnx.checker.check_model(made)
    return made


def adapted(
    made: Any, folder: Path, *, on_cpu: bool = False, inputs: tuple[str, ...] = INPUTS, **plan: Any
) -> AdaptedFile | AdaptationRefusal:
    file = folder / "model.onnx"
    onnx.save(made, str(file))
    planned = tuple(PlanRaggedInput(name=name) for name in inputs)
    settings = {"max_length": 64, **plan}
    return adapt_file(
        file,
        PlanAdapt(step="model", path="model/1/model.onnx", inputs=planned, **settings),
        on_cpu=on_cpu,
    )


def row(length: int, **more: Any) -> dict[str, Any]:
    ids = np.random.default_rng(length).integers(1, WORDS, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), **more}


def check_answers(made: Any, folder: Path, *lengths: int) -> None:
    rows = [row(length) for length in lengths]
    inputs = [Tensor(name, DataType.INT64, (-1,)) for name in INPUTS]
    config = config_of(inputs, [Tensor("pooled", DataType.FP32, (WIDTH,))])
    answers = SimulatedBackend(folder / "model.onnx", config).execute(rows)
    for request, answer in zip(rows, answers, strict=True):
        (expected,) = session(made).run(["pooled"], request)
        np.testing.assert_allclose(answer["pooled"], expected, rtol=0, atol=1e-5)


@pytest.fixture(params=[Evaluator.ONNX_RUNTIME, Evaluator.REFERENCE], ids=str)
def evaluator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Evaluator:
    for module in (equivalence, file_adapter):
        monkeypatch.setattr(module, "choose_evaluator", lambda weights: request.param)
    return Evaluator(request.param)


# A scale that grows with the longest row, as some rotary embeddings have.
GROWING = f"""
  y = MatMul(x, weights)
  {MEAN}
  exceeds = Max(tokens, limit)
  factor = Cast<to = 1>(exceeds)
  pooled = Mul(mean, factor)
"""


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize("limit", [40, 550])
def test_a_scale_that_grows_beside_long_rows_is_found(
    limit: int, on_cpu: bool, evaluator: Evaluator, tmp_path: Path
) -> None:
    done = adapted(
        model(GROWING, limit=limit), tmp_path, on_cpu=on_cpu, max_length=64 if limit < 64 else 8192
    )
    assert isinstance(done, AdaptationRefusal), str(done)
    assert DEPENDS in str(done)


# Attention to 16 places on both sides. Behind a short row, all scores of a place are -inf.
WINDOW = f"""
  {ATTENTION}
  across = Unsqueeze(places, zero_axes)
  down = Unsqueeze(places, last_axes)
  distance = Sub(across, down)
  far = Abs(distance)
  near = LessOrEqual(far, window)
  is_real = Cast<to = 9>(attention_mask)
  real_keys = Unsqueeze(is_real, last_axes)
  seen = And(near, real_keys)
  masked = Where(seen, scores, hidden)
  shares = Softmax<axis = -1>(masked)
  y0 = MatMul(shares, x)
  y = MatMul(y0, weights)
  turned_again = Transpose<perm = [0, 2, 1]>(y)
  scores_again = MatMul(y, turned_again)
  masked_again = Where(seen, scores_again, hidden)
  shares_again = Softmax<axis = -1>(masked_again)
  z = MatMul(shares_again, y)
  pooled = Gather<axis = 1>(z, zero)
"""
WINDOW_CONSTANTS: Mapping[str, Any] = {
    "zero_axes": np.array([0]),
    "window": np.array(16),
    "hidden": np.array(-np.inf, np.float32),
}


def test_a_window_of_attention_that_leaves_padding_without_keys_is_found(
    evaluator: Evaluator, tmp_path: Path
) -> None:
    done = adapted(model(WINDOW, **WINDOW_CONSTANTS), tmp_path)
    assert isinstance(done, AdaptationRefusal), str(done)
    assert DEPENDS in str(done)


# Keys padded to a multiple of 8; all scores of a token have a summand of their own.
BLOCKS = f"""
  rest = Mod(tokens, eight)
  missing = Sub(eight, rest)
  added = Mod(missing, eight)
  added_axis = Unsqueeze(added, zero_axes)
  pads = Concat<axis = 0>(front, added_axis, behind)
  keys = Pad(x, pads)
  key_pads = Concat<axis = 0>(mask_front, added_axis)
  key_mask = Pad(real, key_pads)
  key_masks = Unsqueeze(key_mask, last_axes)
  is_hidden = Equal(key_masks, nothing)
  turned = Transpose<perm = [0, 2, 1]>(keys)
  query = MatMul(x, weights)
  scores = MatMul(query, turned)
  masked = Where(is_hidden, low, scores)
  own = MatMul(x, column)
  all = Add(masked, own)
  best = ReduceMax<axes = [2], keepdims = 1>(all)
  gated = Sigmoid(best)
  y0 = Mul(gated, x)
  y1 = MatMul(y0, weights)
  y = Add(x, y1)
  {MEAN}
  pooled = Identity(mean)
"""
BLOCKS_CONSTANTS: Mapping[str, Any] = {
    "eight": np.array(8),
    "zero_axes": np.array([0]),
    "front": np.array([0, 0, 0, 0]),
    "behind": np.array([0]),
    "mask_front": np.array([0, 0, 0]),
    "nothing": np.array(0, np.float32),
    "low": np.array(-50, np.float32),
    "column": np.linspace(-1, 1, WIDTH, dtype=np.float32)[:, None],
}


def test_places_in_multiples_of_8_are_not_taken_for_a_fixed_axis(tmp_path: Path) -> None:
    made = model(BLOCKS, **BLOCKS_CONSTANTS)
    done = adapted(made, tmp_path, on_cpu=True)
    assert isinstance(done, AdaptedFile), str(done)
    assert isinstance(done.form, PaddingFree)
    check_answers(made, tmp_path, 12, 10, 5, 40)


def test_an_axis_that_was_wrongly_taken_for_fixed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = ((2, 3), (3, 5))
    axes = {
        (2, 3): Axis.ROWS,
        (3, 5): Axis.PLACES,
        (6, 15): Axis.ALL_PLACES,
    }
    monkeypatch.setattr(shape_probe, "BATCHES", batches)
    monkeypatch.setattr(shape_probe, "_AXES", axes)
    made = model(BLOCKS, **BLOCKS_CONSTANTS)
    done = adapted(made, tmp_path, on_cpu=True)
    assert isinstance(done, AdaptedFile), str(done)
    assert isinstance(done.form, Padded)
    check_answers(made, tmp_path, 12, 10, 5, 40)


# The mask reaches the output through the attention, but the mean is over all places.
LEAK = f"""
  {ATTENTION}
  key_real = Unsqueeze(real, last_axes)
  excess = Sub(key_real, unit)
  bias = Mul(excess, large)
  masked = Add(scores, bias)
  shares = Softmax<axis = -1>(masked)
  y0 = MatMul(shares, x)
  y = Add(x, y0)
  mean = ReduceMean<axes = [1], keepdims = 0>(y)
"""
LEAK_CONSTANTS: Mapping[str, Any] = {
    "unit": np.array(1, np.float32),
    "large": np.array(10000, np.float32),
}


def test_a_leak_into_small_outputs_is_found(evaluator: Evaluator, tmp_path: Path) -> None:
    """Scores of a class that is rare: about 1e-6 for random rows."""
    body = LEAK + "lower = Sub(mean, shift)\npooled = Sigmoid(lower)"
    shift = np.array(14, np.float32)
    done = adapted(model(body, shift=shift, **LEAK_CONSTANTS), tmp_path)
    assert isinstance(done, AdaptationRefusal), str(done)
    assert DEPENDS in str(done)


def test_a_score_near_zero_may_differ_by_more() -> None:
    rows = [{"score": np.array([[value]], np.float16)} for value in (4.0, 0.05)]
    batch = reference_outputs.Batch([], rows)
    (scale,) = equivalence._scales([batch]).values()
    assert scale == 4
    near = rows[1]["score"]
    assert equivalence.difference(near, near + np.float16(0.01), scale) < 1
    assert equivalence.difference(near, near + np.float16(0.02), scale) > 1
    large = rows[0]["score"]
    assert equivalence.difference(large, large + np.float16(0.1), scale) < 1
    assert equivalence.difference(large, large + np.float16(0.2), scale) > 1
    assert equivalence.difference(near, near * np.float16(np.nan), scale) == float("inf")
    assert equivalence.difference(near * 0, near, 0.0) == float("inf")


@pytest.mark.parametrize(("number", "refused"), [("first", True), ("task", False)])
def test_a_number_of_one_row_that_is_used_for_all_is_found(
    number: str, refused: bool, evaluator: Evaluator, tmp_path: Path
) -> None:
    """An adapter is chosen by a further input of integers, as one value or as one per row."""
    body = f"""
      first = Gather<axis = 0>(task, zero)
      chosen = Gather(adapters, {number})
      y = Add(x, chosen)
      {MEAN}
      pooled = Identity(mean)
    """
    adapters = np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32)
    done = adapted(model(body, ", int64[batch, 1] task", adapters=adapters), tmp_path)
    assert isinstance(done, AdaptationRefusal if refused else AdaptedFile), str(done)


def test_a_mask_of_special_tokens_hides_no_ordinary_ones(
    evaluator: Evaluator, tmp_path: Path
) -> None:
    """A convolution reads padding; only ordinary tokens show it."""
    body = """
      turned = Transpose<perm = [0, 2, 1]>(x)
      mixed = Conv<pads = [2, 2]>(turned, kernel)
      y = Transpose<perm = [0, 2, 1]>(mixed)
      special = Cast<to = 1>(special_tokens_mask)
      ordinary = Sub(unit, special)
      counted = Mul(real, ordinary)
      weight = Unsqueeze(counted, two_axes)
      kept = Mul(y, weight)
      pooled = ReduceSum<keepdims = 0>(kept, last_axes)
    """
    kernel = np.random.default_rng(1).normal(size=(WIDTH, WIDTH, 5)).astype(np.float32)
    made = model(
        body,
        ", int64[batch, sequence] special_tokens_mask",
        kernel=kernel,
        unit=np.array(1, np.float32),
    )
    done = adapted(made, tmp_path, inputs=(*INPUTS, "special_tokens_mask"))
    assert isinstance(done, AdaptationRefusal), str(done)
    assert DEPENDS in str(done)


def test_a_length_that_a_table_seems_to_allow_is_tried(
    evaluator: Evaluator, tmp_path: Path
) -> None:
    """A table of 40 positions is read from its third row on."""
    body = f"""
      until = Add(tokens, two)
      end = Unsqueeze(until, zero_axes)
      position = Slice(table, two_axes, end, zero_axes)
      y = Add(x, position)
      {MEAN}
      pooled = Identity(mean)
    """
    table = np.random.default_rng(1).normal(size=(40, WIDTH)).astype(np.float32)
    made = model(body, two=np.array(2), table=table, zero_axes=np.array([0]))
    done = adapted(made, tmp_path, max_length=38)
    assert isinstance(done, AdaptationRefusal), str(done)
    assert (
        "a table of the graph seems to allow rows of 40 tokens, but the graph rejects rows of 40 "
        "tokens" in str(done)
    )


LAST = """
  signed = ReduceSum<keepdims = 1>(attention_mask, last_axes)
  number = Sub(signed, one)
  pooled = GatherND<batch_dims = 1>(x, number)
"""


def test_a_mask_that_chooses_the_last_token_affects_no_other_row(tmp_path: Path) -> None:
    made = model(LAST)
    done = adapted(made, tmp_path)
    assert isinstance(done, AdaptedFile), str(done)
    inputs = [Tensor(name, DataType.INT64, (-1,)) for name in INPUTS]
    config = config_of(inputs, [Tensor("pooled", DataType.FP32, (WIDTH,))])
    good, bad = row(5), row(6)
    bad["attention_mask"] = 2 * bad["attention_mask"]
    answers = SimulatedBackend(tmp_path / "model.onnx", config).execute([good, bad])
    np.testing.assert_allclose(
        answers[0]["pooled"], session(made).run(["pooled"], good)[0], rtol=0, atol=1e-5
    )
    assert np.isnan(answers[1]["pooled"]).all()


LENGTH_INPUTS = tuple(GraphInput(name, np.dtype(np.int64), True, ()) for name in INPUTS)


def tried(bound: int | None, *, width: int = 8, accepts: int = 9999, free: bool = True) -> Any:
    """The lengths of the rows in each batch that a model of this kind is run on."""

    def run(fed: Mapping[str, Any]) -> dict[str, Any]:
        rows, tokens = fed["input_ids"].shape
        if tokens > accepts:
            raise ValueError("too long")
        return {"pooled": np.zeros((rows, width), np.float32)}

    plan = PlanAdapt(
        step="model", path="model", inputs=tuple(PlanRaggedInput(name=name) for name in INPUTS)
    )
    found = Adaptable(plan, 17, bound, masks=("attention_mask",))
    batches = reference_batches(run, LENGTH_INPUTS, found, is_padding_free=free)
    return [[one["input_ids"].shape[1] for one in batch.rows] for batch in batches]


def test_the_second_batch_has_long_rows() -> None:
    short = [3, 7, 1, 5, 7]
    assert tried(8192) == [short, [3, 500, 600]]
    assert tried(8192, free=False) == [short, [3, 600]]
    assert tried(48) == [short, [3, 40, 48]]
    assert tried(1) == [[1] * 5, [1, 1, 1]]
    assert tried(8192, width=250_000, free=False) == [short, [3, 67]]


def test_a_model_of_unknown_length_need_not_take_long_rows() -> None:
    assert tried(None) == [[3, 7, 1, 5, 7], [3, 500, 600]]
    assert tried(None, accepts=512) == [[3, 7, 1, 5, 7]]
    with pytest.raises(StockGraphError, match="rejects rows of 600 tokens"):
        tried(600, accepts=512)
    with pytest.raises(StockGraphError, match="rejects rows of 2048 tokens"):
        tried(8192, accepts=700)
