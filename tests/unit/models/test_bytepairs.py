"""The tokenizer that loads of tokenizing are shown with."""

from __future__ import annotations

from tokenizers.decoders import ByteLevel

from e2e.models import bytepairs


def test_it_is_the_same_each_time() -> None:
    assert bytepairs.train().to_str() == bytepairs.train().to_str()


def test_any_text_is_its_pieces_joined_between_its_ends() -> None:
    made = bytepairs.train()
    for text in ("a fine film", "  two  spaces ", "Straße 中文 🙂"):
        ids = made.encode(text).ids
        assert [ids[0], ids[-1]] == [made.token_to_id("<s>"), made.token_to_id("</s>")]
        assert ByteLevel().decode([made.id_to_token(each) for each in ids[1:-1]]) == text
    assert len(made.encode("a fine film", add_special_tokens=False).ids) < len("a fine film")


def test_words_alone_do_not_tell_its_ids() -> None:
    made = bytepairs.train()
    words = made.encode_batch(["a", "fine", "film"], add_special_tokens=False)
    joined = [number for word in words for number in word.ids]
    assert made.encode("a fine film", add_special_tokens=False).ids != joined
