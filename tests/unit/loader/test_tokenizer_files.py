"""Building tokenizer.json from a vocabulary: every setting has its effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece
from tokenizers.normalizers import Strip
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from tests.support.messages import Messages
from triton_pipelines.loader.tokenizer_files import build_from_vocabulary, check, highest_token_id

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "A",
    "é",
    "e",
    "日",
    "本",
    "##本",
    "<s>",
    "</s>",
    "<unk>",
]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return path


def tokens(
    vocabulary: Path, text: str, special: dict[str, Any] | None = None, **configuration: Any
) -> list[str]:
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
def test_settings_have_their_effect(
    vocabulary: Path, configuration: dict[str, Any], text: str, expected: list[str]
) -> None:
    assert tokens(vocabulary, text, **configuration) == ["[CLS]", *expected, "[SEP]"]


def test_special_tokens_come_from_the_configuration_then_the_map(vocabulary: Path) -> None:
    special = {
        "cls_token": {"content": "<s>", "lstrip": False},
        "sep_token": "[CLS]",
        "unk_token": "<unk>",
    }
    assert tokens(vocabulary, "a ?", special, sep_token="</s>") == ["<s>", "a", "<unk>", "</s>"]


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"tokenizer_class": "RobertaTokenizer"}, "RobertaTokenizer"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize"),
        ({"do_lower_case": "yes"}, "do_lower_case"),
        ({"cls_token": "<cls>"}, r"vocab\.txt"),
    ],
)
def test_what_cannot_be_built_says_why(
    vocabulary: Path, configuration: dict[str, Any], says: str, messages: Messages
) -> None:
    with messages.raises(ValueError, match=says):
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
def test_settings_of_its_own_are_told(
    vocabulary: Path, tmp_path: Path, truncate: int | None, pad: int | None, words: str | None
) -> None:
    built = Tokenizer.from_str(build_from_vocabulary(vocabulary, {}, {}))
    if truncate:
        built.enable_truncation(truncate)
    if pad is not None:
        built.enable_padding(length=pad or None)
    built.save(str(tmp_path / "tokenizer.json"))
    assert check(tmp_path / "tokenizer.json") == words


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": None}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
    ],
    ids=["when it is read", "when it encodes"],
)
def test_a_panic_of_the_library_is_a_tokenizer_that_cannot_be_used(
    vocabulary: Path, tmp_path: Path, change: dict[str, Any], messages: Messages
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps(json.loads(build_from_vocabulary(vocabulary, {}, {})) | change), encoding="utf-8"
    )
    with messages.raises(ValueError):
        check(path)


def test_a_panic_over_pairs_hides_no_token(vocabulary: Path, tmp_path: Path) -> None:
    made, path = json.loads(build_from_vocabulary(vocabulary, {}, {})), tmp_path / "tokenizer.json"
    made["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[X]", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 0}},
        ],
        "special_tokens": {},
    }
    path.write_text(json.dumps(made), encoding="utf-8")
    assert check(path) is None
    assert highest_token_id(path).id == len(WORDS) - 1


@pytest.mark.parametrize(
    "model",
    [
        WordLevel({"b": 0, "c": 1}, unk_token="[UNK]"),
        WordPiece({"b": 0, "##c": 1}, unk_token="[UNK]"),
        Unigram([("b", 0.0), ("c", -1.0)], byte_fallback=False),
        BPE({"b": 0, "c": 1}, []),
        BPE({"Ġ": 0, "Ã": 1, "©": 2}, []),
        WordLevel({"日": 0, "本": 1}, unk_token="[UNK]"),
    ],
    ids=["words", "pieces", "unigram", "characters", "bytes", "another script"],
)
def test_a_vocabulary_need_not_have_any_one_letter(tmp_path: Path, model: Any) -> None:
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    assert check(tmp_path / "tokenizer.json") is None
    assert highest_token_id(tmp_path / "tokenizer.json").id == Tokenizer(model).get_vocab_size() - 1


def test_a_tokenizer_that_encodes_no_text_is_refused(tmp_path: Path) -> None:
    Tokenizer(WordLevel({}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="UNK"):
        check(tmp_path / "tokenizer.json")


def test_a_template_with_a_text_twice_is_refused_where_it_has_to_be_cut(
    vocabulary: Path, tmp_path: Path, messages: Messages
) -> None:
    made, path = (
        Tokenizer.from_str(build_from_vocabulary(vocabulary, {}, {})),
        tmp_path / "tokenizer.json",
    )
    made.enable_truncation(1)
    made.enable_padding(length=9)
    made.save(str(path))
    assert check(path, cuts_pairs=True) == "truncation to 1 tokens and padding to 9 tokens"
    made.post_processor = TemplateProcessing(
        single="$A", pair="$A [SEP] $B $A", special_tokens=[("[SEP]", 3)]
    )
    made.save(str(path))
    assert check(path) is not None
    with messages.raises(ValueError, match="post_processor"):
        check(path, cuts_pairs=True)


@pytest.mark.parametrize(("single", "times"), [("$A [SEP] $A", 2), ("[SEP]", 0)])
def test_a_template_for_single_texts_inserts_the_text_once(
    vocabulary: Path, tmp_path: Path, single: str, times: int, messages: Messages
) -> None:
    made, path = (
        Tokenizer.from_str(build_from_vocabulary(vocabulary, {}, {})),
        tmp_path / "tokenizer.json",
    )
    made.enable_truncation(1)
    made.post_processor = TemplateProcessing(
        single=single, pair="$A [SEP] $B", special_tokens=[("[SEP]", 3)]
    )
    made.save(str(path))
    with messages.raises(ValueError, match=f"the text {times} times"):
        check(path)
    assert check(path, cuts_pairs=True) == "truncation to 1 tokens"


def test_an_added_token_that_the_normalizer_empties_is_refused(
    vocabulary: Path, tmp_path: Path, messages: Messages
) -> None:
    """The library would look for the empty text without end."""
    path = tmp_path / "tokenizer.json"
    for normalized in (False, True):
        made = Tokenizer.from_str(build_from_vocabulary(vocabulary, {}, {}))
        made.normalizer = Strip()
        made.add_tokens([AddedToken("\n", normalized=normalized), "covid"])
        made.save(str(path))
        if not normalized:
            assert check(path) is None
    with messages.raises(ValueError, match=r"the added token '\\n' into an empty text"):
        check(path)


def test_a_model_that_looks_up_long_words_is_refused(tmp_path: Path, messages: Messages) -> None:
    path = tmp_path / "tokenizer.json"
    for characters in (1000, 1001):
        model = WordPiece({"a": 0}, unk_token="a", max_input_chars_per_word=characters)
        Tokenizer(model).save(str(path))
        if characters == 1000:
            assert check(path) is None
    with messages.raises(ValueError, match="max_input_chars_per_word to 1001"):
        check(path)


@pytest.mark.parametrize(
    ("pattern", "refused"),
    [
        (r"(?<x>a\g<x>?b)", True),
        (r"(?<x>a)\\\g'x'", True),
        (r"(a)\\g<b", False),
        (r"(?<x>a)\k<x>", False),
    ],
)
def test_calls_of_groups_in_patterns_are_refused(
    tmp_path: Path, pattern: str, refused: bool, messages: Messages
) -> None:
    made, path = Tokenizer(WordLevel({"a": 0}, unk_token="a")), tmp_path / "tokenizer.json"
    made.pre_tokenizer = Split(Regex(pattern), "isolated")
    made.save(str(path))
    if not refused:
        assert check(path) is None
        return
    with messages.raises(ValueError, match="group"):
        check(path)
