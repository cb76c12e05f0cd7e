"""Bad requests among good ones where a step calls the others, and next to open sequences.

Every good answer is the same as without bad requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from itertools import accumulate

import numpy as np
import pytest
from tritonclient.grpc import InferInput

from tests.integration.triton.test_pipeline import TOLERANCE, token_ids
from tests.support import pipelines, tinymodel
from tests.support.pipelines import tensor
from tests.support.python_backend import texts
from tests.support.triton import triton_server, write_model
from triton_pipelines.triton.client import UNLIMITED_BYTES, TritonClient
from triton_pipelines.triton.errors import RejectedError
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
CALLER = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "TEXT")
        text = pb_utils.Tensor("TEXT", given.as_numpy())
        tokens = self.call("tokenizer", [text], ["input_ids", "attention_mask"])
        if tokens.has_error():
            return pb_utils.InferenceResponse(error=tokens.error())
        ids = pb_utils.get_output_tensor_by_name(tokens, "input_ids").as_numpy()
        ids = ids + pb_utils.get_input_tensor_by_name(request, "SHIFT").as_numpy()
        mask = pb_utils.get_output_tensor_by_name(tokens, "attention_mask")
        answer = self.call("model", [pb_utils.Tensor("input_ids", ids), mask], ["logits"])
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "logits")])

    def call(self, model, inputs, outputs):
        return pb_utils.InferenceRequest(
            model_name=model, requested_output_names=outputs, inputs=inputs
        ).exec()
"""
COUNTER = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        value, start, sequence = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
            for name in ("VALUE", "START", "SEQUENCE")
        )
        self.sums[sequence] = value if start else self.sums[sequence] + value
        total = np.array([[self.sums[sequence]]], np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)])
"""
SEQUENCES = """sequence_batching {
  max_sequence_idle_microseconds: 30000000 oldest { max_candidate_sequences: 16 }
  control_input {
    name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input {
    name: "SEQUENCE" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    repository = tmp_path_factory.mktemp("repository")
    pipelines.write_pipeline(repository, truncation="Refuse", delay_us=20_000)
    inputs, logits = (
        [tensor("TEXT", "TYPE_STRING", "1"), tensor("SHIFT", "TYPE_INT64", "1")],
        tensor("logits", "TYPE_FP32", "3"),
    )
    write_model(
        repository,
        "caller",
        pipelines.config("caller", inputs, [logits], {}, count=4),
        {"model.py": CALLER},
    )
    counted = pipelines.config(
        "counter", [tensor("VALUE", "TYPE_INT64", "1")], [tensor("SUM", "TYPE_INT64", "1")], {}
    )
    write_model(
        repository,
        "counter",
        counted.replace("dynamic_batching { }", SEQUENCES),
        {"model.py": COUNTER},
    )
    with triton_server(repository, [pipelines.ENSEMBLE, "caller", "counter"]) as running:
        yield running


def call(*rows: str | bytes, shift: int = 0) -> dict[str, np.ndarray]:
    return {"TEXT": texts(*rows), "SHIFT": np.full((len(rows), 1), shift, np.int64)}


POISONED = {
    "no rows": (call(), ""),
    "more rows than a batch may have": (call(*["fox"] * 65), "batch-size must be <= 64"),
    "no UTF-8": (call("fox", b"\xff\xfe"), "is not valid UTF-8"),
    "too long": (call("fox " * 60), "but at most 32 tokens are allowed"),
    "ids beyond the vocabulary": (call("the fox", shift=1000), "out of data bounds"),
    "ids far below": (call("the fox", shift=-1000), "out of data bounds"),
    "other numbers of rows": ({**call("fox"), "SHIFT": np.zeros((2, 1), np.int64)}, "batch"),
    "another type": ({**call("fox"), "SHIFT": np.zeros((1, 1), np.float32)}, "data-type"),
    "rank 1": ({"TEXT": texts("fox")[0], "SHIFT": np.zeros(1, np.int64)}, "unexpected shape"),
}
GOOD = (
    "",
    "fox\0dog",
    "[SEP] the [PAD] fox [CLS]",
    "a quick red fox jumps over the old river",
    "cat",
    "\u00fc \U0001f98a",
)


async def test_a_step_that_calls_others(server: LocalTriton) -> None:
    async with TritonClient(server.grpc_address, deadline_s=30) as client:

        async def refused(name: str) -> None:
            inputs, fragment = POISONED[name]
            with pytest.raises(RejectedError) as caught:
                await client.infer("caller", inputs)
            assert fragment in caught.value.reason, name

        async def answered(text: str, alone: np.ndarray) -> None:
            rows = (await client.infer("caller", call(text, "cat")))["logits"]
            np.testing.assert_allclose(rows[0], alone, rtol=TOLERANCE, atol=TOLERANCE)
            np.testing.assert_allclose(
                rows[1], tinymodel.classify(token_ids("cat")), rtol=TOLERANCE, atol=TOLERANCE
            )

        alone = {text: (await client.infer("caller", call(text)))["logits"][0] for text in GOOD}
        for number in range(3):
            sent: list[Awaitable[None]] = [
                *(refused(name) for name in POISONED),
                *(answered(text, alone[text]) for text in GOOD * 2),
            ]
            await asyncio.gather(
                *(sent[place] for place in np.random.default_rng(number).permutation(len(sent)))
            )
        (statistics,) = await client.statistics(pipelines.MODEL)
        assert statistics.inference_count > statistics.execution_count, (
            "the requests were not in company"
        )


async def test_poison_leaves_open_sequences_alone(server: LocalTriton) -> None:
    trusted = TritonClient(server.grpc_address, max_response_bytes=UNLIMITED_BYTES)
    async with trusted as client:

        async def send(
            sequence: int, value: np.ndarray, start: bool = False, end: bool = False
        ) -> int:
            data_type = {np.dtype(np.int64): "INT64", np.dtype(np.float32): "FP32"}[value.dtype]
            given = InferInput("VALUE", list(value.shape), data_type)
            given.set_data_from_numpy(value)
            answer = await client._client.infer(
                "counter",
                [given],
                sequence_id=sequence,
                sequence_start=start,
                sequence_end=end,
                client_timeout=30,
            )
            return int(answer.as_numpy("SUM").item())

        async def good(sequence: int) -> None:
            values = np.random.default_rng(sequence).integers(-99, 99, 8).tolist()
            sums = [
                await send(sequence, np.array([[value]]), place == 0, place == 7)
                for place, value in enumerate(values)
            ]
            assert sums == list(accumulate(values))

        async def poison(sequence: int) -> None:
            # In the name of a sequence that is open; then without one, and without a beginning.
            wrong = [
                np.array([[0.5]], np.float32),
                np.array([1]),
                np.array([[[1]]]),
                np.zeros((0, 1), np.int64),
                np.ones((2, 1), np.int64),
            ]
            for value in wrong:
                with pytest.raises(Exception, match=r"VALUE|batch|correlation|shape"):
                    await send(sequence, value)
            with pytest.raises(Exception, match="correlation ID"):
                await send(0, np.array([[1]]))
            with pytest.raises(Exception, match="must specify the START flag"):
                await send(777, np.array([[1]]))

        await asyncio.gather(
            *(good(number) for number in range(1, 9)), *(poison(number) for number in range(1, 9))
        )
