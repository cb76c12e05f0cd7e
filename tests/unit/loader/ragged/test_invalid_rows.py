"""Test requests that a model cannot process, among good ones.

Either the others are answered as if alone, or all get an error; no client gets a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from tests.support.raggedbackend import SimulatedBackend, config_of, session
from tests.support.raggedgraphs import (
    CLASSES,
    POSITIONS,
    VOCABULARY,
    WIDTH,
    Encoder,
    Head,
    Places,
    make,
)
from tests.support.raggedpoison import POISON, Row, longer_mask, shorter_mask, without_tokens
from triton_pipelines.loader.ragged.eligibility import Adaptable, check_eligibility
from triton_pipelines.loader.ragged.graph_adapter import adapt
from triton_pipelines.loader.ragged.input_padding import GUARD

ENCODER = Encoder(types=True, heads=tuple(Head))
GOOD = (5, 1, 12)


def adapted(encoder: Encoder = ENCODER, **plan: Any) -> SimulatedBackend:
    model = make(encoder)
    found = check_eligibility(model, encoder.plan(**plan))
    assert isinstance(found, Adaptable), str(found)
    return SimulatedBackend(adapt(model, found), config_of(*encoder.declared))


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("poison", POISON.values(), ids=POISON.keys())
def test_an_invalid_row_is_marked_and_affects_no_other(
    poison: Callable[[Row], Row], place: int
) -> None:
    random = np.random.default_rng(3)
    good = [ENCODER.row(random, length) for length in GOOD]
    bad = poison(ENCODER.row(random, 6))
    alone = session(make(ENCODER))
    answers = adapted().execute([*good[:place], bad, *good[place:]])
    marked = answers.pop(place)
    for row, answer in zip(good, answers, strict=True):
        for head, wanted in zip(
            ENCODER.heads, alone.run([head.value for head in ENCODER.heads], row), strict=True
        ):
            assert answer[head.value].shape == wanted.shape
            np.testing.assert_allclose(answer[head.value], wanted, rtol=0, atol=1e-5)
    for head in ENCODER.heads:
        value = marked[head.value]
        assert value.shape[:2] == (
            bad["input_ids"].shape if head.value in ENCODER.per_token else value.shape[:2]
        )
        assert np.isnan(value).all() if value.dtype.kind == "f" else (value == -1).all()


def check_good(good: list[Row], answers: list[Row]) -> None:
    alone = session(make(ENCODER))
    for row, answer in zip(good, answers, strict=True):
        expected = alone.run([head.value for head in ENCODER.heads], row)
        for head, value in zip(ENCODER.heads, expected, strict=True):
            assert answer[head.value].shape == value.shape
            np.testing.assert_allclose(answer[head.value], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 3])
def test_no_row_behind_a_row_without_tokens_is_answered(place: int, rows: int) -> None:
    """Triton has not filled it: its content is undefined."""
    random = np.random.default_rng(3)
    good = [ENCODER.row(random, length) for length in GOOD]
    with pytest.raises((Fail, InvalidArgument), match=GUARD):
        adapted().execute([*good[:place], without_tokens(ENCODER, rows), *good[place:]])


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_without_tokens_harms_no_row_in_front_of_it(rows: int) -> None:
    random = np.random.default_rng(3)
    good = [ENCODER.row(random, length) for length in GOOD]
    *answers, first, second = adapted().execute(
        [*good, without_tokens(ENCODER, rows), without_tokens(ENCODER)]
    )
    check_good(good, answers)
    for count, answer in ((rows, first), (1, second)):
        assert answer["hidden"].shape == (count, 0, WIDTH)
        assert answer["tags"].shape == (count, 0)
        assert np.isnan(answer["logits"]).all()
        assert answer["logits"].shape == (count, CLASSES)
        assert (answer["best"] == -1).all()


@pytest.mark.parametrize("requests", [1, 2])
def test_rows_without_tokens_alone_are_marked(requests: int) -> None:
    for answer in adapted().execute([without_tokens(ENCODER, 2)] * requests):
        assert np.isnan(answer["pooled"]).all()
        assert answer["hidden"].shape == (2, 0, WIDTH)


@pytest.mark.parametrize("name", ["attention_mask", "input_ids"])
def test_a_single_input_without_tokens_is_an_empty_row(name: str) -> None:
    """Each input of a batch is filled on its own."""
    random = np.random.default_rng(3)
    good = [ENCODER.row(random, length) for length in GOOD]
    bad = {**ENCODER.row(random, 6), name: np.ones((1, 0), np.int64)}
    check_good(good, adapted().execute([*good, bad])[:-1])
    check_good(good, adapted().execute([*good, bad, without_tokens(ENCODER), bad])[:-3])
    with pytest.raises((Fail, InvalidArgument), match=GUARD):
        adapted().execute([bad, *good])


@pytest.mark.parametrize("value", [-3, 2, 2**40])
def test_a_mask_of_other_values_reads_no_row_outside_the_table(value: int) -> None:
    """Keep every position within its table.

    Positions are the running sum of the mask. An arbitrary mask value would be an index out of
    range for the whole batch.
    """
    encoder, random = Encoder(places=Places.MASK), np.random.default_rng(3)
    good, bad = encoder.row(random, 5), encoder.row(random, 6)
    bad["attention_mask"][0, 1] = value
    answers = adapted(encoder).execute([good, bad, good])
    assert np.isnan(answers[1]["logits"]).all()
    for answer in (answers[0], answers[2]):
        np.testing.assert_allclose(
            answer["logits"], session(make(encoder)).run(["logits"], good)[0], rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("poison", [longer_mask, shorter_mask])
def test_unequal_lengths_are_found_where_the_longest_row_is_not_known(
    poison: Callable[[Row], Row],
) -> None:
    encoder, random = Encoder(places=Places.MASK), np.random.default_rng(3)
    good, bad = encoder.row(random, 5), poison(encoder.row(random, 6))
    answers = adapted(encoder).execute([bad, good])
    assert np.isnan(answers[0]["logits"]).all()
    np.testing.assert_allclose(
        answers[1]["logits"], session(make(encoder)).run(["logits"], good)[0], rtol=0, atol=1e-5
    )


def test_the_plan_says_what_the_graph_does_not_show() -> None:
    """Take from the plan what the graph does not show.

    Positions are counted from the mask. The longest row comes from the plan, and so does the
    vocabulary of a table behind other operators.
    """
    encoder = Encoder(places=Places.MASK, heads=(Head.LOGITS, Head.HIDDEN))
    model = make(encoder)
    assert isinstance(found := check_eligibility(model, encoder.plan()), Adaptable)
    assert (found.max_length, dict(found.sizes)) == (
        None,
        {"input_ids": VOCABULARY, "attention_mask": 2},
    )
    rows = [encoder.row(np.random.default_rng(3), length) for length in (4, 90)]
    short, marked = adapted(encoder, max_length=POSITIONS).execute(rows)
    np.testing.assert_allclose(
        short["logits"], session(make(encoder)).run(["logits"], rows[0])[0], rtol=0, atol=1e-5
    )
    assert np.isnan(marked["logits"]).all()
    assert marked["hidden"].shape[:2] == (1, 90)
    assert np.isnan(marked["hidden"]).all()
    with pytest.raises(InvalidArgument):
        adapted(encoder).execute(rows)
