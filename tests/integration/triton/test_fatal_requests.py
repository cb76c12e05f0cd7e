"""Requests that are known to end the server (docs/user/malformed-requests.md).

If a test fails because the server survives, the release has the fix: correct the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.triton import triton_server
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration

MODEL = "words"
CONFIG = """backend: "python"
max_batch_size: 8
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""
CODE = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(item, "TEXT").as_numpy() for item in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("LABEL", text)]) for text in texts]
"""
EXIT_SECONDS = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalTriton]:
    (tmp_path / MODEL / "1").mkdir(parents=True)
    (tmp_path / MODEL / "config.pbtxt").write_text(f'name: "{MODEL}"\n{CONFIG}')
    (tmp_path / MODEL / "1" / "model.py").write_text(CODE)
    with triton_server(tmp_path, [MODEL]) as running:
        yield running


async def over_http(server: LocalTriton) -> None:
    text = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
    wanted = {"name": "LABEL", "parameters": {"classification": 1}}
    async with httpx.AsyncClient(timeout=EXIT_SECONDS) as client:
        with contextlib.suppress(httpx.TransportError):
            await client.post(
                f"{server.http_url}/v2/models/{MODEL}/infer",
                json={"inputs": [text], "outputs": [wanted]},
            )


async def over_grpc(server: LocalTriton) -> None:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    text = request.inputs.add(name="TEXT", datatype="BYTES", shape=[1, 1])
    text.contents.bytes_contents.append(b"a")
    request.outputs.add(name="LABEL").parameters["classification"].int64_param = 1
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
                request, timeout=EXIT_SECONDS
            )


@pytest.mark.parametrize("send", [over_http, over_grpc])
async def test_classification_of_a_text_output_ends_the_server(
    server: LocalTriton, send: object
) -> None:
    process = server._process
    assert process is not None
    assert callable(send)
    await send(server)
    code = await asyncio.to_thread(process.wait, EXIT_SECONDS)
    assert code == -signal.SIGFPE
