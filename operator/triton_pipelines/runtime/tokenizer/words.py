"""A memory of words: the token ids of texts whose words were all seen before, without a run of the tokenizer.

A tokenizer such as BERT's looks at a word and at nothing beside it: the ids of a text are those of its words, one after the other. Words come again
(a few thousand make up most of any language), so most of a text was tokenized before. Looking its words up takes a tenth of the time of tokenizing it.

Whether a tokenizer is of this kind is told by its parts, each of which must work within a word, and checked on texts of all sorts when the step loads.
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
"""What a tokenizer may be made of: nothing here looks across a space, or keeps one."""
MOST_WORDS = 65_536
"""Words kept, some 15 MB; when there are more, the newest half of as many stays."""
LONGEST_WORD = 32
"""Characters of a word that is kept. What is longer hardly comes again."""
KNOWN_PER_NEW = 5
"""A word alone costs the library three times what it costs within a text (6 us against 2 us): with a third of its words new nothing would be won."""
LEARNED_PER_ROW = 4
"""New words that are learned for a text that the library has to tokenize: some 25 us."""
CREDIT = 8_192
"""Words that are learned so before any text was answered from memory, some 0.1 s in all; each text that is allows for one more."""
PROBES = (
    *("", " ", "a", "Hello, world!", "two  spaces ", " before", "tab\tline\nbreak\r\n", "don't can't", "e-mail: a.b@c.de", "[CLS] [SEP][PAD] [UNK]"),
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
    """Made by :meth:`of`."""

    def __init__(self, tokenizer: Any, special_tokens: bool, before: bytes, after: bytes, most_tokens: int | None) -> None:
        self._tokenizer, self._special_tokens = tokenizer, special_tokens
        self._before, self._after = before, after
        self._room = None if most_tokens is None else most_tokens * packed("q").itemsize
        self._known: dict[str, bytes] = {}
        self._credit = CREDIT

    @classmethod
    def of(cls, tokenizer: Any, special_tokens: bool, max_length: int | None) -> WordMemory | None:
        """A memory for single texts; None for a tokenizer whose ids of a text may differ from those of its words.

        Args:
            tokenizer: a ``tokenizers.Tokenizer``, without padding, cutting at ``max_length``.
            special_tokens: whether texts get them.
            max_length: most tokens of a text, special tokens included; None: texts are not cut.
        """
        if any(type(getattr(tokenizer, part)).__name__ not in kinds for part, kinds in PARTS.items()):
            return None
        if any(_crosses(token) for token in tokenizer.get_added_tokens_decoder().values()):
            return None
        try:
            # The same call as the step's own: another one might cut or mark otherwise.
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
            right = [made._joined(probe.split(" ")) for probe in PROBES] == [packed("q", encoding.ids).tobytes() for encoding in expected]
            made._known.clear()
            plain = not any(any(encoding.type_ids) for encoding in expected)
        except BaseException as error:  # a Rust panic is no Exception; requests will show what is wrong
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return None
        return made if right and plain else None

    def rows(self, rows: list[str]) -> list[bytes]:
        """The ids of each text, special tokens included, as packed integers of 64 bits; raises what the library raises.

        A text with few new words is put together from its words, and these are kept. The library tokenizes a text with many, as long as the memory pays a few
        of its words are learned beside: what memory never pays for, such as texts of identifiers, soon costs a look at the words and no more.
        """
        found: list[bytes] = []
        whole: list[int] = []  # places of the texts for the library
        later: list[tuple[int, list[str]]] = []  # and of those to put together, with their words, when their new words are known
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
            encodings = self._tokenizer.encode_batch_fast([rows[place] for place in whole], add_special_tokens=self._special_tokens)
            for place, encoding in zip(whole, encodings):  # noqa: B905 one each
                found[place] = packed("q", encoding.ids).tobytes()
        if new:
            self._learn(list(new))
            for place, words in later:
                found[place] = self._joined(words)
            self._forget(new)
        return found

    def _joined(self, words: list[str]) -> bytes:
        return self._before + b"".join(map(self._known.__getitem__, words))[: self._room] + self._after

    def _learn(self, words: list[str]) -> None:
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        self._known.update((word, packed("q", encoding.ids).tobytes()) for word, encoding in zip(words, encodings))  # noqa: B905 one each

    def _forget(self, new: Iterable[str]) -> None:
        for word in new:
            if len(word) > LONGEST_WORD:
                del self._known[word]
        if len(self._known) > MOST_WORDS:
            # However many came with one text.
            for word in list(islice(self._known, len(self._known) - MOST_WORDS // 2)):
                del self._known[word]


def _crosses(token: Any) -> bool:
    """Whether an added token may reach over a space, or be looked for in the normalized text."""
    return " " in token.content or token.normalized or token.lstrip or token.rstrip or token.single_word
