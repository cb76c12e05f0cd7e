"""What the tokenizer step must answer, computed with the tokenizers library, one row at a time.

It is the reference for the native tokenizer: the library encodes and cuts each text or pair alone,
without a cache and without other requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from tests.support.python_backend import TritonError
from tests.support.testserver import Answer, NativeError
from triton_pipelines.loader.tokenizer_files import KNOWN_IDS, PAD_TOKENS, check_template

STRATEGIES = {
    "LongestFirst": "longest_first",
    "OnlyFirst": "only_first",
    "OnlySecond": "only_second",
}
DATA_TYPES = {"TYPE_INT32": np.int32, "TYPE_INT64": np.int64}

Inputs = Mapping[str, np.ndarray]
Row = tuple[str, ...]
"""A text, or a pair of texts."""
Tokens = dict[str, list[Any]]
"""The values of one row, by kind of output."""


class _RequestError(Exception):
    """One request cannot be answered."""

    def __init__(self, message: str, code: int = TritonError.INVALID_ARG) -> None:
        super().__init__(message)
        self.answer = NativeError(code, message)


class TokenizerOracle:
    """A tokenizer with the settings of a model."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], parameters: Mapping[str, str]
    ) -> None:
        """Read the model in ``folder``, which holds version 1.

        Raises:
            ValueError: the step must not load; its message must contain this one.
        """
        given = {key.removeprefix("tritonpipe."): value for key, value in parameters.items()}
        self._batched = config["max_batch_size"] > 0
        self._names = [given.get("text", "TEXT")]
        self._names += [given["text_pair"]] if "text_pair" in given else []
        self._truncation = given.get("truncation", "LongestFirst")
        self._special_tokens = given.get("special_tokens", "Enabled") == "Enabled"
        self._padding = given.get("padding", "Ragged")
        self._most = int(given["max_length"]) if "max_length" in given else None
        buckets = {int(one) for one in given.get("buckets", "").split(",") if one}
        self._buckets = [*sorted(one for one in buckets if one < (self._most or 0)), self._most]
        types = {one["name"]: DATA_TYPES[one["data_type"]] for one in config["output"]}
        kinds = json.loads(given["outputs"])
        self._outputs = [(name, kind, types[name]) for name, kind in kinds.items()]
        file = folder / "1/tokenizer.json"
        known = file.with_name(KNOWN_IDS)
        self._known = json.loads(known.read_text())["ids"] if known.is_file() else None
        self._whole = Tokenizer.from_file(str(file))
        self._pads = _pads(self._whole)
        self._whole.no_padding()
        self._whole.no_truncation()
        self._special = (
            self._whole.num_special_tokens_to_add(len(self._names) == 2)
            if self._special_tokens
            else 0
        )
        self._check()
        self._cut = Tokenizer.from_str(self._whole.to_str())
        if self._cuts:
            self._cut.enable_truncation(self._most, strategy=STRATEGIES[self._truncation])

    @property
    def _cuts(self) -> bool:
        return self._most is not None and self._truncation != "Refuse"

    def _check(self) -> None:
        if self._truncation == "OnlySecond" and len(self._names) == 1:
            raise ValueError(
                "tritonpipe.truncation: OnlySecond cuts the second text of a pair, but"
                " tritonpipe.text_pair is not set"
            )
        if len(self._names) == 1:
            check_template(self._whole, pairs=False, special_tokens=self._special_tokens)
        if self._cuts and self._most <= self._special:
            raise ValueError(
                f"tritonpipe.max_length: {self._most} leaves no room for text next to"
                f" {self._special} special tokens"
            )
        if self._cuts and len(self._names) == 2:
            check_template(self._whole, pairs=True, special_tokens=self._special_tokens)

    def execute(self, requests: Sequence[Inputs]) -> list[Answer]:
        """Answer the requests of one batch."""
        tokens: list[list[Tokens] | NativeError] = []
        for inputs in requests:
            try:
                tokens.append(self._tokens(self._rows(inputs)))
            except _RequestError as error:
                tokens.append(error.answer)
        longest = max(
            (_longest(rows) for rows in tokens if not isinstance(rows, NativeError)), default=0
        )
        return [
            rows
            if isinstance(rows, NativeError)
            else self._answer(rows, longest if self._padding == "Longest" else _longest(rows))
            for rows in tokens
        ]

    def _rows(self, inputs: Inputs) -> list[Row]:
        columns = [self._texts(inputs.get(name), name) for name in self._names]
        if len(columns[0]) != len(columns[-1]):
            first, second = self._names
            raise _RequestError(
                f"{first} has {len(columns[0])} rows, but {second} has {len(columns[1])}; send the"
                " same number of rows in both"
            )
        return list(zip(*columns, strict=True))

    def _texts(self, array: np.ndarray | None, name: str) -> list[str]:
        if array is None:
            raise _RequestError(f"input {name} is missing; add that input to the request")
        if not array.size:
            raise _RequestError(f"{name} has no rows; send at least one text")
        if self._batched and array.size != len(array):
            raise _RequestError(
                f"{name} has shape {list(array.shape)}, expected [rows, 1], one text per row"
            )
        texts = []
        for row, content in enumerate(array.flat):
            try:
                texts.append(content.decode())
            except UnicodeDecodeError as error:
                raise _RequestError(
                    f"row {row} of {name} is not valid UTF-8 ({error.reason} at byte"
                    f" {error.start}); send UTF-8 text"
                ) from None
        return texts

    def _tokens(self, rows: Sequence[Row]) -> list[Tokens]:
        """Return the tokens of a request, or its first error."""
        try:
            encoded = [self._encode(self._whole, row) for row in rows]
        except Exception as error:
            text = f"the tokenizer failed on this request: {error}"
            raise _RequestError(text, TritonError.INTERNAL) from None
        names = " and ".join(self._names)
        for number, row in enumerate(rows):
            size = len(encoded[number])
            if self._most is None or size <= self._most:
                continue
            if not self._cuts:
                raise _RequestError(
                    f"row {number} of {names} has {size} tokens, but at most {self._most} tokens"
                    " are allowed; shorten the text"
                )
            encoded[number] = self._shortened(number, row)
        tokens = [self._values(one) for one in encoded]
        if self._known is not None and any(kind == "InputIds" for _, kind, _ in self._outputs):
            self._check_known(tokens, names)
        return tokens

    def _shortened(self, number: int, row: Row) -> Encoding:
        try:
            return self._encode(self._cut, row)
        except Exception:  # the text that must not be cut fills the row
            cut, uncut = (0, 1) if self._truncation == "OnlyFirst" else (1, 0)
            kept = len(self._whole.encode(row[uncut], add_special_tokens=False))
            raise _RequestError(
                f"row {number}: {self._names[uncut]} has {kept} tokens, which with {self._special}"
                f" special tokens leaves no room for {self._names[cut]} within the maximum of"
                f" {self._most}, and truncation {self._truncation} shortens only"
                f" {self._names[cut]}; shorten {self._names[uncut]}"
            ) from None

    def _encode(self, tokenizer: Tokenizer, row: Row) -> Encoding:
        return tokenizer.encode(*row, add_special_tokens=self._special_tokens)

    def _values(self, encoded: Encoding) -> Tokens:
        """Return the values of a row; a row without tokens is one pad token."""
        if not encoded.ids:
            return {kind: [pad] for kind, pad in self._pads.items()} | {"AttentionMask": [1]}
        return {
            "InputIds": encoded.ids,
            "AttentionMask": [1] * len(encoded),
            "TokenTypeIds": encoded.type_ids,
            "SpecialTokensMask": encoded.special_tokens_mask,
            "Offsets": encoded.offsets,
        }

    def _check_known(self, rows: Sequence[Tokens], names: str) -> None:
        for number, row in enumerate(rows):
            for token in row["InputIds"]:
                if token >= self._known:
                    text = f"{self._whole.id_to_token(token) or ''} (id {token})".strip()
                    raise _RequestError(
                        f"row {number} of {names} contains the token {text}, which the model does"
                        " not know; remove this token from the text"
                    )

    def _answer(self, rows: Sequence[Tokens], longest: int) -> Answer:
        width = longest
        if self._padding == "Fixed":
            width = self._buckets[-1]
        elif self._padding == "Bucketed":
            width = next(bucket for bucket in self._buckets if bucket >= longest)
        arrays = {}
        for name, kind, data_type in self._outputs:
            if kind == "Lengths":
                values = [[len(row["InputIds"])] for row in rows]
            else:
                pad = self._pads.get(kind, 0)
                values = [row[kind] + [pad] * (width - len(row[kind])) for row in rows]
            arrays[name] = np.array(values, data_type)
        return arrays


def _longest(rows: Sequence[Tokens]) -> int:
    return max(len(row["InputIds"]) for row in rows)


def _pads(tokenizer: Tokenizer) -> Tokens:
    """Return the padding of each kind of output: the tokenizer's own, else a usual pad token."""
    saved = tokenizer.padding or {}
    usual = (tokenizer.token_to_id(token) for token in PAD_TOKENS)
    found = next((number for number in usual if number is not None), 0)
    return {
        "InputIds": saved.get("pad_id", found),
        "TokenTypeIds": saved.get("pad_type_id", 0),
        "SpecialTokensMask": 1,
        "Offsets": (0, 0),
    }


def difference(expected: Answer, answer: Answer) -> str | None:
    """Return how an answer differs from the expected one; ``None`` if it does not."""
    if isinstance(expected, NativeError) or isinstance(answer, NativeError):
        same = expected == answer
        return None if same else f"expected {_described(expected)}, but {_described(answer)}"
    if set(expected) != set(answer):
        return f"expected {_described(expected)}, but {_described(answer)}"
    for name, array in expected.items():
        if answer[name].dtype != array.dtype or not np.array_equal(answer[name], array):
            return f"expected {name} {array.tolist()}, but {answer[name].tolist()}"
    return None


def _described(answer: Answer) -> str:
    return str(answer) if isinstance(answer, NativeError) else f"outputs {sorted(answer)}"
