"""Sequence batching: one instance and slot per sequence, control signals, states, idle time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.support.recorder import Asker, Model, Workbench, compiled

pytestmark = pytest.mark.integration
LONG_US = 3_600_000_000
CORRID = "data_type: TYPE_UINT64"


def scheduling(
    strategy: str, idle_us: int = LONG_US, corrid: str | None = CORRID, state: str = ""
) -> str:
    controls = {
        "START": "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]",
        "READY": "kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ]",
        "END": "kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ]",
    }
    if corrid is not None:
        controls["CORRID"] = f"kind: CONTROL_SEQUENCE_CORRID {corrid}"
    inputs = ", ".join(
        f'{{ name: "{name}" control [ {{ {control} }} ] }}' for name, control in controls.items()
    )
    return (
        f"sequence_batching {{ {strategy} max_sequence_idle_microseconds: {idle_us} control_input "
        f"[ {inputs} ] {state} }}"
    )


def ask(
    client: Asker,
    model: Model,
    value: int,
    sequence: int | str,
    *,
    start: bool = False,
    end: bool = False,
) -> asyncio.Task[dict[str, Any]]:
    return client.ask(model, value, sequence_id=sequence, sequence_start=start, sequence_end=end)


def signals(model: Model) -> dict[int, dict[str, Any]]:
    """Control signals by X of every ready request so far."""
    requests = [request["inputs"] for line in model.events("begin") for request in line["requests"]]
    return {
        entry["X"][0]: {name: entry[name][0] for name in ("START", "END", "READY", "CORRID")}
        for entry in requests
        if entry["READY"] == [1.0]
    }


@pytest.mark.proves("spec.model.sequenceBatching.strategy", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.controls[].name", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.controls[].kind", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.controls[].dataType", "behaviour")
async def test_direct_slots_and_controls(triton: Workbench, client: Asker) -> None:
    """Two slots: a third sequence waits until one ends; each sequence keeps its slot."""
    model = await triton.deploy("direct", scheduling("direct { }"), max_batch_size=2)
    await ask(client, model, 1, 11, start=True)
    await ask(client, model, 2, 22, start=True)
    await ask(client, model, 3, 22)
    waiting = ask(client, model, 4, 33, start=True)
    await model.until_pending(1)
    await ask(client, model, 5, 22)
    assert not waiting.done()
    await ask(client, model, 6, 11, end=True)
    await waiting
    await ask(client, model, 7, 22, end=True)
    controls = {
        1: (1, False, 11),
        2: (1, False, 22),
        3: (0, False, 22),
        4: (1, False, 33),
        5: (0, False, 22),
        6: (0, True, 11),
        7: (0, True, 22),
    }
    assert {
        x: (entry["START"], entry["END"], entry["CORRID"]) for x, entry in signals(model).items()
    } == controls
    # A slot is a row of the batch: 22 is always the second one, and what is not ready is told so.
    slots: dict[int, set[int]] = {}
    for line in model.events("begin"):
        for slot, request in enumerate(line["requests"]):
            if request["inputs"]["READY"] == [1.0]:
                slots.setdefault(request["inputs"]["CORRID"][0], set()).add(slot)
    assert slots == {11: {0}, 22: {1}, 33: {0}}
    alone = next(
        line["requests"]
        for line in model.events("begin")
        if [2] in [request["inputs"]["X"] for request in line["requests"]]
    )
    assert [request["inputs"]["READY"] for request in alone] == [[0.0], [1.0]]


@pytest.mark.parametrize(
    "strategy", ["direct { }", "oldest { max_candidate_sequences: 4 preserve_ordering: true }"]
)
async def test_a_sequence_stays_with_its_instance(
    triton: Workbench, client: Asker, strategy: str
) -> None:
    model = await triton.deploy(
        f"sticky_{strategy.split()[0]}",
        scheduling(strategy),
        max_batch_size=1,
        instances="count: 2 kind: KIND_CPU",
    )
    sequences = (1, 2) if strategy.startswith("direct") else (1, 2, 3, 4)
    for step in range(3):
        await asyncio.gather(
            *(
                ask(client, model, 10 * step + s, s, start=step == 0, end=step == 2)
                for s in sequences
            )
        )
    homes: dict[int, set[str]] = {}
    for line in model.events("begin"):
        for request in line["requests"]:
            homes.setdefault(request["correlation"], set()).add(line["instance"])
    assert {len(homes[s]) for s in sequences} == {1}
    assert len(set.union(*homes.values())) == 2


@pytest.mark.proves("spec.model.sequenceBatching.strategy", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.maxCandidateSequences", "behaviour")
async def test_oldest_batches_over_sequences(triton: Workbench, client: Asker) -> None:
    """Requests of different sequences share a batch; those of one sequence never do.

    A surplus candidate waits until a sequence ends.
    """
    strategy = (
        f"oldest {{ max_candidate_sequences: 2 preferred_batch_size: [ 2 ] "
        f"max_queue_delay_microseconds: {LONG_US} }}"
    )
    model = await triton.deploy("oldest", scheduling(strategy), max_batch_size=4)
    await asyncio.gather(
        ask(client, model, 1, 11, start=True), ask(client, model, 2, 22, start=True)
    )
    assert [sorted(batch) for batch in model.batches()] == [[1, 2]]
    # Two of one sequence do not make the preferred size.
    first = ask(client, model, 3, 11)
    await model.until_pending(1)
    second = ask(client, model, 4, 11, end=True)
    await model.until_pending(2)
    third = ask(client, model, 5, 33, start=True)
    await model.until_pending(3)
    assert len(model.batches()) == 1
    await asyncio.gather(first, ask(client, model, 6, 22))
    assert [sorted(batch) for batch in model.batches()[1:2]] == [[3, 6]]
    await asyncio.gather(second, ask(client, model, 7, 22))
    # 11 ended: 33 is a candidate now.
    await asyncio.gather(third, ask(client, model, 8, 22, end=True))
    assert [sorted(batch) for batch in model.batches()] == [[1, 2], [3, 6], [4, 7], [5, 8]]


@pytest.mark.proves("spec.model.sequenceBatching.maxSequenceIdleMicroseconds", "behaviour")
async def test_an_idle_sequence_loses_its_slot(triton: Workbench, client: Asker) -> None:
    """Not before its time, which is longer than Triton's own of one second."""
    idle_s = 1.5
    model = await triton.deploy(
        "idle_sequence", scheduling("direct { }", idle_us=int(idle_s * 1e6)), max_batch_size=1
    )
    sent = time.time()
    await ask(client, model, 1, 11, start=True)
    # It never ends; the next one gets the only slot all the same.
    await ask(client, model, 2, 22, start=True, end=True)
    assert model.events("begin")[1]["at"] - sent >= idle_s
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        await ask(client, model, 3, 11)
    assert model.order() == [1, 2]


async def test_slots_wait_for_one_another(triton: Workbench, client: Asker) -> None:
    """With full use of the slots demanded, one sequence's request waits for the other's."""
    strategy = f"direct {{ max_queue_delay_microseconds: {LONG_US} minimum_slot_utilization: 1.0 }}"
    model = await triton.deploy("full_slots", scheduling(strategy), max_batch_size=2)
    first = ask(client, model, 1, 11, start=True)
    await model.until_pending(1)
    await asyncio.gather(first, ask(client, model, 2, 22, start=True))
    assert [sorted(batch) for batch in model.batches()] == [[1, 2]]
    assert [request["inputs"]["READY"] for request in model.events("begin")[0]["requests"]] == [
        [1.0],
        [1.0],
    ]


async def test_a_sequence_that_is_not_idle_keeps_its_slot(triton: Workbench, client: Asker) -> None:
    model = await triton.deploy("busy_sequence", scheduling("direct { }"), max_batch_size=1)
    await ask(client, model, 1, 11, start=True)
    waiting = ask(client, model, 2, 22, start=True)
    await model.until_pending(1)
    await ask(client, model, 3, 11, end=True)
    await waiting
    assert model.order() == [1, 3, 2]


async def test_correlation_ids_may_be_texts(triton: Workbench, client: Asker) -> None:
    """With two slots, both sequences continue where they began.

    As a tensor (CORRID), a text fails every request of a python model in Triton 24.10.
    """
    model = await triton.deploy(
        "named_sequence", scheduling("direct { }", corrid=None), max_batch_size=2
    )
    names = ("conversation-7", "conversation-8")
    for step in range(2):
        for number, name in enumerate(names):
            await ask(client, model, 10 * step + number, name, start=step == 0, end=step == 1)
    slots: dict[str, set[int]] = {}
    for line in model.events("begin"):
        for slot, request in enumerate(line["requests"]):
            if request["inputs"]["READY"] == [1.0]:
                slots.setdefault(request["correlation"], set()).add(slot)
    assert slots == {names[0]: {0}, names[1]: {1}}
    broken = await triton.deploy(
        "text_sequence", scheduling("direct { }", corrid="data_type: TYPE_STRING"), max_batch_size=2
    )
    with pytest.raises(
        InferenceServerException,
        match="unexpected number of string elements 2 for inference input 'CORRID'",
    ):
        await ask(client, broken, 1, names[0], start=True)


@pytest.mark.proves("spec.model.sequenceBatching.states[].initial", "behaviour")
async def test_a_state_begins_with_its_initial_value(triton: Workbench, client: Asker) -> None:
    """The python backend passes a state in but never takes one back.

    A step has to keep its own state.
    """
    state = (
        'state [ { input_name: "STATE" output_name: "NEXT" data_type: TYPE_INT32 dims: [ 2 ]'
        ' initial_state { data_type: TYPE_INT32 dims: [ 2 ] data_file: "begin" name: "begin" } } ]'
    )
    files = {"initial_state/begin": np.array([7, 9], np.int32).tobytes()}
    model = await triton.deploy(
        "state",
        scheduling("oldest { max_candidate_sequences: 1 }", state=state),
        max_batch_size=1,
        files=files,
    )
    await ask(client, model, 1, 11, start=True)
    (line,) = model.events("begin")
    assert line["requests"][0]["inputs"]["STATE"] == [7, 9]
    assert line["requests"][0]["shapes"]["STATE"] == [1, 2]


@pytest.mark.proves("spec.model.sequenceBatching.states[].inputName", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.states[].outputName", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.states[].dataType", "behaviour")
@pytest.mark.proves("spec.model.sequenceBatching.states[].dims", "behaviour")
async def test_a_state_lasts_as_long_as_its_sequence(
    triton: Workbench, client: Asker, tmp_path: Path
) -> None:
    """With a backend that returns the state, every sequence adds up its own numbers.

    Each starts from its initial value.
    """
    library = compiled(Path(__file__).with_name("accumulate.c"), tmp_path)
    state = (
        'state [ { input_name: "STATE" output_name: "NEXT" data_type: TYPE_INT32 dims: [ 1 ]'
        ' initial_state { data_type: TYPE_INT32 dims: [ 1 ] data_file: "begin" name: "begin" } } ]'
    )
    model = await triton.deploy(
        "accumulate",
        scheduling("oldest { max_candidate_sequences: 4 }", state=state),
        max_batch_size=1,
        platform='backend: "accumulate"',
        files={
            "initial_state/begin": np.array([100], np.int32).tobytes(),
            "libtriton_accumulate.so": library,
        },
    )
    sums = []
    for value, sequence, start, end in (
        (1, 7, True, False),
        (10, 8, True, False),
        (2, 7, False, False),
        (20, 8, False, True),
        (3, 7, False, True),
    ):
        sums.append((await ask(client, model, value, sequence, start=start, end=end))["Y"][0][0])
    assert sums == [101, 110, 103, 130, 106]
    # A restarted sequence begins with the initial value.
    assert (await ask(client, model, 5, 7, start=True, end=True))["Y"] == [[105]]


async def test_an_ensemble_hands_the_sequence_on(triton: Workbench, client: Asker) -> None:
    step = await triton.deploy("sequence_step", scheduling("direct { }"), max_batch_size=1)
    await triton.deploy(
        "sequence_ensemble",
        'ensemble_scheduling { step { model_name: "sequence_step" model_version: -1'
        ' input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }',
        max_batch_size=1,
        platform='platform: "ensemble"',
    )
    await client.ask("sequence_ensemble", 1, sequence_id=5, sequence_start=True)
    await client.ask("sequence_ensemble", 2, sequence_id=5, sequence_end=True)
    assert {
        x: (entry["START"], entry["END"], entry["CORRID"]) for x, entry in signals(step).items()
    } == {1: (1, False, 5), 2: (0, True, 5)}
