"""The plain WordPiece tokenizer on a small vocabulary, with ids worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.models.wordpiece import WordPiece, words

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "un",
    "##aff",
    "##able",
    "cafe",
    "!",
    "$",
    "你",
    "好",
    "##s",
    "a",
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> WordPiece:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return WordPiece(path)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", [2, 3]),
        (" \t\n", [2, 3]),
        ("unaffable", [2, 4, 5, 6, 3]),
        ("Cafés!", [2, 7, 12, 8, 3]),
        ("CAFÉ a$a", [2, 7, 13, 9, 13, 3]),
        ("你好", [2, 10, 11, 3]),
        ("a\u200ba \ufffd", [2, 1, 3]),
        ("a\u00a0a", [2, 13, 13, 3]),
        ("unknown a", [2, 1, 13, 3]),
        ("un" * 51 + " a", [2, 1, 13, 3]),
    ],
)
def test_ids(tokenizer: WordPiece, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text, 512) == ids


def test_truncation_keeps_the_end_mark(tokenizer: WordPiece) -> None:
    assert tokenizer.encode("a " * 20, 5) == [2, 13, 13, 13, 3]
    assert tokenizer.encode("a a a", 5) == [2, 13, 13, 13, 3]


def test_words() -> None:
    assert words("Don't ÅB-c^d") == ["don", "'", "t", "ab", "-", "c", "^", "d"]
