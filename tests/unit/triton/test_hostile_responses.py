"""Responses of pods that try to exhaust the operator's memory, over real gRPC on loopback.

The client runs in a process of its own, whose peak memory is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from tritonclient.grpc import InferResult, model_config_pb2, service_pb2

from tests.support.messages import Messages
from tests.support.peakmemory import MIB, peak_growth
from triton_pipelines.triton.client import RESPONSE_BYTES_MAX, TritonClient
from triton_pipelines.triton.errors import RejectedError, TooLargeError
from triton_pipelines.triton.model_index import INDEX_ENTRIES_MAX
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import probe
from triton_pipelines.triton.response_limits import (
    DESCRIPTION_BYTES_MAX,
    FIELDS_MAX,
    TOO_LARGE,
    UNREADABLE,
    ResponseBudget,
    checked,
    description_bytes,
)

SERVICE = "/inference.GRPCInferenceService/"
PROBE = """
import sys
import numpy as np
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import probe

async def main(address, stream, error):
    request = ProbeRequest({"X": np.zeros((1, 1), np.float32)}, stream=stream == "stream")
    found = await probe(address, "m", "key", request)
    assert error in f"{found.error} {found.inference_error} {found.inference_ok}", found
    assert len(f"{found}") < 10_000
"""
COUNT = """
from types import SimpleNamespace
from triton_pipelines.controllers.autoscaler import triton_pod
from triton_pipelines.controllers.autoscaler.actuator import PodRejectedError

async def main(address, *_):
    triton_pod.grpc_address = lambda ip: address
    pod = SimpleNamespace(ip="")
    target = SimpleNamespace(pod=pod, control_key="key", tls=None)
    try:
        await triton_pod.TritonPod(target, None, None).count("m")
    except PodRejectedError:
        return
    raise AssertionError("the response is accepted")
"""


class Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers each method with bytes that need not be a message."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self.answers = answers

    def service(self, details: Any) -> Any:
        answer = self.answers[details.method.removeprefix(SERVICE)]

        async def once(request: bytes, context: Any) -> bytes:
            return answer

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            # As Triton: a stream that ends before the request has been written is an error of the
            # transport.
            async for _ in requests:
                yield answer

        if details.method.endswith("StreamInfer"):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(once)


def good() -> dict[str, bytes]:
    """Answers of a pod whose model has one output."""
    config = model_config_pb2.ModelConfig(name="m", max_batch_size=1)
    config.output.add(name="Y", data_type=model_config_pb2.TYPE_FP32, dims=[1])
    tensor = service_pb2.ModelInferResponse(
        model_name="m", raw_output_contents=[np.ones((1, 1), np.float32).tobytes()]
    )
    tensor.outputs.add(name="Y", datatype="FP32", shape=[1, 1])
    index = service_pb2.RepositoryIndexResponse()
    index.models.add(name="m", version="1", state="READY")
    return {
        "ModelReady": service_pb2.ModelReadyResponse(ready=True).SerializeToString(),
        "RepositoryIndex": index.SerializeToString(),
        "ModelConfig": service_pb2.ModelConfigResponse(config=config).SerializeToString(),
        "ModelInfer": tensor.SerializeToString(),
        "ModelStreamInfer": service_pb2.ModelStreamInferResponse(
            infer_response=tensor
        ).SerializeToString(),
    }


@asynccontextmanager
async def pod(**answers: bytes) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.max_send_message_length", 2**31 - 1)])
    server.add_generic_rpc_handlers((Answers(good() | answers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def nested(number: int, inner: bytes) -> bytes:
    """A message with one field of this number."""
    size, length = b"", len(inner)
    while length > 0x7F:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + inner


MANY = RESPONSE_BYTES_MAX // 2 - 1024
EMPTY_GROUPS = nested(1, bytes([7 << 3 | 2, 0]) * MANY)
EMPTY_MODELS = bytes([1 << 3 | 2, 0]) * MANY
EMPTY_OUTPUTS = bytes([5 << 3 | 2, 0]) * MANY
EMPTY_TENSORS = bytes([6 << 3 | 2, 0]) * MANY
HOSTILE: dict[str, tuple[dict[str, bytes], str, str]] = {
    "large config": ({"ModelConfig": b"\0" * 200 * MIB}, "", "True"),
    "config of empty groups": ({"ModelConfig": EMPTY_GROUPS}, "", "True"),
    "index of empty models": ({"RepositoryIndex": EMPTY_MODELS}, "", "KiB"),
    "empty outputs": ({"ModelInfer": EMPTY_OUTPUTS}, "", "True"),
    "empty tensors": ({"ModelInfer": EMPTY_TENSORS}, "", "True"),
    "empty outputs on a stream": (
        {"ModelStreamInfer": nested(2, EMPTY_OUTPUTS)},
        "stream",
        "True",
    ),
    "long error on a stream": (
        {"ModelStreamInfer": nested(1, b"#" * (DESCRIPTION_BYTES_MAX - 100))},
        "stream",
        "####",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_probe_of_a_hostile_pod_takes_little_memory(case: str) -> None:
    answers, kind, error = HOSTILE[case]
    async with pod(**answers) as address:
        growth = await asyncio.to_thread(peak_growth, PROBE, address, kind, error)
    assert growth < 4 * RESPONSE_BYTES_MAX


@pytest.mark.parametrize("config", [b"\0" * 200 * MIB, EMPTY_GROUPS], ids=["large", "groups"])
async def test_a_count_of_a_hostile_pod_takes_little_memory(config: bytes) -> None:
    async with pod(ModelConfig=config) as address:
        growth = await asyncio.to_thread(peak_growth, COUNT, address)
    assert growth < 32 * MIB


@pytest.mark.parametrize("method", sorted(good()))
async def test_bytes_that_are_no_message_are_a_fault_of_the_pod(method: str) -> None:
    stream = method == "ModelStreamInfer"
    request = ProbeRequest({"X": np.zeros((1, 1), np.float32)}, stream=stream)
    async with pod(**{method: b"\xff" * 20}) as address:
        found = await probe(address, "m", "key", request)
    assert not found.inference_ok
    assert not found.healthy


@pytest.mark.parametrize("counts", [[2**31 - 1] * 2, [-1], [-(2**31)] * 1000])
async def test_an_impossible_number_of_instances_is_rejected(
    counts: list[int], messages: Messages
) -> None:
    """The status has no room for it."""
    config = model_config_pb2.ModelConfig(name="m")
    for count in counts:
        config.instance_group.add(count=count)
    answer = service_pb2.ModelConfigResponse(config=config).SerializeToString()
    async with pod(ModelConfig=answer) as address, TritonClient(address) as client:
        with messages.raises(RejectedError, match="instances"):
            await client.instance_count("m")


async def test_good_responses_are_accepted() -> None:
    request = ProbeRequest({"X": np.zeros((1, 1), np.float32)})
    async with pod() as address:
        assert (await probe(address, "m", "key", request)).healthy
        assert (await probe(address, "m", "key", ProbeRequest(request.inputs, stream=True))).healthy


async def test_the_client_says_why_a_response_is_not_used(messages: Messages) -> None:
    async with pod(ModelConfig=EMPTY_GROUPS) as address, TritonClient(address) as client:
        with messages.raises(TooLargeError, match="512"):
            await client.model_config("m")
    async with pod(ModelConfig=b"\xff" * 20) as address, TritonClient(address) as client:
        with messages.raises(RejectedError):
            await client.model_config("m")


def test_tensor_data_do_not_count() -> None:
    data = service_pb2.ModelInferResponse(model_name="m", raw_output_contents=[bytes(8 * MIB)])
    encoded = data.SerializeToString()
    assert description_bytes(memoryview(encoded), (6,)) == len(encoded) - 8 * MIB
    decode = checked(f"{SERVICE}ModelInfer", service_pb2.ModelInferResponse.FromString)
    assert decode(encoded) == data
    stream = service_pb2.ModelStreamInferResponse(infer_response=data).SerializeToString()
    assert description_bytes(memoryview(stream), (2, 6)) == len(stream) - 8 * MIB
    assert checked(f"{SERVICE}ModelConfig", bytes)(encoded) is TOO_LARGE


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0b", b"\x80", b"\x32\xff"])
def test_malformed_messages_are_unreadable(data: bytes) -> None:
    decode = checked(f"{SERVICE}ModelInfer", service_pb2.ModelInferResponse.FromString)
    assert decode(data) is UNREADABLE


def test_a_budget_gives_few_clients_the_large_limit() -> None:
    budget = ResponseBudget(large=1, large_bytes=10, small_bytes=1, bytes_per_second=1)
    with budget.share() as first, budget.share() as second:
        assert (first.bytes_max, second.bytes_max) == (10, 1)
    with pytest.raises(KeyError), budget.share():
        raise KeyError
    with budget.share() as third:
        assert third.bytes_max == 10


def test_a_budget_limits_how_fast_large_responses_arrive() -> None:
    times = iter([0.0, 0.0, 1.9, 2.0, 2.1])
    budget = ResponseBudget(1, 10, 1, bytes_per_second=5, clock=lambda: next(times))
    with budget.share() as share:
        share.received = 10
    for limit in (1, 1, 10, 10):
        with budget.share() as share:
            assert share.bytes_max == limit


def test_the_number_of_fields_is_limited() -> None:
    few = service_pb2.ModelInferResponse(raw_output_contents=[b""] * (FIELDS_MAX // 2))
    many = service_pb2.ModelInferResponse(raw_output_contents=[b""] * (2 * FIELDS_MAX))
    assert description_bytes(memoryview(few.SerializeToString()), (6,)) == FIELDS_MAX
    encoded = memoryview(many.SerializeToString())
    assert len(encoded) < DESCRIPTION_BYTES_MAX
    assert description_bytes(encoded, (6,)) > DESCRIPTION_BYTES_MAX


async def test_the_number_of_models_is_limited() -> None:
    index = service_pb2.RepositoryIndexResponse()
    for number in range(INDEX_ENTRIES_MAX):
        index.models.add(name=str(number), version="1", state="READY")
    largest = index.SerializeToString()
    async with pod(RepositoryIndex=largest) as address, TritonClient(address) as client:
        assert len(await client.repository_index()) == INDEX_ENTRIES_MAX
    index.models.add()
    too_large = index.SerializeToString()
    async with pod(RepositoryIndex=too_large) as address, TritonClient(address) as client:
        with pytest.raises(TooLargeError, match="more than 2000 entries"):
            await client.repository_index()


async def test_each_output_is_decoded_without_a_search_among_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library's own search takes seconds for a few thousand outputs."""
    response = service_pb2.ModelInferResponse()
    for number in range(FIELDS_MAX // 2):
        response.outputs.add(name=str(number), datatype="FP32", shape=[1])
        response.raw_output_contents.append(np.float32(number).tobytes())
    searched = []
    decode = InferResult.as_numpy

    def counted(result: InferResult, name: str) -> object:
        searched.append(len(result.get_response().outputs))
        return decode(result, name)

    monkeypatch.setattr(InferResult, "as_numpy", counted)
    arrays = TritonClient("pod:1")._arrays("m", InferResult(response))
    assert [float(array[0]) for array in arrays.values()] == list(range(FIELDS_MAX // 2))
    assert sum(searched) == FIELDS_MAX // 2
