"""Test the Deployment controller model of the simulated worlds.

The expected values were observed on a real controller.
"""

from __future__ import annotations

import pytest

from tests.support import builders
from tests.support.rolloutmodel import AVAILABLE, CREATED, LATE, UPDATED, Counted, progressing
from tests.support.worlds import World


def status(reason: str, *counts: int) -> dict[str, object]:
    return {**Counted(*counts).status(), "conditions": [{"type": "Progressing", "reason": reason}]}


@pytest.mark.parametrize(
    ("reported", "before", "seen", "late", "reason"),
    [
        (UPDATED, (1, 1, 0), (1, 1, 1), True, AVAILABLE),
        (UPDATED, (1, 1, 0), (1, 1, 0), False, UPDATED),
        (UPDATED, (1, 1, 0), (1, 1, 0), True, LATE),
        (LATE, (1, 1, 0), (1, 1, 0), True, LATE),
        (LATE, (2, 1, 1), (1, 1, 1), True, AVAILABLE),
        (AVAILABLE, (1, 1, 1), (0, 0, 0), True, AVAILABLE),
        (AVAILABLE, (1, 1, 1), (1, 1, 0), True, AVAILABLE),
        (AVAILABLE, (1, 1, 1), (1, 0, 1), True, AVAILABLE),
        (AVAILABLE, (1, 0, 1), (2, 1, 1), False, UPDATED),
    ],
    ids=[
        "complete",
        "waits",
        "late",
        "stays late",
        "late but done",
        "complete and lost",
        "complete and unready",
        "back",
        "back and on its way",
    ],
)
def test_the_reason(
    reported: str, before: tuple[int, int, int], seen: tuple[int, int, int], late: bool, reason: str
) -> None:
    assert (
        progressing(status(reported, *before), Counted(*seen), 1, fresh=False, late=late)[0]
        == reason
    )


def test_a_new_template_is_progress_whatever_was_told() -> None:
    assert progressing(status(AVAILABLE, 0, 0, 0), Counted(0, 0, 0), 1, fresh=True, late=True) == (
        CREATED,
        True,
    )


def test_a_pod_that_is_lost_long_after_its_rollout_breaks_no_deadline() -> None:
    """It was told so once, and the planner took a rollout for failed that was over long ago."""
    world = World(builders.document(), room=1).started()
    world.room = 0
    world.pods.clear()
    for _ in range(3):
        world.pass_time(1000).control().run_pods().step()
    assert world.deployment["status"]["conditions"][0]["reason"] == AVAILABLE
    assert world.reasons()["Ready"] == "False WaitingForGPU"
    world.room = 1
    assert world.settle().reasons()["Ready"] == "True Succeeded"


def test_what_is_told_is_what_was_before_the_sync() -> None:
    """Report a status without the pods that the same sync has just created.

    The Deployment's status is computed from what the ReplicaSets reported before.
    """
    world = World(builders.document()).started()
    world.change(tokenizer={"maxLength": 64}).step()
    world.control()
    assert len(world.pods) == 2
    assert world.deployment["status"]["updatedReplicas"] == 0
    assert world.control().deployment["status"]["updatedReplicas"] == 1
