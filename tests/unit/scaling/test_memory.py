"""Memory as JSON: nothing lost, small, and never a reason to fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.autoscaling.state_json import LIMIT_BYTES, dumps, loads
from triton_pipelines.autoscaling.types import Action, Growth, Memory, StepMemory

T = 1_700_000_000.0
GROWTH = Growth(T, 2, 4, 200.5, 0.01, 6.0)
FULL = StepMemory(
    desired=7,
    service=0.0101234,
    wants=tuple((T + 3 * number, number % 9 + 1) for number in range(60)),
    counts=((T - 500, 2), (T, 7)),
    last_up=T,
    last_change=T + 1.5,
    turns=(T - 100, T),
    direction=1,
    growth=GROWTH,
    frozen=(T + 2, GROWTH),
    stalled=T + 4,
    cap=9,
)


def memory(steps: int = 1) -> Memory:
    actions = tuple(
        Action(T - number, "tokenizer", 2, 7, "TokenizerBound: 620 requests/s")
        for number in range(5)
    )
    return Memory(
        {f"step-{number}": FULL for number in range(steps)}, actions, 4.2, T, None, "4f1d"
    )


def test_nothing_is_lost() -> None:
    assert loads(dumps(memory(3))) == memory(3)


@pytest.mark.parametrize("steps", [1, 6, 12, 40, 60])
def test_it_stays_small_and_keeps_the_counts(steps: int) -> None:
    text = dumps(memory(steps))
    assert len(text.encode()) <= LIMIT_BYTES
    read = loads(text)
    assert {name: step.desired for name, step in read.steps.items()} == {
        f"step-{number}": 7 for number in range(steps)
    }


def test_thinning_never_lowers_what_was_wanted() -> None:
    read = loads(dumps(memory(12)))
    for step in read.steps.values():
        assert max(want for _, want in step.wants) == 9


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "null",
        "1",
        '{"version": 2}',
        '{"version": 1, "steps": 3}',
        "[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_nothing(text: str | None) -> None:
    assert loads(text).steps == {}


def test_a_broken_part_is_left_out_alone() -> None:
    document = json.loads(dumps(memory(2)))
    document["steps"]["step-0"].update(
        service=-1, wants=[1, "x"], turns="no", frozen=[1], direction=9, unknown=[1]
    )
    document["steps"]["step-9"] = {"desired": 0}
    document["history"][0] = ["?"]
    document["extra"] = {}
    read = loads(json.dumps(document))
    assert set(read.steps) == {"step-0", "step-1"}
    assert read.steps["step-0"].desired == 7
    assert read.steps["step-0"].service is None
    assert read.steps["step-0"].wants == ()
    assert read.steps["step-1"] == FULL
    assert len(read.history) == 4


@pytest.mark.parametrize("at", [-1.0, 1e18, 1e300])
def test_a_time_that_no_status_can_tell_is_left_out(at: float) -> None:
    assert loads(
        json.dumps(
            {"version": 1, "history": [[at, "tokenizer", 1, 2, "x"], [1e9, "tokenizer", 2, 3, "y"]]}
        )
    ).history == (Action(1e9, "tokenizer", 2, 3, "y"),)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=7), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = [
    "desired",
    "service",
    "wants",
    "counts",
    "lastUp",
    "lastChange",
    "turns",
    "direction",
    "growth",
    "frozen",
    "stalled",
    "cap",
]


@given(
    st.dictionaries(
        st.sampled_from(
            ["version", "steps", "history", "actuation", "lastFresh", "blind", "revision"]
        ),
        json_values,
    ),
    st.dictionaries(st.sampled_from(FIELDS), json_values),
)
def test_reading_never_fails_and_what_is_read_can_be_written(
    document: dict[str, Any], step: dict[str, Any]
) -> None:
    for given_document in (
        document,
        {"version": 1, "steps": {"tokenizer": {"desired": 2, **step}}, **document},
    ):
        read = loads(json.dumps(given_document))
        assert loads(dumps(read)).steps.keys() == read.steps.keys()
