"""Many clients at once, with wrong requests among good ones.

Every row is right, and every error affects only its own client.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from e2e.suite.pipelines import check_answer, golden
from tests.integration.serve.test_samples import from_json
from tests.support.serving import Served
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import RejectedError

pytestmark = pytest.mark.integration
CLIENTS = 64
REQUESTS = 2
LONG = 140  # tokens of the longest text here
SECONDS = 100.0
MEGABYTE = 1_000_000


def array(*rows: bytes) -> np.ndarray[Any, Any]:
    return np.array([[row] for row in rows], dtype=np.object_)


class Clients:
    """Connections that requests share: one HTTP client with its pool, one gRPC channel."""

    def __init__(self, served: Served) -> None:
        self.url = f"{served.model_url}/infer"
        self.grpc = TritonClient(served.endpoint.grpc, deadline_s=SECONDS)
        self.web = httpx.AsyncClient(
            timeout=SECONDS, trust_env=False, limits=httpx.Limits(max_connections=CLIENTS)
        )

    async def __aenter__(self) -> Clients:
        await self.grpc.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.web.aclose()
        await self.grpc.__aexit__(*error)

    async def good(self, over_http: bool, rows: Sequence[Mapping[str, Any]]) -> None:
        """One right request and its right answer."""
        texts = [row["text"] for row in rows]
        if over_http:
            body = {
                "inputs": [
                    {"name": "TEXT", "shape": [len(rows), 1], "datatype": "BYTES", "data": texts}
                ]
            }
            answer = await self.web.post(self.url, json=body)
            assert answer.status_code == 200, answer.text
            check_answer("sentiment", rows, from_json(answer.json()))
        else:
            check_answer(
                "sentiment",
                rows,
                await self.grpc.infer(
                    "sentiment", {"TEXT": array(*(text.encode() for text in texts))}
                ),
            )


async def test_64_clients_with_mixed_lengths_and_batch_sizes(sentiment: Served) -> None:
    cases = golden("sentiment", 19, longest=LONG)
    async with Clients(sentiment) as clients:

        async def client(number: int) -> int:
            random = np.random.default_rng(number)
            asked = 0
            for _ in range(REQUESTS):
                size = int(random.choice([1, 1, 1, 2, 3, 8]))
                # The long text takes as long as all others together: one row in twenty.
                picks = random.choice(19, size=size, p=[0.05, *([0.95 / 18] * 18)])
                await clients.good(bool(number % 2), [cases[pick] for pick in picks])
                asked += size
            return asked

        rows = sum(await asyncio.gather(*(client(number) for number in range(CLIENTS))))
        (statistics,) = await clients.grpc.statistics("model")
        assert rows > CLIENTS * REQUESTS
        # Otherwise the test would show nothing about batched answers.
        assert statistics.inference_count > statistics.execution_count


def tensor(**changes: Any) -> bytes:
    """A request of one good row with changes to its tensor."""
    return json.dumps(
        {
            "inputs": [
                {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["ok"], **changes}
            ]
        }
    ).encode()


def binary(
    row: bytes, length: int | None = None, header_length: int | None = None
) -> tuple[bytes, dict[str, str]]:
    """A request with one binary row; ``length`` and ``header_length`` lie where they are given."""
    data = struct.pack("<I", len(row) if length is None else length) + row
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "TEXT",
                    "shape": [1, 1],
                    "datatype": "BYTES",
                    "parameters": {"binary_data_size": len(data)},
                }
            ]
        }
    ).encode()
    return head + data, {
        "Inference-Header-Content-Length": str(
            len(head) if header_length is None else header_length
        )
    }


WRONG: Mapping[str, tuple[bytes, dict[str, str]]] = {
    "wrong type": (tensor(datatype="INT64", data=[1]), {}),
    "wrong shape": (tensor(shape=[1, 2], data=["a", "b"]), {}),
    "no batch axis": (tensor(shape=[1]), {}),
    "more rows than data": (tensor(shape=[3, 1]), {}),
    "empty batch": (tensor(shape=[0, 1], data=[]), {}),
    "65 rows": (tensor(shape=[65, 1], data=["x"] * 65), {}),
    "unknown input": (tensor(name="TEXTS"), {}),
    "no input": (b'{"inputs": []}', {}),
    "no JSON": (b'{"inputs": [', {}),
    "numbers for text": (tensor(data=[7]), {}),
    "unknown output": (tensor()[:-1] + b', "outputs": [{"name": "NOTHING"}]}', {}),
    "invalid UTF-8": binary(b"\xff\xfe"),
    "header length that lies": binary(b"ok", header_length=7),
}
# A tensor whose own lengths lie, which no client library can make. Triton 24.10 finds it out only
# in its python backend's C++ part, before any
# model.py sees the requests, and answers the whole batch with the error: so it is sent without
# company here.
BROKEN_TENSOR = binary(b"ok", length=1_000_000)
# Unusual, but right: what the answer must be, by the text of a golden case.
UNUSUAL: Mapping[str, tuple[str, str]] = {
    "NUL": ("o\0k", "ok"),
    "control characters": ("\x01ok\x7f", "ok"),
}


async def test_invalid_requests_do_not_affect_others(sentiment: Served) -> None:
    cases = golden("sentiment", 18, longest=LONG - 1)
    by_text = {row["text"]: row for row in cases}
    said: dict[str, str] = {}
    async with Clients(sentiment) as clients:

        async def wrong(what: str) -> None:
            content, headers = WRONG[what]
            answer = await clients.web.post(clients.url, content=content, headers=headers)
            assert 400 <= answer.status_code < 600, f"{what}: {answer.text}"
            said[what] = answer.json()["error"]

        async def invalid_over_grpc() -> None:
            with pytest.raises(RejectedError, match="row 1 of TEXT is not valid UTF-8"):
                await clients.grpc.infer("sentiment", {"TEXT": array(b"ok", b"\xc3\x28")})

        async def unusual(what: str) -> None:
            text, meant = UNUSUAL[what]
            check_answer(
                "sentiment",
                [by_text[meant]],
                await clients.grpc.infer("sentiment", {"TEXT": array(text.encode())}),
            )

        async def huge() -> None:
            answer = await clients.grpc.infer(
                "sentiment", {"TEXT": array(b"word " * (MEGABYTE // 5))}
            )
            assert answer["PROBABILITIES"].sum() == pytest.approx(1.0)

        good = [
            clients.good(bool(number % 2), [cases[number % 18], cases[(7 * number) % 18]])
            for number in range(60)
        ]
        await asyncio.gather(
            *good,
            *(wrong(what) for what in WRONG),
            *(unusual(what) for what in UNUSUAL),
            invalid_over_grpc(),
            huge(),
        )
        await clients.good(True, cases)
    assert set(said) == set(WRONG)
    assert all(said.values())
    assert "not valid UTF-8" in said["invalid UTF-8"]
    assert sentiment.process.poll() is None


async def test_a_broken_tensor_is_refused_and_the_server_lives_on(sentiment: Served) -> None:
    content, headers = BROKEN_TENSOR
    async with Clients(sentiment) as clients:
        answer = await clients.web.post(clients.url, content=content, headers=headers)
        assert answer.status_code == 400
        assert "row 0 of TEXT ends beyond its tensor" in answer.json()["error"]
        await clients.good(True, golden("sentiment", 4, longest=LONG - 1))
