"""Lists of texts to flat arrays of tokens: the tokenizers library, or the memory of words where that does. Knows nothing of Triton."""

from __future__ import annotations

from array import array as packed
from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from typing import Any, cast

import numpy as np

from triton_pipelines.runtime.tokenizer.words import WordMemory

Array = np.ndarray[Any, Any]
Row = str | tuple[str, str]  # a text, or a pair of texts
# The library's names of the ways to cut.
STRATEGIES = {"LongestFirst": "longest_first", "OnlyFirst": "only_first", "OnlySecond": "only_second"}
# Written beside tokenizer.json where some of its tokens are none of the model's: {"ids": n}, the model knows the ids 0 to n - 1.
KNOWN_IDS = "known_ids.json"
PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "pad")


class TextEncoder:
    """Tokenizes lists of texts into flat token arrays; knows nothing of Triton."""

    def __init__(
        self, tokenizer: Any, kinds: Iterable[str], max_length: int | None, truncation: str, special_tokens: bool, pairs: bool = False
    ) -> None:
        self.max_length = max_length
        self.truncation = truncation
        self.special_tokens = special_tokens
        self.special = tokenizer.num_special_tokens_to_add(pairs) if special_tokens else 0
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
            return self._arrays(self._encode(rows, add_special_tokens=self.special_tokens))
        empty = np.int64(self.pads["InputIds"]).tobytes()
        known = [row or empty for row in known]
        ids = np.frombuffer(bytearray().join(known), np.int64)
        return np.fromiter(map(len, known), np.int64, len(known)) // ids.itemsize, {
            kind: ids if kind == "InputIds" else ids * 0 for kind in self.kinds
        }

    def no_room(self, rows: list[Row]) -> tuple[int, int] | None:
        """The first row whose uncut text leaves no token to the one that may be cut, and that text's tokens; None when there is none."""
        if self.max_length is None or self.truncation not in ("OnlyFirst", "OnlySecond"):
            return None
        self._tokenizer.no_truncation()
        try:
            for index, row in ((place, row) for place, row in enumerate(rows) if not isinstance(row, str)):
                first, second = (len(self._tokenizer.encode(text, add_special_tokens=False)) for text in row)
                kept = second if self.truncation == "OnlyFirst" else first
                if first + second + self.special > self.max_length and kept + self.special >= self.max_length:
                    return index, kept
        except Exception:  # the text itself breaks the library: no question of room
            return None
        finally:
            self._cut()
        return None

    def unknown(self, lengths: Array, ids: Array, known: int) -> dict[int, str]:
        """Row -> the first of its tokens, of all rows laid end to end in ``ids``, that is none of the first ``known``, in words."""
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
            raise ValueError(f"tritonpipe.max_length: {self.max_length} leaves no room for text beside {self.special} special tokens")
        self._tokenizer.enable_truncation(self.max_length, strategy=STRATEGIES[self.truncation])

    def _arrays(self, encodings: list[Any]) -> tuple[Array, dict[str, Array]]:
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        empty = np.flatnonzero(lengths == 0).tolist()
        lengths[empty] = 1
        flat = {}
        for kind in self.kinds:
            rows = list(map(_READERS[kind], encodings))
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
