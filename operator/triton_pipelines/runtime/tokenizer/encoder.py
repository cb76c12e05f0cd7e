"""Lists of texts to flat arrays of tokens: the tokenizers library, or the memory of words where that does. Knows nothing of Triton."""

from __future__ import annotations

from array import array as packed
from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from typing import Any, cast

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from triton_pipelines.runtime.tokenizer.words import WordMemory

Array = np.ndarray[Any, Any]
Row = str | tuple[str, str]  # a text, or a pair of texts
# The library's names of the ways to cut.
STRATEGIES = {"LongestFirst": "longest_first", "OnlyFirst": "only_first", "OnlySecond": "only_second"}
# Written beside tokenizer.json where some of its tokens are none of the model's: {"ids": n}, the model knows the ids 0 to n - 1.
KNOWN_IDS = "known_ids.json"
PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "pad")


class NoRoomError(ValueError):
    """The text of a pair that is not to be cut leaves no token to the other one.

    Attributes:
        row: the pair's place among those that were given.
        kept: tokens of the text that is not to be cut.
    """

    def __init__(self, row: int, kept: int) -> None:
        super().__init__(f"row {row}: a text of {kept} tokens leaves no room for the other one")
        self.row, self.kept = row, kept


class TemplateError(ValueError):
    """What a tokenizer makes of a pair cannot be cut."""


def pair_layout(tokenizer: Any, special_tokens: bool) -> tuple[tuple[int | None, ...], bool]:
    """What ``tokenizer``, which neither pads nor cuts, makes of two texts of a token each: 0 or 1 for a text's token, None for a special one.

    And whether the library says so, too: where another step follows the template, its ``sequence_ids`` count special tokens as texts (tokenizers 0.23.3).
    Raises :class:`TemplateError` where a text does not stand in it once: cut or not, nobody could say how many tokens of it that leaves.
    """
    way_out = "save it with a template such as [CLS] $A [SEP] $B:1 [SEP]:1"
    # Tokens of a vocabulary that is at hand: that of ``tokenizer`` need not know any one text.
    texts = Tokenizer(WordLevel({"0": 0, "1": 1}))
    try:
        made = tokenizer.post_process(texts.encode("0"), texts.encode("1"), special_tokens)
    except BaseException as error:  # a Rust panic is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise TemplateError(f"its post_processor does not combine two texts ({error}): {way_out}") from error
    layout = tuple(None if word is None else token for word, token in zip(made.word_ids, made.ids, strict=True))
    for text, name in enumerate(("first", "second")):
        if (times := layout.count(text)) != 1:
            raise TemplateError(
                f"its post_processor inserts the {name} text {times} times, but pairs can be truncated only if each text occurs once; {way_out}, "
                "or set truncation to Refuse"
            )
    return layout, tuple(made.sequence_ids) == layout


def shares(first: int, second: int, room: int, truncation: str) -> tuple[int, int] | None:
    """Tokens that stay of either text of a pair that has more than ``room``, as the library shares them out; None where one would have none left."""
    if truncation == "OnlyFirst":
        return (room - second, second) if second < room else None
    if truncation == "OnlySecond":
        return (first, room - first) if first < room else None
    short = min(first, second, room // 2)
    return (room - short, short) if first > second else (short, room - short)


class TextEncoder:
    """Tokenizes lists of texts into flat token arrays; knows nothing of Triton.

    Single texts are cut by the library. Pairs are cut here: the library keeps every part that it cuts off, of a pair each part of one text together with
    each part of the other, so that two texts of 60 kB, which any client may send, filled 16 GB and ended the process. A tokenizer whose pairs would have to
    be cut and cannot is a :class:`TemplateError`.
    """

    def __init__(
        self, tokenizer: Any, kinds: Iterable[str], max_length: int | None, truncation: str, special_tokens: bool, pairs: bool = False
    ) -> None:
        self.max_length = max_length
        self.truncation = truncation
        self.special_tokens = special_tokens
        self.special = tokenizer.num_special_tokens_to_add(pairs) if special_tokens else 0
        self._pairs = pairs
        self._tokenizer = tokenizer
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
        self._cut()
        # The fast call leaves offsets out and, without a post-processor, the types of second texts (tokenizers 0.23.3).
        typed = pairs and "TokenTypeIds" in self.kinds and tokenizer.post_processor is None
        self._encode = tokenizer.encode_batch if "Offsets" in self.kinds or typed else tokenizer.encode_batch_fast
        simple = not pairs and set(self.kinds) <= {"InputIds", "TokenTypeIds"}
        # The memory's tokens are all of type 0, that of a text without any token, too.
        simple = simple and ("TokenTypeIds" not in self.kinds or not self.pads["TokenTypeIds"])
        self._words = WordMemory.of(tokenizer, special_tokens, None if self.refuse else max_length) if simple else None

    @property
    def refuse(self) -> bool:
        """Whether longer rows are an error."""
        return self.truncation == "Refuse"

    def encode(self, rows: list[Row]) -> tuple[Array, dict[str, Array]]:
        """Lengths [rows] (at least 1 each) and, per kind, the values of all rows laid end to end."""
        known = None if self._words is None else self._words.rows(cast("list[str]", rows))
        if known is None:
            encodings = self._encode(rows, add_special_tokens=self.special_tokens)
            return self._arrays(encodings, self._cut_pairs(rows, encodings) if self._pairs else {})
        empty = np.int64(self.pads["InputIds"]).tobytes()
        known = [row or empty for row in known]
        ids = np.frombuffer(bytearray().join(known), np.int64)
        return np.fromiter(map(len, known), np.int64, len(known)) // ids.itemsize, {
            kind: ids if kind == "InputIds" else ids * 0 for kind in self.kinds
        }

    def unknown(self, lengths: Array, ids: Array, known: int) -> dict[int, str]:
        """Row -> the first of its tokens, of all rows laid end to end in ``ids``, that is not one of the first ``known``, in words."""
        if not ids.size or int(ids.max()) < known:
            return {}
        places = np.flatnonzero(ids >= known)
        rows = np.searchsorted(np.cumsum(lengths), places, side="right").tolist()
        found = ids[places].tolist()
        # The first of a row comes last, and stays.
        return {row: f"{self._tokenizer.id_to_token(token) or ''} (id {token})".strip() for row, token in reversed(list(zip(rows, found)))}  # noqa: B905

    def _cut(self) -> None:
        self._tokenizer.no_truncation()
        if self.max_length is None or self.refuse:
            return
        if self.max_length <= self.special:
            raise ValueError(f"tritonpipe.max_length: {self.max_length} leaves no room for text next to {self.special} special tokens")
        if self._pairs:
            self._layout, self._tracked = pair_layout(self._tokenizer, self.special_tokens)
        else:
            self._tokenizer.enable_truncation(self.max_length, strategy=STRATEGIES[self.truncation])

    def _cut_pairs(self, rows: list[Row], encodings: list[Any]) -> dict[int, list[int]]:
        """Places of the tokens that stay, for every pair that is too long."""
        kept: dict[int, list[int]] = {}
        if self.max_length is None or self.refuse:
            return kept
        for row, encoding in enumerate(encodings):
            if len(encoding) <= self.max_length:
                continue
            # Where the library has lost track of the texts: both are encoded alone before they are put together.
            first = encoding.sequence_ids.count(0) if self._tracked else len(self._encode([rows[row][0]], add_special_tokens=False)[0])
            second = len(encoding) - self.special - first
            stay = shares(first, second, self.max_length - self.special, self.truncation)
            if stay is None:
                raise NoRoomError(row, second if self.truncation == "OnlyFirst" else first)
            kept[row] = self._places((first, second), stay)
        return kept

    def _places(self, tokens: tuple[int, int], stay: tuple[int, int]) -> list[int]:
        """Where the special tokens stand in a pair whose texts have so many ``tokens``, and the first of either text that ``stay``."""
        places: list[int] = []
        at = 0
        for text in self._layout:
            size, kept = (1, 1) if text is None else (tokens[text], stay[text])
            places += range(at, at + kept)
            at += size
        return places

    def _arrays(self, encodings: list[Any], kept: dict[int, list[int]]) -> tuple[Array, dict[str, Array]]:
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        for row, places in kept.items():
            lengths[row] = len(places)
        empty = np.flatnonzero(lengths == 0).tolist()
        lengths[empty] = 1
        flat = {}
        for kind in self.kinds:
            rows = list(map(_READERS[kind], encodings))
            for row, places in kept.items():
                rows[row] = list(map(rows[row].__getitem__, places))
            for row in empty:
                rows[row] = [(0, 0)] if kind == "Offsets" else [self.pads[kind]]
            values: list[Any] = []
            for row in rows:
                values += row
            if kind == "Offsets":
                values = list(chain.from_iterable(values))
            # By way of a packed array: numpy itself takes half as long again for a list of integers.
            numbers = np.frombuffer(packed("q", values), np.int64)
            flat[kind] = numbers.reshape(-1, 2) if kind == "Offsets" else numbers
        return lengths, flat


_READERS = {
    "InputIds": attrgetter("ids"),
    "TokenTypeIds": attrgetter("type_ids"),
    "SpecialTokensMask": attrgetter("special_tokens_mask"),
    "Offsets": attrgetter("offsets"),
}
