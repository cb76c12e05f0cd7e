"""Postprocess step of a pipeline, run by Triton's python backend.

It turns logits into probabilities and labels, and token vectors into one embedding.

Configuration (``parameters`` of config.pbtxt; the config itself gives the names and data types of
the tensors):
    tritonpipe.type       Softmax | Sigmoid (input [rows, classes], or [rows, tokens, classes] for
                          an answer per token)
                          | MeanPooling | FirstToken (input [rows, tokens, width])
    tritonpipe.input      name of the input tensor, of TYPE_FP16, BF16, FP32 or FP64
    tritonpipe.mask       name of the mask [rows, tokens] (MeanPooling)
    tritonpipe.labels     JSON list with one label per class
    tritonpipe.top_k      how many labels, best first (default 1)
    tritonpipe.normalize  Enabled makes every embedding's length (L2) 1; a zero vector stays zero

Outputs, of which the config declares those it needs:
    PROBABILITIES FP32    [.., classes] in the model's order
    LABEL STRING          [.., topK], best first, equal scores in the model's order
    SCORE FP32            [.., topK]
    EMBEDDING FP32        [.., width]

The other axes of an output are those of the input, as its config declares them; pooling also
removes the token axis. With batching, the dims are [classes] or [tokens, classes], and the batch
axis comes first. With max_batch_size 0, the dims are [rows, classes], [rows, tokens, classes], or
[classes] for one row. Every token gets an answer, padding included; use the mask to remove it.

Arithmetic is FP32 or better for every type of input. A request fails if the answer for a row is not
a finite number, or if its logits contain NaN or +infinity. The cause is a model, often in FP16,
that overflowed. A logit of -infinity stands for a masked class, whose probability is 0. If a row
has no other logits, Softmax has no answer. Mean pooling weighs tokens by the mask. A row that is
masked completely becomes zeros.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

# Appended, so that the image's own packages win.
sys.path += [
    folder
    for folder in os.environ.get("TRITONPIPE_SITE", "").split(os.pathsep)
    if folder and folder not in sys.path
]

import numpy as np
import triton_python_backend_utils as pb_utils

from triton_pipelines.runtime.backend_helpers import quicken

Array = np.ndarray[Any, Any]
# Types of numbers an input may have.
NUMBERS = ("TYPE_FP16", "TYPE_BF16", "TYPE_FP32", "TYPE_FP64")
# DLPack: the offset of the type's code in the structure that a capsule points to (data 8 bytes,
# device 8, ndim 4), and the codes.
DLPACK_CODE_OFFSET, DLPACK_UINT, DLPACK_BFLOAT = 20, 1, 4
CLASSIFIERS = ("Softmax", "Sigmoid")
POOLINGS = ("MeanPooling", "FirstToken")
# Outputs and the type each must have.
CLASSIFIER_OUTPUTS = {"PROBABILITIES": "TYPE_FP32", "LABEL": "TYPE_STRING", "SCORE": "TYPE_FP32"}
POOLING_OUTPUTS = {"EMBEDDING": "TYPE_FP32"}


class RequestError(ValueError):
    """One request cannot be answered; the text goes to its client."""


class _Words:
    """A BF16 tensor of the python backend that looks like unsigned 16-bit words to numpy.

    numpy has no BF16 type, and Triton has no other way to pass such a tensor.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self._tensor.to_dlpack()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        code = ctypes.c_uint8.from_address(get(capsule, b"dltensor") + DLPACK_CODE_OFFSET)
        if code.value != DLPACK_BFLOAT:
            raise RequestError(
                f"{self._tensor.name()} is not a BF16 tensor (DLPack type {code.value})"
            )
        code.value = DLPACK_UINT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU's memory, where the python backend puts inputs


def read_numbers(tensor: Any, data_type: str) -> Array:
    """Return the tensor's array; BF16 becomes FP32.

    The words of BF16 are the upper halves of those of FP32.
    """
    if data_type != "TYPE_BF16":
        return np.asarray(tensor.as_numpy())
    return (np.from_dlpack(_Words(tensor)).astype(np.uint32) << 16).view(np.float32)


def wide(x: Array) -> Array:
    """Return smaller types as FP32, and FP64 unchanged."""
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def softmax(logits: Array) -> Array:
    """Return probabilities [rows, classes] that sum to 1 per row.

    A logit of -inf has probability 0. A row without a finite maximum becomes NaN.
    """
    x = wide(logits)
    with np.errstate(invalid="ignore", over="ignore"):
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    """Return independent probabilities [rows, classes], exact at both ends."""
    x = wide(logits)
    e = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def top_k(scores: Array, k: int) -> Array:
    """Return the indices [rows, k] of the best scores, best first; equal ones ascend."""
    if k == 1:
        return np.asarray(scores.argmax(axis=1)[:, None])
    return np.asarray(np.argsort(-scores, axis=1, kind="stable")[:, :k])


def mean_pooling(tokens: Array, mask: Array) -> Array:
    """Return the mean over tokens [rows, tokens, width], weighted by mask [rows, tokens].

    A row without any weight becomes zeros.
    """
    tokens = wide(tokens)
    weights = mask.astype(tokens.dtype)
    total = weights.sum(axis=1, keepdims=True)
    weights /= np.where(total == 0, 1.0, total)
    with np.errstate(invalid="ignore", over="ignore"):
        pooled = np.matmul(weights[:, None, :], tokens)[:, 0, :]
        if not np.isfinite(pooled).all():
            # Weight 0 times NaN or infinity, which a model may leave in padding, is NaN. Set masked
            # tokens to 0.
            pooled = np.matmul(
                weights[:, None, :], np.where(mask[:, :, None] != 0, tokens, tokens.dtype.type(0))
            )[:, 0, :]
    return np.asarray(pooled)


def first_token(tokens: Array) -> Array:
    """Return the first token's vector of every row: [rows, width]."""
    return wide(tokens[:, 0, :])


def normalize(vectors: Array) -> Array:
    """Return vectors [rows, width] of length 1; a zero vector stays zero."""
    # Squares in double precision: in FP32 they overflow from 1.8e19.
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    return np.asarray((vectors / np.where(norms == 0, 1.0, norms)).astype(vectors.dtype))


def check(sane: Array, name: str, axes: Sequence[int]) -> None:
    """Reject a request if an entry is not valid; the error names the first such row.

    Args:
        sane: whether each entry is valid: [rows of all axes before, entries].
        name: the model's output that the answer is computed from.
        axes: the axes before the last one: (rows), (rows, tokens), or none.
    """
    if sane.all():
        return
    flat = int(np.flatnonzero(~sane.all(axis=1))[0])
    place = ", ".join(
        f"{axis} {index}"
        for axis, index in zip(("row", "token"), np.unravel_index(flat, axes), strict=False)
    )
    raise RequestError(f"{place or 'row 0'}: the model's output {name} contains NaN or infinity")


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the configuration.

        If this raises an exception, Triton reports it as the reason for the failed load.
        """
        quicken(pb_utils)
        config = json.loads(args["model_config"])
        parameters = {
            key: value["string_value"] for key, value in config.get("parameters", {}).items()
        }
        self._type = parameters.get("tritonpipe.type", "")
        self._input = parameters.get("tritonpipe.input", "")
        self._mask = parameters.get("tritonpipe.mask", "")
        self._normalize = parameters.get("tritonpipe.normalize", "Disabled") == "Enabled"
        labels = json.loads(parameters.get("tritonpipe.labels", "null"))
        self._labels = (
            None
            if labels is None
            else np.array([str(label).encode() for label in labels], dtype=np.object_)
        )
        self._top_k = int(parameters.get("tritonpipe.top_k", "1"))
        self._outputs = _check(config, parameters, self._type, labels)
        tensor = next(tensor for tensor in config["input"] if tensor["name"] == self._input)
        self._data_type, shape = _input(
            tensor, config.get("max_batch_size", 0) > 0, self._type, labels
        )
        self._rank = len(shape)
        self._shape = f"[{', '.join(map(str, shape))}]"

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request, in order."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            values = read_numbers(_tensor(request, self._input), self._data_type)
            if values.ndim != self._rank or values.size == 0:
                empty = "; it has no elements" if values.size == 0 else ""
                raise RequestError(
                    f"{self._input} has shape {list(values.shape)}, expected {self._shape}{empty}"
                )
            answer = (
                self._classify(values)
                if self._type in CLASSIFIERS
                else {"EMBEDDING": self._pool(values, request)}
            )
        except RequestError as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, answer[name]) for name in self._outputs]
        )

    def _classify(self, values: Array) -> dict[str, Array]:
        *axes, classes = values.shape
        if self._labels is not None and len(self._labels) != classes:
            raise RequestError(
                f"{self._input} has {classes} classes, but {len(self._labels)} labels are set in"
                " postprocess labels"
            )
        logits = values.reshape(-1, classes)
        check(logits < np.inf, self._input, axes)  # also false for NaN
        scores = (softmax(logits) if self._type == "Softmax" else sigmoid(logits)).astype(
            np.float32, copy=False
        )
        check(np.isfinite(scores), self._input, axes)
        answer: dict[str, Array] = {"PROBABILITIES": scores.reshape(values.shape)}
        if self._labels is not None:
            best = top_k(scores, self._top_k)
            answer["LABEL"] = self._labels[best].reshape(*axes, -1)
            answer["SCORE"] = np.take_along_axis(scores, best, axis=1).reshape(*axes, -1)
        return answer

    def _pool(self, values: Array, request: Any) -> Array:
        *axes, length, width = values.shape
        tokens = values.reshape(-1, length, width)
        if self._type == "FirstToken":
            pooled = first_token(tokens)
        else:
            mask = np.asarray(_tensor(request, self._mask).as_numpy())
            if mask.shape != values.shape[:-1]:
                raise RequestError(
                    f"{self._mask} has shape {list(mask.shape)}, but {self._input} has"
                    f" {[*axes, length]} rows and tokens"
                )
            pooled = mean_pooling(tokens, mask.reshape(-1, length))
        with np.errstate(invalid="ignore", over="ignore"):
            answer = (normalize(pooled) if self._normalize else pooled).astype(
                np.float32, copy=False
            )
        check(np.isfinite(pooled) & np.isfinite(answer), self._input, axes)
        return answer.reshape(*axes, width)


def _tensor(request: Any, name: str) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        raise RequestError(f"input {name} is missing; add that input to the request")
    return tensor


def _input(
    tensor: dict[str, Any], batched: bool, kind: str, labels: list[str] | None
) -> tuple[str, list[str | int]]:
    """Return the data type of the input, and its shape for messages.

    The shape has the names of the free axes and the sizes of the fixed ones.
    """
    name, data_type = tensor["name"], tensor["data_type"]
    if data_type not in NUMBERS:
        raise ValueError(f"input {name} is {data_type}, but {kind} reads {', '.join(NUMBERS)}")
    # The dims that the model sees.
    dims = [
        int(dim) for dim in (tensor["reshape"]["shape"] if "reshape" in tensor else tensor["dims"])
    ]
    dims = [-1, *dims] if batched else dims
    axes = ["rows", "classes"] if kind in CLASSIFIERS else ["rows", "tokens", "width"]
    least = 1 if kind in CLASSIFIERS else 2
    if not least + batched <= len(dims) <= 3:
        wanted = "[classes] or [tokens, classes]" if kind in CLASSIFIERS else "[tokens, width]"
        rows = "" if batched else ", or the same after an axis of rows"
        raise ValueError(f"input {name} has dims {dims[batched:]}, but {kind} reads {wanted}{rows}")
    if labels is not None and dims[-1] not in (-1, len(labels)):
        raise ValueError(
            f"tritonpipe.labels has {len(labels)} labels, but input {name} has {dims[-1]} classes"
        )
    axes = ["rows", "tokens", axes[-1]] if len(dims) == 3 else axes[-len(dims) :]
    return data_type, [axis if dim == -1 else dim for axis, dim in zip(axes, dims, strict=True)]


def _check(
    config: dict[str, Any], parameters: dict[str, str], kind: str, labels: list[str] | None
) -> list[str]:
    """Check that config and parameters fit each other; return the names of the outputs."""
    if kind not in CLASSIFIERS + POOLINGS:
        raise ValueError(
            f"tritonpipe.type: {kind!r} is not one of {', '.join(CLASSIFIERS + POOLINGS)}"
        )
    inputs = {tensor["name"] for tensor in config.get("input", [])}
    for key in (
        ("tritonpipe.input", "tritonpipe.mask") if kind == "MeanPooling" else ("tritonpipe.input",)
    ):
        if parameters.get(key) not in inputs:
            raise ValueError(
                f"{key}: {parameters.get(key)!r} is not one of the model's inputs {sorted(inputs)}"
            )
    possible = CLASSIFIER_OUTPUTS if kind in CLASSIFIERS else POOLING_OUTPUTS
    outputs = {tensor["name"]: tensor["data_type"] for tensor in config.get("output", [])}
    for name, data_type in outputs.items():
        if possible.get(name) != data_type:
            expected = ", ".join(f"{n} {t}" for n, t in possible.items())
            raise ValueError(f"output {name} {data_type}: {kind} returns {expected}")
    if labels is None and {"LABEL", "SCORE"} & set(outputs):
        raise ValueError("outputs LABEL and SCORE require tritonpipe.labels")
    if labels is not None:
        if not labels:
            raise ValueError("tritonpipe.labels: the list is empty")
        best = int(parameters.get("tritonpipe.top_k", "1"))
        if not 1 <= best <= len(labels):
            raise ValueError(
                f"tritonpipe.top_k: {best} is not between 1 and the number of labels, {len(labels)}"
            )
    return list(outputs)
