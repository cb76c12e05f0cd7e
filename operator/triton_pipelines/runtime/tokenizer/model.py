"""Tokenizer step of a pipeline, run by Triton's python backend.

The texts or pairs of texts of all requests in a call are encoded in one call of the Rust tokenizer.
Each request can have any number of rows and gets its own response. An invalid request gets an error
and does not affect the others.

Configuration (``parameters`` of config.pbtxt; the config itself gives the names and data types of
the tensors):
    tritonpipe.tokenizer_file  file in the version folder (default tokenizer.json)
    tritonpipe.max_length      most tokens of a row, special tokens included
    tritonpipe.truncation      how longer rows are cut.
                               LongestFirst: of a pair, the longer text is cut first.
                               OnlyFirst, OnlySecond: only this text of a pair is cut. If the other
                               text leaves it no room, the request gets an error.
                               Refuse: longer rows are an error.
                               Pairs can be cut only if the tokenizer's template contains each text
                               once. Otherwise the load fails
    tritonpipe.special_tokens  Enabled | Disabled
    tritonpipe.padding         Ragged: each request is padded to its own longest row.
                               Fixed: to max_length.
                               Bucketed: to the next bucket that holds the request's longest row;
                               the last bucket is max_length.
                               Longest: to the longest row of all requests in the call
    tritonpipe.buckets         lengths for Bucketed, such as "32,64,512"
    tritonpipe.text            name of the input (default TEXT)
    tritonpipe.text_pair       name of the second input, whose rows are the second texts of pairs;
                               absent: single texts
    tritonpipe.outputs         JSON: output name -> InputIds | AttentionMask | TokenTypeIds |
                               SpecialTokensMask | Offsets | Lengths

Rows. With batching (max_batch_size > 0), each row of the batch has one text: [rows, 1] or,
reshaped, [rows]. Outputs are declared without the batch axis: [length], Offsets [length, 2],
Lengths [1]. With max_batch_size 0, the texts can have any shape ([-1], [1, -1], [-1, 1], [3]).
Every element is a row, in order. The outputs are [rows, length], [rows, length, 2] and [rows, 1].

Padding. Rows are padded on the right with the tokenizer's pad token. Padding and truncation saved
in tokenizer.json are switched off. A text without any token (an empty text, with special tokens
disabled) becomes one pad token with attention. Without it, the model's answer would be undefined
and depend on the padding, and a batching model step must not receive a row of length 0.

Offsets are [begin, end) in characters of the token's text. Characters are Unicode code points, not
bytes. Special tokens and padding have [0, 0].

Unknown tokens. tokenizer.json can define special tokens that the model does not know. The file
known_ids.json beside it then gives the number of ids that the model knows. Such a token appears
only if a text contains it literally. A request with an unknown token gets an error, because the
model would fail all requests of its batch.
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
sys.path += [
    folder
    for folder in os.environ.get("TRITONPIPE_SITE", "").split(os.pathsep)
    if folder and folder not in sys.path
]

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from triton_pipelines.runtime.backend_helpers import quicken
from triton_pipelines.runtime.tokenizer.encoder import (
    KNOWN_IDS,
    NoRoomError,
    Row,
    TemplateError,
    TextEncoder,
)
from triton_pipelines.runtime.tokenizer.settings import (
    PADDINGS,
    TRUNCATIONS,
    check_truncation,
    parse_buckets,
    read_choice,
    read_inputs,
    read_known_ids,
    read_max_length,
    read_outputs,
)

Array = np.ndarray[Any, Any]
Span = tuple[int, int, int]  # index of the request, its first row, end of its rows


class RequestError(ValueError):
    """One request cannot be answered; the text goes to its client."""


def target_length(padding: str, longest: int, buckets: Sequence[int], max_length: int) -> int:
    """Return the tokens per row after padding; the longest row has ``longest`` tokens."""
    if padding == "Fixed":
        return max_length
    if padding == "Bucketed":
        return next(bucket for bucket in buckets if bucket >= longest)
    return longest


def pad_rows(flat: Array, lengths: Array, width: int, pad: int) -> Array:
    """Return the concatenated rows ``flat`` [tokens, ...] as an array [rows, width, ...].

    Rows are padded with ``pad`` on the right. Without padding, the array is a view, not a copy.
    """
    rows = len(lengths)
    if len(flat) == rows * width:
        return flat.reshape(rows, width, *flat.shape[1:])
    padded = np.full((rows, width, *flat.shape[1:]), pad, dtype=flat.dtype)
    padded[np.arange(width) < lengths[:, None]] = flat
    return padded


def decode_rows(rows: Iterable[bytes], name: str) -> list[str]:
    """Return the texts of UTF-8 rows; an error names the first row that is invalid."""
    texts: list[str] = []
    try:
        for row in rows:
            texts.append(row.decode())
    except UnicodeDecodeError as error:
        raise RequestError(
            f"row {len(texts)} of {name} is not valid UTF-8 ({error.reason} at byte"
            f" {error.start}); send UTF-8 text"
        ) from None
    return texts


def read_rows(tensor: Any, name: str, batched: bool) -> list[str]:
    """Return the texts of one input of a request.

    There is one per row of the batch. If the model does not batch, every element is a text.
    """
    if tensor is None:
        raise RequestError(f"input {name} is missing; add that input to the request")
    array = tensor.as_numpy()
    if array.size == 0:
        raise RequestError(f"{name} has no rows; send at least one text")
    if batched and array.size != len(array):
        raise RequestError(
            f"{name} has shape {list(array.shape)}, expected [rows, 1], one text per row"
        )
    return decode_rows(array.ravel().tolist(), name)


def pair_rows(first: list[str], second: list[str], names: Sequence[str]) -> list[Row]:
    """Return the pairs, row by row."""
    if len(first) != len(second):
        raise RequestError(
            f"{names[0]} has {len(first)} rows, but {names[1]} has {len(second)}; send the same"
            " number of rows in both"
        )
    return list(zip(first, second))  # noqa: B905 equal lengths, checked


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the configuration and the tokenizer.

        If this raises an exception, Triton reports it as the reason for the failed load.
        """
        quicken(pb_utils)
        config = json.loads(args["model_config"])
        parameters = {
            key: value["string_value"] for key, value in config.get("parameters", {}).items()
        }
        self._batched = config.get("max_batch_size", 0) > 0
        self._names = read_inputs(config, parameters)
        pairs = len(self._names) == 2
        self._padding = read_choice(parameters, "tritonpipe.padding", PADDINGS)
        truncation = read_choice(parameters, "tritonpipe.truncation", TRUNCATIONS)
        special = read_choice(parameters, "tritonpipe.special_tokens", ("Enabled", "Disabled"))
        length = read_max_length(parameters, self._padding)
        self._max_length = sys.maxsize if length is None else length
        self._buckets = parse_buckets(parameters.get("tritonpipe.buckets", ""), self._max_length)
        self._outputs = read_outputs(config, parameters)
        check_truncation(truncation, pairs)
        file = (
            Path(args["model_repository"])
            / args["model_version"]
            / parameters.get("tritonpipe.tokenizer_file", "tokenizer.json")
        )
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise ValueError(f"{file.name} is not a valid tokenizer: {error}") from error
        kinds = [kind for _, kind, _ in self._outputs]
        try:
            self._encoder = TextEncoder(
                tokenizer, kinds, length, truncation, special == "Enabled", pairs
            )
        except TemplateError as error:
            raise ValueError(f"{file.name}: {error}") from error
        self._known = read_known_ids(file.with_name(KNOWN_IDS)) if "InputIds" in kinds else None
        self._ones = np.ones(512, dtype=np.int64)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request, in order."""
        responses: list[Any] = [None] * len(requests)
        rows: list[Row] = []
        spans: list[Span] = []
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
        texts = [
            read_rows(pb_utils.get_input_tensor_by_name(request, name), name, self._batched)
            for name in self._names
        ]
        return (
            cast("list[Row]", texts[0])
            if len(texts) == 1
            else pair_rows(texts[0], texts[1], self._names)
        )

    def _answer(self, rows: list[Row], spans: list[Span], responses: list[Any]) -> None:
        """Tokenize the rows of several requests and put their responses into ``responses``."""
        try:
            lengths, flat = self._encoder.encode(rows)
        except BaseException as error:  # a Rust panic is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            if len(spans) == 1:
                responses[spans[0][0]] = self._failed(error)
                return
            # One row made the tokenizer fail: only its request may fail.
            for index, first, end in spans:
                self._answer(rows[first:end], [(index, 0, end - first)], responses)
            return
        spans = self._accepted(lengths, flat, spans, responses)
        if not spans:
            return
        counts: list[int] = lengths.tolist()
        widths = self._widths(counts, spans)
        if len(set(widths)) == 1 and sum(end - first for _, first, end in spans) == len(counts):
            # One width for all rows: one array per output, and each request gets its rows of it.
            arrays = self._arrays(lengths, flat, 0, sum(counts), widths[0])
            for index, first, end in spans:
                responses[index] = pb_utils.InferenceResponse(
                    [pb_utils.Tensor(name, array[first:end]) for name, array in arrays]
                )
            return
        starts = [0, *accumulate(counts)]
        columns = [
            (name, kind, self._column(kind, lengths, flat, sum(counts)).astype(dtype, copy=False))
            for name, kind, dtype in self._outputs
        ]
        for (index, first, end), width in zip(spans, widths, strict=True):
            start, stop = starts[first], starts[end]
            if stop - start == (end - first) * width:
                arrays = _views(columns, (first, end), (start, stop))
            else:
                arrays = self._arrays(lengths[first:end], flat, start, stop, width)
            responses[index] = pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, array) for name, array in arrays]
            )

    def _accepted(
        self, lengths: Array, flat: dict[str, Array], spans: list[Span], responses: list[Any]
    ) -> list[Span]:
        """Return the requests to answer; the others get an error in ``responses``."""
        if self._encoder.refuse and int(lengths.max()) > self._max_length:
            spans = [span for span in spans if not self._refused(lengths, span, responses)]
        if self._known is not None and (
            unknown := self._encoder.unknown(lengths, flat["InputIds"], self._known)
        ):
            spans = [span for span in spans if not self._foreign(unknown, span, responses)]
        return spans

    def _widths(self, counts: list[int], spans: list[Span]) -> list[int]:
        """Return the tokens per row of each request after padding."""
        widths = [max(counts[first:end]) for _, first, end in spans]
        if self._padding == "Longest":
            widths = [max(widths)] * len(spans)
        return [
            target_length(self._padding, own, self._buckets, self._max_length) for own in widths
        ]

    def _column(self, kind: str, lengths: Array, flat: dict[str, Array], tokens: int) -> Array:
        """Return the concatenated values of all rows."""
        if kind != "AttentionMask":
            return lengths if kind == "Lengths" else flat[kind]
        self._ones = self._ones if self._ones.size >= tokens else np.ones(tokens, dtype=np.int64)
        return self._ones

    def _failed(self, error: BaseException) -> Any:
        """Return the error of a request that cannot be tokenized."""
        if not isinstance(error, NoRoomError):
            return _error(
                f"the tokenizer failed on this request: {error}", pb_utils.TritonError.INTERNAL
            )
        cut, uncut = self._names if self._encoder.truncation == "OnlyFirst" else self._names[::-1]
        return _error(
            f"row {error.row}: {uncut} has {error.kept} tokens, which with "
            f"{self._encoder.special} special tokens leaves no room for {cut} within the "
            f"maximum of {self._max_length}, and truncation {self._encoder.truncation} "
            f"shortens only {cut}; shorten {uncut}"
        )

    def _refused(self, lengths: Array, span: Span, responses: list[Any]) -> bool:
        """Return whether a row of a request is too long; the request gets an error then."""
        index, first, end = span
        long = np.flatnonzero(lengths[first:end] > self._max_length)
        if not len(long):
            return False
        row = int(long[0])
        responses[index] = _error(
            f"row {row} of {' and '.join(self._names)} has {int(lengths[first + row])} "
            f"tokens, but at most {self._max_length} tokens are allowed; shorten the text"
        )
        return True

    def _foreign(self, unknown: dict[int, str], span: Span, responses: list[Any]) -> bool:
        """Return whether a request has an unknown token; the request gets an error then.

        In the model, the token would fail every request of the batch.
        """
        index, first, end = span
        row = min((row for row in unknown if first <= row < end), default=None)
        if row is None:
            return False
        responses[index] = _error(
            f"row {row - first} of {' and '.join(self._names)} contains the token "
            f"{unknown[row]}, which the model does not know; remove this token from the text"
        )
        return True

    def _arrays(
        self, lengths: Array, flat: dict[str, Array], start: int, end: int, width: int
    ) -> list[tuple[str, Array]]:
        """Return every output for rows whose tokens are ``start`` to ``end`` of ``flat``."""
        rows = len(lengths)
        arrays = []
        for name, kind, dtype in self._outputs:
            if kind == "Lengths":
                array = lengths.reshape(rows, 1)
            elif kind == "AttentionMask":
                array = (
                    np.arange(width) < lengths[:, None]
                    if end - start != rows * width
                    else np.ones((rows, width), dtype=dtype)
                )
            else:
                array = pad_rows(flat[kind][start:end], lengths, width, self._encoder.pads[kind])
            arrays.append((name, array.astype(dtype, copy=False)))
        return arrays


def _views(
    columns: Sequence[tuple[str, str, Array]], rows: tuple[int, int], tokens: tuple[int, int]
) -> list[tuple[str, Array]]:
    """Return every output of a request that needs no padding, as views of the ``columns``.

    Args:
        columns: name, kind and concatenated values of each output, for all requests.
        rows: first and end row of the request.
        tokens: first and end token of the request.
    """
    # The mask consists of ones, so every part of its column is the same.
    places = {"Lengths": rows, "AttentionMask": (0, tokens[1] - tokens[0])}
    arrays = []
    for name, kind, values in columns:
        begin, end = places.get(kind, tokens)
        array = values[begin:end].reshape(rows[1] - rows[0], -1, *values.shape[1:])
        arrays.append((name, array))
    return arrays


def _error(message: str, code: int | None = None) -> Any:
    """Return a response that fails this request only."""
    code = pb_utils.TritonError.INVALID_ARG if code is None else code
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
