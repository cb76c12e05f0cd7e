"""Memory as JSON: nothing lost, small, and never a reason to fail."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.autoscaling.state_json import LIMIT_BYTES, dumps, loads
from triton_pipelines.autoscaling.types import (
    CountChange,
    InfeasibleResize,
    InstanceGrowth,
    ScalingState,
    StepState,
)

T = 1_700_000_000.0
GROWTH = InstanceGrowth(T, 2, 4, 200.5, 0.01, 6.0)
FULL = StepState(
    desired=7,
    service=0.0101234,
    demands=tuple((T + 3 * number, number % 9 + 1) for number in range(60)),
    counts=((T - 500, 2), (T, 7)),
    last_up=T,
    last_change=T + 1.5,
    reversals=(T - 100, T),
    direction=1,
    growth=GROWTH,
    growth_held=(T + 2, GROWTH),
    stalled_since=T + 4,
    cap=9,
    memory_held=(T + 5, 7, 4294967296.0),
)


def state(steps: int = 1) -> ScalingState:
    actions = tuple(
        CountChange(T - number, "tokenizer", 2, 7, "TokenizerBound: 620 requests/s")
        for number in range(5)
    )
    return ScalingState(
        {f"step-{number}": FULL for number in range(steps)}, actions, 4.2, T, None, "4f1d"
    )


def test_nothing_is_lost() -> None:
    assert loads(dumps(state(3))) == state(3)


@pytest.mark.parametrize("steps", [1, 6, 12, 40, 60])
def test_it_stays_small_and_keeps_the_counts(steps: int) -> None:
    text = dumps(state(steps))
    assert len(text.encode()) <= LIMIT_BYTES
    read = loads(text)
    assert {name: step.desired for name, step in read.steps.items()} == {
        f"step-{number}": 7 for number in range(steps)
    }


def test_thinning_never_lowers_what_was_wanted() -> None:
    read = loads(dumps(state(12)))
    for step in read.steps.values():
        assert max(want for _, want in step.demands) == 9


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
    document = json.loads(dumps(state(2)))
    document["steps"]["step-0"].update(
        service=-1, demands=[1, "x"], reversals="no", growth_held=[1], direction=9, unknown=[1]
    )
    document["steps"]["step-9"] = {"desired": 0}
    document["history"][0] = ["?"]
    document["extra"] = {}
    read = loads(json.dumps(document))
    assert set(read.steps) == {"step-0", "step-1"}
    assert read.steps["step-0"].desired == 7
    assert read.steps["step-0"].service is None
    assert read.steps["step-0"].demands == ()
    assert read.steps["step-1"] == FULL
    assert len(read.history) == 4


@pytest.mark.parametrize("at", [-1.0, 1e18, 1e300])
def test_a_time_that_no_status_can_tell_is_left_out(at: float) -> None:
    assert loads(
        json.dumps(
            {"version": 1, "history": [[at, "tokenizer", 1, 2, "x"], [1e9, "tokenizer", 2, 3, "y"]]}
        )
    ).history == (CountChange(1e9, "tokenizer", 2, 3, "y"),)


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
    "demands",
    "counts",
    "last_up",
    "last_change",
    "reversals",
    "direction",
    "growth",
    "growth_held",
    "stalled_since",
    "cap",
    "memory_held",
]


@given(
    st.dictionaries(
        st.sampled_from(
            ["version", "steps", "history", "actuation", "last_fresh", "outage_since", "revision"]
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


def test_the_document_has_these_keys() -> None:
    """They are a stored format: another release reads what this one writes."""
    growth = [1700000000.0, 2, 4, 150.0, 0.01, 4.0]
    scale = {"desired": 3, "demands": [17000000000, 2, 30, 5], "reversals": [1700000001.0]}
    document = {
        "version": 1,
        "revision": "r1",
        "steps": {
            "tokenizer": {
                **scale,
                "service": 0.01,
                "counts": [17000000000, 2],
                "last_up": 1700000002.0,
                "last_change": 1700000003.0,
                "direction": 1,
                "growth": growth,
                "growth_held": [1700000004.0, growth],
                "stalled_since": 1700000005.0,
                "cap": 8,
            }
        },
        "history": [[1700000006.0, "tokenizer", 2, 3, "TokenizerBound: full"]],
        "actuation": 0.4,
        "last_fresh": 1700000007.0,
        "outage_since": 1700000008.0,
        "pods": {**scale, "demand": 4, "pressed_since": 1700000009.0},
        "cpu": {**scale, "infeasible": [["uid", "node", 4000, 2000]]},
    }
    read = loads(json.dumps(document))
    step = read.steps["tokenizer"]
    assert step.demands == ((1700000000.0, 2), (1700000003.0, 5))
    assert step.reversals == (1700000001.0,)
    assert step.growth == InstanceGrowth(1700000000.0, 2, 4, 150.0, 0.01, 4.0)
    assert step.growth_held == (1700000004.0, step.growth)
    assert (step.stalled_since, step.cap) == (1700000005.0, 8)
    assert read.outage_since == 1700000008.0
    assert read.pods is not None
    assert (read.pods.demand, read.pods.pressed_since) == (4, 1700000009.0)
    assert read.cpu is not None
    assert read.cpu.infeasible == (InfeasibleResize("uid", "node", 4000, 2000),)
    assert json.loads(dumps(read)) == {**document, "pods": ANY, "cpu": ANY}
