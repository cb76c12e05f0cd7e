"""Ordinary clients of a pipeline: HTTP with JSON, HTTP with binary tensors, and gRPC.

Answers are arrays by output name.
"""

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc
import tritonclient.http

from e2e.suite.reach import Endpoint

Answer = dict[str, np.ndarray[Any, Any]]
SECONDS = 60.0
_TYPES = {"FP32": np.float32, "BYTES": np.object_}


def http_json(endpoint: Endpoint, model: str, rows: Sequence[str]) -> Answer:
    """Over HTTP, tensors as JSON."""
    body = {
        "inputs": [
            {"name": "TEXT", "shape": [len(rows), 1], "datatype": "BYTES", "data": list(rows)}
        ]
    }
    answer = httpx.post(
        f"{endpoint.http}/v2/models/{model}/infer", json=body, timeout=SECONDS, trust_env=False
    )
    assert answer.status_code == httpx.codes.OK, f"{answer.status_code}: {answer.text}"
    result = {}
    for output in answer.json()["outputs"]:
        data = (
            [item.encode() for item in output["data"]]
            if output["datatype"] == "BYTES"
            else output["data"]
        )
        result[output["name"]] = np.array(data, dtype=_TYPES[output["datatype"]]).reshape(
            output["shape"]
        )
    return result


def http_binary(endpoint: Endpoint, model: str, rows: Sequence[str]) -> Answer:
    """Over HTTP, tensors as bytes behind the JSON header."""
    client = tritonclient.http.InferenceServerClient(
        endpoint.http.removeprefix("http://"), connection_timeout=SECONDS, network_timeout=SECONDS
    )
    try:
        tensor = tritonclient.http.InferInput("TEXT", [len(rows), 1], "BYTES")
        tensor.set_data_from_numpy(_array(rows), binary_data=True)
        answer = client.infer(model, [tensor])
        return {
            output["name"]: answer.as_numpy(output["name"])
            for output in answer.get_response()["outputs"]
        }
    finally:
        client.close()


def grpc(endpoint: Endpoint, model: str, rows: Sequence[str]) -> Answer:
    """Over gRPC."""
    client = tritonclient.grpc.InferenceServerClient(endpoint.grpc)
    try:
        tensor = tritonclient.grpc.InferInput("TEXT", [len(rows), 1], "BYTES")
        tensor.set_data_from_numpy(_array(rows))
        answer = client.infer(model, [tensor], client_timeout=SECONDS)
        return {
            output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs
        }
    finally:
        client.close()


CLIENTS: dict[str, Callable[[Endpoint, str, Sequence[str]], Answer]] = {
    "http-json": http_json,
    "http-binary": http_binary,
    "grpc": grpc,
}


def _array(rows: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array([[row.encode()] for row in rows], dtype=np.object_)
