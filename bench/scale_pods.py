"""gRPC endpoints of simulated pods, each with its own address on loopback and Triton's port."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from tests.support import builders
from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.compile.graph import build
from triton_pipelines.compile.render import render

MODEL: Final = "pipeline"
"""Name of the ensemble in every pod."""
_SERVICE: Final = "/inference.GRPCInferenceService/"
_PER_BLOCK: Final = 250
_ROWS: Final = 2


@contextmanager
def serve_pods(healthy: int, hung: int) -> Iterator[tuple[list[str], list[str]]]:
    """Serve pods in a process of its own; return the addresses of healthy and of hung ones.

    A hung pod accepts connections and never answers.
    """
    # Other benchmarks on this machine use other blocks.
    block = random.randint(64, 250)
    addresses = [
        f"127.{block}.{number // _PER_BLOCK}.{number % _PER_BLOCK + 1}"
        for number in range(healthy + hung)
    ]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(theirs, addresses[:healthy], addresses[healthy:]), daemon=True
    )
    process.start()
    try:
        ours.recv()
        yield addresses[:healthy], addresses[healthy:]
    finally:
        process.terminate()
        process.join(10)


def _run(pipe: Connection, healthy: list[str], hung: list[str]) -> None:
    async def serve() -> None:
        servers = [(grpc.aio.server(), healthy, False), (grpc.aio.server(), hung, True)]
        for server, addresses, hangs in servers:
            server.add_generic_rpc_handlers((_Answers(hangs=hangs),))
            for address in addresses:
                server.add_insecure_port(f"{address}:{PORT_GRPC}")
            await server.start()
        pipe.send("ready")
        await asyncio.Event().wait()

    asyncio.run(serve())


class _Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers the calls of a probe as a healthy Triton does, or never."""

    def __init__(self, *, hangs: bool) -> None:
        self._hangs = hangs
        self._answers = _answers()

    def service(self, details: Any) -> Any:
        answer = self._answers[details.method.removeprefix(_SERVICE)]

        async def once(request: bytes, context: Any) -> bytes:
            if self._hangs:
                await asyncio.Event().wait()
            return answer

        return grpc.unary_unary_rpc_method_handler(once)


def _answers() -> dict[str, bytes]:
    pipeline = builders.pipeline(ensemble={"modelName": MODEL})
    graph = build(pipeline, builders.options())
    files = render(pipeline, graph, builders.options()).files
    config = text_format.Parse(files[f"{MODEL}/config.pbtxt"], model_config_pb2.ModelConfig())
    index = service_pb2.RepositoryIndexResponse()
    for name in (MODEL, *(step.model_name for step in graph.steps)):
        index.models.add(name=name, version="1", state="READY")
    return {
        "ModelReady": service_pb2.ModelReadyResponse(ready=True).SerializeToString(),
        "RepositoryIndex": index.SerializeToString(),
        "ModelConfig": service_pb2.ModelConfigResponse(config=config).SerializeToString(),
        "ModelInfer": _inference(config).SerializeToString(),
    }


def _inference(config: Any) -> Any:
    """Return a response to the example request, which has :data:`_ROWS` rows."""
    answer = service_pb2.ModelInferResponse(model_name=MODEL)
    for output in config.output:
        kind = model_config_pb2.DataType.Name(output.data_type).removeprefix("TYPE_")
        kind = "BYTES" if kind == "STRING" else kind
        shape = [_ROWS, *output.dims]
        answer.outputs.add(name=output.name, datatype=kind, shape=shape)
        if kind == "BYTES":
            data = serialize_byte_tensor(np.full(shape, b"text", dtype=np.object_)).item()
        else:
            data = np.zeros(shape, triton_to_np_dtype(kind)).tobytes()
        answer.raw_output_contents.append(data)
    return answer
