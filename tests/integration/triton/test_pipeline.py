"""The runtime files in a real Triton.

Every row of every client is right, whatever else is in the batch and however it is padded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.http

from tests.support import pipelines, tinymodel
from tests.support.python_backend import texts
from tests.support.triton import triton_server
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import RejectedError
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
TOLERANCE = 1e-5


def token_ids(text: str) -> np.ndarray:
    plain = tinymodel.tokenizer(baked_in=False)
    plain.enable_truncation(pipelines.MAX_LENGTH)
    return np.array(plain.encode(text).ids)


def expected_probabilities(rows: list[str]) -> np.ndarray:
    """Tokens by the library, the encoder and softmax in numpy, one row at a time."""
    logits = np.array([tinymodel.classify(token_ids(text)) for text in rows])
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def expected_embeddings(rows: list[str]) -> np.ndarray:
    means = np.array([tinymodel.encode(token_ids(text)).mean(axis=0) for text in rows])
    return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


def check(answer: dict[str, np.ndarray], rows: list[str]) -> None:
    expected = expected_probabilities(rows)
    np.testing.assert_allclose(answer["PROBABILITIES"], expected, atol=TOLERANCE)
    order = np.argsort(-expected, axis=1)[:, :2]
    assert answer["LABEL"].tolist() == [
        [pipelines.LABELS[i].encode() for i in best] for best in order
    ]
    np.testing.assert_allclose(
        answer["SCORE"], np.take_along_axis(expected, order, axis=1), atol=TOLERANCE
    )


def sentences(random: np.random.Generator, rows: int) -> list[str]:
    return [
        " ".join(random.choice(tinymodel.WORDS, size=random.integers(0, 40))) for _ in range(rows)
    ]


@pytest.fixture(scope="module", params=pipelines.PADDINGS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalTriton]:
    repository = tmp_path_factory.mktemp(request.param)
    pipelines.write_pipeline(repository, padding=request.param, truncation="LongestFirst", count=2)
    with triton_server(repository, [pipelines.ENSEMBLE]) as running:
        yield running


@pytest.mark.parametrize("rows", [1, 2, 64])
async def test_batches_of_every_size(server: LocalTriton, rows: int) -> None:
    batch = sentences(np.random.default_rng(rows), rows)
    async with TritonClient(server.grpc_address) as client:
        check(await client.infer(pipelines.ENSEMBLE, {"TEXT": texts(*batch)}), batch)


async def test_64_clients_with_mixed_lengths_and_batches(server: LocalTriton) -> None:
    async def client(number: int) -> None:
        random = np.random.default_rng(number)
        async with TritonClient(server.grpc_address, deadline_s=30) as connection:
            for _ in range(4):
                batch = sentences(random, int(random.choice([1, 1, 2, 3, 8])))
                check(await connection.infer(pipelines.ENSEMBLE, {"TEXT": texts(*batch)}), batch)

    await asyncio.gather(*(client(number) for number in range(64)))
    async with TritonClient(server.grpc_address) as connection:
        (statistics,) = await connection.statistics(pipelines.MODEL)
        # Otherwise the test would show nothing about batched answers.
        assert statistics.inference_count > statistics.execution_count


async def test_three_protocols_give_the_same_answer(server: LocalTriton) -> None:
    batch = ["The quick fox jumps", "", "a sad bird sings over the big old river and falls"]
    expected = expected_probabilities(batch)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as web:
        body = {
            "inputs": [
                {"name": "TEXT", "shape": [len(batch), 1], "datatype": "BYTES", "data": batch}
            ]
        }
        response = await web.post(
            f"{server.http_url}/v2/models/{pipelines.ENSEMBLE}/infer", json=body
        )
    outputs = {output["name"]: output for output in response.raise_for_status().json()["outputs"]}
    assert outputs["PROBABILITIES"]["shape"] == [3, 3]
    assert outputs["LABEL"]["data"][0] == pipelines.LABELS[int(expected[0].argmax())]
    np.testing.assert_allclose(
        np.reshape(outputs["PROBABILITIES"]["data"], (3, 3)), expected, atol=TOLERANCE
    )

    binary = tritonclient.http.InferenceServerClient(server.http_url.removeprefix("http://"))
    tensor = tritonclient.http.InferInput("TEXT", [len(batch), 1], "BYTES")
    tensor.set_data_from_numpy(texts(*batch), binary_data=True)
    result = await asyncio.to_thread(binary.infer, pipelines.ENSEMBLE, [tensor])
    binary.close()
    check({name: result.as_numpy(name) for name in ("PROBABILITIES", "LABEL", "SCORE")}, batch)

    async with TritonClient(server.grpc_address) as client:
        check(await client.infer(pipelines.ENSEMBLE, {"TEXT": texts(*batch)}), batch)


async def test_embeddings_of_a_batch(tmp_path: Path) -> None:
    pipelines.write_pipeline(tmp_path, pooling=True)
    with triton_server(tmp_path, [pipelines.ENSEMBLE]) as server:
        async with TritonClient(server.grpc_address) as client:

            async def ask(rows: list[str]) -> None:
                answer = await client.infer(pipelines.ENSEMBLE, {"TEXT": texts(*rows)})
                np.testing.assert_allclose(
                    answer["EMBEDDING"], expected_embeddings(rows), atol=TOLERANCE
                )

            random = np.random.default_rng(1)
            await asyncio.gather(*(ask(sentences(random, rows)) for rows in (1, 2, 3, 64, 1, 1, 5)))


async def test_a_bad_request_fails_alone_in_company(tmp_path: Path) -> None:
    # The tokenizer waits 0.2 s for company, so that all of these share one call of it.
    pipelines.write_pipeline(tmp_path, truncation="Refuse", delay_us=200_000)
    bad = {
        "row 1 of TEXT is not valid UTF-8": texts("fox", b"\xff"),
        "but at most 32 tokens are allowed": texts("fox " * 40),
    }
    good = [["the fox"], ["a dog sleeps", "cat"], [""]]
    with triton_server(tmp_path, [pipelines.ENSEMBLE]) as server:
        async with TritonClient(server.grpc_address) as client:

            async def refused(fragment: str, array: np.ndarray) -> None:
                with pytest.raises(RejectedError) as caught:
                    await client.infer(pipelines.ENSEMBLE, {"TEXT": array})
                assert fragment in caught.value.reason

            async def answered(rows: list[str]) -> None:
                check(await client.infer(pipelines.ENSEMBLE, {"TEXT": texts(*rows)}), rows)

            await asyncio.gather(
                *(refused(*item) for item in bad.items()), *(answered(rows) for rows in good)
            )
            (statistics,) = await client.statistics(pipelines.TOKENIZER)
            assert statistics.execution_count < len(bad) + len(good), (
                "the requests were not in company"
            )
