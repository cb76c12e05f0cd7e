"""Test the word cache against the tokenizers library.

Ids are the same for any text, known or new. A tokenizer that looks beyond a word has no cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import NFKC, BertNormalizer, Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace, PreTokenizer
from tokenizers.processors import BertProcessing, TemplateProcessing

from tests.support.python_backend import load_runtime
from triton_pipelines.runtime import backend_helpers
from triton_pipelines.runtime.tokenizer import words
from triton_pipelines.runtime.tokenizer.encoder import TextEncoder
from triton_pipelines.runtime.tokenizer.words import WordMemory

MAX_LENGTH = 12
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (
    *"abcdefghijklmnopqrstuvwxyz0123456789.,!?-[]'中文",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    "the",
    "fox",
    "##es",
    "ju",
    "##mps",
)
TEXT = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            [
                "the",
                "fox",
                "Foxes",
                "jumps",
                "[SEP]",
                "[MASK]",
                "x[CLS]y",
                "don't",
                "É",
                "中文",
                "",
                "\t",
                "a\u0301",
                "\u0301",
                "\xa0",
            ]
        ),
        max_size=20,
    ).map(" ".join),
)
BATCHES = st.lists(st.lists(TEXT, min_size=1, max_size=6), min_size=1, max_size=6)
load_runtime("tokenizer")


def bert(
    normalizer: Normalizer | None = None,
    pre_tokenizer: PreTokenizer | None = None,
    model: Any = None,
) -> Tokenizer:
    """A tokenizer of BERT's make with a tiny vocabulary."""
    made = Tokenizer(
        model
        or WordPiece(
            {piece: number for number, piece in enumerate((*SPECIAL, *PIECES))}, unk_token="[UNK]"
        )
    )
    made.normalizer = normalizer or BertNormalizer()
    made.pre_tokenizer = pre_tokenizer or BertPreTokenizer()
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(MAX_LENGTH)
    return made


def expected(made: Tokenizer, rows: list[str], special_tokens: bool = True) -> list[list[int]]:
    """Each text by the library, alone."""
    return [made.encode(row, add_special_tokens=special_tokens).ids for row in rows]


def unpacked(rows: list[bytes]) -> list[list[int]]:
    return [np.frombuffer(row, np.int64).tolist() for row in rows]


@pytest.mark.parametrize("special_tokens", [True, False])
@settings(max_examples=150, deadline=None)
@given(BATCHES)
def test_the_same_ids_as_the_library(special_tokens: bool, batches: list[list[str]]) -> None:
    made = bert()
    memory = WordMemory.of(made, special_tokens, MAX_LENGTH)
    assert memory is not None
    for batch in batches:
        assert unpacked(memory.rows(batch)) == expected(made, batch, special_tokens)
        # Some of the words are known by now; with all of them, nothing is left to the library.
        memory._learn([word for row in batch for word in row.split(" ")])
        assert unpacked(memory.rows(batch)) == expected(made, batch, special_tokens)


class Counted:
    """A tokenizer that counts the texts it is given."""

    def __init__(self, made: Tokenizer) -> None:
        self._made, self.texts = made, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def encode_batch_fast(self, rows: list[str], **options: Any) -> Any:
        self.texts += len(rows)
        return self._made.encode_batch_fast(rows, **options)


def remembering(
    made: Tokenizer, most_tokens: int | None = MAX_LENGTH
) -> tuple[WordMemory, Counted]:
    memory, counted = WordMemory.of(made, True, most_tokens), Counted(made)
    assert memory is not None
    memory._tokenizer = counted
    return memory, counted


def test_words_are_learned_and_then_looked_up() -> None:
    memory, counted = remembering(bert())
    rows = ["the quick brown fox jumps"]
    memory.rows(rows)
    assert counted.texts == 1 + words.LEARNED_PER_ROW  # the text, and some of its words beside
    memory.rows(rows)
    assert counted.texts == 1 + 5  # the one word that was left
    assert unpacked(memory.rows(["fox jumps the brown", "the " * 40])) == expected(
        bert(), ["fox jumps the brown", "the " * 40]
    )
    assert counted.texts == 1 + 5 + 1  # "", behind the last space


def test_what_never_comes_again_soon_costs_no_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "CREDIT", 20)
    memory, counted = remembering(bert())
    for number in range(50):
        memory.rows([" ".join(f"{number}x{word}" for word in range(10))])
    assert len(memory._known) == 20
    assert counted.texts == 50 + 20
    # Texts that are answered from memory pay for new words.
    memory._learn(["the"])
    memory.rows(["the"] * 6)
    memory.rows(["one two three four"])
    assert len(memory._known) == 20 + 1 + words.LEARNED_PER_ROW


def test_the_memory_is_bounded_and_keeps_no_long_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_WORDS", 60)
    made = bert()
    made.no_truncation()
    memory, _ = remembering(made, None)
    memory._learn(["the"])
    for number in range(100):
        rows = [" ".join(["the"] * 40 + [f"w{number}", f"w{number}" * 20])]
        assert unpacked(memory.rows(rows)) == expected(made, rows)
        assert len(memory._known) <= 60
        assert max(map(len, memory._known)) <= words.LONGEST_WORD


def test_one_text_of_many_new_words_does_not_make_it_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(words, "MOST_WORDS", 60)
    memory, _ = remembering(bert())
    memory._learn(["the"])
    for text in range(5):
        memory.rows(
            [
                " ".join(
                    word
                    for number in range(200)
                    for word in ["the", "the", "the", "the", f"{text}w{number}"]
                )
            ]
        )
        assert len(memory._known) <= 60
        memory._learn(["the"])


def _added(**flags: bool) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        made = bert()
        made.add_tokens(
            [
                AddedToken(
                    "new york" if flags.pop("space", False) else "newyork",
                    **{"normalized": False, **flags},
                )
            ]
        )
        return made

    return make


def _processed(single: str) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        made = bert()
        made.post_processor = TemplateProcessing(
            single=single, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return made

    return make


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: bert(normalizer=NFKC()), id="normalizer"),
        pytest.param(lambda: bert(pre_tokenizer=Metaspace()), id="space kept as a mark"),
        pytest.param(lambda: bert(pre_tokenizer=ByteLevel()), id="space kept as a letter"),
        pytest.param(lambda: bert(model=Unigram([("a", -1.0), ("b", -2.0)], 0)), id="unigram"),
        pytest.param(lambda: bert(model=BPE({"a": 0, "b": 1}, [])), id="bpe"),
        pytest.param(_added(space=True), id="added token with a space"),
        pytest.param(_added(normalized=True), id="added token in the normalized text"),
        pytest.param(_added(lstrip=True), id="added token that takes spaces"),
        pytest.param(_added(single_word=True), id="added token that looks beside it"),
        pytest.param(_processed("[CLS] $A:1 [SEP]"), id="types other than 0"),
        pytest.param(_processed("[CLS] $A [SEP] $A"), id="the text twice"),
    ],
)
def test_other_tokenizers_have_no_memory(make: Callable[[], Tokenizer]) -> None:
    assert WordMemory.of(make(), True, MAX_LENGTH) is None


def test_berts_own_post_processor_is_known() -> None:
    made = bert()
    made.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    memory = WordMemory.of(made, True, MAX_LENGTH)
    assert memory is not None
    memory._learn(["the", "fox"])
    assert unpacked(memory.rows(["the fox"])) == expected(made, ["the fox"])


@pytest.mark.parametrize(
    ("kinds", "pairs", "remembers"),
    [
        (["InputIds", "AttentionMask", "TokenTypeIds"], False, True),
        (["InputIds"], True, False),
        (["InputIds", "Offsets"], False, False),
    ],
)
def test_what_words_alone_do_not_tell_is_left_to_the_library(
    kinds: list[str], pairs: bool, remembers: bool
) -> None:
    encoder = TextEncoder(bert(), kinds, MAX_LENGTH, "LongestFirst", True, pairs)
    assert (encoder._words is not None) is remembers


def test_known_rows_have_all_kinds() -> None:
    encoder = TextEncoder(bert(), ["InputIds", "TokenTypeIds"], MAX_LENGTH, "LongestFirst", False)
    assert encoder._words is not None
    encoder._words._learn(["the", "fox", ""])
    lengths, flat = encoder.encode(["the fox", "", "fox"])
    the, fox = len(SPECIAL) + PIECES.index("the"), len(SPECIAL) + PIECES.index("fox")
    assert lengths.tolist() == [2, 1, 1]
    assert {kind: values.tolist() for kind, values in flat.items()} == {
        "InputIds": [the, fox, 0, fox],
        "TokenTypeIds": [0, 0, 0, 0],
    }


def test_a_text_without_tokens_has_the_type_of_padding() -> None:
    made = bert()
    made.enable_padding(pad_type_id=1)
    encoder = TextEncoder(made, ["InputIds", "TokenTypeIds"], MAX_LENGTH, "LongestFirst", False)
    for _ in range(2):  # new, and known
        assert encoder.encode(["", "the"])[1]["TokenTypeIds"].tolist() == [1, 0]


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x05\x00\x00\x00four",
        b"\x00\x00\x00\x00\x01\x00\x00\x00",
        b"\xff\xff\xff\xfftext",
        b"\x00\x00\x00",
    ],
)
def test_lengths_that_lie_are_an_error_as_with_the_backend(encoded: bytes) -> None:
    with pytest.raises(struct.error):
        backend_helpers.deserialize_bytes_tensor(encoded)


def test_texts_are_read_as_the_backend_reads_them() -> None:
    rows = [b"", b"one", "zwei\u00fc".encode(), b"\x00" * 5]
    encoded = b"".join(len(row).to_bytes(4, "little") + row for row in rows)
    found = backend_helpers.deserialize_bytes_tensor(encoded)
    assert found.dtype == np.object_
    assert found.shape == (4,)
    assert found.tolist() == rows
    assert backend_helpers.deserialize_bytes_tensor(b"").shape == (0,)


def test_helpers_are_replaced_once_and_only_where_they_are() -> None:
    class Backend:
        calls = 0

        @staticmethod
        def numpy_to_triton_type(data_type: Any) -> int:
            Backend.calls += 1
            return 9 if data_type == np.int64 else 8

    backend_helpers.quicken(Backend)
    backend_helpers.quicken(Backend)
    convert: Any = Backend.numpy_to_triton_type
    assert [convert(np.dtype(kind)) for kind in (np.int64, np.int32, np.int64, np.int32)] == [
        9,
        8,
        9,
        8,
    ]
    assert Backend.calls == 2
    assert not hasattr(Backend, "deserialize_bytes_tensor")
