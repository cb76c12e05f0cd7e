"""The postprocess step against double-precision and pure-Python computations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support.python_backend import InferenceRequest, load_runtime, start_model

module = load_runtime("postprocess")
LABELS = ["negative", "neutral", "positive"]
CLASSIFIER = {"PROBABILITIES": "TYPE_FP32", "LABEL": "TYPE_STRING", "SCORE": "TYPE_FP32"}
POOLING = {"EMBEDDING": "TYPE_FP32"}
TOKENS = (-1, -1)  # dims of token vectors beside the batch axis
finite = st.floats(-(2.0**100), 2.0**100, width=32)
matrices = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=finite
)


def start(
    kind: str,
    outputs: dict[str, str],
    inputs: tuple[str, ...] = ("x",),
    dims: tuple[int, ...] = (-1,),
    max_batch_size: int = 8,
    data_type: str = "TYPE_FP32",
    **parameters: str,
) -> Any:
    config = {
        "max_batch_size": max_batch_size,
        "input": [{"name": name, "data_type": data_type, "dims": list(dims)} for name in inputs],
        "output": [
            {"name": name, "data_type": output, "dims": [-1]} for name, output in outputs.items()
        ],
    }
    values = {"type": kind, "input": "x", **parameters}
    return start_model(
        "postprocess", Path(), config, {f"tritonpipe.{key}": value for key, value in values.items()}
    )


def ask(model: Any, *inputs: np.ndarray, mask: np.ndarray | None = None) -> list[Any]:
    requests = [
        InferenceRequest({"x": array} if mask is None else {"x": array, "mask": mask})
        for array in inputs
    ]
    return list(model.execute(requests))


@pytest.mark.proves("spec.postprocess.type", "behaviour")
@given(matrices)
def test_softmax_equals_its_definition(logits: np.ndarray) -> None:
    probabilities = module.softmax(logits)
    for row, got in zip(logits.astype(np.float64).tolist(), probabilities, strict=True):
        powers = [math.exp(value - max(row)) for value in row]
        np.testing.assert_allclose(
            got, [power / sum(powers) for power in powers], rtol=1e-5, atol=1e-7
        )
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_softmax_with_masked_classes() -> None:
    np.testing.assert_array_equal(
        module.softmax(np.array([[0, -np.inf, 0]], np.float32)), [[0.5, 0, 0.5]]
    )


@given(matrices)
def test_sigmoid_equals_its_definition(logits: np.ndarray) -> None:
    expected = [
        [1 / (1 + math.exp(-x)) if x > -700 else 0.0 for x in row]
        for row in logits.astype(np.float64).tolist()
    ]
    np.testing.assert_allclose(module.sigmoid(logits), expected, rtol=1e-5, atol=1e-37)


@pytest.mark.proves("spec.postprocess.topK", "behaviour")
@given(
    arrays.arrays(np.float32, (3, 5), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    st.integers(1, 5),
)
def test_top_k_is_sorted_and_stable(scores: np.ndarray, k: int) -> None:
    for row, best in zip(scores.tolist(), module.top_k(scores, k).tolist(), strict=True):
        assert best == sorted(range(5), key=lambda i: (-row[i], i))[:k]


@given(
    arrays.arrays(np.float32, (2, 4, 3), elements=st.floats(-1e3, 1e3, width=32)),
    arrays.arrays(np.int64, (2, 4), elements=st.integers(0, 1)),
    st.integers(0, 3),
)
def test_mean_pooling_counts_only_attended_tokens_whatever_the_padding(
    tokens: np.ndarray, mask: np.ndarray, padding: int
) -> None:
    expected = np.zeros((2, 3))
    for i in range(2):
        attended = [tokens[i, j].astype(np.float64) for j in range(4) if mask[i, j]]
        if attended:
            expected[i] = sum(attended) / len(attended)
    np.testing.assert_allclose(module.mean_pooling(tokens, mask), expected, rtol=1e-4, atol=1e-3)
    padded = np.concatenate([tokens, np.full((2, padding, 3), np.nan, np.float32)], axis=1)
    np.testing.assert_allclose(
        module.mean_pooling(padded, np.pad(mask, ((0, 0), (0, padding)))),
        module.mean_pooling(tokens, mask),
        rtol=1e-5,
        atol=1e-5,
    )


@given(arrays.arrays(np.float32, (3, 4), elements=finite))
def test_normalized_vectors_have_length_one(vectors: np.ndarray) -> None:
    for vector, got in zip(vectors.tolist(), module.normalize(vectors), strict=True):
        length = math.hypot(*vector)
        np.testing.assert_allclose(
            got, [value / length if length else 0 for value in vector], rtol=1e-5, atol=1e-7
        )


@pytest.mark.proves("spec.postprocess.labels", "behaviour")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_classification_with_labels(dtype: type) -> None:
    model = start("Softmax", CLASSIFIER, labels=json.dumps(LABELS), top_k="2")
    logits = np.array([[0, 1, 3], [2, 2, 0]], dtype)
    first, second = ask(model, logits, logits[1:])
    answer = first.arrays()
    e = [[math.exp(v) for v in row] for row in logits.tolist()]
    expected = [[p / sum(row) for p in row] for row in e]
    np.testing.assert_allclose(answer["PROBABILITIES"], expected, rtol=1e-5)
    assert answer["LABEL"].tolist() == [[b"positive", b"neutral"], [b"negative", b"neutral"]]
    np.testing.assert_allclose(
        answer["SCORE"],
        [[expected[0][2], expected[0][1]], [expected[1][0], expected[1][1]]],
        rtol=1e-5,
    )
    assert answer["PROBABILITIES"].dtype == answer["SCORE"].dtype == np.float32
    assert second.arrays()["LABEL"].tolist() == [[b"negative", b"neutral"]]


def test_sigmoid_without_labels() -> None:
    (response,) = ask(
        start("Sigmoid", {"PROBABILITIES": "TYPE_FP32"}),
        np.array([[0.0, 100.0, -100.0]], np.float32),
    )
    np.testing.assert_allclose(
        response.arrays()["PROBABILITIES"], [[0.5, 1, 3.7835e-44]], atol=1e-6
    )


@pytest.mark.proves("spec.postprocess.normalize", "behaviour")
@pytest.mark.parametrize("normalize", ["Enabled", "Disabled"])
def test_pooling_request(normalize: str) -> None:
    tokens = np.array([[[3, 4], [5, 12]], [[8, 6], [0, 0]]], np.float32)
    pooled = start("MeanPooling", POOLING, ("x", "mask"), TOKENS, mask="mask", normalize=normalize)
    (response,) = ask(pooled, tokens, mask=np.array([[1, 1], [1, 0]], np.int32))
    expected = np.array([[4, 8], [8, 6]]) / (
        np.array([[math.sqrt(80)], [10]]) if normalize == "Enabled" else 1
    )
    np.testing.assert_allclose(response.arrays()["EMBEDDING"], expected, rtol=1e-6)
    (response,) = ask(start("FirstToken", POOLING, dims=TOKENS, normalize=normalize), tokens)
    expected = np.array([[3, 4], [8, 6]]) / (np.array([[5], [10]]) if normalize == "Enabled" else 1)
    np.testing.assert_allclose(response.arrays()["EMBEDDING"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "fragment"),
    [
        (np.array([[1, 2, 3], [1, np.nan, 1]]), "row 1: the model's output x contains NaN"),
        (np.array([[np.inf, 0, 0]]), "row 0"),
        (np.array([[-np.inf, -np.inf, -np.inf]]), "row 0"),
        (np.zeros((1, 4)), "4 classes, but 3 labels"),
        (np.array([[-np.inf, np.inf, 0]]), "row 0"),
        (np.zeros((1, 2, 3)), "x has shape [1, 2, 3], expected [rows, classes]"),
        (np.zeros((0, 3)), "it has no elements"),
    ],
)
def test_a_wrong_request_fails_alone(wrong: np.ndarray, fragment: str) -> None:
    good = np.array([[0, 0, 9]], np.float32)
    bad, fine = ask(
        start("Softmax", CLASSIFIER, labels=json.dumps(LABELS)), wrong.astype(np.float32), good
    )
    assert fragment in bad.error().message()
    assert fine.arrays()["LABEL"].tolist() == [[b"positive"]]


def test_a_mask_of_another_shape_fails() -> None:
    (response,) = ask(
        start("MeanPooling", POOLING, ("x", "mask"), TOKENS, mask="mask"),
        np.zeros((1, 3, 2), np.float32),
        mask=np.ones((1, 4), np.int64),
    )
    assert "mask has shape [1, 4], but x has [1, 3]" in response.error().message()


@pytest.mark.parametrize(
    ("kind", "outputs", "parameters", "fragment"),
    [
        ("Argmax", CLASSIFIER, {}, "'Argmax' is not one of Softmax"),
        ("Softmax", CLASSIFIER, {}, "LABEL and SCORE require tritonpipe.labels"),
        ("Softmax", CLASSIFIER, {"labels": "[]"}, "the list is empty"),
        (
            "Softmax",
            CLASSIFIER,
            {"labels": '["a"]', "top_k": "2"},
            "2 is not between 1 and the number of labels, 1",
        ),
        ("Softmax", POOLING, {}, "output EMBEDDING TYPE_FP32: Softmax returns PROBABILITIES"),
        ("Softmax", {"PROBABILITIES": "TYPE_FP16"}, {}, "output PROBABILITIES TYPE_FP16"),
        (
            "Softmax",
            {"PROBABILITIES": "TYPE_FP32"},
            {"input": "y"},
            "tritonpipe.input: 'y' is not one of the model's inputs ['x']",
        ),
        ("MeanPooling", POOLING, {"mask": "m"}, "tritonpipe.mask: 'm'"),
    ],
)
def test_a_wrong_configuration_is_refused_at_load(
    kind: str, outputs: dict[str, str], parameters: dict[str, str], fragment: str
) -> None:
    with pytest.raises(ValueError) as caught:
        start(kind, outputs, **parameters)
    assert fragment in str(caught.value)


# --- rank and type decide
def definition(logits: np.ndarray) -> np.ndarray:
    """Softmax over the last axis in pure Python."""
    rows = []
    for row in logits.reshape(-1, logits.shape[-1]).astype(float).tolist():
        powers = [math.exp(value) for value in row]
        rows.append([power / sum(powers) for power in powers])
    return np.array(rows).reshape(logits.shape)


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "shape"),
    [
        ((3,), 8, (2, 3)),
        ((-1, 3), 8, (2, 5, 3)),
        ((-1, 3), 0, (4, 3)),
        ((1, 3), 0, (1, 3)),
        ((-1, -1, 3), 0, (2, 5, 3)),
        ((3,), 0, (3,)),
    ],
    ids=[
        "rows",
        "tokens",
        "unbatched rows",
        "unbatched row",
        "unbatched tokens",
        "unbatched without rows",
    ],
)
def test_classes_are_the_last_axis_of_any_rank(
    dims: tuple[int, ...], max_batch_size: int, shape: tuple[int, ...]
) -> None:
    logits = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    logits[..., 1] = -np.inf
    model = start(
        "Softmax",
        CLASSIFIER,
        dims=dims,
        max_batch_size=max_batch_size,
        labels=json.dumps(LABELS),
        top_k="2",
    )
    (response,) = ask(model, logits)
    answer = response.arrays()
    expected = definition(logits)
    np.testing.assert_allclose(answer["PROBABILITIES"], expected, rtol=1e-5)
    assert not answer["PROBABILITIES"][..., 1].any()
    order = np.argsort(-expected, axis=-1, kind="stable")[..., :2]
    assert answer["LABEL"].shape == answer["SCORE"].shape == (*shape[:-1], 2)
    assert (
        answer["LABEL"].tolist()
        == np.array([label.encode() for label in LABELS], dtype=object)[order].tolist()
    )
    np.testing.assert_allclose(
        answer["SCORE"], np.take_along_axis(expected, order, axis=-1), rtol=1e-5
    )


def test_a_reshaped_input_counts_as_the_model_sees_it() -> None:
    config = {
        "max_batch_size": 8,
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [6], "reshape": {"shape": [2, 3]}}
        ],
        "output": [{"name": "PROBABILITIES", "data_type": "TYPE_FP32", "dims": [2, 3]}],
    }
    model = start_model(
        "postprocess", Path(), config, {"tritonpipe.type": "Softmax", "tritonpipe.input": "x"}
    )
    logits = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    np.testing.assert_allclose(
        ask(model, logits)[0].arrays()["PROBABILITIES"], definition(logits), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((2, 3, 2), [[4, 8], [8, 6]]), ((3, 2), [4, 8])],
    ids=["rows", "without rows"],
)
def test_pooling_unbatched(shape: tuple[int, ...], expected: list[Any]) -> None:
    tokens = np.array([[[3, 4], [5, 12], [7, 7]], [[8, 6], [0, 0], [1, 1]]], np.float32)
    mask = np.array([[1, 1, 0], [1, 0, 0]], np.int64)
    if len(shape) == 2:
        tokens, mask = tokens[0], mask[0]
    model = start("MeanPooling", POOLING, ("x", "mask"), (-1,) * len(shape), 0, mask="mask")
    (response,) = ask(model, tokens, mask=mask)
    np.testing.assert_allclose(response.arrays()["EMBEDDING"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("data_type", "dtype"), [("TYPE_FP16", np.float16), ("TYPE_FP64", np.float64)]
)
def test_other_number_types(data_type: str, dtype: Any) -> None:
    logits = np.array([[1.5, -np.inf, 0.5]], dtype)
    (response,) = ask(
        start("Softmax", CLASSIFIER, data_type=data_type, labels=json.dumps(LABELS)), logits
    )
    np.testing.assert_allclose(response.arrays()["PROBABILITIES"], definition(logits), rtol=1e-6)
    assert response.arrays()["PROBABILITIES"].dtype == np.float32


def test_double_precision_is_used_where_given() -> None:
    """Differences that single precision does not hold, and values beyond its range."""
    logits = np.array([[1e300, 1e300, 0.0], [1e8, 1e8 + 1, -1e300]])
    (response,) = ask(
        start("Softmax", {"PROBABILITIES": "TYPE_FP32"}, data_type="TYPE_FP64"), logits
    )
    e = math.e
    np.testing.assert_allclose(
        response.arrays()["PROBABILITIES"],
        [[0.5, 0.5, 0], [1 / (1 + e), e / (1 + e), 0]],
        rtol=1e-6,
    )
    pooled, too_large = ask(
        start("FirstToken", POOLING, dims=TOKENS, data_type="TYPE_FP64"),
        np.ones((1, 2, 2)),
        np.full((1, 2, 2), 1e300),
    )
    assert pooled.arrays()["EMBEDDING"].tolist() == [[1, 1]]
    assert "row 0" in too_large.error().message()


def test_sigmoid_of_infinities() -> None:
    model = start("Sigmoid", {"PROBABILITIES": "TYPE_FP32"})
    masked, overflown = ask(
        model, np.array([[-np.inf, 0]], np.float32), np.array([[0, 0], [np.inf, 0]], np.float32)
    )
    assert masked.arrays()["PROBABILITIES"].tolist() == [[0, 0.5]]
    assert "row 1: the model's output x contains NaN or infinity" in overflown.error().message()


def test_the_token_at_fault_is_named() -> None:
    logits = np.zeros((2, 4, 3), np.float32)
    logits[1, 2, 0] = np.nan
    (response,) = ask(start("Softmax", {"PROBABILITIES": "TYPE_FP32"}, dims=(-1, 3)), logits)
    assert "row 1, token 2: the model's output x" in response.error().message()


def test_an_absent_input_fails_its_request() -> None:
    model = start("Softmax", {"PROBABILITIES": "TYPE_FP32"})
    bad, good = model.execute(
        [InferenceRequest({}), InferenceRequest({"x": np.zeros((1, 2), np.float32)})]
    )
    assert "x is missing" in bad.error().message()
    assert good.arrays()["PROBABILITIES"].tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("kind", "changes", "fragment"),
    [
        (
            "Softmax",
            {"data_type": "TYPE_INT64"},
            "input x is TYPE_INT64, but Softmax reads TYPE_FP16, TYPE_BF16, TYPE_FP32, TYPE_FP64",
        ),
        (
            "Softmax",
            {"dims": (1, 2, 3)},
            "input x has dims [1, 2, 3], but Softmax reads [classes] or [tokens, classes]",
        ),
        (
            "FirstToken",
            {"dims": (3,)},
            "input x has dims [3], but FirstToken reads [tokens, width]",
        ),
        ("FirstToken", {"dims": (3,), "max_batch_size": 0}, "or the same after an axis of rows"),
        (
            "Softmax",
            {"dims": (-1, 4), "labels": json.dumps(LABELS)},
            "tritonpipe.labels has 3 labels, but input x has 4 classes",
        ),
    ],
)
def test_an_input_of_another_kind_is_refused_at_load(
    kind: str, changes: dict[str, Any], fragment: str
) -> None:
    with pytest.raises(ValueError) as caught:
        start(kind, POOLING if kind == "FirstToken" else {"PROBABILITIES": "TYPE_FP32"}, **changes)
    assert fragment in str(caught.value)
