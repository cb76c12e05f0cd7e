"""Malformed inference requests, over HTTP and gRPC, each made anew from a random generator.

All are for the small text pipeline of :mod:`tests.support.pipelines`. Requests that are known to
end a Triton release are not among them (docs/user/malformed-requests.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.pipelines import ENSEMBLE

DEADLINE_SECONDS = 30.0
MAX_BATCH = 64
_PATH = f"/v2/models/{ENSEMBLE}/infer"


@dataclass(frozen=True)
class Target:
    """A server under test."""

    host: str
    """Host of the HTTP API."""
    port: int
    """Port of the HTTP API."""
    channel: grpc.aio.Channel
    """Channel to the gRPC API."""

    @classmethod
    def of(cls, http_url: str, channel: grpc.aio.Channel) -> Target:
        """Return the target with these addresses."""
        parts = urlsplit(http_url)
        assert parts.hostname is not None
        assert parts.port is not None
        return cls(parts.hostname, parts.port, channel)

    async def raw(self, sent: bytes, *, cut: bool = False) -> int:
        """Send bytes over HTTP; return the status, or 0 if the connection ended without one.

        Args:
            sent: the whole request.
            cut: close the connection at once and do not wait for an answer.
        """
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(sent)
            await writer.drain()
            if cut:
                return 0
            line = await asyncio.wait_for(reader.readline(), DEADLINE_SECONDS)
            return int(line.split()[1]) if line.startswith(b"HTTP/") else 0
        except (ConnectionError, IndexError):
            return 0
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def post(
        self, body: bytes, path: str = _PATH, method: str = "POST", **headers: str
    ) -> int:
        """Send a request over HTTP; return its status."""
        fields = {
            "Host": self.host,
            "Content-Length": str(len(body)),
            "Connection": "close",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return await self.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)

    async def infer(self, request: service_pb2.ModelInferRequest, **options: Any) -> str:
        """Send a request over gRPC; return the name of its status."""
        options.setdefault("timeout", DEADLINE_SECONDS)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        try:
            await stub.ModelInfer(request, **options)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"

    async def serialized(self, data: bytes) -> str:
        """Send bytes as a gRPC request; return the name of its status."""
        call = self.channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=None,
            response_deserializer=None,
        )
        try:
            await call(data, timeout=DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"


Sender = Callable[[Target, Random], Awaitable[bool]]
"""Sends one malformed request; returns whether it was refused."""


# --- HTTP -----------------------------------------------------------------------------------------


def text(random: Random) -> str:
    """Return a short text."""
    return " ".join(random.choice(("fox", "dog", "cat", "the")) for _ in range(3))


def tensor(random: Random, **changes: Any) -> dict[str, Any]:
    """Return a correct input in JSON, with changes."""
    made = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [text(random)]}
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def body(*inputs: Any, **more: Any) -> bytes:
    """Return a request's body."""
    return json.dumps({"inputs": list(inputs), **more}).encode()


def http_inputs(make: Callable[[Random], dict[str, Any]]) -> Sender:
    """A request over HTTP with one wrong input."""

    async def send(target: Target, random: Random) -> bool:
        return await target.post(body(make(random))) >= 400

    return send


def http_body(make: Callable[[Random], bytes], **headers: str) -> Sender:
    """A request over HTTP with a wrong body."""

    async def send(target: Target, random: Random) -> bool:
        status = await target.post(make(random), **headers)
        return status == 0 or status >= 400

    return send


def http_binary(make: Callable[[Random], tuple[bytes, int]], shift: int = 0) -> Sender:
    """A request over HTTP with binary data.

    Args:
        make: returns the data, and the size that the header declares.
        shift: error of the declared length of the JSON part.
    """

    async def send(target: Target, random: Random) -> bool:
        data, size = make(random)
        parameters = {"binary_data_size": size}
        header = body(tensor(random, data=None, parameters=parameters))
        length = str(max(len(header) + shift, -1))
        status = await target.post(header + data, Inference_Header_Content_Length=length)
        return status == 0 or status >= 400

    return send


def http_raw(make: Callable[[Random], bytes], *, cut: bool = False) -> Sender:
    """Bytes that are no request."""

    async def send(target: Target, random: Random) -> bool:
        status = await target.raw(make(random), cut=cut)
        return status == 0 or status >= 400

    return send


def element(data: bytes, length: int | None = None) -> bytes:
    """Return an element of a BYTES tensor; ``length`` is what its length field says."""
    return struct.pack("<I", len(data) if length is None else length) + data


def _good(random: Random) -> bytes:
    return body(tensor(random))


def _head(length: int) -> bytes:
    return f"POST {_PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode()


def _cut_body(random: Random) -> bytes:
    whole = _good(random)
    return _head(len(whole)) + whole[: random.randrange(len(whole))]


def _binary(random: Random) -> tuple[bytes, int]:
    data = element(text(random).encode())
    return data, len(data)


def _long_names(random: Random) -> bytes:
    return body(tensor(random, name="T" * random.randrange(1_000, 100_000)))


HTTP: Mapping[str, Sender] = {
    "JSON cut off": http_body(lambda random: _good(random)[: random.randrange(1, 60)]),
    "no JSON": http_body(lambda random: random.randbytes(random.randrange(1, 300))),
    "JSON of another type": http_body(
        lambda random: random.choice((b"[]", b"3", b"null", b'"TEXT"', b"true"))
    ),
    "inputs of another type": http_body(
        lambda random: json.dumps({"inputs": random.choice((3, "x", {}, None, [3]))}).encode()
    ),
    "no inputs": http_body(lambda random: body()),
    "JSON nested deeply": http_body(lambda random: b'{"inputs":' + b"[" * 5_000 + b"]" * 5_000),
    "JSON with bytes that are not UTF-8": http_body(
        lambda random: _good(random).replace(b'"data": ["', b'"data": ["\xff\xfe')
    ),
    "JSON with half of a surrogate pair": http_body(
        lambda random: _good(random).replace(b'"data": ["', b'"data": ["\\ud800')
    ),
    "an unknown input": http_inputs(lambda random: tensor(random, name="OTHER")),
    "a name of 100 kB": http_body(_long_names),
    "an input twice": http_body(lambda random: body(tensor(random), tensor(random))),
    "no name": http_inputs(lambda random: tensor(random, name=None)),
    "no data type": http_inputs(lambda random: tensor(random, datatype=None)),
    "an unknown data type": http_inputs(lambda random: tensor(random, datatype="TEXT")),
    "another data type": http_inputs(
        lambda random: tensor(random, datatype=random.choice(("INT64", "FP32", "BOOL")), data=[1])
    ),
    "numbers for texts": http_inputs(lambda random: tensor(random, data=[random.randrange(9)])),
    "no shape": http_inputs(lambda random: tensor(random, shape=None)),
    "another rank": http_inputs(
        lambda random: tensor(random, shape=random.choice(([1], [1, 1, 1], [])))
    ),
    "a negative dimension": http_inputs(lambda random: tensor(random, shape=[1, -1])),
    "a dimension that is no number": http_inputs(lambda random: tensor(random, shape=["1", 1])),
    "more data than the shape": http_inputs(lambda random: tensor(random, data=["a", "b"])),
    "less data than the shape": http_inputs(lambda random: tensor(random, shape=[3, 1])),
    "no rows": http_inputs(lambda random: tensor(random, shape=[0, 1], data=[])),
    "more rows than a batch": http_inputs(
        lambda random: tensor(random, shape=[MAX_BATCH + 1, 1], data=["a"] * (MAX_BATCH + 1))
    ),
    "an unknown output": http_body(
        lambda random: body(tensor(random), outputs=[{"name": "OTHER"}])
    ),
    "an unknown model": lambda target, random: _refused(
        target.post(_good(random), "/v2/models/other/infer")
    ),
    "an unknown version": lambda target, random: _refused(
        target.post(_good(random), f"/v2/models/{ENSEMBLE}/versions/9/infer")
    ),
    "a version that is no number": lambda target, random: _refused(
        target.post(_good(random), f"/v2/models/{ENSEMBLE}/versions/x/infer")
    ),
    "an unknown path": lambda target, random: _refused(
        target.post(_good(random), "/v2/" + "a" * random.randrange(1, 4_000))
    ),
    "another method": lambda target, random: _refused(
        target.post(_good(random), method=random.choice(("PUT", "DELETE", "PATCH")))
    ),
    "unknown shared memory": http_inputs(
        lambda random: tensor(
            random,
            data=None,
            parameters={"shared_memory_region": "x", "shared_memory_byte_size": 8},
        )
    ),
    "binary data shorter than declared": http_binary(lambda random: (_binary(random)[0], 999)),
    "binary data longer than declared": http_binary(lambda random: (_binary(random)[0], 5)),
    "a negative size of binary data": http_binary(lambda random: (_binary(random)[0], -4)),
    "a length of the JSON part beyond the body": http_binary(_binary, shift=10_000),
    "a negative length of the JSON part": http_binary(_binary, shift=-10_000),
    "a length of the JSON part inside it": http_binary(_binary, shift=-20),
    "binary data with fewer texts than rows": http_binary(lambda random: (b"", 0)),
    "binary data with more texts than rows": http_binary(
        lambda random: (element(b"a") + element(b"b"), 10)
    ),
    "binary data that ends in a length field": http_binary(lambda random: (b"\x01\x00", 2)),
    "a header of 100 kB": http_body(_good, X_Long="x" * 100_000),
    "a connection cut in the body": http_raw(_cut_body, cut=True),
    "a connection cut in the headers": http_raw(
        lambda random: _head(100)[: random.randrange(1, 40)], cut=True
    ),
    "no HTTP": http_raw(lambda random: random.randbytes(random.randrange(8, 400)) + b"\r\n\r\n"),
    "a content length that is no number": http_raw(
        lambda random: b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n"
    ),
    "chunks that are none": http_raw(
        lambda random: (
            f"POST {_PATH} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"
        ).encode()
    ),
}
"""Over HTTP, by what is wrong."""
EMPTY: Mapping[str, Sender] = {
    "no body": http_body(lambda random: b""),
    "compressed data that is not": http_body(_good, Content_Encoding="gzip"),
}
"""Over HTTP: requests without content, which Triton answers as one with an empty text."""


async def _refused(status: Awaitable[int]) -> bool:
    found = await status
    return found == 0 or found >= 400


# --- gRPC -----------------------------------------------------------------------------------------


def request(
    random: Random,
    data: bytes | None = None,
    *,
    shape: tuple[int, ...] = (1, 1),
    datatype: str = "BYTES",
    name: str = "TEXT",
    model: str = ENSEMBLE,
) -> service_pb2.ModelInferRequest:
    """Return a request over gRPC, correct but for what is given."""
    made = service_pb2.ModelInferRequest(model_name=model)
    made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.raw_input_contents.append(element(text(random).encode()) if data is None else data)
    return made


def grpc_request(make: Callable[[Random], service_pb2.ModelInferRequest]) -> Sender:
    """A request over gRPC."""

    async def send(target: Target, random: Random) -> bool:
        return await target.infer(make(random)) != "OK"

    return send


def _without(random: Random, field: str) -> service_pb2.ModelInferRequest:
    made = request(random)
    made.ClearField(field)
    return made


def _with_output(random: Random) -> service_pb2.ModelInferRequest:
    made = request(random)
    made.outputs.add(name="OTHER")
    return made


def _twice(random: Random) -> service_pb2.ModelInferRequest:
    made = request(random)
    made.inputs.append(made.inputs[0])
    return made


def _both_contents(random: Random) -> service_pb2.ModelInferRequest:
    made = request(random)
    made.inputs[0].contents.bytes_contents.append(b"a")
    return made


def _other_contents(random: Random) -> service_pb2.ModelInferRequest:
    made = _without(random, "raw_input_contents")
    made.inputs[0].contents.int_contents.append(1)
    return made


def _fewer_contents(random: Random) -> service_pb2.ModelInferRequest:
    made = _without(random, "raw_input_contents")
    made.inputs[0].shape[:] = [3, 1]
    made.inputs[0].contents.bytes_contents.append(b"a")
    return made


def _unknown_region(random: Random) -> service_pb2.ModelInferRequest:
    made = _without(random, "raw_input_contents")
    made.inputs[0].parameters["shared_memory_region"].string_param = "x"
    made.inputs[0].parameters["shared_memory_byte_size"].int64_param = 8
    return made


async def _not_protobuf(target: Target, random: Random) -> bool:
    return await target.serialized(b"\xff" + random.randbytes(random.randrange(1, 400))) != "OK"


async def _cut_protobuf(target: Target, random: Random) -> bool:
    whole = request(random).SerializeToString()
    return await target.serialized(whole[: random.randrange(1, len(whole) - 1)]) != "OK"


async def _long_metadata(target: Target, random: Random) -> bool:
    return await target.infer(request(random), metadata=(("x-long", "x" * 60_000),)) != "OK"


async def _too_late(target: Target, random: Random) -> bool:
    return await target.infer(request(random), timeout=0.0005) != "OK"


async def _cancelled(target: Target, random: Random) -> bool:
    task = asyncio.create_task(target.infer(request(random)))
    await asyncio.sleep(random.uniform(0, 0.01))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return True


GRPC: Mapping[str, Sender] = {
    "no inputs": grpc_request(lambda random: _without(random, "inputs")),
    "no data": grpc_request(lambda random: _without(random, "raw_input_contents")),
    "an unknown input": grpc_request(lambda random: request(random, name="OTHER")),
    "an input twice": grpc_request(_twice),
    "an unknown output": grpc_request(_with_output),
    "an unknown model": grpc_request(lambda random: request(random, model="other")),
    "another data type": grpc_request(
        lambda random: request(random, bytes(8), datatype=random.choice(("INT64", "FP64")))
    ),
    "an unknown data type": grpc_request(lambda random: request(random, datatype="TEXT")),
    "another rank": grpc_request(
        lambda random: request(random, shape=random.choice(((1,), (1, 1, 1))))
    ),
    "a negative dimension": grpc_request(lambda random: request(random, shape=(1, -1))),
    "no rows": grpc_request(lambda random: request(random, b"", shape=(0, 1))),
    "more rows than a batch": grpc_request(
        lambda random: request(random, element(b"a") * 65, shape=(65, 1))
    ),
    "fewer texts than rows": grpc_request(lambda random: request(random, shape=(3, 1))),
    "more texts than rows": grpc_request(
        lambda random: request(random, element(b"a") + element(b"b"))
    ),
    "data that ends in a length field": grpc_request(
        lambda random: request(random, element(b"a") + b"\x03\x00", shape=(2, 1))
    ),
    "texts in two ways at once": grpc_request(_both_contents),
    "numbers for texts": grpc_request(_other_contents),
    "fewer texts than rows, not raw": grpc_request(_fewer_contents),
    "unknown shared memory": grpc_request(_unknown_region),
    "texts that are not UTF-8": grpc_request(
        lambda random: request(random, element(b"\xff" + random.randbytes(9)))
    ),
    "no protobuf": _not_protobuf,
    "protobuf cut off": _cut_protobuf,
    "metadata of 60 kB": _long_metadata,
    "a deadline that is over": _too_late,
    "cancelled": _cancelled,
}
"""Over gRPC, by what is wrong."""

BEYOND: Mapping[str, Sender] = {
    "over gRPC, the last one": grpc_request(
        lambda random: request(random, element(b"fox", random.randrange(4, 4_000)))
    ),
    "over gRPC, by 2 GiB and more": grpc_request(
        lambda random: request(random, element(b"fox", random.randrange(2**31, 2**32)))
    ),
    "over gRPC, the second of two": grpc_request(
        lambda random: request(random, element(b"a") + element(b"fox", 99), shape=(2, 1))
    ),
    "over HTTP, the last one": http_binary(
        lambda random: (element(b"fox", random.randrange(4, 4_000)), 7)
    ),
}
"""BYTES tensors whose length fields point beyond the data, which Triton passes on to a step."""
