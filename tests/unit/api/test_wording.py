"""Nouns, verbs and enumerations in messages."""

from __future__ import annotations

import pytest

from triton_pipelines.api.wording import counted, listed


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 pods are"), (1, "1 pod is"), (2, "2 pods are")]
)
def test_a_verb_agrees_with_its_number(number: int, expected: str) -> None:
    assert counted(number, "pod is", "pods are") == expected


def test_a_regular_noun_needs_no_plural() -> None:
    assert [counted(1, "instance"), counted(2, "instance")] == ["1 instance", "2 instances"]


def test_the_last_word_of_an_enumeration_follows_and() -> None:
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
