"""Tokenize lists of texts into flat arrays of tokens.

The tokens come from the tokenizers library, or from the word memory if it knows the words. Nothing
here depends on Triton.
"""

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
# The library's names of the truncation strategies.
STRATEGIES = {
    "LongestFirst": "longest_first",
    "OnlyFirst": "only_first",
    "OnlySecond": "only_second",
}
# Written beside tokenizer.json if the model does not know some of its tokens. The content is
# {"ids": n}: the model knows the ids 0 to n - 1.
KNOWN_IDS = "known_ids.json"
PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "pad")


class NoRoomError(ValueError):
    """The text of a pair that must not be cut leaves no room for the other one.

    Attributes:
        row: index of the pair.
        kept: tokens of the text that must not be cut.
    """

    def __init__(self, row: int, kept: int) -> None:
        super().__init__(f"row {row}: a text of {kept} tokens leaves no room for the other one")
        self.row, self.kept = row, kept


class TemplateError(ValueError):
    """The tokenizer combines pairs in a way that cannot be cut."""


def pair_layout(tokenizer: Any, special_tokens: bool) -> tuple[tuple[int | None, ...], bool]:
    """Return how ``tokenizer`` lays out two texts of one token each.

    Args:
        tokenizer: a tokenizer that neither pads nor cuts.
        special_tokens: whether texts get special tokens.

    Returns:
        The layout: 0 or 1 for the token of a text, None for a special token. And whether the
        library's ``sequence_ids`` agree with it. If another step follows the template, they count
        special tokens as texts (tokenizers 0.23.3).

    Raises:
        TemplateError: A text does not occur exactly once. After a cut, it would be unknown how many
            of its tokens remain.
    """
    way_out = "save it with a template such as [CLS] $A [SEP] $B:1 [SEP]:1"
    # A vocabulary made for this purpose: no text is sure to be in that of ``tokenizer``.
    texts = Tokenizer(WordLevel({"0": 0, "1": 1}))
    try:
        made = tokenizer.post_process(texts.encode("0"), texts.encode("1"), special_tokens)
    except BaseException as error:  # a Rust panic is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise TemplateError(
            f"its post_processor does not combine two texts ({error}): {way_out}"
        ) from error
    layout = tuple(
        None if word is None else token for word, token in zip(made.word_ids, made.ids, strict=True)
    )
    for text, name in enumerate(("first", "second")):
        if (times := layout.count(text)) != 1:
            raise TemplateError(
                f"its post_processor inserts the {name} text {times} times, but pairs can be"
                f" truncated only if each text occurs once; {way_out}, or set truncation to Refuse"
            )
    return layout, tuple(made.sequence_ids) == layout


def shares(first: int, second: int, room: int, truncation: str) -> tuple[int, int] | None:
    """Return how many tokens of each text of a pair remain if the pair exceeds ``room``.

    The texts share the room as in the library. None if a text would have no tokens left.
    """
    if truncation == "OnlyFirst":
        return (room - second, second) if second < room else None
    if truncation == "OnlySecond":
        return (first, room - first) if first < room else None
    short = min(first, second, room // 2)
    return (room - short, short) if first > second else (short, room - short)


class TextEncoder:
    """Tokenizes lists of texts into flat token arrays.

    The library cuts single texts. Pairs are cut here, because the library keeps every part that it
    cuts off: each part of one text together with each part of the other. Two texts of 60 kB, which
    any client can send, filled 16 GB and ended the process. If pairs would have to be cut but
    cannot be, the constructor raises :class:`TemplateError`.
    """

    def __init__(
        self,
        tokenizer: Any,
        kinds: Iterable[str],
        max_length: int | None,
        truncation: str,
        special_tokens: bool,
        pairs: bool = False,
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
        # The fast call omits offsets. Without a post-processor, it also omits the types of second
        # texts (tokenizers 0.23.3).
        typed = pairs and "TokenTypeIds" in self.kinds and tokenizer.post_processor is None
        self._encode = (
            tokenizer.encode_batch
            if "Offsets" in self.kinds or typed
            else tokenizer.encode_batch_fast
        )
        simple = not pairs and set(self.kinds) <= {"InputIds", "TokenTypeIds"}
        # All tokens of the memory have type 0, also the pad token of a text without any token.
        simple = simple and ("TokenTypeIds" not in self.kinds or not self.pads["TokenTypeIds"])
        self._words = (
            WordMemory.of(tokenizer, special_tokens, None if self.refuse else max_length)
            if simple
            else None
        )

    @property
    def refuse(self) -> bool:
        """Whether longer rows are an error."""
        return self.truncation == "Refuse"

    def encode(self, rows: list[Row]) -> tuple[Array, dict[str, Array]]:
        """Return the lengths [rows] and, per kind, the concatenated values of all rows.

        Each row has at least one token.
        """
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
        """Return, for each row that has one, the first token that the model does not know.

        Args:
            lengths: tokens of each row.
            ids: the concatenated tokens of all rows.
            known: number of ids that the model knows.

        Returns:
            Row -> text and id of the token.
        """
        if not ids.size or int(ids.max()) < known:
            return {}
        places = np.flatnonzero(ids >= known)
        rows = np.searchsorted(np.cumsum(lengths), places, side="right").tolist()
        found = ids[places].tolist()
        names = {}
        # Reversed, so that the first token of a row is the one that stays.
        for row, token in reversed(list(zip(rows, found, strict=True))):
            names[row] = f"{self._tokenizer.id_to_token(token) or ''} (id {token})".strip()
        return names

    def _cut(self) -> None:
        self._tokenizer.no_truncation()
        if self.max_length is None or self.refuse:
            return
        if self.max_length <= self.special:
            raise ValueError(
                f"tritonpipe.max_length: {self.max_length} leaves no room for text next to"
                f" {self.special} special tokens"
            )
        if self._pairs:
            self._layout, self._tracked = pair_layout(self._tokenizer, self.special_tokens)
        else:
            self._tokenizer.enable_truncation(self.max_length, strategy=STRATEGIES[self.truncation])

    def _cut_pairs(self, rows: list[Row], encodings: list[Any]) -> dict[int, list[int]]:
        """Return the positions of the tokens that remain, for every pair that is too long."""
        kept: dict[int, list[int]] = {}
        if self.max_length is None or self.refuse:
            return kept
        for row, encoding in enumerate(encodings):
            if len(encoding) <= self.max_length:
                continue
            # If the library's sequence ids are wrong, the first text is counted alone. The library
            # also encodes both texts alone before it combines them.
            first = (
                encoding.sequence_ids.count(0)
                if self._tracked
                else len(self._encode([rows[row][0]], add_special_tokens=False)[0])
            )
            second = len(encoding) - self.special - first
            stay = shares(first, second, self.max_length - self.special, self.truncation)
            if stay is None:
                raise NoRoomError(row, second if self.truncation == "OnlyFirst" else first)
            kept[row] = self._places((first, second), stay)
        return kept

    def _places(self, tokens: tuple[int, int], stay: tuple[int, int]) -> list[int]:
        """Return the positions of the tokens of a pair that remain.

        These are the special tokens and the first ``stay`` of the ``tokens`` of each text.
        """
        places: list[int] = []
        at = 0
        for text in self._layout:
            size, kept = (1, 1) if text is None else (tokens[text], stay[text])
            places += range(at, at + kept)
            at += size
        return places

    def _arrays(
        self, encodings: list[Any], kept: dict[int, list[int]]
    ) -> tuple[Array, dict[str, Array]]:
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
            # Through a packed array: numpy alone takes 1.5 times as long for a list of integers.
            numbers = np.frombuffer(packed("q", values), np.int64)
            flat[kind] = numbers.reshape(-1, 2) if kind == "Offsets" else numbers
        return lengths, flat


_READERS = {
    "InputIds": attrgetter("ids"),
    "TokenTypeIds": attrgetter("type_ids"),
    "SpecialTokensMask": attrgetter("special_tokens_mask"),
    "Offsets": attrgetter("offsets"),
}
