"""The native tokenizer in a real Triton gives the answers and errors of the tokenizers library.

The reference is :mod:`tests.support.tokenizeroracle`, with the same configuration and texts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from e2e.models import tree
from tests.support import pipelines, tinymodel
from tests.support.pipelines import tensor
from tests.support.python_backend import texts
from tests.support.testserver import Answer, NativeError, outputs_of
from tests.support.tokenizerkinds import MAKES, OUTPUTS, TEXT, Make
from tests.support.tokenizeroracle import TokenizerOracle, difference
from tests.support.triton import write_model
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import PlanLibrary
from triton_pipelines.loader.native_library import copy_library
from triton_pipelines.loader.tokenizer_files import KNOWN_IDS
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import RejectedError
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
IDS = {"input_ids": "InputIds", "attention_mask": "AttentionMask"}
NUMBERS = itertools.count()
PADDINGS = ("Ragged", "Fixed", "Bucketed", "Longest")
TRUNCATIONS = ("LongestFirst", "OnlyFirst", "OnlySecond", "Refuse")
COMPANY_US = 20_000
LARGEST = 2**20
"""Bytes of a text that the step accepts."""


def config(name: str, outputs: dict[str, str], inputs: list[str], data_type: str) -> str:
    dims = {"Offsets": "-1, 2", "Lengths": "1"}
    text = pipelines.config(
        name,
        [tensor(one, "TYPE_STRING", "1") for one in inputs],
        [tensor(one, data_type, dims.get(kind, "-1")) for one, kind in outputs.items()],
        {},
    )
    return text.replace('backend: "python"', f'backend: "{names.NATIVE_TOKENIZER_BACKEND}"')


class Steps:
    """One tokenizer as a native model in a server, and the oracle of its answers."""

    def __init__(
        self,
        server: LocalTriton,
        tokenizer: Tokenizer,
        outputs: dict[str, str],
        parameters: dict[str, str],
        *,
        data_type: str = "TYPE_INT64",
        known: int | None = None,
        delay_us: int = 0,
        max_batch: int = 64,
    ) -> None:
        self.name = f"tokenizer{next(NUMBERS)}"
        self.names = ["TEXT", "OTHER"] if "text_pair" in parameters else ["TEXT"]
        values = {"outputs": json.dumps(outputs), **parameters}
        lines = [
            f'parameters {{ key: "tritonpipe.{key}" value: {{ string_value: {quoted} }} }}'
            for key, quoted in ((key, json.dumps(value)) for key, value in values.items())
        ]
        text = config(self.name, outputs, self.names, data_type) + "\n".join(lines)
        text = text.replace("max_batch_size: 64", f"max_batch_size: {max_batch}")
        if delay_us:
            queue = f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}"
            text = text.replace("dynamic_batching { }", queue)
        version = write_model(server.repository, self.name, text)
        library = PlanLibrary(
            step="tokenizer",
            path=f"{self.name}/1/{names.NATIVE_TOKENIZER_LIBRARY}",
            field="spec.tokenizer",
        )
        copy_library(version / names.NATIVE_TOKENIZER_LIBRARY, library)
        tokenizer.save(str(version / "tokenizer.json"))
        if known is not None:
            (version / KNOWN_IDS).write_text(json.dumps({"ids": known}))
        self._arguments = (
            version.parent,
            {
                "max_batch_size": max_batch,
                "input": [{"name": one, "data_type": "TYPE_STRING"} for one in self.names],
                "output": [{"name": one, "data_type": data_type} for one in outputs],
            },
            {f"tritonpipe.{key}": value for key, value in values.items()},
        )

    async def load(self, client: TritonClient) -> str | None:
        """Load the model; return the expected error if it must not load."""
        expected = None
        try:
            self._oracle = TokenizerOracle(*self._arguments)
        except ValueError as error:
            expected = str(error)
        if expected is None:
            await client.load_model(self.name)
            return None
        with pytest.raises(RejectedError) as caught:
            await client.load_model(self.name)
        assert expected in caught.value.reason
        return expected

    async def compare(self, client: TritonClient, inputs: dict[str, np.ndarray]) -> str | None:
        """Send one request; return the error if that was the answer."""
        expected = self.expected(inputs)
        if isinstance(expected, NativeError):
            with pytest.raises(RejectedError) as caught:
                await client.infer(self.name, inputs)
            assert caught.value.reason == expected.message
            return expected.message
        found = difference(expected, await client.infer(self.name, inputs))
        assert found is None, f"{found}; {inputs}"
        return None

    def expected(self, inputs: dict[str, np.ndarray]) -> Answer:
        """Return the answer to a request without others in its batch."""
        (answer,) = self._oracle.execute([inputs])
        return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    with pipelines.native_tokenizer_server(tmp_path_factory.mktemp("repository")) as running:
        yield running


def compare_all(steps: Steps, server: LocalTriton, requests: list[dict[str, np.ndarray]]) -> None:
    async def run() -> None:
        async with TritonClient(server.grpc_address, deadline_s=30) as client:
            if await steps.load(client) is None:
                for inputs in requests:
                    await steps.compare(client, inputs)

    asyncio.run(run())


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    make=MAKES,
    kinds=st.sets(st.sampled_from(sorted(OUTPUTS)), min_size=1),
    pairs=st.sampled_from([False, False, True]),
    parameters=st.fixed_dictionaries(
        {
            "special_tokens": st.sampled_from(["Enabled", "Disabled"]),
            "truncation": st.sampled_from(TRUNCATIONS),
            "padding": st.sampled_from(PADDINGS),
            "max_length": st.sampled_from(["2", "5", "12", "400"]),
            "buckets": st.sampled_from(["", "4,8", "300,3"]),
        }
    ),
    data_type=st.sampled_from(["TYPE_INT64", "TYPE_INT32"]),
    known=st.sampled_from([None, None, 30]),
    batches=st.lists(
        st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8), min_size=1, max_size=6
    ),
)
def test_answers_and_errors_are_those_of_the_library(
    server: LocalTriton,
    make: Make,
    kinds: set[str],
    pairs: bool,
    parameters: dict[str, str],
    data_type: str,
    known: int | None,
    batches: list[list[tuple[str, str]]],
) -> None:
    outputs = {name: OUTPUTS[name] for name in sorted(kinds)}
    settings = {**parameters, **({"text_pair": "OTHER"} if pairs else {})}
    steps = Steps(server, make.build(), outputs, settings, data_type=data_type, known=known)
    requests = [
        {"TEXT": texts(*(row[0] for row in rows))}
        | ({"OTHER": texts(*(row[1] for row in rows))} if pairs else {})
        for rows in batches
    ]
    compare_all(steps, server, [*requests, *requests])  # new words, and known ones


def sample_tokenizers() -> list[Path]:
    return sorted(tree.build().rglob("tokenizer.json"))


def generated(seed: int, words: list[str], count: int) -> list[str]:
    """Texts of known words, parts of them and odd characters, from empty to some hundred words."""
    source = random.Random(seed)
    odd = [
        "",
        "\n",
        "\t",
        "é",
        "ﬁ",
        "日本語",
        "🙂",
        "don't",
        "a-b_c",
        "3.14",
        "\u200b",
        "ẞ",
        "[SEP]",
    ]
    rows = []
    for _ in range(count):
        size = source.choice([0, 1, 2, 5, 20, 60, 300])
        row = [
            source.choice(odd)
            if source.random() < 0.1
            else source.choice(words)[: source.randint(1, 12)]
            for _ in range(size)
        ]
        rows.append(source.choice([" ", " ", " ", "  ", ""]).join(row))
    return rows


def test_the_samples_tokenizers_answer_as_the_library(server: LocalTriton) -> None:
    compared = 0
    for number, file in enumerate(sample_tokenizers()):
        tokenizer = Tokenizer.from_file(str(file))
        words = [word.strip("#Ġ▁ ") or "x" for word in sorted(tokenizer.get_vocab())]
        parameters = {"max_length": "128"}
        steps = Steps(server, tokenizer, IDS, parameters)
        rows = generated(number, words, 1_280)
        requests = [{"TEXT": texts(*rows[at : at + 32])} for at in range(0, len(rows), 32)]
        compare_all(steps, server, requests)
        compared += len(rows)
    assert compared >= 2_560, "the samples have WordPiece and byte-level BPE"


REFUSED = {
    "is not valid UTF-8 (invalid start byte at byte 0)": texts("fox", b"\xff\xfe"),
    "is not valid UTF-8 (unexpected end of data at byte 1)": texts(b"a\xe2\x82"),
    "is not valid UTF-8 (invalid continuation byte at byte 0)": texts(b"\xed\xa0\x80"),
    "but at most 12 tokens are allowed": texts("the fox", "fox " * 40),
    "expected [rows, 1]": np.array([["a", "b"]], np.object_),
}


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_bad_request_fails_alone_with_the_same_words(server: LocalTriton, padding: str) -> None:
    steps = Steps(
        server,
        tinymodel.tokenizer(),
        IDS,
        {"max_length": "12", "truncation": "Refuse", "padding": padding, "buckets": "4,8"},
        delay_us=COMPANY_US,
    )
    good = [texts("the fox"), texts("", "fox\0dog"), texts("a quick cat runs")]

    async def run() -> None:
        async with TritonClient(server.grpc_address, deadline_s=30) as client:
            assert await steps.load(client) is None
            for part, array in REFUSED.items():
                if array.shape[1] == 1:  # Triton itself refuses other shapes
                    assert part in str(await steps.compare(client, {"TEXT": array}))
            answers = await asyncio.gather(
                *(client.infer(steps.name, {"TEXT": array}) for array in good * 4),
                *(client.infer(steps.name, {"TEXT": array}) for array in REFUSED.values()),
                *(truncated_length(client, steps.name) for _ in range(3)),
                return_exceptions=True,
            )
            for array, answer in zip(good * 4, answers, strict=False):
                assert isinstance(answer, dict), answer
                ids = outputs_of(steps.expected({"TEXT": array}))["input_ids"]
                np.testing.assert_array_equal(answer["input_ids"][:, : ids.shape[1]], ids)
            for answer in answers[len(good) * 4 :]:
                assert isinstance(answer, Exception)
            assert all("ends beyond its tensor" in str(answer) for answer in answers[-3:])
            (statistics,) = await client.statistics(steps.name)
            assert statistics.inference_count > statistics.execution_count, "no company"
            assert statistics.inference_stats.fail.count >= len(REFUSED)

    asyncio.run(run())


async def truncated_length(client: TritonClient, model: str) -> Any:
    """Send a text whose length points beyond its tensor, which Triton's core does not check."""
    request = _raw(model, [1, 1], (1000).to_bytes(4, "little") + b"fox")
    return await client._client._client_stub.ModelInfer(request)


def _raw(model: str, shape: list[int], content: bytes) -> Any:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="TEXT", datatype="BYTES", shape=shape)
    request.raw_input_contents.append(content)
    return request


def test_only_requested_outputs_are_returned_and_time_is_reported(server: LocalTriton) -> None:
    steps = Steps(server, tinymodel.tokenizer(), dict(OUTPUTS), {"max_length": "12"})

    async def run() -> None:
        async with TritonClient(server.grpc_address, deadline_s=30) as client:
            assert await steps.load(client) is None
            inputs = {"TEXT": texts("the fox", "a")}
            answer = await client.infer(steps.name, inputs, outputs=["lengths"])
            assert {name: array.tolist() for name, array in answer.items()} == {
                "lengths": [[4], [3]]
            }
            (statistics,) = await client.statistics(steps.name)
            assert statistics.inference_count == 2
            assert statistics.execution_count == 1
            assert 0 < statistics.inference_stats.compute_infer.ns < 1e9
            assert statistics.batch_stats[0].batch_size == 2

    asyncio.run(run())


def test_large_texts_are_answered(server: LocalTriton) -> None:
    requests = [
        {"TEXT": texts("x" * LARGEST)},
        {"TEXT": texts("the fox " * (LARGEST // 8), "fox")},
        {"TEXT": texts("日" * (LARGEST // 3))},
    ]
    steps = Steps(server, tinymodel.tokenizer(), IDS, {"max_length": "12"})
    compare_all(steps, server, requests)


async def test_larger_texts_are_rejected_by_row(server: LocalTriton) -> None:
    steps = Steps(server, tinymodel.tokenizer(), IDS, {"max_length": "12"})
    async with TritonClient(server.grpc_address, deadline_s=30) as client:
        assert await steps.load(client) is None
        with pytest.raises(RejectedError) as caught:
            await client.infer(steps.name, {"TEXT": texts("fox", "x" * (LARGEST + 1))})
        assert caught.value.reason == (
            f"row 1 of TEXT is larger than the {LARGEST} bytes allowed; shorten the text"
        )
        await steps.compare(client, {"TEXT": texts("fox")})


async def test_a_changed_count_is_in_force_at_once_and_fails_nothing(server: LocalTriton) -> None:
    steps = Steps(server, tinymodel.tokenizer(), IDS, {"max_length": "12"})
    async with TritonClient(server.grpc_address, deadline_s=30) as client:
        assert await steps.load(client) is None
        config = await client.model_config(steps.name)
        stop = asyncio.Event()

        async def ask() -> int:
            answered = 0
            while not stop.is_set():
                await client.infer(steps.name, {"TEXT": texts("the fox", "a cat")})
                answered += 1
            return answered

        clients = [asyncio.create_task(ask()) for _ in range(8)]
        for count in (4, 1, 4, 1):
            changed = type(config)()
            changed.CopyFrom(config)
            changed.instance_group[0].count = count
            await client.load_model(steps.name, json_format.MessageToJson(changed))
            assert await client.instance_count(steps.name) == count
            await asyncio.sleep(0)
        stop.set()
        assert min(await asyncio.gather(*clients)) > 0


async def test_instances_are_added_while_requests_wait(server: LocalTriton) -> None:
    """Triton gives a new instance each batch that waits before it initializes the instance."""
    steps = Steps(server, tinymodel.tokenizer(), {"length": "Lengths"}, {}, max_batch=1)
    words = ("".join(random.Random(number).choices("abcdef", k=12)) for number in range(30_000))
    request = {"TEXT": texts(" ".join(words))}
    async with TritonClient(server.grpc_address, deadline_s=60) as client:
        assert await steps.load(client) is None
        config = await client.model_config(steps.name)
        config.instance_group[0].count = 4
        expected, stop = steps.expected(request), asyncio.Event()
        assert not isinstance(expected, NativeError)

        async def ask() -> None:
            while not stop.is_set():
                answer = await client.infer(steps.name, request)
                assert difference(expected, answer) is None

        # More than the instances and what Triton keeps ready for them.
        clients = [asyncio.create_task(ask()) for _ in range(24)]
        load = asyncio.create_task(client.load_model(steps.name, json_format.MessageToJson(config)))
        done, _ = await asyncio.wait([load], timeout=20)
        stop.set()
        await asyncio.gather(load, *clients)
        assert done, "the change waited for the last request"
        assert await client.instance_count(steps.name) == 4
    async with httpx.AsyncClient() as http:
        page = (await http.get(server.metrics_url)).text
    assert f'tritonpipe_step_passed_requests{{model="{steps.name}",version="1"}} 0\n' in page
