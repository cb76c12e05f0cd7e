"""Texts for requests: generated, one per line of a file, or perf_analyzer's input data. Pure.

Generated texts consist of words that are one token each in the vocabularies of BERT, GPT-2 and
similar models (and one unknown token each in others): as many words as tokens wanted. Only the
tokenizer can tell how many tokens a text really has.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

_COMMON: Final = (
    "the time people good day world year life great work home night long small house water "
    "place right story movie book music city school family money power country state number "
    "light white black young old high open free full new last best love heart mind hand eye "
    "face head body name word voice sound war game team player group system order party law "
    "case point line street road car door room"
)
_WORDS: Final = tuple(_COMMON.split())
MAX_TOKENS: Final = 1_000_000
MAX_ROWS: Final = 1 << 18
"""Maximum rows of all requests together up to which items are repeated."""


class TextsError(ValueError):
    """Texts or their description are invalid; the message says what is wrong and where."""


@dataclass(frozen=True, slots=True)
class TextLengths:
    """A lognormal distribution of text lengths in tokens, cut at ``cap``."""

    median: float = 32.0
    """Median length in tokens."""
    sigma: float = 0.6
    """Standard deviation of the logarithm; 0: all texts have the median's length."""
    cap: int = 512
    """Maximum length in tokens."""

    @classmethod
    def parse(cls, text: str) -> TextLengths:
        """Parse ``median=32,sigma=0.6,cap=512``; omitted values keep their defaults.

        Raises:
            TextsError: A name is unknown, or a value is not possible.
        """
        values: dict[str, float] = {}
        for part in text.split(","):
            name, found, value = (piece.strip() for piece in part.partition("="))
            if not found or name not in ("median", "sigma", "cap") or name in values:
                raise TextsError(
                    f"{part.strip()!r}: use median=TOKENS,sigma=NUMBER,cap=TOKENS, each at "
                    "most once"
                )
            try:
                values[name] = float(value)
            except ValueError:
                raise TextsError(f"{part.strip()!r}: {value!r} is not a number") from None
            if not math.isfinite(values[name]):
                raise TextsError(f"{part.strip()!r}: must be finite")
        result = cls(
            values.get("median", 32.0), values.get("sigma", 0.6), int(values.get("cap", 512))
        )
        if (
            not 1 <= result.median <= result.cap <= MAX_TOKENS
            or not 0 <= result.sigma <= 10
            or values.get("cap", 1) % 1
        ):
            raise TextsError(
                f"{text}: the values must satisfy 1 <= median <= cap <= {MAX_TOKENS} "
                "(integers) and 0 <= sigma <= 10"
            )
        return result

    def __str__(self) -> str:
        return f"median={self.median:g},sigma={self.sigma:g},cap={self.cap}"

    def sample(self, count: int, seed: int = 0) -> list[int]:
        """Return lengths in tokens, at least 1; the same seed gives the same lengths."""
        random = np.random.default_rng(seed)
        drawn = random.lognormal(math.log(self.median), self.sigma, count)
        return [int(value) for value in np.clip(np.rint(drawn), 1, self.cap)]


def generate_texts(lengths: Sequence[int], seed: int = 0, special_tokens: int = 2) -> list[str]:
    """Return a text for each length in tokens; each has at least one word.

    The length includes the ``special_tokens`` that a tokenizer adds ([CLS] and [SEP]).
    """
    random = np.random.default_rng(seed + 1)
    return [
        " ".join(
            _WORDS[index]
            for index in random.integers(0, len(_WORDS), max(1, length - special_tokens))
        )
        for length in lengths
    ]


def read_lines(content: str) -> list[str]:
    """Return the texts of a file, one per line; empty lines are left out.

    Raises:
        TextsError: The file contains no text.
    """
    found = [line for line in content.splitlines() if line.strip()]
    if not found:
        raise TextsError("the file is empty; write one text per line")
    return found


def batches(items: Sequence[str], rows: int) -> list[list[str]]:
    """Return rows for requests, in order, repeated until every item is used equally often.

    If that took more than :data:`MAX_ROWS` rows: until every item is used once, because requests
    are kept in memory.
    """
    turns = math.lcm(len(items), rows) // rows
    if turns * rows > max(MAX_ROWS, len(items)):
        turns = math.ceil(len(items) / rows)
    endless = itertools.cycle(items)
    return [list(itertools.islice(endless, rows)) for _ in range(turns)]


# --- perf_analyzer's input data -------------------------------------------------------------------


@dataclass(frozen=True)
class InputValue:
    """One input of one row in perf_analyzer's file."""

    elements: tuple[Any, ...] = ()
    """Elements in row-major order."""
    raw: bytes | None = None
    """Raw bytes instead of elements."""
    shape: tuple[int, ...] | None = None
    """Shape, if given."""


def is_perf_analyzer(content: str) -> bool:
    """Return whether a file's content looks like perf_analyzer's input data.

    Otherwise it is texts, one per line.
    """
    return content.lstrip()[:1] == "{" and '"data"' in content


def read_perf_analyzer(content: str) -> list[dict[str, InputValue]]:
    """Return the rows (batch 1 each) of perf_analyzer's ``--input-data`` JSON.

    The document is ``{"data": [{"TEXT": ["a text"]}, …]}``. Values are lists in row-major order,
    ``{"content": […], "shape": […]}`` or ``{"b64": "…"}``. Several streams (lists of lists) are
    read one after the other. ``validation_data`` is not read.

    Raises:
        TextsError: The document is invalid; the message names the entry and the input.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise TextsError(f"invalid JSON: {error}") from None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise TextsError(
            'the file must contain "data", a list of mappings from input names to values'
        )
    flat: list[tuple[str, Any]] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, list):
            flat += [(f"data[{number}][{inner}]", item) for inner, item in enumerate(entry)]
        else:
            flat.append((f"data[{number}]", entry))
    result = []
    for place, entry in flat:
        if not isinstance(entry, dict) or not entry:
            raise TextsError(f"{place}: must be a mapping from input names to values")
        result.append(
            {str(name): _tensor(value, f"{place}.{name}") for name, value in entry.items()}
        )
    if not result:
        raise TextsError(
            '"data" contains no requests; add at least one mapping from input names to values'
        )
    for number, row in enumerate(result):
        if row.keys() != result[0].keys():
            raise TextsError(
                f"{flat[number][0]}: the inputs of this entry ({', '.join(sorted(row))}) differ "
                f"from those of the first entry ({', '.join(sorted(result[0]))}); use the "
                "same inputs in all entries"
            )
    return result


def _tensor(value: Any, place: str) -> InputValue:
    shape: tuple[int, ...] | None = None
    if isinstance(value, Mapping):
        given = value.get("shape")
        if given is not None:
            if not isinstance(given, list) or not all(
                isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in given
            ):
                raise TextsError(f"{place}.shape: must be a list of non-negative integers")
            shape = tuple(given)
        if "b64" in value:
            try:
                return InputValue(
                    raw=base64.b64decode(str(value["b64"]), validate=True), shape=shape
                )
            except binascii.Error as error:
                raise TextsError(f"{place}.b64: invalid base64: {error}") from None
        if "content" not in value:
            raise TextsError(f'{place}: the value must contain "content" or "b64"')
        value = value["content"]
    if not isinstance(value, list):
        value = [value]
    if not value or any(isinstance(item, list | dict) or item is None for item in value):
        raise TextsError(f"{place}: must be a list of numbers or texts in row-major order")
    return InputValue(elements=tuple(value), shape=shape)
