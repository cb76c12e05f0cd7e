"""Check that the status and `tritonpipe explain` always report the padding and the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import builders
from tests.support.measuredworld import BOTH, BUCKETED, PADDING, SLO, padding, run, world_of
from tests.support.messages import Messages
from tests.support.tuningworld import Tuning
from tests.support.worlds import BAD, STIFF
from triton_pipelines.cli.explain import explanation


def written() -> Tuning:
    world = run(world_of(), PADDING).settle()
    return world.change(tokenizer={"padding": "Longest"}).settle()


def ruled() -> Tuning:
    return world_of()


def refused() -> Tuning:
    world = Tuning(builders.document(slo=SLO)).settle()
    world.verdicts[world.deployed] = STIFF
    world.pods = []
    return world.settle()


def measured() -> Tuning:
    return run(world_of(), PADDING).settle()


def waiting() -> Tuning:
    return run(world_of(), BOTH).settle()


def reverted() -> Tuning:
    world = run(world_of(rollout={"strategy": "Surge"}), PADDING)
    world.step()
    world.verdicts[world.deployed] = BAD
    return world.settle()


BEGUN = (
    "Auto: spec.model: tensorrt_plan batches only requests of the same shape, so every row has 512"
    " tokens; "
)


@pytest.mark.parametrize(
    ("made", "chosen", "begins", "holds"),
    [
        (written, "Longest", "set by tokenizer.padding", "set by"),
        (ruled, "Fixed", BEGUN, "chosen by a fixed rule and has not been measured yet"),
        (refused, "Fixed", "Auto: spec.model: ", "axis 1 of input_ids is 128"),
        (
            measured,
            "Bucketed",
            "measured: Bucketed 32, 128 sustains 1.31 times the load of Fixed within 80 ms",
            "(tuning run 'monday'; ",
        ),
        (
            waiting,
            "Fixed",
            BEGUN,
            (
                "tuning run 'monday' measured Bucketed 32, 128 to be better together with the "
                "patch in status.tuning"
            ),
        ),
        (
            reverted,
            "Fixed",
            BEGUN,
            "Bucketed 32, 128, which tuning run 'monday' measured, was reverted: pod ",
        ),
    ],
)
def test_the_status_and_explain_say_it(
    made: Callable[[], Tuning], chosen: str, begins: str, holds: str
) -> None:
    world = made()
    assert world.reasons()["Ready"] == "True Succeeded"
    said, reason = padding(world)
    assert said == chosen
    assert reason.startswith(begins)
    assert holds in reason
    assert [line for line in explanation(world.document) if line.startswith("Padding: ")] == [
        f"Padding: {said}: {reason}"
    ]
    busy = {**world.document, "status": {**world.status, "scaling": {"bottleneck": "GPUBound"}}}
    assert f"Padding: {said}: {reason}" in explanation(busy)


@pytest.mark.parametrize(
    "made",
    [
        measured,
        waiting,
        reverted,
    ],
)
def test_the_run_says_what_becomes_of_its_padding(
    made: Callable[[], Tuning], messages: Messages
) -> None:
    world = made()
    message = world.status["tuning"]["message"]
    assert "128" in message
    messages.check(message)
    (entry,) = world.status["padding"]["measured"]
    assert (entry["padding"], entry["buckets"], entry["request"]) == (
        "Bucketed",
        BUCKETED["buckets"],
        "monday",
    )
    assert ("revertReason" in entry) is (made is reverted)


def test_without_tokens_there_is_nothing_to_say() -> None:
    document = {"metadata": {"namespace": "nlp", "name": "p"}, "spec": {}, "status": {}}
    assert not [line for line in explanation(document) if "Padding" in line]
