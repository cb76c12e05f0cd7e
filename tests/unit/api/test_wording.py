"""Nouns, verbs and enumerations in messages."""

from __future__ import annotations

import pytest

from triton_pipelines.api.wording import counted, first_of, listed, truncate, validation_message


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 pods are"), (1, "1 pod is"), (2, "2 pods are")]
)
def test_a_verb_agrees_with_its_number(number: int, expected: str) -> None:
    assert counted(number, "pod is", "pods are") == expected


def test_a_regular_noun_needs_no_plural() -> None:
    assert [counted(1, "instance"), counted(2, "instance")] == ["1 instance", "2 instances"]


def test_messages_of_pydantic_follow_the_path_of_a_field() -> None:
    texts = (
        "Input should be 'allow' or 'forbid'",
        "String should match pattern '^a$'",
        "Value error, names no namespace",
        "Extra inputs are not permitted",
        "Field required",
    )
    assert [validation_message(text) for text in texts] == [
        "must be 'allow' or 'forbid'",
        "must match pattern '^a$'",
        "names no namespace",
        "unknown field",
        "required",
    ]


def test_the_last_word_of_an_enumeration_follows_and() -> None:
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_words_beyond_the_first_are_counted() -> None:
    assert [first_of(words, 2) for words in ([], ["a"], ["a", "b"], ["a", "b", "c", "d"])] == [
        "",
        "a",
        "a, b",
        "a, b and 2 more",
    ]


def test_a_text_that_is_too_long_ends_where_it_was_cut() -> None:
    assert [truncate("abcd", most) for most in (4, 3)] == ["abcd", "ab…"]
