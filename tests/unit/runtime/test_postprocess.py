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
finite = st.floats(-(2.0**100), 2.0**100, width=32)
matrices = arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=finite)


def start(kind: str, outputs: dict[str, str], inputs: tuple[str, ...] = ("x",), **parameters: str) -> Any:
    config = {
        "max_batch_size": 8,
        "input": [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in inputs],
        "output": [{"name": name, "data_type": data_type, "dims": [-1]} for name, data_type in outputs.items()],
    }
    values = {"type": kind, "input": "x", **parameters}
    return start_model("postprocess", Path(), config, {f"tritonpipe.{key}": value for key, value in values.items()})


def ask(model: Any, *inputs: np.ndarray, mask: np.ndarray | None = None) -> list[Any]:
    requests = [InferenceRequest({"x": array} if mask is None else {"x": array, "mask": mask}) for array in inputs]
    return list(model.execute(requests))


@given(matrices)
def test_softmax_equals_its_definition(logits: np.ndarray) -> None:
    probabilities = module.softmax(logits)
    for row, got in zip(logits.astype(np.float64).tolist(), probabilities, strict=True):
        powers = [math.exp(value - max(row)) for value in row]
        np.testing.assert_allclose(got, [power / sum(powers) for power in powers], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_softmax_with_masked_classes() -> None:
    np.testing.assert_array_equal(module.softmax(np.array([[0, -np.inf, 0]], np.float32)), [[0.5, 0, 0.5]])


@given(matrices)
def test_sigmoid_equals_its_definition(logits: np.ndarray) -> None:
    expected = [[1 / (1 + math.exp(-x)) if x > -700 else 0.0 for x in row] for row in logits.astype(np.float64).tolist()]
    np.testing.assert_allclose(module.sigmoid(logits), expected, rtol=1e-5, atol=1e-37)


@given(arrays.arrays(np.float32, (3, 5), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])), st.integers(1, 5))
def test_top_k_is_sorted_and_stable(scores: np.ndarray, k: int) -> None:
    for row, best in zip(scores.tolist(), module.top_k(scores, k).tolist(), strict=True):
        assert best == sorted(range(5), key=lambda i: (-row[i], i))[:k]


@given(
    arrays.arrays(np.float32, (2, 4, 3), elements=st.floats(-1e3, 1e3, width=32)),
    arrays.arrays(np.int64, (2, 4), elements=st.integers(0, 1)),
    st.integers(0, 3),
)
def test_mean_pooling_counts_only_attended_tokens_whatever_the_padding(tokens: np.ndarray, mask: np.ndarray, padding: int) -> None:
    expected = np.zeros((2, 3))
    for i in range(2):
        attended = [tokens[i, j].astype(np.float64) for j in range(4) if mask[i, j]]
        if attended:
            expected[i] = sum(attended) / len(attended)
    np.testing.assert_allclose(module.mean_pooling(tokens, mask), expected, rtol=1e-4, atol=1e-3)
    padded = np.concatenate([tokens, np.full((2, padding, 3), np.nan, np.float32)], axis=1)
    np.testing.assert_allclose(
        module.mean_pooling(padded, np.pad(mask, ((0, 0), (0, padding)))), module.mean_pooling(tokens, mask), rtol=1e-5, atol=1e-5
    )


@given(arrays.arrays(np.float32, (3, 4), elements=finite))
def test_normalized_vectors_have_length_one(vectors: np.ndarray) -> None:
    for vector, got in zip(vectors.tolist(), module.normalize(vectors), strict=True):
        length = math.hypot(*vector)
        np.testing.assert_allclose(got, [value / length if length else 0 for value in vector], rtol=1e-5, atol=1e-7)


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
    np.testing.assert_allclose(answer["SCORE"], [[expected[0][2], expected[0][1]], [expected[1][0], expected[1][1]]], rtol=1e-5)
    assert answer["PROBABILITIES"].dtype == answer["SCORE"].dtype == np.float32
    assert second.arrays()["LABEL"].tolist() == [[b"negative", b"neutral"]]


def test_sigmoid_without_labels() -> None:
    (response,) = ask(start("Sigmoid", {"PROBABILITIES": "TYPE_FP32"}), np.array([[0.0, 100.0, -100.0]], np.float32))
    np.testing.assert_allclose(response.arrays()["PROBABILITIES"], [[0.5, 1, 3.7835e-44]], atol=1e-6)


@pytest.mark.parametrize("normalize", ["Enabled", "Disabled"])
def test_pooling_request(normalize: str) -> None:
    tokens = np.array([[[3, 4], [5, 12]], [[8, 6], [0, 0]]], np.float32)
    pooled = start("MeanPooling", POOLING, ("x", "mask"), mask="mask", normalize=normalize)
    (response,) = ask(pooled, tokens, mask=np.array([[1, 1], [1, 0]], np.int32))
    expected = np.array([[4, 8], [8, 6]]) / (np.array([[math.sqrt(80)], [10]]) if normalize == "Enabled" else 1)
    np.testing.assert_allclose(response.arrays()["EMBEDDING"], expected, rtol=1e-6)
    (response,) = ask(start("FirstToken", POOLING, normalize=normalize), tokens)
    expected = np.array([[3, 4], [8, 6]]) / (np.array([[5], [10]]) if normalize == "Enabled" else 1)
    np.testing.assert_allclose(response.arrays()["EMBEDDING"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "fragment"),
    [
        (np.array([[1, 2, 3], [1, np.nan, 1]]), "row 1: the model's output x holds NaN"),
        (np.array([[np.inf, 0, 0]]), "row 0"),
        (np.array([[-np.inf, -np.inf, -np.inf]]), "row 0"),
        (np.zeros((1, 4)), "4 classes, but 3 labels"),
        (np.zeros((1, 2, 3)), "expected [rows, classes]"),
        (np.zeros((0, 3)), "expected [rows, classes]"),
    ],
)
def test_a_wrong_request_fails_alone(wrong: np.ndarray, fragment: str) -> None:
    good = np.array([[0, 0, 9]], np.float32)
    bad, fine = ask(start("Softmax", CLASSIFIER, labels=json.dumps(LABELS)), wrong.astype(np.float32), good)
    assert fragment in bad.error().message()
    assert fine.arrays()["LABEL"].tolist() == [[b"positive"]]


def test_a_mask_of_another_shape_fails() -> None:
    (response,) = ask(start("MeanPooling", POOLING, ("x", "mask"), mask="mask"), np.zeros((1, 3, 2), np.float32), mask=np.ones((1, 4), np.int64))
    assert "mask has shape [1, 4], but x has [1, 3]" in response.error().message()


@pytest.mark.parametrize(
    ("kind", "outputs", "parameters", "fragment"),
    [
        ("Argmax", CLASSIFIER, {}, "'Argmax' is none of Softmax"),
        ("Softmax", CLASSIFIER, {}, "LABEL and SCORE need tritonpipe.labels"),
        ("Softmax", CLASSIFIER, {"labels": "[]"}, "the list is empty"),
        ("Softmax", CLASSIFIER, {"labels": '["a"]', "top_k": "2"}, "2 is not between 1 and the number of labels, 1"),
        ("Softmax", POOLING, {}, "output EMBEDDING TYPE_FP32: Softmax gives PROBABILITIES"),
        ("Softmax", {"PROBABILITIES": "TYPE_FP16"}, {}, "output PROBABILITIES TYPE_FP16"),
        ("Softmax", {"PROBABILITIES": "TYPE_FP32"}, {"input": "y"}, "tritonpipe.input: 'y' is none of the model's inputs ['x']"),
        ("MeanPooling", POOLING, {"mask": "m"}, "tritonpipe.mask: 'm'"),
    ],
)
def test_a_wrong_configuration_is_refused_at_load(kind: str, outputs: dict[str, str], parameters: dict[str, str], fragment: str) -> None:
    with pytest.raises(ValueError) as caught:
        start(kind, outputs, **parameters)
    assert fragment in str(caught.value)
