"""Building tokenizer.json from a vocabulary: every setting has its effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from triton_pipelines.loader.tokenizer import build_from_vocabulary, check

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "é", "e", "日", "本", "##本", "<s>", "</s>", "<unk>"]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return path


def tokens(vocabulary: Path, text: str, special: dict[str, Any] | None = None, **configuration: Any) -> list[str]:
    built = Tokenizer.from_str(build_from_vocabulary(vocabulary, configuration, special or {}))
    return list(built.encode(text).tokens)


@pytest.mark.parametrize(
    ("configuration", "text", "expected"),
    [
        ({}, "A", ["a"]),
        ({"do_lower_case": True}, "A", ["a"]),
        ({"do_lower_case": None}, "A", ["a"]),
        ({"do_lower_case": False}, "A", ["A"]),
        # Accents go with capitals unless said otherwise.
        ({}, "é", ["e"]),
        ({"strip_accents": False}, "é", ["é"]),
        ({"do_lower_case": False}, "é", ["é"]),
        ({"do_lower_case": False, "strip_accents": True}, "é", ["e"]),
        ({}, "日本", ["日", "本"]),
        ({"tokenize_chinese_chars": False}, "日本", ["日", "##本"]),
        ({"tokenizer_class": "DistilBertTokenizerFast"}, "a", ["a"]),
    ],
)
def test_settings_have_their_effect(vocabulary: Path, configuration: dict[str, Any], text: str, expected: list[str]) -> None:
    assert tokens(vocabulary, text, **configuration) == ["[CLS]", *expected, "[SEP]"]


def test_special_tokens_come_from_the_configuration_then_the_map(vocabulary: Path) -> None:
    special = {"cls_token": {"content": "<s>", "lstrip": False}, "sep_token": "[CLS]", "unk_token": "<unk>"}
    assert tokens(vocabulary, "a ?", special, sep_token="</s>") == ["<s>", "a", "<unk>", "</s>"]


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"tokenizer_class": "RobertaTokenizer"}, "RobertaTokenizer"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize"),
        ({"do_lower_case": "yes"}, "do_lower_case must be true, false or null, not 'yes'"),
        ({"cls_token": "<cls>"}, "vocab.txt has no <cls>"),
    ],
)
def test_what_cannot_be_built_says_why(vocabulary: Path, configuration: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_from_vocabulary(vocabulary, configuration, {})


@pytest.mark.parametrize(
    ("truncate", "pad", "words"),
    [
        (None, None, None),
        (64, None, "truncation to 64 tokens"),
        (None, 0, "padding to the longest text"),
        (64, 32, "truncation to 64 tokens and padding to 32 tokens"),
    ],
)
def test_settings_of_its_own_are_told(vocabulary: Path, tmp_path: Path, truncate: int | None, pad: int | None, words: str | None) -> None:
    built = Tokenizer.from_str(build_from_vocabulary(vocabulary, {}, {}))
    if truncate:
        built.enable_truncation(truncate)
    if pad is not None:
        built.enable_padding(length=pad or None)
    built.save(str(tmp_path / "tokenizer.json"))
    assert check(tmp_path / "tokenizer.json") == words
