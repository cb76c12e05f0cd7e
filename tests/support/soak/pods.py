"""Simulated Triton pods: a gRPC endpoint and a metrics page, at an address of its own on loopback.

They answer probes and requests as a healthy Triton does, never, or as one with a dead process. They
change instance counts when they are told to, and report them.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
from typing import Any, Final, Self

import grpc
import numpy as np
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from tests.support import builders
from tests.support.prometheus import page
from triton_pipelines.api.names import PORT_GRPC, PORT_METRICS
from triton_pipelines.compile.graph import build
from triton_pipelines.compile.render import render

MODEL: Final = "pipeline"
"""Name of the ensemble in every pod."""
SERVICE: Final = "/inference.GRPCInferenceService/"
TOKENIZER: Final = "tokenizer"
"""Model whose instances the operator scales."""
PAGE: Final = page(0, (TOKENIZER, "model", "postprocess", MODEL)).encode()
"""Metrics of a pod without traffic: they never change, so a settled operator writes nothing."""
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
        self.counts: dict[str, int] = {}
        """Changed instance counts by model."""
        self.page: bytes | None = PAGE
        """Its metrics page; None: a request for it never ends."""
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handler(self, answers),))
        self._metrics: asyncio.Server | None = None

    async def start(self) -> Self:
        """Listen."""
        self._server.add_insecure_port(f"{self.address}:{PORT_GRPC}")
        await self._server.start()
        self._metrics = await asyncio.start_server(self._send_page, self.address, PORT_METRICS)
        return self

    async def stop(self) -> None:
        """End at once; requests in progress fail."""
        if self._metrics is not None:
            self._metrics.close()
        await self._server.stop(None)

    async def _send_page(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            if self.page is None or self.health is Health.HUNG:
                await reader.read()  # until the client gives up
            else:
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(self.page)}\r\n"
                writer.write(f"{head}Connection: close\r\n\r\n".encode() + self.page)
                await writer.drain()
        writer.close()


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
            return self._answers.to(method, request, self._pod.counts)

        return grpc.unary_unary_rpc_method_handler(answer)


class Answers:
    """Answers of a healthy pod, made once."""

    def __init__(self) -> None:
        pipeline = builders.pipeline(ensemble={"modelName": MODEL})
        graph = build(pipeline, builders.options())
        files = render(pipeline, graph, builders.options()).files
        models = (MODEL, *(step.model_name for step in graph.steps))
        self._configs = {
            name: text_format.Parse(files[f"{name}/config.pbtxt"], model_config_pb2.ModelConfig())
            for name in models
        }
        self._config = self._configs[MODEL]
        index = service_pb2.RepositoryIndexResponse()
        for name in models:
            index.models.add(name=name, version="1", state="READY")
        self._fixed = {
            "ModelReady": service_pb2.ModelReadyResponse(ready=True),
            "RepositoryIndex": index,
            "RepositoryModelLoad": service_pb2.RepositoryModelLoadResponse(),
            "ModelStatistics": service_pb2.ModelStatisticsResponse(),
        }

    def to(self, method: str, request: bytes, counts: dict[str, int] | None = None) -> bytes:
        """Return the serialized answer to a request.

        Args:
            method: method of Triton's gRPC API.
            request: the serialized request.
            counts: changed instance counts of the pod by model; a load changes them.
        """
        counts = {} if counts is None else counts
        if method == "ModelConfig":
            asked_for = service_pb2.ModelConfigRequest.FromString(request).name
            answer = service_pb2.ModelConfigResponse(config=self._configs[asked_for])
            if asked_for in counts:
                answer.config.instance_group[0].count = counts[asked_for]
            return bytes(answer.SerializeToString())
        if method == "RepositoryModelLoad":
            load = service_pb2.RepositoryModelLoadRequest.FromString(request)
            config = model_config_pb2.ModelConfig()
            json_format.Parse(load.parameters["config"].string_param, config)
            counts[load.model_name] = sum(group.count for group in config.instance_group)
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
