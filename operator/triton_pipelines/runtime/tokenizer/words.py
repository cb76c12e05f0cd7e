"""A memory of words: token ids of texts whose words are all known, without running the tokenizer.

A tokenizer such as BERT's treats each word separately, so the ids of a text are the ids of its
words in sequence. Words repeat (a few thousand make up most of any language), so most of a text has
been tokenized before. A look-up of its words takes a tenth of the time of tokenizing it.

The memory checks the parts of a tokenizer, each of which must work within a word. It then compares
its ids with the tokenizer's on texts of many kinds when the step loads.
"""

from __future__ import annotations

from array import array as packed
from collections.abc import Iterable
from itertools import islice
from typing import Any

PARTS = {
    "normalizer": ("NoneType", "BertNormalizer", "Lowercase"),
    "pre_tokenizer": ("BertPreTokenizer", "Whitespace", "WhitespaceSplit"),
    "model": ("WordPiece", "WordLevel"),
    "post_processor": ("NoneType", "TemplateProcessing", "BertProcessing"),
}
"""Supported parts of a tokenizer. None of them looks across a space or keeps one."""
MOST_WORDS = 65_536
"""Most words in the memory, about 15 MB. If there are more, the newest half as many stay."""
LONGEST_WORD = 32
"""Most characters of a word in the memory. Longer words rarely repeat."""
KNOWN_PER_NEW = 5
"""Fewest words per new word in a text that is joined from its words.

The library takes three times as long for a word alone as within a text (6 us against 2 us). If a
third of the words were new, the memory would save nothing.
"""
LEARNED_PER_ROW = 4
"""Most new words learned from a text that the library tokenizes; they take about 25 us."""
CREDIT = 8_192
"""Most words learned in this way before a text is answered from the memory, about 0.1 s in all.

Each text that is answered from the memory allows one more.
"""
PROBES = (
    *(
        "",
        " ",
        "a",
        "Hello, world!",
        "two  spaces ",
        " before",
        "tab\tline\nbreak\r\n",
        "don't can't",
        "e-mail: a.b@c.de",
        "[CLS] [SEP][PAD] [UNK]",
    ),
    *(
        "Ünïcödé Straße ΑΣ",
        "cafe\u0301 \u0301x",
        "中文 字符 mixed中文",
        "a\u00a0b\u2003c\u200bd\u3000e",
        "\x00\x1f\x7f \ufffd",
        "🙂 👩\u200d👩\u200d👧",
        "x" * 300,
    ),
)


class WordMemory:
    """Token ids by word; created with :meth:`of`."""

    def __init__(
        self,
        tokenizer: Any,
        special_tokens: bool,
        before: bytes,
        after: bytes,
        most_tokens: int | None,
    ) -> None:
        self._tokenizer, self._special_tokens = tokenizer, special_tokens
        self._before, self._after = before, after
        self._room = None if most_tokens is None else most_tokens * packed("q").itemsize
        self._known: dict[str, bytes] = {}
        self._credit = CREDIT

    @classmethod
    def of(cls, tokenizer: Any, special_tokens: bool, max_length: int | None) -> WordMemory | None:
        """Return a memory for single texts.

        None if the tokenizer's ids of a text may differ from those of its words.

        Args:
            tokenizer: a ``tokenizers.Tokenizer`` that does not pad and cuts at ``max_length``.
            special_tokens: whether texts get special tokens.
            max_length: most tokens of a text, special tokens included. None: texts are not cut.
        """
        if any(
            type(getattr(tokenizer, part)).__name__ not in kinds for part, kinds in PARTS.items()
        ):
            return None
        if any(_crosses(token) for token in tokenizer.get_added_tokens_decoder().values()):
            return None
        try:
            # The same call as in the step; another one might cut or mark differently.
            whole = tokenizer.encode("a", add_special_tokens=special_tokens)
            text = [place for place, special in enumerate(whole.special_tokens_mask) if not special]
            if not text:
                return None
            before, after = whole.ids[: text[0]], whole.ids[text[-1] + 1 :]
            made = cls(
                tokenizer,
                special_tokens,
                packed("q", before).tobytes(),
                packed("q", after).tobytes(),
                None if max_length is None else max_length - len(before) - len(after),
            )
            expected = tokenizer.encode_batch_fast(list(PROBES), add_special_tokens=special_tokens)
            made._learn([word for probe in PROBES for word in probe.split(" ")])
            right = [made._joined(probe.split(" ")) for probe in PROBES] == [
                packed("q", encoding.ids).tobytes() for encoding in expected
            ]
            made._known.clear()
            plain = not any(any(encoding.type_ids) for encoding in expected)
        except BaseException as error:
            # A Rust panic is no Exception. Requests will show what is wrong.
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return None
        return made if right and plain else None

    def rows(self, rows: list[str]) -> list[bytes]:
        """Return the ids of each text, special tokens included, as packed integers of 64 bits.

        A text with few new words is joined from its words, which stay in the memory. The library
        tokenizes a text with many new words. A few of them are learned as long as the memory saves
        time. Otherwise, such as for texts of identifiers, only the look-up of words remains.

        Raises what the library raises.
        """
        found: list[bytes] = []
        whole: list[int] = []  # texts for the library
        # Texts to join, with their words, when their new words are known.
        later: list[tuple[int, list[str]]] = []
        new: dict[str, None] = {}
        for place, row in enumerate(rows):
            words = row.split(" ")
            try:
                found.append(self._joined(words))
                continue
            except KeyError:
                found.append(b"")
            missing = [word for word in words if word not in self._known]
            if len(missing) * KNOWN_PER_NEW <= len(words):
                later.append((place, words))
                new.update(dict.fromkeys(missing))
                continue
            whole.append(place)
            if self._credit > 0:
                learned = [word for word in missing if len(word) <= LONGEST_WORD][:LEARNED_PER_ROW]
                self._credit -= len(learned)
                new.update(dict.fromkeys(learned))
        self._credit = min(CREDIT, self._credit + len(rows) - len(whole))
        if whole:
            encodings = self._tokenizer.encode_batch_fast(
                [rows[place] for place in whole], add_special_tokens=self._special_tokens
            )
            for place, encoding in zip(whole, encodings, strict=True):
                found[place] = packed("q", encoding.ids).tobytes()
        if new:
            self._learn(list(new))
            for place, words in later:
                found[place] = self._joined(words)
            self._forget(new)
        return found

    def _joined(self, words: list[str]) -> bytes:
        return (
            self._before + b"".join(map(self._known.__getitem__, words))[: self._room] + self._after
        )

    def _learn(self, words: list[str]) -> None:
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        for word, encoding in zip(words, encodings, strict=True):
            self._known[word] = packed("q", encoding.ids).tobytes()

    def _forget(self, new: Iterable[str]) -> None:
        for word in new:
            if len(word) > LONGEST_WORD:
                del self._known[word]
        if len(self._known) > MOST_WORDS:
            # A single text may have brought any number of them.
            for word in list(islice(self._known, len(self._known) - MOST_WORDS // 2)):
                del self._known[word]


def _crosses(token: Any) -> bool:
    """Return whether an added token can extend over a space or match in the normalized text."""
    return (
        " " in token.content
        or token.normalized
        or token.lstrip
        or token.rstrip
        or token.single_word
    )
