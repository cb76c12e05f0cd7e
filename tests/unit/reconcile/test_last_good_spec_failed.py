"""Test a failed revision while the spec does not compile.

It stays rolled back, and nothing of such a spec counts as applied.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.support.worlds import BAD, World
from triton_pipelines.controllers.pipeline.latency_figures import Latencies, RevisionLatency

MISSING = {
    "model": (
        "spec.model.source: configmap://weights/model.onnx: ConfigMap weights does not exist in "
        "namespace nlp; create it"
    )
}
LABELS: dict[str, Any] = {"postprocess": {"labels": ["negative", "positive"]}}
TOO_MANY: dict[str, Any] = {"postprocess": {"labels": ["a", "b", "c"]}}
HOW = ["missing", "invalid"]
# As tests write a resource, and as an API server holds it.
STORED = pytest.mark.parametrize("stored", [False, True], ids=["as written", "with defaults"])


def spoil(world: World, how: str) -> None:
    """Its spec becomes what cannot be acted on."""
    if how == "missing":
        world.missing_sources, world.digests = MISSING, {}
        world.change(tokenizer={"maxLength": 96})
    else:
        world.change(**TOO_MANY)


def taken_back(stored: bool) -> tuple[World, str]:
    """A pipeline on one GPU whose new revision has failed, and that revision."""
    world = World(
        builders.document(rollout={"strategy": "NoSurge"}), room=1, defaults=stored
    ).started()
    old = world.deployed
    world.change(tokenizer={"maxLength": 64}).step()
    failed = world.status["revision"]
    world.verdicts[failed] = BAD
    world.settle()
    assert (world.deployed, world.reasons()["Ready"]) == (old, "False RolledBack")
    return world, failed


def wish_again(world: World) -> None:
    """Its spec is the one that failed once more."""
    world.missing_sources = {}
    world.change(**LABELS, tokenizer={"maxLength": 64})


def stays(world: World, failed: str, rounds: int = 40) -> None:
    """Nobody tries the failed revision, and the one before serves all the time."""
    for _ in range(rounds):
        world.pass_time(5).control().run_pods()
        world.step()
        assert world.deployed != failed
        assert [pod.revision for pod in world.serving] == [world.deployed]


@STORED
@pytest.mark.parametrize("how", HOW)
def test_a_revision_that_failed_is_not_tried_again(how: str, stored: bool) -> None:
    world, failed = taken_back(stored)
    spoil(world, how)
    stays(world, failed)
    # Nor when the spec is again the one that failed.
    wish_again(world)
    stays(world, failed)
    assert world.reasons()["Ready"] == "False RolledBack"
    world.change(tokenizer={"maxLength": 32}).settle()
    assert world.reasons()["Ready"] == "True Succeeded"


@STORED
@pytest.mark.parametrize("how", HOW)
def test_a_revision_that_fails_meanwhile_is_not_tried_again_with_its_own_spec(
    how: str, stored: bool
) -> None:
    world = World(
        builders.document(rollout={"strategy": "NoSurge"}), room=1, defaults=stored
    ).started()
    old = world.deployed
    world.change(tokenizer={"maxLength": 64}).step()
    world.run_pods().step()  # the preflight passes
    failed = world.deployed
    world.verdicts[failed] = BAD
    spoil(world, how)
    world.settle()
    assert (world.deployed, world.state.rollout.failed_revision) == (old, failed)
    wish_again(world)
    stays(world, failed)


@STORED
@pytest.mark.parametrize("how", HOW)
def test_a_revision_that_broke_the_promised_latency_is_not_tried_again(
    how: str, stored: bool
) -> None:
    world = World(builders.document(slo={"p99Milliseconds": 80}), defaults=stored).started()
    old = world.deployed
    world.change(tokenizer={"maxLength": 64}).settle()
    broken = world.deployed
    world.latencies = Latencies(
        {old: RevisionLatency(30.0, 40.0, 50.0), broken: RevisionLatency(90.0, 120.0, 55.0)}
    )
    world.pass_time(15).step()
    world.settle()
    assert world.reasons()["Ready"] == "False RolledBack"
    spoil(world, how)
    stays(world, broken)
    wish_again(world)
    stays(world, broken)


@STORED
@pytest.mark.parametrize("how", HOW)
def test_what_was_not_acted_on_pins_no_image(how: str, stored: bool) -> None:
    own = "registry.example/own-triton:24.10-py3"
    world = World(builders.document(server={"image": own}), defaults=stored).started()
    world.change(server={"image": None})
    spoil(world, how)
    world.settle()
    assert image(world) == own
    world.missing_sources = {}
    if how == "invalid":
        world.change(**LABELS)
    world.settle()
    assert (image(world), world.reasons()["Ready"]) == (builders.SERVER_IMAGE, "True Succeeded")


@STORED
def test_a_change_whose_source_came_later_is_no_new_release_of_the_operator(stored: bool) -> None:
    """Which would wait for other pipelines, and the status would say that all is done."""
    world = World(builders.document(), defaults=stored).started()
    old = world.deployed
    spoil(world, "missing")
    world.settle()
    world.missing_sources, world.may_roll = {}, False
    world.settle()
    assert world.deployed == world.status["revision"] != old
    assert world.reasons()["Ready"] == "True Succeeded"


def image(world: World) -> str:
    return str(world.deployment["spec"]["template"]["spec"]["containers"][0]["image"])
