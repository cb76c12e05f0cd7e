"""Tokenizer step of a pipeline, run by Triton's python backend.

Texts of any number of requests, each with any number of rows, are encoded in one call of the Rust tokenizer and answered with one response per
request. A request that is wrong gets an error of its own and leaves its neighbours alone.

Configuration (``parameters`` of config.pbtxt; tensor names and data types come from the config itself):
    tritonpipe.tokenizer_file  file in the version folder (default tokenizer.json)
    tritonpipe.max_length      most tokens of a row, special tokens included
    tritonpipe.truncation      LongestFirst cuts longer rows, Refuse answers their request with an error
    tritonpipe.special_tokens  Enabled | Disabled
    tritonpipe.padding         Ragged: each request to its own longest row; Fixed: to max_length; Bucketed: to the next bucket that holds the
                               request's longest row (max_length is the last); Longest: to the longest row of all requests in the call
    tritonpipe.buckets         lengths for Bucketed, such as "32,64,512"
    tritonpipe.text            name of the input (default TEXT)
    tritonpipe.outputs         JSON: output name -> InputIds | AttentionMask | TokenTypeIds | SpecialTokensMask | Offsets | Lengths

Rows are padded on the right, with the pad token of the tokenizer; padding and truncation saved in tokenizer.json are switched off. A text without
any token (empty text, special tokens disabled) becomes one pad token that is attended to: with nothing to attend to, a model's answer would be
undefined and depend on the padding, and a row of length 0 must never reach a batching model step. Offsets count characters of the text.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

# Appended, so that the image's own packages win.
sys.path += [folder for folder in os.environ.get("TRITONPIPE_SITE", "").split(os.pathsep) if folder and folder not in sys.path]

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

Array = np.ndarray[Any, Any]
KINDS = ("InputIds", "AttentionMask", "TokenTypeIds", "SpecialTokensMask", "Offsets", "Lengths")
PADDINGS = ("Ragged", "Fixed", "Bucketed", "Longest")
TRUNCATIONS = ("LongestFirst", "Refuse")
PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "pad")
DTYPES = {"TYPE_INT32": np.int32, "TYPE_INT64": np.int64}


class RequestError(ValueError):
    """One request cannot be answered; the text goes to its client."""


def parse_buckets(text: str, max_length: int) -> tuple[int, ...]:
    """Bucket lengths in ascending order; ``max_length`` is always the last, larger ones are dropped."""
    given = {int(part) for part in text.split(",") if part.strip()}
    if any(bucket < 1 for bucket in given):
        raise ValueError(f"tritonpipe.buckets: {text!r} has a length below 1")
    return (*sorted(bucket for bucket in given if bucket < max_length), max_length)


def target_length(padding: str, longest: int, buckets: Sequence[int], max_length: int) -> int:
    """Tokens per row after padding, for rows of which the longest has ``longest`` tokens."""
    if padding == "Fixed":
        return max_length
    if padding == "Bucketed":
        return next(bucket for bucket in buckets if bucket >= longest)
    return longest


def pad_rows(flat: Array, lengths: Array, width: int, pad: int) -> Array:
    """Rows laid end to end in ``flat`` [tokens, ...] as an array [rows, width, ...], filled up with ``pad`` on the right.

    Without anything to pad it is a view, not a copy.
    """
    rows = len(lengths)
    if len(flat) == rows * width:
        return flat.reshape(rows, width, *flat.shape[1:])
    padded = np.full((rows, width, *flat.shape[1:]), pad, dtype=flat.dtype)
    padded[np.arange(width) < lengths[:, None]] = flat
    return padded


def decode_rows(rows: Iterable[bytes], name: str) -> list[str]:
    """UTF-8 texts; the error names the first row that is not."""
    texts: list[str] = []
    try:
        for row in rows:
            texts.append(row.decode())
    except UnicodeDecodeError as error:
        raise RequestError(f"row {len(texts)} of {name} is not valid UTF-8 ({error.reason} at byte {error.start}): send UTF-8 text") from None
    return texts


def read_rows(array: Array, name: str, batched: bool) -> list[str]:
    """The texts of one request: [rows, 1], or [rows] when the model does not batch."""
    if not (array.ndim == 2 and array.shape[1] == 1) and (batched or array.ndim != 1):
        raise RequestError(f"{name} has shape {list(array.shape)}, expected [rows, 1]: one text per row")
    if array.size == 0:
        raise RequestError(f"{name} has no rows: send at least one text")
    return decode_rows(array.ravel().tolist(), name)


class TextEncoder:
    """Tokenizes lists of texts into flat token arrays; knows nothing of Triton."""

    def __init__(self, tokenizer: Any, kinds: Iterable[str], max_length: int | None, truncation: str, special_tokens: bool) -> None:
        self.max_length = max_length
        self.refuse = truncation == "Refuse"
        self.special_tokens = special_tokens
        padding = tokenizer.padding or {}
        known = (tokenizer.token_to_id(token) for token in PAD_TOKENS)
        pad_id = padding.get("pad_id")
        self.pads = {
            "InputIds": next((i for i in known if i is not None), 0) if pad_id is None else pad_id,
            "TokenTypeIds": padding.get("pad_type_id", 0),
            "SpecialTokensMask": 1,
            "Offsets": 0,
        }
        self.kinds = [kind for kind in self.pads if kind in set(kinds)]
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if max_length is not None and not self.refuse:
            special = tokenizer.num_special_tokens_to_add(False) if special_tokens else 0
            if max_length <= special:
                raise ValueError(f"tritonpipe.max_length: {max_length} leaves no room for text beside {special} special tokens")
            tokenizer.enable_truncation(max_length)
        # The fast call leaves offsets out.
        self._encode = tokenizer.encode_batch if "Offsets" in self.kinds else tokenizer.encode_batch_fast

    def encode(self, texts: list[str]) -> list[Any]:
        """One tokenizer run over all texts."""
        return list(self._encode(texts, add_special_tokens=self.special_tokens))

    def arrays(self, encodings: list[Any]) -> tuple[Array, dict[str, Array]]:
        """Lengths [rows] (at least 1 each) and, per kind, the values of all rows laid end to end."""
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        empty = np.flatnonzero(lengths == 0).tolist()
        lengths[empty] = 1
        total = int(lengths.sum())
        flat = {}
        for kind in self.kinds:
            rows = [_READERS[kind](encoding) for encoding in encodings]
            for row in empty:
                rows[row] = [(0, 0)] if kind == "Offsets" else [self.pads[kind]]
            values = chain.from_iterable(rows)
            if kind == "Offsets":
                flat[kind] = np.fromiter(chain.from_iterable(values), np.int64, 2 * total).reshape(total, 2)
            else:
                flat[kind] = np.fromiter(values, np.int64, total)
        return lengths, flat


_READERS = {
    "InputIds": lambda encoding: encoding.ids,
    "TokenTypeIds": lambda encoding: encoding.type_ids,
    "SpecialTokensMask": lambda encoding: encoding.special_tokens_mask,
    "Offsets": lambda encoding: encoding.offsets,
}


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the configuration and the tokenizer; an exception here is the reason Triton gives for the failed load."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._batched = config.get("max_batch_size", 0) > 0
        self._text = parameters.get("tritonpipe.text", "TEXT")
        self._padding = _choice(parameters, "tritonpipe.padding", PADDINGS)
        truncation = _choice(parameters, "tritonpipe.truncation", TRUNCATIONS)
        special_tokens = _choice(parameters, "tritonpipe.special_tokens", ("Enabled", "Disabled")) == "Enabled"
        length = _length(parameters, self._padding)
        self._max_length = sys.maxsize if length is None else length
        self._buckets = parse_buckets(parameters.get("tritonpipe.buckets", ""), self._max_length)
        self._outputs = _outputs(config, parameters)
        inputs = {tensor["name"]: tensor["data_type"] for tensor in config.get("input", [])}
        if inputs != {self._text: "TYPE_STRING"}:
            raise ValueError(f"the tokenizer needs exactly one input, {self._text} of TYPE_STRING, but the model has {inputs}")
        file = Path(args["model_repository"]) / args["model_version"] / parameters.get("tritonpipe.tokenizer_file", "tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise ValueError(f"{file.name}: cannot be read as a tokenizer ({error})") from error
        kinds = [kind for _, kind, _ in self._outputs]
        self._encoder = TextEncoder(tokenizer, kinds, length, truncation, special_tokens)
        self._ones = np.ones(512, dtype=np.int64)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
        responses: list[Any] = [None] * len(requests)
        texts: list[str] = []
        spans: list[tuple[int, int, int]] = []  # (request, first row, end row)
        for index, request in enumerate(requests):
            try:
                rows = read_rows(pb_utils.get_input_tensor_by_name(request, self._text).as_numpy(), self._text, self._batched)
            except RequestError as error:
                responses[index] = _error(str(error))
                continue
            spans.append((index, len(texts), len(texts) + len(rows)))
            texts += rows
        if spans:
            self._answer(texts, spans, responses)
        return responses

    def _answer(self, texts: list[str], spans: list[tuple[int, int, int]], responses: list[Any]) -> None:
        try:
            encodings = self._encoder.encode(texts)
        except BaseException as error:  # a Rust panic is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            if len(spans) == 1:
                responses[spans[0][0]] = _error(f"the tokenizer failed on this request: {error}", pb_utils.TritonError.INTERNAL)
                return
            # One text made the tokenizer fail: only its request may suffer.
            for index, first, end in spans:
                self._answer(texts[first:end], [(index, 0, end - first)], responses)
            return
        lengths, flat = self._encoder.arrays(encodings)
        if self._encoder.refuse and int(lengths.max()) > self._max_length:
            spans = [span for span in spans if not self._refused(lengths, span, responses)]
        if not spans:
            return
        counts: list[int] = lengths.tolist()
        longest = [max(counts[first:end]) for _, first, end in spans]
        if self._padding == "Longest":
            longest = [max(longest)] * len(spans)
        widths = [target_length(self._padding, own, self._buckets, self._max_length) for own in longest]
        if len(set(widths)) == 1 and sum(end - first for _, first, end in spans) == len(counts):
            # One width for all rows: one array per output, and each request gets its rows of it.
            arrays = self._arrays(lengths, flat, 0, sum(counts), widths[0])
            for index, first, end in spans:
                responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor(name, array[first:end]) for name, array in arrays])
            return
        starts = [0, *accumulate(counts)]
        for (index, first, end), width in zip(spans, widths, strict=True):
            arrays = self._arrays(lengths[first:end], flat, starts[first], starts[end], width)
            responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays])

    def _refused(self, lengths: Array, span: tuple[int, int, int], responses: list[Any]) -> bool:
        index, first, end = span
        long = np.flatnonzero(lengths[first:end] > self._max_length)
        if not len(long):
            return False
        row = int(long[0])
        responses[index] = _error(
            f"row {row} of {self._text} has {int(lengths[first + row])} tokens, more than the {self._max_length} allowed: shorten the text"
        )
        return True

    def _arrays(self, lengths: Array, flat: dict[str, Array], start: int, end: int, width: int) -> list[tuple[str, Array]]:
        """Every output for rows whose tokens are ``start`` to ``end`` of ``flat``."""
        rows = len(lengths)
        arrays = []
        for name, kind, dtype in self._outputs:
            if kind == "Lengths":
                array = lengths.reshape(rows, 1)
            elif kind == "AttentionMask":
                array = self._mask(lengths, rows, width, end - start)
            else:
                array = pad_rows(flat[kind][start:end], lengths, width, self._encoder.pads[kind])
            arrays.append((name, array.astype(dtype, copy=False)))
        return arrays

    def _mask(self, lengths: Array, rows: int, width: int, tokens: int) -> Array:
        if tokens != rows * width:
            return np.arange(width) < lengths[:, None]
        if self._ones.size < tokens:
            self._ones = np.ones(tokens, dtype=np.int64)
        return self._ones[:tokens].reshape(rows, width)


def _choice(parameters: dict[str, str], key: str, allowed: Sequence[str]) -> str:
    """Value of a parameter; the first of ``allowed`` is the default."""
    value = parameters.get(key, allowed[0])
    if value not in allowed:
        raise ValueError(f"{key}: {value!r} is none of {', '.join(allowed)}")
    return value


def _length(parameters: dict[str, str], padding: str) -> int | None:
    """tritonpipe.max_length; None where no limit is set."""
    text = parameters.get("tritonpipe.max_length")
    if text is None:
        if padding in ("Fixed", "Bucketed"):
            raise ValueError(f"tritonpipe.max_length is missing, and tritonpipe.padding {padding} needs it")
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"tritonpipe.max_length: {text!r} is not a positive number of tokens")
    return int(text)


def _outputs(config: dict[str, Any], parameters: dict[str, str]) -> list[tuple[str, str, Any]]:
    """(tensor name, kind, numpy type) of every output, checked against the model's config."""
    kinds: dict[str, str] = json.loads(parameters.get("tritonpipe.outputs", "{}"))
    declared = {output["name"]: output["data_type"] for output in config.get("output", [])}
    if set(kinds) != set(declared):
        raise ValueError(f"tritonpipe.outputs names {sorted(kinds)}, but the model's outputs are {sorted(declared)}")
    for name, kind in kinds.items():
        if kind not in KINDS:
            raise ValueError(f"tritonpipe.outputs: {name} is {kind!r}, none of {', '.join(KINDS)}")
        if declared[name] not in DTYPES:
            raise ValueError(f"output {name} is {declared[name]}, but tokens are {' or '.join(DTYPES)}")
    return [(name, kind, DTYPES[declared[name]]) for name, kind in kinds.items()]


def _error(message: str, code: int | None = None) -> Any:
    """A response that fails this one request."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG if code is None else code))
