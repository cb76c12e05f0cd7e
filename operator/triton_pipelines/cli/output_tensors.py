"""Decode the tensors of an answer and format their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    triton_to_np_dtype,
)

from .model_metadata import BYTES, Array

SHOWN_NUMBERS = 6


def decode(document: Mapping[str, Any], rest: bytes) -> dict[str, Array]:
    """Return the outputs of an answer.

    Args:
        document: its JSON part.
        rest: the bytes after it.

    Raises:
        KeyError: the document lacks a field.
        TypeError: the document has another structure.
        ValueError: a tensor cannot be decoded.
    """
    result: dict[str, Array] = {}
    for item in document["outputs"]:
        size = (item.get("parameters") or {}).get("binary_data_size")
        if size is None:
            array = np.array(
                item["data"],
                dtype=np.object_
                if item.get("datatype", BYTES) == BYTES
                else triton_to_np_dtype(item["datatype"]),
            )
        else:
            piece, rest = rest[:size], rest[size:]
            try:
                array = (
                    deserialize_bytes_tensor(piece)
                    if item["datatype"] == BYTES
                    else np.frombuffer(piece, triton_to_np_dtype(item["datatype"]))
                )
            except InferenceServerException as error:
                raise ValueError(str(error)) from error
        result[item["name"]] = array.reshape(item.get("shape", array.shape))
    return result


def json_value(value: Any) -> Any:
    """Return an element for JSON: bytes as text, numbers as short as their type allows, no NaN."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.bool_ | bool):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, str | int) or value is None:
        return value
    number = float(str(value))
    return number if math.isfinite(number) else str(number)


def format_row(array: Array) -> str:
    """Return the first elements of a row, and how many there are."""
    flat = array.ravel()
    shown = [
        f"{item:.4f}" if isinstance(item, float) else str(item)
        for item in map(json_value, flat[:SHOWN_NUMBERS])
    ]
    if flat.size <= SHOWN_NUMBERS:
        return " ".join(shown)
    shape = "\u00d7".join(map(str, array.shape)) if array.ndim > 1 else str(flat.size)
    return " ".join(shown) + f" … ({shape} values)"
