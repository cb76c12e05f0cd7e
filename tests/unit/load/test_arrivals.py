"""Arrivals and texts: their statistics, and that the same seed gives the same load."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from tests.support.messages import Messages
from triton_pipelines.tools.loadgen import (
    Arrivals,
    InputValue,
    LoadSpec,
    TextLengths,
    TextsError,
    batches,
    due_times,
    generate_texts,
    is_perf_analyzer,
    read_lines,
    read_perf_analyzer,
)


def times(count: int, **fields: object) -> list[float]:
    return list(itertools.islice(due_times(LoadSpec(**fields)), count))  # type: ignore[arg-type]


def test_poisson_arrivals_are_independent_with_the_mean_asked_for() -> None:
    distances = np.diff([0.0, *times(20_000, rate=200.0, seed=3)])
    assert distances.min() > 0
    # Exponential: mean and standard deviation are equal; within four standard errors.
    assert distances.mean() == pytest.approx(1 / 200, rel=4 / 20_000**0.5)
    assert distances.std() == pytest.approx(1 / 200, rel=0.04)
    # A share of e^-1 is longer than the mean, e^-3 longer than three of it.
    assert np.mean(distances > 1 / 200) == pytest.approx(np.exp(-1), abs=0.014)
    assert np.mean(distances > 3 / 200) == pytest.approx(np.exp(-3), abs=0.007)
    # No memory from one to the next.
    assert abs(np.corrcoef(distances[:-1], distances[1:])[0, 1]) < 4 / 20_000**0.5
    # Counts of a Poisson process: variance equals mean.
    counts = np.histogram(np.cumsum(distances), bins=np.arange(0, 99))[0]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.6)


def test_the_same_seed_is_the_same_load() -> None:
    assert times(5000, rate=50.0, seed=1) == times(5000, rate=50.0, seed=1)
    assert times(10, rate=50.0, seed=1) != times(10, rate=50.0, seed=2)


def test_constant_arrivals_do_not_drift() -> None:
    assert times(30_001, rate=300.0, arrivals=Arrivals.CONSTANT)[-1] == pytest.approx(
        100.0, abs=1e-9
    )


def test_lengths_are_lognormal_and_cut() -> None:
    drawn = np.array(TextLengths(32, 0.6, 512).sample(20_000, seed=5))
    assert np.median(drawn) == pytest.approx(32, abs=1)
    assert np.log(drawn).std() == pytest.approx(0.6, abs=0.02)
    assert drawn.min() >= 1
    assert max(TextLengths(200, 1.0, 256).sample(1000)) == 256
    assert set(TextLengths(20, 0.0, 64).sample(50)) == {20}
    assert TextLengths(32, 0.6, 512).sample(50, seed=5) == drawn[:50].tolist()


def test_texts_have_a_word_for_each_token_but_the_special_ones() -> None:
    made = generate_texts([12, 2, 1, 40], seed=1)
    assert [len(text.split()) for text in made] == [10, 1, 1, 38]
    assert generate_texts([12], seed=1) != generate_texts([12], seed=2)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("median=50", TextLengths(50, 0.6, 512)),
        ("cap=64, sigma=0,median=8", TextLengths(8, 0, 64)),
        (str(TextLengths(9, 0.25, 99)), TextLengths(9, 0.25, 99)),
    ],
)
def test_lengths_as_written(written: str, meant: TextLengths) -> None:
    assert TextLengths.parse(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        "",
        "mean=3",
        "median=3,median=4",
        "median=x",
        "median=nan",
        "median=600",
        "cap=0",
        "sigma=-1",
        "cap=12.5,median=3",
    ],
)
def test_wrong_lengths_are_refused(written: str) -> None:
    with pytest.raises(TextsError):
        TextLengths.parse(written)


def test_every_text_stands_in_a_request_equally_often() -> None:
    groups = batches(["a", "b", "c"], 2)
    assert groups == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert batches(["a", "b"], 4) == [["a", "b", "a", "b"]]


def test_many_texts_stand_in_a_request_each_without_being_repeated_for_ever() -> None:
    items = [str(number) for number in range(10_007)]
    groups = batches(items, 64)  # equally often would take 640 448 rows
    assert len(groups) == 157
    assert {len(group) for group in groups} == {64}
    assert {item for group in groups for item in group} == set(items)


def test_a_file_of_texts(messages: Messages) -> None:
    assert read_lines("one\n\n  \ntwo words\n") == ["one", "two words"]
    with messages.raises(TextsError):
        read_lines("\n \n")


# As NVIDIA's documentation of perf_analyzer has its input data: plain lists, content with a shape,
# base64, several streams.
DOCUMENT = {
    "data": [
        [
            {"TEXT": ["first"], "IDS": {"content": [1, 2, 3, 4], "shape": [2, 2]}},
            {"TEXT": {"content": ["second"]}, "IDS": {"b64": "AQACAA=="}},
        ],
        [{"TEXT": "third", "IDS": [7]}],
    ],
    "validation_data": [],
}


def test_input_data_of_perf_analyzer() -> None:
    content = json.dumps(DOCUMENT)
    assert is_perf_analyzer(content)
    assert read_perf_analyzer(content) == [
        {"TEXT": InputValue(("first",)), "IDS": InputValue((1, 2, 3, 4), shape=(2, 2))},
        {"TEXT": InputValue(("second",)), "IDS": InputValue(raw=b"\x01\x00\x02\x00")},
        {"TEXT": InputValue(("third",)), "IDS": InputValue((7,))},
    ]
    assert not is_perf_analyzer("a plain text\n")
    assert not is_perf_analyzer('{"not": "perf_analyzer\'s"}')


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', "JSON"),
        ('{"data": []}', "data"),
        ('{"data": [3]}', "data[0]"),
        ('{"data": [{"A": [1]}, {"B": [1]}]}', "data[1]"),
        ('{"data": [{"A": {"b64": "!"}}]}', "data[0].A.b64"),
        ('{"data": [{"A": {"shape": [1]}}]}', "data[0].A"),
        ('{"data": [{"A": {"content": [1], "shape": [-1]}}]}', "data[0].A.shape"),
        ('{"data": [[{"A": [[1]]}]]}', "data[0][0].A"),
    ],
)
def test_wrong_input_data_names_the_place(content: str, message: str, messages: Messages) -> None:
    with pytest.raises(TextsError) as caught:
        read_perf_analyzer(content)
    assert message in str(caught.value)
    messages.check(str(caught.value))
