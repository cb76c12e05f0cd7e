"""Encode inference requests for Triton's gRPC API, and decode outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferInput, InferResult, service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from triton_pipelines.triton.errors import RejectedError

Array = np.ndarray[Any, Any]

_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
"""Parameter that asks for an empty last response, so that a request without a response ends too."""


def stream_request(
    model: str, inputs: Mapping[str, Array], request_id: str, sequence_id: int | str
) -> Any:
    """Return a ``ModelInferRequest`` that asks for an empty last response too.

    Raises:
        RejectedError: Triton does not support the data type of an array.
    """
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.parameters[_EMPTY_FINAL].bool_param = True
    if sequence_id:
        which = "string_param" if isinstance(sequence_id, str) else "int64_param"
        setattr(request.parameters["sequence_id"], which, sequence_id)
        request.parameters["sequence_start"].bool_param = request.parameters[
            "sequence_end"
        ].bool_param = True
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=_data_type(name, array), shape=array.shape)
        packed = serialize_byte_tensor(array) if array.dtype == np.object_ else None
        request.raw_input_contents.append(
            array.tobytes() if packed is None else bytes(packed.item()) if packed.size else b""
        )
    return request


def _data_type(name: str, array: Array) -> str:
    data_type: str | None = np_to_triton_dtype(array.dtype)
    if data_type is None:
        reason = f"input '{name}' has type {array.dtype}, which Triton does not support"
        raise RejectedError(reason, reason)
    return data_type


def input_tensor(name: str, array: Array) -> InferInput:
    """Return an input tensor of the client library.

    Raises:
        RejectedError: Triton does not support the array's data type.
    """
    tensor = InferInput(name, list(array.shape), _data_type(name, array))
    tensor.set_data_from_numpy(array)
    return tensor


def output_array(output: Any, content: Sequence[bytes]) -> Array:
    """Return the content of an output, as the client library decodes it.

    The library itself searches for each output among all of them. That takes seconds for thousands.

    Args:
        output: an output of a ``ModelInferResponse``.
        content: its ``raw_output_contents``, if there are any.
    """
    response = SimpleNamespace(outputs=(output,), raw_output_contents=content)
    array: Array = InferResult(response).as_numpy(output.name)
    return array
