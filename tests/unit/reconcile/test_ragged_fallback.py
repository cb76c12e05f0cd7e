"""Test a model file that accepts no ragged batches.

The next best padding is rendered, recorded and reported; another file is tried with ragged again.
"""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import STIFF, World
from triton_pipelines.api import names
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.tuning_status import PaddingStatus
from triton_pipelines.compile.graph.effective_padding import PaddingChoice
from triton_pipelines.controllers.pipeline.ragged_fallback import padding_status


def refused() -> World:
    world = World(builders.document())
    world.step()
    world.verdicts[world.deployed] = STIFF
    return world.settle()


def recorded(world: World) -> dict[str, str]:
    data = world.children["ConfigMap", names.live_name(world.name)]["data"]
    return dict(json.loads(data.get(names.KEY_PADDING, "{}")))


def test_the_next_best_padding_is_served_and_the_reason_stands_in_the_status() -> None:
    world = World(builders.document())
    world.step()
    assert world.status["padding"]["chosen"] == "Ragged"
    first = world.deployed
    world.verdicts[first] = STIFF
    world.settle()
    assert world.deployed != first
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.status["padding"]["chosen"] == "Fixed"
    assert "axis 1 of input_ids is 128" in world.status["padding"]["reason"]
    assert list(recorded(world).values()) == ["axis 1 of input_ids is 128"]


def test_what_was_refused_is_remembered_over_unrelated_changes_and_restarts() -> None:
    world = refused()
    before = len(world.log)
    # Only the record of the first attempt is left: its pods are gone, and no pod of the next
    # revision tries again.
    world.change(tokenizer={"instances": {"max": 3}}, server={"priorityClassName": "high"}).settle()
    assert world.status["padding"]["chosen"] == "Fixed"
    assert all(
        "RaggedUnsupported" not in str(plan.status) for plan in world.log[before:] if plan.status
    )


def test_another_file_is_tried_from_the_start() -> None:
    world = refused().change(model={"source": {"uri": "s3://models/sentiment/other.onnx"}}).settle()
    assert world.status["padding"]["chosen"] == "Ragged"
    assert recorded(world) == {}


def test_a_record_that_was_edited_into_nonsense_is_found_again() -> None:
    world = refused()
    live = world.children["ConfigMap", names.live_name(world.name)]
    for text in ("[]", "{", '{"x": 3}'):
        live["data"][names.KEY_PADDING] = text
        world.settle()
        assert world.reasons()["Ready"] == "True Succeeded"


def test_explicit_ragged_is_a_finding_and_the_old_revision_keeps_serving(
    messages: Messages,
) -> None:
    world = World(builders.document(tokenizer={"padding": "Fixed"})).started()
    good = world.deployed
    world.change(tokenizer={"padding": "Ragged"}).step()
    world.verdicts[world.deployed] = STIFF
    for _ in range(20):
        world.pass_time(5).control().run_pods()
        world.step()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert "spec.tokenizer.padding" in ready["message"]
    assert "input_ids" in ready["message"]
    messages.check(ready["message"])
    assert [pod.revision for pod in world.serving] == [good]


JUDGED = {
    "request": "2026-02-01",
    "state": "Succeeded",
    "padding": "Ragged is cheapest: Ragged 21.5 ms (current), Fixed 38.5 ms for 32 rows",
}


def test_the_status_says_by_which_rule_or_measurement_padding_was_chosen() -> None:
    choice = builders.graph().padding
    assert choice is not None
    assert (
        padding_status(choice, {}, True)["reason"]
        == f"{choice.reason}; this mode was chosen by a fixed rule and has not been measured yet"
    )
    assert (
        padding_status(choice, JUDGED, True)["reason"]
        == f"{choice.reason}; tuning run '2026-02-01' measured: {JUDGED['padding']}"
    )
    for other, current in (
        (JUDGED, False),
        (JUDGED | {"state": "Running"}, True),
        (JUDGED | {"padding": ""}, True),
    ):
        assert padding_status(choice, other, current)["reason"].endswith(
            "chosen by a fixed rule and has not been measured yet"
        )
    named = builders.graph(tokenizer={"padding": "Longest"}).padding
    assert named is not None
    assert padding_status(named, {}, True) == {
        "chosen": "Longest",
        "reason": "set by tokenizer.padding",
    }
    assert "measured: Ragged is cheapest" in padding_status(named, JUDGED, True)["reason"]


@given(
    st.text(max_size=900),
    st.text(max_size=600),
    st.text(max_size=600),
    st.text(max_size=600),
    st.booleans(),
)
def test_what_is_said_of_padding_has_room_in_the_status(
    reason: str, request: str, padding: str, other: str, measured: bool
) -> None:
    run = {"state": "Succeeded", "request": request, "padding": padding}
    said = padding_status(
        PaddingChoice(Padding.FIXED, reason, automatic=True, measured=measured), run, True, other
    )
    PaddingStatus.model_validate(said)


def test_a_pass_says_it() -> None:
    assert (
        World(builders.document())
        .started()
        .status["padding"]["reason"]
        .endswith("chosen by a fixed rule and has not been measured yet")
    )
