"""The real MiniLM files on ONNX Runtime against the golden answers.

``hack.verify`` checks that the answers and the head are current.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from e2e.models import golden, sentiment, tree
from e2e.models.weights import model_folder
from e2e.models.wordpiece import WordPiece

pytestmark = pytest.mark.integration

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((golden.FOLDER / name).read_text(encoding="utf-8"))[
        "cases"
    ]
    return found


def padded(rows: list[list[int]], length: int) -> Batch:
    ids = np.zeros((len(rows), length), np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask


@pytest.fixture(scope="module")
def built() -> Path:
    return tree.build()


class Model:
    """One ONNX file in a session of its own."""

    def __init__(self, path: Path) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        result: NDArray[np.float32] = self._session.run(
            None, {"input_ids": batch[0], "attention_mask": batch[1]}
        )[0]
        return result


@pytest.fixture(scope="module")
def classifier(built: Path) -> Model:
    return Model(built / tree.SENTIMENT_MODEL)


@pytest.fixture(scope="module")
def encoder(built: Path) -> Model:
    return Model(built / tree.EMBEDDING_MODEL)


def compositions(count: int) -> list[list[int]]:
    """Return the row numbers of batches.

    The batches are each row alone, neighbors in pairs, all rows at once, all in reverse, and one
    row repeated among others.
    """
    rows = list(range(count))
    pairs = [[number, number + 1] for number in range(0, count - 1, 3)]
    return [*([number] for number in rows), *pairs, rows, rows[9::-1], [0, 3, 0, 0, 5]]


@pytest.mark.parametrize("fixed", [None, 512])
def test_logits_and_probabilities(classifier: Model, fixed: int | None) -> None:
    golds = cases("sentiment.json")
    for rows in compositions(len(golds)) if fixed is None else [[4, 0], [15, 5]]:
        ids = [golds[row]["inputIds"] for row in rows]
        logits = classifier(padded(ids, fixed or max(map(len, ids)))).astype(np.float64)
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            logits, [golds[row]["logits"] for row in rows], atol=1e-5, rtol=0
        )
        np.testing.assert_allclose(
            probabilities, [golds[row]["probabilities"] for row in rows], atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("extra", [0, 37])
def test_embeddings(encoder: Model, extra: int) -> None:
    golds = cases("embedding.json")
    for rows in compositions(len(golds)) if extra == 0 else [[4, 0, 7], [14]]:
        ids = [golds[row]["inputIds"] for row in rows]
        ids_batch, mask = padded(ids, max(map(len, ids)) + extra)
        hidden = encoder((ids_batch, mask)).astype(np.float64)
        for number, row in enumerate(rows):
            own = hidden[number, : len(ids[number])]
            mean = own.mean(axis=0)
            norm = np.linalg.norm(mean)
            np.testing.assert_allclose(norm, golds[row]["norm"], atol=1e-5, rtol=0)
            np.testing.assert_allclose(mean / norm, golds[row]["embedding"], atol=1e-5, rtol=0)
            np.testing.assert_allclose(
                own[0] / np.linalg.norm(own[0]), golds[row]["firstToken"], atol=1e-5, rtol=0
            )


def test_similarities_are_the_published_ones() -> None:
    """The similarities for all-MiniLM-L6-v2 match the published ones to four digits.

    They are from the quick start of the Sentence Transformers documentation.
    """
    vectors = np.array([case["embedding"] for case in cases("embedding.json")[-3:]])
    published = [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]
    np.testing.assert_allclose(vectors @ vectors.T, published, atol=6e-5, rtol=0)


def test_token_ids_equal_those_of_the_tokenizers_library() -> None:
    folder = model_folder()
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_padding()
    library.enable_truncation(sentiment.MAX_LENGTH)
    for case in cases("sentiment.json"):
        assert case["inputIds"] == library.encode(case["text"]).ids, case["text"][:60]
    library.enable_truncation(golden.EMBEDDING_MAX_LENGTH)
    for case in cases("embedding.json"):
        assert case["inputIds"] == library.encode(case["text"]).ids, case["text"][:60]


def test_accuracy_on_held_out_sentences(classifier: Model) -> None:
    """At least 85 %, by the file that is served; the figure in the head's file is this one."""
    held = sentiment.read_sentences(sentiment.DATA / "heldout.tsv")
    tokenizer = WordPiece(model_folder() / "vocab.txt")
    rows = [tokenizer.encode(text, sentiment.MAX_LENGTH) for text in held.texts]
    logits = classifier(padded(rows, max(map(len, rows))))
    accuracy = float((logits.argmax(axis=1) == held.targets).mean())
    assert accuracy >= 0.85
    assert accuracy == pytest.approx(
        json.loads(sentiment.HEAD_FILE.read_text(encoding="utf-8"))["heldoutAccuracy"], abs=1e-4
    )


def test_build_gives_the_same_bytes_again(built: Path, tmp_path: Path) -> None:
    again = tree.build(tmp_path)
    assert (again / tree.MANIFEST).read_bytes() == (built / tree.MANIFEST).read_bytes()
