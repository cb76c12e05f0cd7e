"""No request harms another in its batch.

Bad requests share batches with good ones, through the pipeline and directly to the inner model
step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from tests.integration.triton.test_pipeline import TOLERANCE, check, sentences, token_ids
from tests.support import pipelines, tinymodel
from tests.support.python_backend import texts
from tests.support.triton import triton_server
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import RejectedError
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
VOCABULARY = len(tinymodel.SPECIAL) + len(tinymodel.WORDS)
COMPANY_US = 30_000
"""Both steps wait so long for company."""


def tokens(ids: list[list[int]], mask: list[list[int]] | None = None) -> dict[str, np.ndarray]:
    """Inputs of the model step."""
    array = np.array(ids, np.int64).reshape(len(ids), -1)
    return {
        "input_ids": array,
        "attention_mask": np.ones_like(array)
        if mask is None
        else np.array(mask, np.int64).reshape(len(mask), -1),
    }


POISONED_TEXTS = {
    "is not valid UTF-8": texts("fox", b"\xff\xfe"),
    "but at most 32 tokens are allowed": texts("fox " * 40),
}
POISONED_TOKENS = {
    "length 0": (tokens([[]]), "has no elements"),
    "length 0, two rows": (tokens([[], []]), "has no elements"),
    "id beyond the vocabulary": (tokens([[5, VOCABULARY, 6]]), "out of data bounds"),
    "id far below": (tokens([[-VOCABULARY - 1]]), "out of data bounds"),
    "too long": (tokens([[5] * (tinymodel.POSITIONS + 1)]), "the model failed on this request"),
    "mask longer than the ids": (tokens([[5, 6]], [[1, 1, 1]]), "different shapes"),
    "ids longer than the mask": (tokens([[5, 6, 7]], [[1]]), "different shapes"),
    "other number of rows": (tokens([[5, 6], [7, 8]], [[1, 1]]), "batch"),
}
ANSWERED = [[""], ["fox\0dog"], ["the fox", "", "a cat"]]
"""Texts that look like poison and are none."""


@pytest.fixture(scope="module", params=pipelines.PADDINGS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalTriton]:
    repository = tmp_path_factory.mktemp(request.param)
    pipelines.write_pipeline(
        repository, padding=request.param, truncation="Refuse", delay_us=COMPANY_US
    )
    config = repository / pipelines.MODEL / "config.pbtxt"
    config.write_text(
        config.read_text().replace(
            "dynamic_batching { }",
            f"dynamic_batching {{ max_queue_delay_microseconds: {COMPANY_US} }}",
        )
    )
    with triton_server(repository, [pipelines.ENSEMBLE]) as running:
        yield running


async def test_each_poisoned_request_fails_alone_with_its_own_error(server: LocalTriton) -> None:
    good = [
        *ANSWERED,
        *(sentences(np.random.default_rng(number), 1 + number % 3) for number in range(12)),
    ]
    good = [
        [" ".join(text.split(" ")[:28]) for text in rows] for rows in good
    ]  # within the length that is allowed
    direct = [
        tokens([token_ids("a quick fox jumps over the river").tolist()]),
        tokens([token_ids("cat").tolist()]),
    ]
    async with TritonClient(server.grpc_address, deadline_s=30) as client:

        async def refused(model: str, inputs: dict[str, np.ndarray], fragment: str) -> None:
            with pytest.raises(RejectedError) as caught:
                await client.infer(model, inputs)
            assert fragment in caught.value.reason

        async def answered(rows: list[str]) -> None:
            check(await client.infer(pipelines.ENSEMBLE, {"TEXT": texts(*rows)}), rows)

        async def computed(inputs: dict[str, np.ndarray]) -> None:
            answer = await client.infer(pipelines.MODEL, inputs)
            np.testing.assert_allclose(
                answer["logits"][0], tinymodel.classify(inputs["input_ids"][0]), atol=TOLERANCE
            )

        for _ in range(3):  # in another company each time
            await asyncio.gather(
                *(
                    refused(pipelines.ENSEMBLE, {"TEXT": array}, fragment)
                    for fragment, array in POISONED_TEXTS.items()
                ),
                *(answered(rows) for rows in good),
                *(
                    refused(pipelines.MODEL, inputs, fragment)
                    for inputs, fragment in POISONED_TOKENS.values()
                ),
                *(computed(inputs) for inputs in direct),
            )
        for model in (pipelines.TOKENIZER, pipelines.MODEL):
            (statistics,) = await client.statistics(model)
            assert statistics.inference_count > statistics.execution_count, (
                f"{model}: the requests were not in company"
            )


async def test_a_length_of_0_alone_is_refused(server: LocalTriton) -> None:
    """What reads another client's memory in a ragged batch must not reach one."""
    async with TritonClient(server.grpc_address) as client:
        with pytest.raises(RejectedError, match="has no elements"):
            await client.infer(pipelines.MODEL, tokens([[]]))
