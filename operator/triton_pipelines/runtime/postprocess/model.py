"""Postprocess step of a pipeline, run by Triton's python backend: logits to probabilities and labels, token vectors to one embedding.

Configuration (``parameters`` of config.pbtxt; tensor names and data types come from the config itself):
    tritonpipe.type       Softmax | Sigmoid (input [rows, classes]) | MeanPooling | FirstToken (input [rows, tokens, width])
    tritonpipe.input      name of the input tensor
    tritonpipe.mask       name of the mask [rows, tokens] (MeanPooling)
    tritonpipe.labels     JSON list with one label per class
    tritonpipe.top_k      how many labels, best first (default 1)
    tritonpipe.normalize  Enabled makes every embedding's length (L2) 1; a zero vector stays zero

Outputs, those of them that the config declares: PROBABILITIES FP32 [classes] in the model's order; LABEL STRING [topK] and SCORE FP32 [topK], equal
scores in the model's order; EMBEDDING FP32 [width].

Arithmetic is FP32 or better whatever the input's type. A row whose answer would not be a finite number fails its request instead of being sent:
that is a model (often an FP16 one) that overflowed. Mean pooling weighs tokens by the mask; a row that is masked wholly becomes zeros.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# Appended, so that the image's own packages win.
sys.path += [folder for folder in os.environ.get("TRITONPIPE_SITE", "").split(os.pathsep) if folder and folder not in sys.path]

import numpy as np
import triton_python_backend_utils as pb_utils

Array = np.ndarray[Any, Any]
CLASSIFIERS = ("Softmax", "Sigmoid")
POOLINGS = ("MeanPooling", "FirstToken")
# Outputs and the type each must have.
CLASSIFIER_OUTPUTS = {"PROBABILITIES": "TYPE_FP32", "LABEL": "TYPE_STRING", "SCORE": "TYPE_FP32"}
POOLING_OUTPUTS = {"EMBEDDING": "TYPE_FP32"}


class RequestError(ValueError):
    """One request cannot be answered; the text goes to its client."""


def softmax(logits: Array) -> Array:
    """Probabilities [rows, classes] that sum to 1 per row; -inf means probability 0; NaN where a row has no finite maximum."""
    x = logits.astype(np.float32, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    """Independent probabilities [rows, classes], exact at both ends."""
    x = logits.astype(np.float32, copy=False)
    e = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def top_k(scores: Array, k: int) -> Array:
    """Indices [rows, k] of the best scores, best first; equal ones in ascending order."""
    if k == 1:
        return np.asarray(scores.argmax(axis=1)[:, None])
    return np.asarray(np.argsort(-scores, axis=1, kind="stable")[:, :k])


def mean_pooling(tokens: Array, mask: Array) -> Array:
    """Mean over tokens [rows, tokens, width] weighted by mask [rows, tokens]; zeros for a row without any weight."""
    tokens = tokens.astype(np.float32, copy=False)
    weights = mask.astype(np.float32)
    total = weights.sum(axis=1, keepdims=True)
    weights /= np.where(total == 0, 1.0, total)
    with np.errstate(invalid="ignore", over="ignore"):
        pooled = np.matmul(weights[:, None, :], tokens)[:, 0, :]
        if not np.isfinite(pooled).all():
            # Weight 0 times what a model left in padding (NaN or infinity) is NaN: leave masked tokens out altogether.
            pooled = np.matmul(weights[:, None, :], np.where(mask[:, :, None] != 0, tokens, np.float32(0)))[:, 0, :]
    return np.asarray(pooled)


def first_token(tokens: Array) -> Array:
    """The first token's vector of every row: [rows, width]."""
    return np.asarray(tokens[:, 0, :].astype(np.float32))


def normalize(vectors: Array) -> Array:
    """Vectors [rows, width] of length 1; a zero vector stays zero."""
    # Squares in double precision: in FP32 they overflow from 1.8e19 on.
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    return np.asarray((vectors / np.where(norms == 0, 1.0, norms)).astype(np.float32))


def check_finite(answer: Array, name: str) -> None:
    """Refuse an answer with NaN or infinity, naming the row."""
    if not np.isfinite(answer).all():
        row = int(np.flatnonzero(~np.isfinite(answer).all(axis=1))[0])
        raise RequestError(f"row {row}: the model's output {name} holds NaN or infinity, which no answer can be made of")


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the configuration; an exception here is the reason Triton gives for the failed load."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._type = parameters.get("tritonpipe.type", "")
        self._input = parameters.get("tritonpipe.input", "")
        self._mask = parameters.get("tritonpipe.mask", "")
        self._normalize = parameters.get("tritonpipe.normalize", "Disabled") == "Enabled"
        labels = json.loads(parameters.get("tritonpipe.labels", "null"))
        self._labels = None if labels is None else np.array([str(label).encode() for label in labels], dtype=np.object_)
        self._top_k = int(parameters.get("tritonpipe.top_k", "1"))
        self._outputs = _check(config, parameters, self._type, labels)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            values = pb_utils.get_input_tensor_by_name(request, self._input).as_numpy()
            answer = self._classify(values) if self._type in CLASSIFIERS else {"EMBEDDING": self._pool(values, request)}
        except RequestError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, answer[name]) for name in self._outputs])

    def _classify(self, logits: Array) -> dict[str, Array]:
        if logits.ndim != 2 or logits.size == 0:
            raise RequestError(f"{self._input} has shape {list(logits.shape)}, expected [rows, classes]")
        classes = logits.shape[1]
        if self._labels is not None and len(self._labels) != classes:
            raise RequestError(f"{self._input} has {classes} classes, but {len(self._labels)} labels are set in postprocess labels")
        scores = softmax(logits) if self._type == "Softmax" else sigmoid(logits)
        check_finite(scores, self._input)
        answer = {"PROBABILITIES": scores}
        if self._labels is not None:
            best = top_k(scores, self._top_k)
            answer["LABEL"] = self._labels[best]
            answer["SCORE"] = np.take_along_axis(scores, best, axis=1)
        return answer

    def _pool(self, tokens: Array, request: Any) -> Array:
        if tokens.ndim != 3 or tokens.size == 0:
            raise RequestError(f"{self._input} has shape {list(tokens.shape)}, expected [rows, tokens, width]")
        if self._type == "FirstToken":
            pooled = first_token(tokens)
        else:
            mask = pb_utils.get_input_tensor_by_name(request, self._mask).as_numpy()
            if mask.shape != tokens.shape[:2]:
                raise RequestError(f"{self._mask} has shape {list(mask.shape)}, but {self._input} has {list(tokens.shape[:2])} rows and tokens")
            pooled = mean_pooling(tokens, mask)
        check_finite(pooled, self._input)
        return normalize(pooled) if self._normalize else pooled


def _check(config: dict[str, Any], parameters: dict[str, str], kind: str, labels: list[str] | None) -> list[str]:
    """Names of the outputs to send, after checking that config and parameters fit each other."""
    if kind not in CLASSIFIERS + POOLINGS:
        raise ValueError(f"tritonpipe.type: {kind!r} is none of {', '.join(CLASSIFIERS + POOLINGS)}")
    inputs = {tensor["name"] for tensor in config.get("input", [])}
    for key in ("tritonpipe.input", "tritonpipe.mask") if kind == "MeanPooling" else ("tritonpipe.input",):
        if parameters.get(key) not in inputs:
            raise ValueError(f"{key}: {parameters.get(key)!r} is none of the model's inputs {sorted(inputs)}")
    possible = CLASSIFIER_OUTPUTS if kind in CLASSIFIERS else POOLING_OUTPUTS
    outputs = {tensor["name"]: tensor["data_type"] for tensor in config.get("output", [])}
    for name, data_type in outputs.items():
        if possible.get(name) != data_type:
            raise ValueError(f"output {name} {data_type}: {kind} gives {', '.join(f'{n} {t}' for n, t in possible.items())}")
    if labels is None and {"LABEL", "SCORE"} & set(outputs):
        raise ValueError("outputs LABEL and SCORE need tritonpipe.labels")
    if labels is not None:
        if not labels:
            raise ValueError("tritonpipe.labels: the list is empty")
        best = int(parameters.get("tritonpipe.top_k", "1"))
        if not 1 <= best <= len(labels):
            raise ValueError(f"tritonpipe.top_k: {best} is not between 1 and the number of labels, {len(labels)}")
    return list(outputs)
