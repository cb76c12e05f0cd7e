"""A file that takes no ragged batches: the next best padding is rendered, remembered, said, and tried anew with another file."""

from __future__ import annotations

import json

from tests.support import builders
from tests.support.worlds import STIFF, World
from triton_pipelines.api import names


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
    assert world.told()["Ready"] == "True Succeeded"
    assert world.status["padding"]["chosen"] == "Fixed"
    assert "axis 1 of input_ids is 128" in world.status["padding"]["reason"]
    assert list(recorded(world).values()) == ["axis 1 of input_ids is 128"]


def test_what_was_refused_is_remembered_over_unrelated_changes_and_restarts() -> None:
    world = refused()
    before = len(world.log)
    # Nothing of the first try is left but the record: its pods are gone, and no pod of the next revision tries again.
    world.change(tokenizer={"instances": {"max": 3}}, server={"priorityClassName": "high"}).settle()
    assert world.status["padding"]["chosen"] == "Fixed"
    assert all("NotRagged" not in str(plan.status) for plan in world.log[before:] if plan.status)


def test_another_file_is_tried_anew() -> None:
    world = refused().change(model={"source": {"uri": "s3://models/sentiment/other.onnx"}}).settle()
    assert world.status["padding"]["chosen"] == "Ragged"
    assert recorded(world) == {}


def test_a_record_that_was_edited_into_nonsense_is_found_again() -> None:
    world = refused()
    live = world.children["ConfigMap", names.live_name(world.name)]
    for text in ("[]", "{", '{"x": 3}'):
        live["data"][names.KEY_PADDING] = text
        world.settle()
        assert world.told()["Ready"] == "True Succeeded"


def test_ragged_as_written_is_a_finding_and_the_old_revision_goes_on() -> None:
    world = World(builders.document(tokenizer={"padding": "Fixed"})).settle()
    good = world.deployed
    world.change(tokenizer={"padding": "Ragged"}).step()
    world.verdicts[world.deployed] = STIFF
    for _ in range(20):
        world.pass_time(5).control().run_pods()
        world.step()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert "spec.tokenizer.padding" in ready["message"]
    assert "axis 1 of input_ids is 128" in ready["message"]
    assert [pod.revision for pod in world.serving] == [good]
