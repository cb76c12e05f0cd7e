"""Tokenizer step of a pipeline, run by Triton's python backend.

Texts, or pairs of texts, of any number of requests, each with any number of rows, are encoded in one call of the Rust tokenizer and answered with
one response per request. A request that is wrong gets an error of its own and leaves its neighbours alone.

Configuration (``parameters`` of config.pbtxt; tensor names and data types come from the config itself):
    tritonpipe.tokenizer_file  file in the version folder (default tokenizer.json)
    tritonpipe.max_length      most tokens of a row, special tokens included
    tritonpipe.truncation      how longer rows are cut. LongestFirst: of a pair, the longer text first; OnlyFirst, OnlySecond: that text of a pair
                               alone, and where the other one leaves it no room the request gets an error; Refuse: an error instead of a cut.
                               Pairs can only be cut where the tokenizer's template holds each text once: another one fails the load
    tritonpipe.special_tokens  Enabled | Disabled
    tritonpipe.padding         Ragged: each request to its own longest row; Fixed: to max_length; Bucketed: to the next bucket that holds the
                               request's longest row (max_length is the last); Longest: to the longest row of all requests in the call
    tritonpipe.buckets         lengths for Bucketed, such as "32,64,512"
    tritonpipe.text            name of the input (default TEXT)
    tritonpipe.text_pair       name of the second input, whose rows are the second texts of pairs; absent: single texts
    tritonpipe.outputs         JSON: output name -> InputIds | AttentionMask | TokenTypeIds | SpecialTokensMask | Offsets | Lengths

Rows. A model that batches (max_batch_size > 0) has one text per row of the batch, [rows, 1] or, reshaped, [rows]; outputs are declared without the
batch axis: [length], Offsets [length, 2], Lengths [1]. With max_batch_size 0 the texts may have any shape ([-1], [1, -1], [-1, 1], [3]): every element
is a row, in order, and the outputs are [rows, length], [rows, length, 2] and [rows, 1].

Rows are padded on the right, with the pad token of the tokenizer; padding and truncation saved in tokenizer.json are switched off. A text without
any token (empty text, special tokens disabled) becomes one pad token that is attended to: with nothing to attend to, a model's answer would be
undefined and depend on the padding, and a row of length 0 must never reach a batching model step. Offsets are [begin, end) in characters (Unicode
code points, not bytes) of the text that the token comes from; special tokens and padding have [0, 0].

Special tokens that the model does not know come only with a text that spells them out. Where tokenizer.json has such, known_ids.json beside it says
how many ids the model knows, and such a request gets an error: in the model it would fail all requests of its batch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

# Appended, so that the image's own packages win.
sys.path += [folder for folder in os.environ.get("TRITONPIPE_SITE", "").split(os.pathsep) if folder and folder not in sys.path]

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from triton_pipelines.runtime.backend_helpers import quicken
from triton_pipelines.runtime.tokenizer.encoder import KNOWN_IDS, NoRoomError, Row, TemplateError, TextEncoder

Array = np.ndarray[Any, Any]
KINDS = ("InputIds", "AttentionMask", "TokenTypeIds", "SpecialTokensMask", "Offsets", "Lengths")
PADDINGS = ("Ragged", "Fixed", "Bucketed", "Longest")
TRUNCATIONS = ("LongestFirst", "OnlyFirst", "OnlySecond", "Refuse")
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
        raise RequestError(f"row {len(texts)} of {name} is not valid UTF-8 ({error.reason} at byte {error.start}); send UTF-8 text") from None
    return texts


def read_rows(tensor: Any, name: str, batched: bool) -> list[str]:
    """The texts of one input of a request: one per row of the batch, or every element when the model does not batch."""
    if tensor is None:
        raise RequestError(f"{name} is missing; send it")
    array = tensor.as_numpy()
    if array.size == 0:
        raise RequestError(f"{name} has no rows; send at least one text")
    if batched and array.size != len(array):
        raise RequestError(f"{name} has shape {list(array.shape)}, expected [rows, 1], one text per row")
    return decode_rows(array.ravel().tolist(), name)


def pair_rows(first: list[str], second: list[str], names: Sequence[str]) -> list[Row]:
    """Pairs, row by row."""
    if len(first) != len(second):
        raise RequestError(f"{names[0]} has {len(first)} rows, but {names[1]} has {len(second)}; send the same number of rows in both")
    return list(zip(first, second))  # noqa: B905 equal lengths, checked


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the configuration and the tokenizer; an exception here is the reason Triton gives for the failed load."""
        quicken(pb_utils)
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._batched = config.get("max_batch_size", 0) > 0
        self._names = _names(config, parameters)
        pairs = len(self._names) == 2
        self._padding = _choice(parameters, "tritonpipe.padding", PADDINGS)
        truncation = _choice(parameters, "tritonpipe.truncation", TRUNCATIONS)
        special_tokens = _choice(parameters, "tritonpipe.special_tokens", ("Enabled", "Disabled")) == "Enabled"
        length = _length(parameters, self._padding)
        self._max_length = sys.maxsize if length is None else length
        self._buckets = parse_buckets(parameters.get("tritonpipe.buckets", ""), self._max_length)
        self._outputs = _outputs(config, parameters)
        if truncation == "OnlySecond" and not pairs:
            raise ValueError("tritonpipe.truncation: OnlySecond cuts the second text of a pair, but tritonpipe.text_pair is not set")
        file = Path(args["model_repository"]) / args["model_version"] / parameters.get("tritonpipe.tokenizer_file", "tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise ValueError(f"{file.name}: cannot be read as a tokenizer ({error})") from error
        kinds = [kind for _, kind, _ in self._outputs]
        try:
            self._encoder = TextEncoder(tokenizer, kinds, length, truncation, special_tokens, pairs)
        except TemplateError as error:
            raise ValueError(f"{file.name}: {error}") from error
        self._known = _known_ids(file.with_name(KNOWN_IDS)) if "InputIds" in kinds else None
        self._ones = np.ones(512, dtype=np.int64)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
        responses: list[Any] = [None] * len(requests)
        rows: list[Row] = []
        spans: list[tuple[int, int, int]] = []  # (request, first row, end row)
        for index, request in enumerate(requests):
            try:
                own = self._read(request)
            except RequestError as error:
                responses[index] = _error(str(error))
                continue
            spans.append((index, len(rows), len(rows) + len(own)))
            rows += own
        if spans:
            self._answer(rows, spans, responses)
        return responses

    def _read(self, request: Any) -> list[Row]:
        texts = [read_rows(pb_utils.get_input_tensor_by_name(request, name), name, self._batched) for name in self._names]
        return cast("list[Row]", texts[0]) if len(texts) == 1 else pair_rows(texts[0], texts[1], self._names)

    def _answer(self, rows: list[Row], spans: list[tuple[int, int, int]], responses: list[Any]) -> None:
        try:
            lengths, flat = self._encoder.encode(rows)
        except BaseException as error:  # a Rust panic is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            if len(spans) == 1:
                responses[spans[0][0]] = self._failed(error)
                return
            # One row made the tokenizer fail: only its request may suffer.
            for index, first, end in spans:
                self._answer(rows[first:end], [(index, 0, end - first)], responses)
            return
        if self._encoder.refuse and int(lengths.max()) > self._max_length:
            spans = [span for span in spans if not self._refused(lengths, span, responses)]
        if self._known is not None and (unknown := self._encoder.unknown(lengths, flat["InputIds"], self._known)):
            spans = [span for span in spans if not self._foreign(unknown, span, responses)]
        if not spans:
            return
        counts: list[int] = lengths.tolist()
        widths = [max(counts[first:end]) for _, first, end in spans]
        if self._padding == "Longest":
            widths = [max(widths)] * len(spans)
        widths = [target_length(self._padding, own, self._buckets, self._max_length) for own in widths]
        if len(set(widths)) == 1 and sum(end - first for _, first, end in spans) == len(counts):
            # One width for all rows: one array per output, and each request gets its rows of it.
            arrays = self._arrays(lengths, flat, 0, sum(counts), widths[0])
            for index, first, end in spans:
                responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor(name, array[first:end]) for name, array in arrays])
            return
        starts = [0, *accumulate(counts)]
        columns = [(name, kind, self._column(kind, lengths, flat, sum(counts)).astype(dtype, copy=False)) for name, kind, dtype in self._outputs]
        for (index, first, end), width in zip(spans, widths, strict=True):
            size, start, stop = end - first, starts[first], starts[end]
            if stop - start == size * width:  # nothing to pad: views, no copies
                at = {"Lengths": (first, end), "AttentionMask": (0, stop - start)}  # a mask of ones is the same for all
                arrays = []
                for name, kind, values in columns:
                    begin, past = at.get(kind, (start, stop))
                    arrays.append((name, values[begin:past].reshape(size, -1, *values.shape[1:])))
            else:
                arrays = self._arrays(lengths[first:end], flat, start, stop, width)
            responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays])

    def _column(self, kind: str, lengths: Array, flat: dict[str, Array], tokens: int) -> Array:
        """The values of all rows laid end to end."""
        if kind != "AttentionMask":
            return lengths if kind == "Lengths" else flat[kind]
        self._ones = self._ones if self._ones.size >= tokens else np.ones(tokens, dtype=np.int64)
        return self._ones

    def _failed(self, error: BaseException) -> Any:
        """The error of a request that cannot be tokenized."""
        if not isinstance(error, NoRoomError):
            return _error(f"the tokenizer failed on this request: {error}", pb_utils.TritonError.INTERNAL)
        cut, uncut = self._names if self._encoder.truncation == "OnlyFirst" else self._names[::-1]
        return _error(
            f"row {error.row}: {uncut} has {error.kept} tokens, which with {self._encoder.special} special tokens leaves no room for {cut} within the "
            f"{self._max_length} allowed, and truncation {self._encoder.truncation} shortens only {cut}; shorten {uncut}"
        )

    def _refused(self, lengths: Array, span: tuple[int, int, int], responses: list[Any]) -> bool:
        index, first, end = span
        long = np.flatnonzero(lengths[first:end] > self._max_length)
        if not len(long):
            return False
        row = int(long[0])
        responses[index] = _error(
            f"row {row} of {' and '.join(self._names)} has {int(lengths[first + row])} tokens, more than the {self._max_length} allowed; shorten the text"
        )
        return True

    def _foreign(self, unknown: dict[int, str], span: tuple[int, int, int], responses: list[Any]) -> bool:
        """A token that the model does not know would fail every request of the model's batch."""
        index, first, end = span
        row = min((row for row in unknown if first <= row < end), default=None)
        if row is None:
            return False
        responses[index] = _error(
            f"row {row - first} of {' and '.join(self._names)} contains the token {unknown[row]}, which the model does not know; remove it from the text"
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
                array = np.arange(width) < lengths[:, None] if end - start != rows * width else np.ones((rows, width), dtype=dtype)
            else:
                array = pad_rows(flat[kind][start:end], lengths, width, self._encoder.pads[kind])
            arrays.append((name, array.astype(dtype, copy=False)))
        return arrays


def _choice(parameters: dict[str, str], key: str, allowed: Sequence[str]) -> str:
    """Value of a parameter; the first of ``allowed`` is the default."""
    value = parameters.get(key, allowed[0])
    if value not in allowed:
        raise ValueError(f"{key}: {value!r} is not one of {', '.join(allowed)}")
    return value


def _names(config: dict[str, Any], parameters: dict[str, str]) -> list[str]:
    """The input of the texts and, for pairs, that of the second ones, checked against the model's config."""
    names = [parameters.get("tritonpipe.text", "TEXT")]
    if "tritonpipe.text_pair" in parameters:
        names.append(parameters["tritonpipe.text_pair"])
        if names[0] == names[1]:
            raise ValueError(f"tritonpipe.text_pair: {names[1]} is also tritonpipe.text, but a pair requires two inputs")
    inputs = {tensor["name"]: tensor["data_type"] for tensor in config.get("input", [])}
    if inputs != dict.fromkeys(names, "TYPE_STRING"):
        wanted = f"exactly one input, {names[0]}" if len(names) == 1 else f"exactly two inputs, {names[0]} and {names[1]}"
        raise ValueError(f"the tokenizer needs {wanted} of TYPE_STRING, but the model has {inputs}")
    return names


def _length(parameters: dict[str, str], padding: str) -> int | None:
    """tritonpipe.max_length; None where no limit is set."""
    text = parameters.get("tritonpipe.max_length")
    if text is None:
        if padding in ("Fixed", "Bucketed"):
            raise ValueError(f"tritonpipe.max_length is missing, but tritonpipe.padding {padding} requires it")
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"tritonpipe.max_length: {text!r} is not a positive number of tokens")
    return int(text)


def _known_ids(file: Path) -> int | None:
    """How many token ids the model knows, where the tokenizer makes others too."""
    return int(json.loads(file.read_text(encoding="utf-8"))["ids"]) if file.is_file() else None


def _outputs(config: dict[str, Any], parameters: dict[str, str]) -> list[tuple[str, str, Any]]:
    """(tensor name, kind, numpy type) of every output, checked against the model's config."""
    kinds: dict[str, str] = json.loads(parameters.get("tritonpipe.outputs", "{}"))
    declared = {output["name"]: output["data_type"] for output in config.get("output", [])}
    if set(kinds) != set(declared):
        raise ValueError(f"tritonpipe.outputs lists {sorted(kinds)}, but the model's outputs are {sorted(declared)}")
    for name, kind in kinds.items():
        if kind not in KINDS:
            raise ValueError(f"tritonpipe.outputs: {name} is {kind!r}, not one of {', '.join(KINDS)}")
        if declared[name] not in DTYPES:
            raise ValueError(f"output {name} is {declared[name]}, but tokens are {' or '.join(DTYPES)}")
    return [(name, kind, DTYPES[declared[name]]) for name, kind in kinds.items()]


def _error(message: str, code: int | None = None) -> Any:
    """A response that fails this one request."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG if code is None else code))
