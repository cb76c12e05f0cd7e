"""Encode requests before anything is timed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from triton_pipelines.tools.loadgen.load_spec import (
    Array,
    InferenceProtocol,
    LoadGeneratorError,
    LoadTarget,
)

# Length of the JSON part of a body that continues with binary tensors.
LENGTH_HEADER = "Inference-Header-Content-Length"


def encode_requests(target: LoadTarget) -> list[bytes]:
    """Return the bytes of each request: an HTTP/1.1 request or a ``ModelInferRequest``.

    Raises:
        LoadGeneratorError: An input has a type that Triton does not know.
    """
    if target.protocol is InferenceProtocol.GRPC:
        return [_grpc(target, inputs) for inputs in target.requests]
    parts = urlsplit(target.url)
    fixed = {
        "Host": parts.netloc.rpartition("@")[2],
        "Content-Type": "application/octet-stream",
        **target.headers,
    }
    if any("\r" in text or "\n" in text for text in (*fixed, *fixed.values())):
        raise LoadGeneratorError("a header contains a line break")
    before = parts.path.rstrip("/")
    if target.bodies:
        return [_post(before + target.path, fixed, body) for body in target.bodies]
    path = f"{before}/v2/models/{quote(target.model, safe='')}/infer"
    encoded = [http_body(inputs) for inputs in target.requests]
    return [_post(path, {**fixed, LENGTH_HEADER: str(length)}, body) for body, length in encoded]


def _post(path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1") + body


def http_body(
    inputs: Mapping[str, Array], outputs: Sequence[str] = (), types: Mapping[str, str] | None = None
) -> tuple[bytes, int]:
    """Return the body of an inference request with binary tensors, and the length of its JSON part.

    Args:
        inputs: Arrays by input name.
        outputs: The requested outputs; empty: all.
        types: Triton's data types of the inputs, if known; else those of the arrays.
    """
    raw = {name: raw_tensor(array) for name, array in inputs.items()}
    described = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": types[name] if types else _data_type(name, array),
            "parameters": {"binary_data_size": len(raw[name])},
        }
        for name, array in inputs.items()
    ]
    document: dict[str, Any] = {"inputs": described}
    if outputs:
        document["outputs"] = [
            {"name": name, "parameters": {"binary_data": True}} for name in outputs
        ]
    else:
        document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document).encode()
    return b"".join((head, *raw.values())), len(head)


def raw_tensor(array: Array) -> bytes:
    """Return the elements of an array as Triton expects them.

    They are little endian; each text follows its length.
    """
    if array.dtype != np.object_:
        return array.tobytes()
    packed = serialize_byte_tensor(array)
    return bytes(packed.item()) if packed.size else b""


def _grpc(target: LoadTarget, inputs: Mapping[str, Array]) -> bytes:
    request = grpc_request(target.model, inputs)
    return bytes(request.SerializeToString())


def grpc_request(
    model: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
) -> Any:
    """Return a ``ModelInferRequest``; ``inputs`` to ``types`` as for :func:`http_body`."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        data_type = types[name] if types else _data_type(name, array)
        request.inputs.add(name=name, datatype=data_type, shape=array.shape)
        request.raw_input_contents.append(raw_tensor(array))
    for name in outputs:
        request.outputs.add(name=name)
    return request


def _data_type(name: str, array: Array) -> str:
    data_type: str | None = np_to_triton_dtype(array.dtype)
    if data_type is None:
        raise LoadGeneratorError(
            f"input {name!r} has type {array.dtype}, which Triton does not support"
        )
    return data_type
