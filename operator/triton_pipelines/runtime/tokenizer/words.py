"""A memory of words: the token ids of texts whose words were all seen before, without a run of the tokenizer.

A tokenizer such as BERT's looks at a word and at nothing beside it: the ids of a text are those of its words, one after the other. Words come again
(a few thousand make up most of any language), so most of a text was tokenized before. Looking its words up takes a tenth of the time of tokenizing it.

Whether a tokenizer is of this kind is told by its parts, each of which must work within a word, and checked on texts of all sorts when the step loads.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

PARTS = {
    "normalizer": ("NoneType", "BertNormalizer", "Lowercase"),
    "pre_tokenizer": ("BertPreTokenizer", "Whitespace", "WhitespaceSplit"),
    "model": ("WordPiece", "WordLevel"),
    "post_processor": ("NoneType", "TemplateProcessing", "BertProcessing"),
}
"""What a tokenizer may be made of: nothing here looks across a space, or keeps one."""
MOST_WORDS = 32_768
"""Words kept, some 10 MB; when there are more, the older half goes."""
LONGEST_WORD = 32
"""Characters of a word that is kept. What is longer hardly comes again."""
KNOWN_PER_NEW = 8
"""A word alone costs the library 4.5 times what it costs within a text (8.9 us against 2.0 us): with a fifth of the words new nothing would be won."""
LEARNED_PER_ROW = 2
"""New words that are learned for each text that the library has to tokenize anyhow: at most some 20 us."""
ID = np.dtype(np.int64)
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

    def __init__(self, tokenizer: Any, before: bytes, after: bytes, most_tokens: int | None) -> None:
        self._tokenizer = tokenizer
        self._before, self._after = before, after
        self._room = None if most_tokens is None else most_tokens * ID.itemsize
        self._known: dict[str, bytes] = {}

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
            made = cls(tokenizer, _packed(before), _packed(after), None if max_length is None else max_length - len(before) - len(after))
            expected = tokenizer.encode_batch_fast(list(PROBES), add_special_tokens=special_tokens)
            made._learn([word for probe in PROBES for word in probe.split(" ")])
            right = made.rows(list(PROBES)) == [_packed(encoding.ids) for encoding in expected]
            plain = not any(any(encoding.type_ids) for encoding in expected)
        except BaseException as error:  # a Rust panic is no Exception; requests will show what is wrong
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return None
        return made if right and plain else None

    def rows(self, rows: list[str]) -> list[bytes] | None:
        """The ids of each text, special tokens included, as packed integers of 64 bits; None where the library is the quicker way.

        Raises what the library raises for a word.
        """
        words = [row.split(" ") for row in rows]
        try:
            return self._looked_up(words)
        except KeyError:
            pass
        new = dict.fromkeys(word for row in words for word in row if word not in self._known)
        short = [word for word in new if len(word) <= LONGEST_WORD]
        found = None
        if len(new) * KNOWN_PER_NEW > sum(map(len, words)):
            self._learn(short[: LEARNED_PER_ROW * len(rows)])
        else:
            self._learn(list(new))
            found = self._looked_up(words)
            for word in new.keys() - short:
                del self._known[word]
        if len(self._known) > MOST_WORDS:
            for word in list(islice(self._known, MOST_WORDS // 2)):
                del self._known[word]
        return found

    def _looked_up(self, words: list[list[str]]) -> list[bytes]:
        known, before, after, room = self._known.__getitem__, self._before, self._after, self._room
        return [before + b"".join(map(known, row))[:room] + after for row in words]

    def _learn(self, words: list[str]) -> None:
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        self._known.update((word, _packed(encoding.ids)) for word, encoding in zip(words, encodings))  # noqa: B905 one each


def _packed(ids: list[int]) -> bytes:
    return np.array(ids, ID).tobytes()


def _crosses(token: Any) -> bool:
    """Whether an added token may reach over a space, or be looked for in the normalized text."""
    return " " in token.content or token.normalized or token.lstrip or token.rstrip or token.single_word
