"""Simulated Triton pods: a gRPC endpoint each, at an address of its own on loopback.

They answer probes and requests as a healthy Triton does, never, or as one with a dead process.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from typing import Any, Final, Self

import grpc
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
SERVICE: Final = "/inference.GRPCInferenceService/"
_PER_BLOCK: Final = 250
_ROWS_MAX: Final = 16


class Health(enum.Enum):
    """How a pod answers."""

    GOOD = enum.auto()
    HUNG = enum.auto()
    """It accepts connections and never answers."""
    DEAD_PROCESS = enum.auto()
    """The server is ready, but every inference fails: a process of its tokenizer is gone."""


class SimulatedPod:
    """One endpoint; an async context manager is not needed, :meth:`stop` ends it."""

    def __init__(self, address: str, answers: Answers) -> None:
        """Create it; :meth:`start` makes it listen."""
        self.address = address
        self.health = Health.GOOD
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handler(self, answers),))

    async def start(self) -> Self:
        """Listen."""
        self._server.add_insecure_port(f"{self.address}:{PORT_GRPC}")
        await self._server.start()
        return self

    async def stop(self) -> None:
        """End at once; requests in progress fail."""
        await self._server.stop(None)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, pod: SimulatedPod, answers: Answers) -> None:
        self._pod, self._answers = pod, answers

    def service(self, details: Any) -> Any:
        method = details.method.removeprefix(SERVICE)

        async def answer(request: bytes, context: Any) -> bytes:
            if self._pod.health is Health.HUNG:
                await asyncio.Event().wait()
            if self._pod.health is Health.DEAD_PROCESS and method == "ModelInfer":
                words = "Failed to process the request(s) for model instance 'tokenizer_0_0'"
                await context.abort(
                    grpc.StatusCode.INTERNAL,
                    f"{words}, message: Stub process 'tokenizer_0_0' is not healthy.",
                )
            return self._answers.to(method, request)

        return grpc.unary_unary_rpc_method_handler(answer)


class Answers:
    """Answers of a healthy pod, made once."""

    def __init__(self) -> None:
        pipeline = builders.pipeline(ensemble={"modelName": MODEL})
        graph = build(pipeline, builders.options())
        text = render(pipeline, graph, builders.options()).files[f"{MODEL}/config.pbtxt"]
        self._config = text_format.Parse(text, model_config_pb2.ModelConfig())
        index = service_pb2.RepositoryIndexResponse()
        for name in (MODEL, *(step.model_name for step in graph.steps)):
            index.models.add(name=name, version="1", state="READY")
        self._fixed = {
            "ModelReady": service_pb2.ModelReadyResponse(ready=True),
            "RepositoryIndex": index,
            "ModelConfig": service_pb2.ModelConfigResponse(config=self._config),
            "ModelStatistics": service_pb2.ModelStatisticsResponse(),
        }

    def to(self, method: str, request: bytes) -> bytes:
        """Return the serialized answer to a request."""
        if method != "ModelInfer":
            return bytes(self._fixed[method].SerializeToString())
        asked = service_pb2.ModelInferRequest.FromString(request)
        rows = min(asked.inputs[0].shape[0], _ROWS_MAX)
        answer = service_pb2.ModelInferResponse(model_name=MODEL)
        for output in self._config.output:
            kind = model_config_pb2.DataType.Name(output.data_type).removeprefix("TYPE_")
            kind = "BYTES" if kind == "STRING" else kind
            shape = [rows, *output.dims]
            answer.outputs.add(name=output.name, datatype=kind, shape=shape)
            if kind == "BYTES":
                data = serialize_byte_tensor(np.full(shape, b"text", dtype=np.object_)).item()
            else:
                data = np.zeros(shape, triton_to_np_dtype(kind)).tobytes()
            answer.raw_output_contents.append(data)
        return bytes(answer.SerializeToString())


class Addresses:
    """Addresses on loopback, none of which is used twice."""

    def __init__(self, block: int) -> None:
        """Create it; parallel runs have another ``block`` (64 to 250)."""
        self._block, self._numbers = block, itertools.count()

    def next(self) -> str:
        """Return an address that was not used before."""
        number = next(self._numbers)
        return f"127.{self._block}.{number // _PER_BLOCK}.{number % _PER_BLOCK + 1}"
