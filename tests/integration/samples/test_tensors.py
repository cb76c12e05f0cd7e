"""Samples with other inputs or outputs than one text and its class.

They are pairs, tags per token, images and streams.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.suite.pipelines import TOLERANCE
from tests.support.samples import Array, Client, cases, column, on

pytestmark = pytest.mark.integration

# --- reranker -------------------------------------------------------------------------------------

PAIRS = cases("reranker")


def scores(sample: Client, *pairs: tuple[str, str]) -> Array:
    answer = sample.ask(
        {
            "QUERY": column(*(query for query, _ in pairs)),
            "PASSAGE": column(*(passage for _, passage in pairs)),
        }
    )
    assert list(answer) == ["SCORE"]
    assert answer["SCORE"].shape == (len(pairs), 1)
    return answer["SCORE"][:, 0]


@pytest.mark.proves_files("manifests/samples/reranker.yaml", "loaded")
@on("reranker")
@pytest.mark.proves("spec.tokenizer.inputs.text", "behaviour")
@pytest.mark.proves("spec.tokenizer.inputs.textPair", "behaviour")
@pytest.mark.proves("spec.postprocess.type", "behaviour")
def test_pairs_are_scored_row_by_row(sample: Client) -> None:
    expected = [case["probabilities"][0] for case in PAIRS]
    np.testing.assert_allclose(
        scores(sample, *((case["query"], case["passage"]) for case in PAIRS)),
        expected,
        atol=TOLERANCE,
        rtol=0,
    )
    for case, score in zip(PAIRS, expected, strict=True):
        np.testing.assert_allclose(
            scores(sample, (case["query"], case["passage"])), [score], atol=TOLERANCE, rtol=0
        )
    assert [one["name"] for one in sample.metadata()["inputs"]] == ["QUERY", "PASSAGE"]


@on("reranker")
@pytest.mark.proves("spec.tokenizer.truncation", "behaviour")
@pytest.mark.proves("spec.tokenizer.maxLength", "behaviour")
def test_only_the_passage_is_cut(sample: Client) -> None:
    """512 tokens minus [CLS], two [SEP] and two of the query leave 507 words.

    A further word is not read.
    """
    filler = "weather " * 506
    inside, outside = scores(
        sample,
        ("rings planet", f"{filler}planet rings"),
        ("rings planet", f"{filler}weather planet"),
    )
    (known,) = scores(sample, ("rings planet", "weather planet"))
    (without,) = scores(sample, ("rings planet", "weather"))
    np.testing.assert_allclose([inside, outside], [known, without], atol=TOLERANCE, rtol=0)
    assert known - without > 0.1


@on("reranker")
def test_a_query_too_long_is_refused_not_cut(sample: Client) -> None:
    with pytest.raises(InferenceServerException, match="512"):
        scores(sample, ("weather " * 600, "planet"))


# --- ner ------------------------------------------------------------------------------------------


def entities(answer: dict[str, Array]) -> list[list[dict[str, Any]]]:
    return [json.loads(row) for row in answer["ENTITIES"].ravel()]


@pytest.mark.proves_files("manifests/samples/ner.yaml", "loaded")
@on("ner")
@pytest.mark.proves("spec.postprocess.inputs[].name", "behaviour")
@pytest.mark.proves("spec.postprocess.inputs[].from", "behaviour")
@pytest.mark.proves("spec.postprocess.outputs[].name", "behaviour")
@pytest.mark.proves("spec.postprocess.python.code.inline", "behaviour")
def test_entities_stand_where_the_text_has_them(sample: Client) -> None:
    """All texts in one request (padded to the longest), and each alone."""
    known = cases("ner")
    together = entities(sample.ask({"TEXT": column(*(case["text"] for case in known))}))
    alone = [entities(sample.ask({"TEXT": column(case["text"])}))[0] for case in known]
    for found in (together, alone):
        for case, row in zip(known, found, strict=True):
            assert [{**entity, "score": None} for entity in row] == [
                {**entity, "score": None} for entity in case["entities"]
            ]
            np.testing.assert_allclose(
                [one["score"] for one in row],
                [one["score"] for one in case["entities"]],
                atol=TOLERANCE,
                rtol=0,
            )
            assert all(
                case["text"][entity["start"] : entity["end"]] == entity["text"] for entity in row
            )


# --- image ----------------------------------------------------------------------------------------


def expected_colours(images: Array) -> Array:
    """Return the expected answer, computed independently.

    Resizing works pixel by pixel. The convolution is the mean of 3 x 3 at every seventh pixel.
    """
    size = 224
    answers = []
    for image in images.astype(np.float64):
        height, width, _ = image.shape
        small = np.empty((size, size, 3))
        rows = [min(max((y + 0.5) * height / size - 0.5, 0.0), height - 1.0) for y in range(size)]
        columns = [min(max((x + 0.5) * width / size - 0.5, 0.0), width - 1.0) for x in range(size)]
        for y, row in enumerate(rows):
            top, bottom = int(row), min(int(row) + 1, height - 1)
            line = image[top] * (1 - (row - top)) + image[bottom] * (row - top)
            for x, place in enumerate(columns):
                left, right = int(place), min(int(place) + 1, width - 1)
                small[y, x] = line[left] * (1 - (place - left)) + line[right] * (place - left)
        pixels = (small / 255.0 - 0.5) / 0.5
        opponents = np.stack(
            [
                pixels[..., c] - (pixels[..., (c + 1) % 3] + pixels[..., (c + 2) % 3]) / 2
                for c in range(3)
            ]
        )
        windows = np.lib.stride_tricks.sliding_window_view(opponents, (3, 3), axis=(1, 2))[
            :, ::7, ::7
        ].mean(axis=(3, 4))
        logits = 2.0 * np.maximum(windows, 0.0).mean(axis=(1, 2))
        powers = np.exp(logits - logits.max())
        answers.append(powers / powers.sum())
    return np.array(answers)


@pytest.mark.proves_files("manifests/samples/image.yaml", "loaded")
@on("image")
@pytest.mark.proves("spec.steps[].inputs[].dims", "behaviour")
@pytest.mark.proves("spec.steps[].outputs[].dims", "behaviour")
@pytest.mark.proves("spec.steps[].platform", "behaviour")
def test_the_prevailing_colour(sample: Client) -> None:
    """The model finds the prevailing color.

    The images are plain colors, photo-like noise with more green than anything else, and a small
    picture of two halves.
    """
    plain = np.zeros((3, 8, 5, 3), np.uint8)
    for channel in range(3):
        plain[channel, :, :, channel] = 200
    noise = np.random.default_rng(5).integers(0, 200, (1, 300, 180, 3)).astype(np.uint8)
    noise[..., 1] += 55
    halves = np.zeros((1, 2, 2, 3), np.uint8)
    halves[0, :, 0] = (255, 40, 40)
    halves[0, :, 1] = (10, 10, 90)
    for images, labels in (
        (plain, [b"red", b"green", b"blue"]),
        (noise, [b"green"]),
        (halves, [b"red"]),
    ):
        answer = sample.ask({"IMAGE": images})
        np.testing.assert_allclose(
            answer["PROBABILITIES"], expected_colours(images), atol=TOLERANCE, rtol=0
        )
        assert answer["LABEL"].ravel().tolist() == labels


@on("image")
@pytest.mark.proves("spec.steps[].inputs[].ragged", "behaviour")
async def test_images_of_different_size_at_once(sample: Client) -> None:
    images = [
        np.random.default_rng(seed)
        .integers(0, 256, (1, 20 + 9 * seed, 64 - 5 * seed, 3))
        .astype(np.uint8)
        for seed in range(6)
    ]
    answers = await asyncio.gather(
        *(asyncio.to_thread(Client(sample.served).ask, {"IMAGE": image}) for image in images)
    )
    for image, answer in zip(images, answers, strict=True):
        np.testing.assert_allclose(
            answer["PROBABILITIES"], expected_colours(image), atol=TOLERANCE, rtol=0
        )


# --- sequence -------------------------------------------------------------------------------------


def value(number: float) -> dict[str, Array]:
    return {"VALUE": np.array([[number]], np.float32)}


@pytest.mark.proves_files("manifests/samples/sequence.yaml", "loaded")
@on("sequence")
@pytest.mark.proves("spec.model.sequenceBatching.strategy", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.maxCandidateSequences", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.controls[].name", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.controls[].kind", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.controls[].dataType", "behaviour")
def test_streams_keep_their_own_mean(sample: Client) -> None:
    """Several streams side by side, over two processes; each stays with the one that knows it."""
    streams = {
        11: [1.0, 2.0, 6.0],
        12: [10.0, -10.0, 3.0],
        13: [0.5, 0.5, 0.5],
        14: [7.0, 8.0, 9.0],
    }
    for step in range(3):
        for stream, numbers in streams.items():
            answer = sample.ask(
                value(numbers[step]),
                sequence_id=stream,
                sequence_start=step == 0,
                sequence_end=step == 2,
            )
            assert answer["COUNT"].tolist() == [[step + 1]]
            np.testing.assert_allclose(
                answer["MEAN"], [[np.mean(numbers[: step + 1])]], atol=TOLERANCE
            )
    # The same number again is a new stream, also where the old one never ended.
    assert sample.ask(value(7.0), sequence_id=15, sequence_start=True)["COUNT"].tolist() == [[1]]
    assert sample.ask(value(9.0), sequence_id=15, sequence_start=True, sequence_end=True)[
        "MEAN"
    ].tolist() == [[9.0]]
    assert sample.ask(value(4.0), sequence_id=11, sequence_start=True, sequence_end=True)[
        "COUNT"
    ].tolist() == [[1]]


@on("sequence")
def test_a_request_of_no_stream_is_refused(sample: Client) -> None:
    with pytest.raises(InferenceServerException, match="correlation ID"):
        sample.ask(value(1.0))
    with pytest.raises(InferenceServerException, match="START flag"):
        sample.ask(value(1.0), sequence_id=99)
