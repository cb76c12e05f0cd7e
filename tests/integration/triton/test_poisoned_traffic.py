"""Poison at random among good traffic, through the pipeline and past it.

Every good answer is the golden one, with the runner and with an adapted graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

import httpx
import numpy as np
import pytest

from tests.integration.triton.test_pipeline import TOLERANCE, check
from tests.support import pipelines, tinymodel
from tests.support.python_backend import texts
from tests.support.simulated_ragged import write_ragged_pipeline
from tests.support.triton import triton_server
from triton_pipelines.loader.ragged.input_padding import GUARD
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import RejectedError
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
VOCABULARY = len(tinymodel.SPECIAL) + len(tinymodel.WORDS)
COMPANY_US = 30_000
"""Both steps wait so long for company."""
ROUNDS, GOOD, POISONED = 6, 24, 12

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Served:
    """A server, and whether one request without tokens fails its whole batch.

    That is a limit of Triton's ONNX Runtime backend. It never causes a wrong answer.
    """

    triton: LocalTriton
    ragged: bool


@pytest.fixture(scope="module", params=["runner", "adapted"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp(request.param)
    if ragged := request.param == "adapted":
        write_ragged_pipeline(repository, COMPANY_US)
    else:
        pipelines.write_pipeline(
            repository, padding="Ragged", truncation="Refuse", delay_us=COMPANY_US
        )
        config = repository / pipelines.MODEL / "config.pbtxt"
        config.write_text(
            config.read_text().replace(
                "dynamic_batching { }",
                f"dynamic_batching {{ max_queue_delay_microseconds: {COMPANY_US} }}",
            )
        )
    with triton_server(repository, [pipelines.ENSEMBLE]) as running:
        yield Served(running, ragged)


def row(random: np.random.Generator, length: int | None = None) -> dict[str, np.ndarray]:
    """A good request of the model step, of 1 to 3 rows."""
    shape = (
        int(random.integers(1, 4)),
        int(random.integers(1, pipelines.MAX_LENGTH + 1)) if length is None else length,
    )
    return {
        "input_ids": random.integers(0, VOCABULARY, shape),
        "attention_mask": np.ones(shape, np.int64),
    }


def with_id(random: np.random.Generator, value: int) -> Arrays:
    made = row(random)
    made["input_ids"][-1, int(random.integers(made["input_ids"].shape[1]))] = value
    return made


def longer(random: np.random.Generator, name: str) -> Arrays:
    made = row(random)
    return {
        **made,
        name: np.concatenate(
            [made[name], np.ones((len(made[name]), int(random.integers(1, 9))), np.int64)], axis=1
        ),
    }


POISONS: Mapping[str, Callable[[np.random.Generator], Arrays]] = {
    "length 0": lambda random: row(random, 0),
    "an id beyond the vocabulary": lambda random: with_id(
        random, VOCABULARY + int(random.integers(2**40))
    ),
    "an id far below": lambda random: with_id(
        random, -VOCABULARY - 1 - int(random.integers(2**40))
    ),
    "more tokens than positions": lambda random: row(
        random, tinymodel.POSITIONS + int(random.integers(1, 40))
    ),
    "a mask longer than the ids": lambda random: longer(random, "attention_mask"),
    "ids longer than the mask": lambda random: longer(random, "input_ids"),
    "a mask of not-a-numbers": lambda random: {
        **(made := row(random)),
        "attention_mask": np.full(made["input_ids"].shape, np.nan, np.float32),
    },
    "rank 1": lambda random: {name: value[0] for name, value in row(random).items()},
    "rank 3": lambda random: {name: value[None] for name, value in row(random).items()},
    "other numbers of rows": lambda random: {
        **(made := row(random)),
        "attention_mask": np.ones((len(made["input_ids"]) + 1, 5), np.int64),
    },
    "more rows than a batch may have": lambda random: {
        name: np.repeat(value[:1], 65, axis=0) for name, value in row(random).items()
    },
    "no mask": lambda random: {"input_ids": row(random)["input_ids"]},
    "lengths of its own": lambda random: {
        **row(random),
        "input_ids__shape": np.array([[1]], np.int32),
    },
}
"""What must be refused, or answered with marks alone."""
OWN: Mapping[str, Callable[[np.random.Generator], Arrays]] = {
    "a negative id": lambda random: with_id(random, -int(random.integers(1, VOCABULARY))),
    "a mask of wild values": lambda random: {
        **(made := row(random)),
        "attention_mask": random.integers(-(2**40), 2**40, made["input_ids"].shape),
    },
}
"""Requests that a stock graph answers somehow.

The answers may be wrong, as long as only their sender is affected.
"""
TEXTS = [texts("fox", b"\xff\xfe"), texts("fox " * 60), texts(b"\xc3")]
LIES = [
    ([1, 5], [5, 6, 7]),
    ([2, 3], [5, 6, 7, 8, 9]),
    ([1, 1], [5, 6]),
    ([-1, 3], [5, 6, 7]),
    ([1, 3], []),
]
"""Shapes that do not hold what is sent under them."""


@pytest.mark.parametrize("empty", [False, True], ids=["with tokens", "with rows without tokens"])
async def test_no_poison_changes_a_good_answer(served: Served, empty: bool) -> None:
    kinds = {name: make for name, make in (POISONS | OWN).items() if empty or name != "length 0"}
    failed = answered = 0
    async with (
        TritonClient(served.triton.grpc_address, deadline_s=30) as client,
        httpx.AsyncClient(trust_env=False, timeout=30) as web,
    ):

        async def good(work: Awaitable[None]) -> None:
            nonlocal failed, answered
            try:
                await work
            except RejectedError as error:
                # An error for all, never a wrong answer: rows behind the one without tokens are
                # unfilled.
                if not (empty and served.ragged and GUARD in error.reason):
                    raise
                failed += 1
            else:
                answered += 1

        async def through(rows: list[str]) -> None:
            check(await client.infer(pipelines.ENSEMBLE, {"TEXT": texts(*rows)}), rows)

        async def past(inputs: Arrays) -> None:
            answer = await client.infer(pipelines.MODEL, inputs)
            for number, ids in enumerate(inputs["input_ids"]):
                np.testing.assert_allclose(
                    answer["logits"][number],
                    tinymodel.classify(ids),
                    rtol=TOLERANCE,
                    atol=TOLERANCE,
                )
                np.testing.assert_allclose(
                    answer["hidden"][number], tinymodel.encode(ids), rtol=TOLERANCE, atol=TOLERANCE
                )

        async def poison(name: str, inputs: Arrays) -> None:
            try:
                answer = await client.infer(pipelines.MODEL, inputs)
            except RejectedError:
                return
            if name in POISONS:
                # Rows that stand in one request with a broken one may be right, the broken one must
                # not be answered.
                assert np.isnan(answer["logits"]).all(axis=1).any(), f"{name} was answered"
                assert served.ragged

        async def poisoned_text(array: np.ndarray) -> None:
            with pytest.raises(RejectedError):
                await client.infer(pipelines.ENSEMBLE, {"TEXT": array})

        async def lie(shape: list[int], data: list[int]) -> None:
            inputs = [
                {"name": name, "shape": shape, "datatype": "INT64", "data": data}
                for name in ("input_ids", "attention_mask")
            ]
            response = await web.post(
                f"{served.triton.http_url}/v2/models/{pipelines.MODEL}/infer",
                json={"inputs": inputs},
            )
            assert response.status_code >= 400

        for number in range(ROUNDS):  # in another company and order each time
            random = np.random.default_rng([number, empty])
            names = [*random.choice(sorted(kinds), POISONED), *(["length 0"] if empty else [])]
            sent: list[Awaitable[None]] = [
                poison(str(name), kinds[str(name)](random)) for name in names
            ]
            sent += [poisoned_text(TEXTS[number % len(TEXTS)]), lie(*LIES[number % len(LIES)])]
            for _ in range(GOOD // 2):
                words = [
                    " ".join(random.choice(tinymodel.WORDS, size=random.integers(0, 29)))
                    for _ in range(int(random.integers(1, 4)))
                ]
                sent += [good(through(words)), good(past(row(random)))]
            order = random.permutation(len(sent))
            await asyncio.gather(*(sent[place] for place in order))
        for model in (pipelines.TOKENIZER, pipelines.MODEL):
            (statistics,) = await client.statistics(model)
            assert statistics.inference_count > statistics.execution_count, (
                f"{model}: the requests were not in company"
            )
    assert answered + failed == ROUNDS * GOOD
    assert failed == 0 or empty
    if empty and served.ragged:
        assert failed, "the rows without tokens were never in company"
