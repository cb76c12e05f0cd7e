"""BERT's uncased WordPiece tokenizer in plain Python.

It computes token ids for golden answers, independently of the library that serves them.

Follows the definition given with BERT: clean the text, set Chinese characters apart, lowercase,
strip accents, split at white space and punctuation, then take the longest piece of the vocabulary
again and again.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Final

# Longer words become [UNK] (the original's limit).
MAX_WORD_CHARACTERS: Final = 100
# Ranges of CJK ideographs that BERT splits into single characters.
CJK_RANGES: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def _is_punctuation(character: str) -> bool:
    """Return whether the character is punctuation.

    ASCII that is neither letter, digit nor blank counts as punctuation, including ``$``, ``+`` and
    ``^``.
    """
    return unicodedata.category(character).startswith("P") or (
        character.isascii()
        and character.isprintable()
        and not character.isalnum()
        and character != " "
    )


def _clean(text: str) -> str:
    kept = []
    for character in text:
        if character in "\t\n\r" or unicodedata.category(character) == "Zs":
            kept.append(" ")
        elif character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf"):
            continue
        elif any(first <= ord(character) <= last for first, last in CJK_RANGES):
            kept.append(f" {character} ")
        else:
            kept.append(character)
    return "".join(kept)


def words(text: str) -> list[str]:
    """Lowercased words without accents; every punctuation mark is a word of its own."""
    lowered = unicodedata.normalize("NFD", _clean(text).lower())
    plain = "".join(character for character in lowered if unicodedata.category(character) != "Mn")
    spaced = "".join(
        f" {character} " if _is_punctuation(character) else character for character in plain
    )
    return spaced.split()


class WordPiece:
    """Token ids by a ``vocab.txt`` (one token per line, its id is the line's number from 0)."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").split("\n")
        self._ids = {token: number for number, token in enumerate(lines) if token}

    def _pieces(self, word: str) -> list[int]:
        if len(word) > MAX_WORD_CHARACTERS:
            return [self._ids["[UNK]"]]
        pieces: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self._ids:
                    pieces.append(self._ids[piece])
                    start = end
                    break
            else:
                return [self._ids["[UNK]"]]
        return pieces

    def encode(self, text: str, max_length: int) -> list[int]:
        """``[CLS] … [SEP]`` with at most ``max_length`` ids; what is too long is cut at its end."""
        body = [piece for word in words(text) for piece in self._pieces(word)]
        return [self._ids["[CLS]"], *body[: max_length - 2], self._ids["[SEP]"]]
