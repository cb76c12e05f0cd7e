"""Test the small models' graphs against answers computed word by word.

Padding and neighboring rows must not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from e2e.models import golden_words, image, words
from e2e.models.graph import serialize
from e2e.models.minilm import LinearHead
from e2e.models.reference import softmax
from tests.unit.models.conftest import VOCABULARY

IDS = {token: number for number, token in enumerate(VOCABULARY)}
TEXTS = (
    ["[CLS]", "john", "smith", "in", "new", "york", ",", "the", "new", "team", "[SEP]"],
    ["[CLS]", "london", "##berg", "##s", "the", "##s", "[SEP]"],
    ["[CLS]", "[SEP]"],
    ["[CLS]", "match", "goal", "league", "profit", "paris", "google", "mary", "[SEP]"],
)


def run(model: Any, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        serialize(model), options, providers=["CPUExecutionProvider"]
    )
    result: NDArray[np.float32] = session.run(None, dict(inputs))[0]
    return result


def padded(
    rows: Sequence[Sequence[int]], filler: int, length: int = 16
) -> dict[str, NDArray[np.int64]]:
    ids = np.full((len(rows), length), filler, np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def encoded(tokens: Sequence[str]) -> list[int]:
    return [IDS[token] for token in tokens]


@pytest.mark.parametrize("filler", [0, IDS["york"]])
def test_topics(filler: int) -> None:
    model = words.build_classifier(words.topic_table(IDS), np.zeros(4, np.float32))
    expected = np.array([golden_words.topic_logits(list(text)) for text in TEXTS])
    assert expected.argmax(axis=1).tolist()[3] == list(words.TOPICS).index("sports")
    np.testing.assert_allclose(
        run(model, padded([encoded(text) for text in TEXTS], filler)), expected, atol=1e-5, rtol=0
    )


def test_tensor_names_are_chosen() -> None:
    model = words.build_classifier(
        np.ones((5, 2), np.float32),
        np.array([1.0, -1.0], np.float32),
        "INPUT_IDS",
        "ATTENTION_MASK",
        "LOGITS",
    )
    answer = run(model, {"INPUT_IDS": np.array([[1, 2]]), "ATTENTION_MASK": np.array([[1, 0]])})
    np.testing.assert_allclose(answer, [[2.0, 0.0]])
    assert [output.name for output in model.graph.output] == ["LOGITS"]


def test_a_head_on_word_vectors_is_a_score_per_word() -> None:
    generator = np.random.default_rng(1)
    vectors, head = (
        generator.normal(size=(9, 6)).astype(np.float32),
        LinearHead(generator.normal(size=(6, 2)).astype(np.float32), np.zeros(2, np.float32)),
    )
    table = words.word_table(vectors, head)
    np.testing.assert_allclose(
        table[[1, 4, 4]].mean(axis=0), vectors[[1, 4, 4]].mean(axis=0) @ head.weight, atol=1e-5
    )


@pytest.mark.parametrize("filler", [0, IDS["york"]])
def test_tags(filler: int) -> None:
    """Fill the neighbor of the last token, which is padding, with any value: it must not count."""
    answer = run(
        words.build_tagger(words.tag_table(IDS)), padded([encoded(text) for text in TEXTS], filler)
    )
    for row, text in zip(answer, TEXTS, strict=True):
        np.testing.assert_allclose(
            row[: len(text)], golden_words.tag_logits(list(text)), atol=1e-5, rtol=0
        )
    tags = [words.TAGS[best] for best in answer[0].argmax(axis=-1)]
    assert tags[1:10] == ["PERSON", "PERSON", "O", "PLACE", "PLACE", "O", "O", "O", "O"]


@pytest.mark.parametrize("filler", [0, IDS["york"]])
def test_pairs(filler: int) -> None:
    vectors = np.random.default_rng(2).normal(size=(3000, 24)).astype(np.float32)
    special = [IDS[token] for token in words.SPECIAL]
    scorer = golden_words.PairScorer(vectors.astype(np.float64), IDS)
    pairs = [
        ([2, 2100, 2900, 3], [2900, 2500, 3]),
        ([2, 2400, 3], [3]),
        ([2, 3], [2400, 3]),
        ([2, 2050, 2060, 2070, 3], [2070, 2999, 2050, 2333, 3]),
    ]
    inputs = padded([[*first, *second] for first, second in pairs], filler)
    types = np.zeros_like(inputs["input_ids"])
    for row, (first, second) in enumerate(pairs):
        types[row, len(first) : len(first) + len(second)] = 1
    answer = run(
        words.build_pair_scorer(*words.pair_tables(vectors, special)),
        {**inputs, "token_type_ids": types},
    )
    np.testing.assert_allclose(
        answer[:, 0], [scorer.logit(first, second) for first, second in pairs], atol=1e-4, rtol=0
    )
    assert (
        answer[0, 0]
        > answer[1, 0]
        == pytest.approx(-words.PAIR_SCALE * words.PAIR_MIDDLE, abs=1e-5)
    )


def test_colours() -> None:
    pixels = np.full((2, 3, image.SIZE, image.SIZE), -1.0, np.float32)
    pixels[0, 1], pixels[1, 0, :, :112] = 1.0, 0.5
    answer = run(image.build_colours(), {image.PIXELS: pixels})
    # The first image is plain green: 1 - (-1) = 2 above the others. Half of the second is red;
    # the windows that begin left of the middle, 16 of 32, are completely inside that half.
    np.testing.assert_allclose(answer, [[0.0, 2 * 2.0, 0.0], [2 * 1.5 / 2, 0.0, 0.0]], atol=1e-4)


def test_entities_join_neighbours_of_one_tag() -> None:
    text = "John Smith in New York, the team"
    tokens = ["[CLS]", "john", "smith", "in", "new", "york", ",", "the", "team", "[SEP]"]
    logits = golden_words.tag_logits(tokens)
    found = golden_words.entities(text, tokens, logits)
    assert [(one["label"], one["text"], text[one["start"] : one["end"]]) for one in found] == [
        ("PERSON", "John Smith", "John Smith"),
        ("PLACE", "New York", "New York"),
    ]
    assert found[1]["score"] == pytest.approx(softmax(logits[4:6]).max(axis=-1).min(), abs=1e-7)


def test_vocabulary_is_read_by_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\na\n\n##b\n", encoding="utf-8")
    assert words.read_vocabulary(tmp_path / "vocab.txt") == {"[PAD]": 0, "a": 1, "##b": 3}
