"""Requests whose rows have several texts each: TEXT with dims [-1] in a pipeline that batches.

The expected answers come from the golden cases of the model, computed independently.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml

from e2e.suite.pipelines import TOLERANCE
from tests.integration.serve.test_questions import ask
from tests.support.samples import Array, cases
from tests.support.serving import SAMPLES, Served, run, sample_sources, served
from triton_pipelines.api import parse
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import RejectedError

pytestmark = pytest.mark.integration
MOST = 16
WORDS = cases("words")
TEXTS = [case["text"].encode() for case in WORDS]


def resource() -> dict[str, Any]:
    """The sample without a batch axis, with a batch axis and texts of any number per row."""
    document: dict[str, Any] = yaml.safe_load((SAMPLES / "unbatched.yaml").read_text())
    document["metadata"]["name"] = "rows-of-texts"
    spec = document["spec"]
    del spec["tokenizer"]["maxBatchSize"]
    spec["model"]["maxBatchSize"] = MOST
    for tensor in (*spec["model"]["inputs"], *spec["model"]["outputs"]):
        tensor["dims"] = tensor["dims"][1:]
    # Requests of several clients are to meet in one batch.
    spec["model"]["dynamicBatching"] = {"maxQueueDelayMicroseconds": 100_000}
    spec["ensemble"] = {"inputs": [{"name": "TEXT", "dataType": "STRING", "dims": [-1]}]}
    return document


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("rows-of-texts")
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(resource()), encoding="utf-8")
    with served(file, *sample_sources(), log=folder / "serve.log") as found:
        yield found


def numbered(shape: tuple[int, int], first: int = 0) -> tuple[Array, Array]:
    """Return texts in that shape and the probabilities of each, in order."""
    chosen = [(first + number) % len(WORDS) for number in range(shape[0] * shape[1])]
    texts = np.array([TEXTS[one] for one in chosen], dtype=np.object_).reshape(shape)
    return texts, np.array([WORDS[one]["probabilities"] for one in chosen])


def check(answer: dict[str, Array], expected: Array) -> None:
    assert answer["PROBABILITIES"].shape == expected.shape
    np.testing.assert_allclose(answer["PROBABILITIES"], expected, atol=TOLERANCE, rtol=0)
    assert answer["LABEL"].shape == (len(expected), 1)


async def test_each_text_is_one_row_of_the_answer(running: Served) -> None:
    """In any shape, and of several clients at once."""
    shapes = [(1, 1), (4, 1), (1, 4), (2, 3), (3, 2), (1, MOST), (MOST, 1), (4, 4)]
    async with TritonClient(running.endpoint.grpc) as client:

        async def one(shape: tuple[int, int], first: int) -> None:
            texts, expected = numbered(shape, first)
            check(await client.infer(running.model, {"TEXT": texts}), expected)

        await asyncio.gather(*(one(shape, first) for first, shape in enumerate(shapes * 3)))
        (model,) = await client.statistics("model")
    assert model.execution_count < len(shapes) * 3, "the requests shared no batch"


async def test_more_texts_than_a_batch_are_refused(running: Served) -> None:
    """In one row, in which Triton itself does not count them."""
    async with TritonClient(running.endpoint.grpc) as client:
        texts, expected = numbered((1, MOST + 1))
        with pytest.raises(RejectedError, match=f"batch-size must be <= {MOST} for 'model'"):
            await client.infer(running.model, {"TEXT": texts})
        with pytest.raises(RejectedError, match="TEXT has no rows"):
            await client.infer(running.model, {"TEXT": np.zeros((1, 0), np.object_)})
        texts, expected = numbered((1, 2))
        check(await client.infer(running.model, {"TEXT": texts}), expected)


async def test_the_operator_finds_it_healthy(running: Served) -> None:
    parsed, findings = parse(resource())
    assert parsed is not None, findings
    result = await ask(running, parsed)
    assert result.healthy, result
    assert not result.mismatch, result
    assert not result.used_fallback, result


def test_the_command_line_sends_one_text_per_row(running: Served) -> None:
    done = run(
        "infer", running.model_url, "--output=json", "--", *(text.decode() for text in TEXTS[:2])
    )
    assert done.returncode == 0, done.stderr
    (answer,) = (one for one in json.loads(done.stdout)["outputs"] if one["name"] == "LABEL")
    assert answer["shape"] == [2, 1]
