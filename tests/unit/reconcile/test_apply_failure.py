"""Where the API server refuses an object of a pass: what holds all the same stays told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.support.worldchecks import check_status
from tests.support.worlds import World
from triton_pipelines.cluster.errors import Forbidden
from triton_pipelines.controllers.pipeline.apply_failure import status_after_failure
from triton_pipelines.controllers.pipeline.planner import Plan
from triton_pipelines.controllers.pipeline.snapshot import Object
from triton_pipelines.controllers.scaling_conditions import CONDITION_TYPES

RENDERED: dict[str, Any] = {}
WORDS = 'deployments.apps "sentiment" is forbidden: exceeded quota: team'
COUNTS: dict[str, Any] = {"tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}}}


def scaled() -> World:
    """A pipeline at rest of which live scaling has told."""
    world = World(builders.document(**COUNTS), rendered=RENDERED).started()
    said = {
        "status": "True",
        "message": "as told",
        "lastTransitionTime": "2026-01-01T12:00:00Z",
        "observedGeneration": 1,
    }
    reasons = {
        "MetricsAvailable": "Succeeded",
        "ScalingActive": "Succeeded",
        "ScalingLimited": "AtMaximum",
    }
    assert set(reasons) == set(CONDITION_TYPES)
    kept = [item for item in world.document["status"]["conditions"] if item["type"] not in reasons]
    world.document["status"]["conditions"] = [
        *kept,
        *({**said, "type": kind, "reason": reason} for kind, reason in reasons.items()),
    ]
    world.document["status"]["scaling"] = {"bottleneck": "tokenizer"}
    return world.settle()


def refused(world: World) -> tuple[Plan, Object]:
    """What a pass decided, and what it tells where an object of it is refused."""
    decided = world.think()
    status = status_after_failure(
        world.observed(), decided, Forbidden(403, "Forbidden", WORDS), world.now
    )
    check_status(status)
    return decided, status


def conditions(status: Object) -> dict[str, Object]:
    found = {item["type"]: item for item in status["conditions"]}
    assert len(found) == len(status["conditions"]), "each once"
    return found


@pytest.mark.parametrize(
    "change",
    [{}, {"rollout": {"drainSeconds": 9}}, {"tokenizer": {"maxLength": 64}}],
    ids=["none", "settings", "revision"],
)
def test_what_live_scaling_does_is_told_all_the_same(change: dict[str, Any]) -> None:
    world = scaled()
    before = world.status
    if change:
        world.change(**change)
    else:
        del world.children["Service", world.name]
    decided, status = refused(world)
    assert decided.apply
    assert (decided.status is None) == (not change)
    reported = conditions(status)
    assert {
        kind: (item["status"], item["reason"])
        for kind, item in reported.items()
        if kind in CONDITION_TYPES
    } == {
        "MetricsAvailable": ("True", "Succeeded"),
        "ScalingActive": ("True", "Succeeded"),
        "ScalingLimited": ("True", "AtMaximum"),
    }
    assert WORDS in reported["Ready"]["message"]
    assert reported["Ready"]["message"].endswith(
        "raise the ResourceQuota, or delete objects that it counts"
    )
    assert status["scaling"] == before["scaling"]
    assert (status["steps"], status["revision"]) == (before["steps"], before["revision"]), (
        "the revision that runs is still that"
    )


def test_live_scaling_that_is_switched_off_is_told_no_longer() -> None:
    world = scaled()
    world.change(scaling={"mode": "Disabled"})
    _, status = refused(world)
    assert not set(conditions(status)) & set(CONDITION_TYPES)
    assert "scaling" not in status
