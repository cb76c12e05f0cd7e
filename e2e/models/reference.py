"""Compute the expected answers of the sample models, independently of the ONNX graph.

The computation uses NumPy in FP64, one row at a time, without padding.

It shares no code with the graph builder: it reads the safetensors file itself, and works on one
sequence, so that masks and padding, which are what a server can get wrong, do not exist here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def read_safetensors(path: Path) -> dict[str, Matrix]:
    """The FP32 tensors of a safetensors file in FP64.

    Format: 8 bytes little-endian header length, a JSON header with dtype, shape and offsets, then
    the data.
    """
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8:start])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            flat = np.frombuffer(raw[start + begin : start + end], dtype="<f4")
            tensors[name] = flat.reshape(entry["shape"]).astype(np.float64)
    return tensors


def softmax(values: Matrix) -> Matrix:
    """Softmax over the last axis."""
    exponents = np.exp(values - values.max(axis=-1, keepdims=True))
    result: Matrix = exponents / exponents.sum(axis=-1, keepdims=True)
    return result


def unit(vector: Matrix) -> Matrix:
    """The vector scaled to length 1."""
    result: Matrix = vector / np.linalg.norm(vector)
    return result


def _erf(values: Matrix) -> Matrix:
    """The C library's erf for every element (NumPy has none)."""
    return np.fromiter(map(math.erf, values.ravel().tolist()), np.float64, values.size).reshape(
        values.shape
    )


class ReferenceEncoder:
    """BERT encoder of a checkpoint folder, in evaluation mode.

    The folder holds ``model.safetensors`` and ``config.json``.
    """

    def __init__(self, folder: Path) -> None:
        self._tensors = read_safetensors(folder / "model.safetensors")
        self._config: dict[str, Any] = json.loads(
            (folder / "config.json").read_text(encoding="utf-8")
        )

    def _linear(self, name: str, values: Matrix) -> Matrix:
        product: Matrix = values @ self._tensors[name + ".weight"].T
        return product + self._tensors[name + ".bias"]

    def _norm(self, name: str, values: Matrix) -> Matrix:
        centred = values - values.mean(axis=1, keepdims=True)
        deviation = np.sqrt(
            (centred**2).mean(axis=1, keepdims=True) + float(self._config["layer_norm_eps"])
        )
        scaled: Matrix = centred / deviation * self._tensors[name + ".weight"]
        return scaled + self._tensors[name + ".bias"]

    def _attend(self, name: str, values: Matrix) -> Matrix:
        query, key, content = (
            self._linear(f"{name}.self.{part}", values) for part in ("query", "key", "value")
        )
        width = values.shape[1] // int(self._config["num_attention_heads"])
        parts = []
        for first in range(0, values.shape[1], width):
            head = slice(first, first + width)
            parts.append(
                softmax(query[:, head] @ key[:, head].T / math.sqrt(width)) @ content[:, head]
            )
        return self._linear(f"{name}.output.dense", np.concatenate(parts, axis=1))

    def hidden_state(self, token_ids: list[int]) -> Matrix:
        """Output of the last layer for one sequence, ``[tokens, hidden]``."""
        tensors = self._tensors
        values: Matrix = (
            tensors["embeddings.word_embeddings.weight"][token_ids]
            + tensors["embeddings.position_embeddings.weight"][: len(token_ids)]
            + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        values = self._norm("embeddings.LayerNorm", values)
        for layer in range(int(self._config["num_hidden_layers"])):
            name = f"encoder.layer.{layer}"
            values = self._norm(
                f"{name}.attention.output.LayerNorm",
                values + self._attend(f"{name}.attention", values),
            )
            inner = self._linear(f"{name}.intermediate.dense", values)
            inner = 0.5 * inner * (1.0 + _erf(inner / math.sqrt(2.0)))
            values = self._norm(
                f"{name}.output.LayerNorm", values + self._linear(f"{name}.output.dense", inner)
            )
        return values

    def pooled(self, token_ids: list[int]) -> Matrix:
        """Return the mean over all tokens, special ones included, ``[hidden]``, not normalized."""
        result: Matrix = self.hidden_state(token_ids).mean(axis=0)
        return result
