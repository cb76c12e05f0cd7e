"""Test every way in which the revision of a tuned padding can fail.

Its choice is rejected for exactly that spec, and the padding that the spec itself leads to serves
again.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.measuredworld import (
    BOTH,
    PADDING,
    choices,
    padding,
    run,
    taken_and_broken,
    world_of,
)
from tests.support.tuningworld import Tuning
from tests.support.worlds import BAD, DUMB, GONE
from triton_pipelines.api import names

STRATEGIES = ("Surge", "Auto", "NoSurge", "Recreate")


def proven(patch: dict[str, Any] = PADDING, **spec: Any) -> tuple[Tuning, str, str]:
    """Return a pipeline whose padding follows the rule, just after a run verified another padding.

    Returns:
        The world, the first revision, and the revision with that padding, which has no pods yet.
    """
    world = world_of(**spec)
    first = world.deployed
    run(world, patch).step()
    world.step()
    assert world.status["revision"] != first or patch is BOTH
    return world, first, world.status["revision"]


def taken_back(world: Tuning) -> list[str]:
    """Notes of the events that tell of a choice that was reverted."""
    return [
        event.note
        for done in world.log
        for event in done.action_events
        if event.reason == "PaddingReverted"
    ]


def assert_reverted(world: Tuning, first: str, taken: str, why: str) -> None:
    """Assert that the first revision serves and that the choice is rejected for good.

    The status and one event give the reason ``why``, and nothing tries the choice again.
    """
    assert (world.deployed, world.reasons()["Ready"]) == (first, "True Succeeded")
    chosen, reason = padding(world)
    assert chosen == "Fixed"
    assert "; Bucketed 32, 128, which tuning run 'monday' measured, was reverted: " in reason
    assert why in reason
    (note,) = taken_back(world)
    assert why in note
    (entry,) = world.status["padding"]["measured"]
    assert why in entry["revertReason"]
    assert (
        " Auto has since reverted padding Bucketed 32, 128: " in world.status["tuning"]["message"]
    )
    assert len(choices(world)) == 1
    for change in ({}, {"replicas": 3}, {"rollout": {"drainSeconds": 9}}, {"tuning": None}):
        world.change(**change).settle()
        for _ in range(10):
            world.pass_time(400).control().run_pods().step()
            assert world.deployed != taken
        assert padding(world)[0] == "Fixed"
    assert len(taken_back(world)) == 1


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("verdict", "why"), [(BAD, "output logits is FP16"), (DUMB, "NaN in the answer")]
)
def test_a_loader_or_an_inference_that_fails(
    strategy: str, verdict: str, why: str, replicas: int
) -> None:
    world, first, taken = proven(replicas=replicas, rollout={"strategy": strategy})
    world.verdicts[taken] = verdict
    world.settle()
    assert_reverted(world, first, taken, why)


def first_ready(world: Tuning, taken: str) -> None:
    """Until a pod of that revision is ready, and nobody has looked at it yet."""
    for _ in range(20):
        world.pass_time(5).control().run_pods()
        if any(pod.revision == taken for pod in world.serving):
            return
        world.step()
    raise AssertionError("no pod of it has become ready")


def looked(world: Tuning, taken: str, verdict: str, looks: int) -> None:
    """So many looks say that of its pods, and later ones that all is well."""
    world.verdicts[taken] = verdict
    for _ in range(looks):
        world.step()
        world.pass_time(5)
    world.verdicts[taken] = "good"
    world.settle()


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(("verdict", "looks"), [(DUMB, 1), (GONE, 2)])
def test_a_look_that_fails_by_accident_says_nothing_of_the_padding(
    verdict: str, looks: int, replicas: int
) -> None:
    world, _, taken = proven(replicas=replicas, rollout={"strategy": "Surge"})
    first_ready(world, taken)
    looked(world, taken, verdict, looks)
    assert (world.deployed, padding(world)[0], taken_back(world)) == (taken, "Bucketed", [])
    assert world.state.rollout.verified == taken


@pytest.mark.parametrize("looks", [1, 4])
def test_looks_at_what_serves_say_nothing_of_the_padding_though_it_is_forgotten_that_it_did(
    looks: int,
) -> None:
    world, _, taken = proven(replicas=2, rollout={"strategy": "Surge"})
    world.settle()
    del world.children["ConfigMap", names.live_name(world.name)]
    world.forget()
    looked(world, taken, DUMB, looks)
    assert (world.deployed, padding(world)[0], taken_back(world)) == (taken, "Bucketed", [])


def test_processes_that_die_in_each_new_pod_are_the_paddings() -> None:
    """A dead process is mended by a new pod; where it dies there as well, that mends nothing."""
    world, first, taken = proven(rollout={"strategy": "Surge"})
    first_ready(world, taken)
    world.verdicts[taken] = GONE
    pods = set()
    for _ in range(20):
        pods |= {pod.name for pod in world.serving if pod.revision == taken}
        world.step()
        world.pass_time(5).control().run_pods()
    world.settle()
    assert len(pods) == 2, "one was made anew"
    assert_reverted(world, first, taken, "a process is gone")


@pytest.mark.parametrize("strategy", ["Surge", "Auto"])
def test_half_way_through_a_surge(strategy: str) -> None:
    world, first, taken = proven(replicas=3, rollout={"strategy": strategy})
    for _ in range(20):
        world.pass_time(5).control().run_pods().step()
        if any(pod.revision == taken for pod in world.serving):
            break
    assert {pod.revision for pod in world.serving} == {first, taken}
    world.verdicts[taken] = BAD
    world.settle()
    assert {pod.revision for pod in world.serving} == {first}
    assert_reverted(world, first, taken, "output logits is FP16")


def test_a_surge_that_finds_no_room_until_its_deadline() -> None:
    world, first, taken = proven(rollout={"strategy": "Surge"})
    world.room = 1
    for _ in range(4):
        world.control().run_pods().step()
    world.pass_time(
        world.deployment["spec"]["progressDeadlineSeconds"] + 60
    ).control().run_pods().step()
    world.settle()
    assert_reverted(world, first, taken, "no progress within")


def test_a_promise_that_is_broken_by_a_surge() -> None:
    world = world_of(rollout={"strategy": "Surge"})
    first, taken = taken_and_broken(world)
    assert_reverted(world, first, taken, "its p99 in the server was at least 90.0 ms")


def test_with_other_knobs_the_rule_serves_these() -> None:
    """The spec is the user's wish; nothing but the padding was the operator's."""
    world, first, _ = proven(BOTH, rollout={"strategy": "Surge"})
    world.change(model={"maxBatchSize": 16}).step()
    taken = world.deployed
    assert taken != first
    world.verdicts[taken] = BAD
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.deployed not in (first, taken)
    assert padding(world)[0] == "Fixed"
    assert "was reverted: pod" in padding(world)[1]
    world.change(model={"maxBatchSize": None}).settle()
    assert world.deployed == first
    assert "taken back" not in padding(world)[1], "the choice for the other spec is another"


def test_a_pod_that_fails_later_says_nothing_of_the_padding() -> None:
    world, _, taken = proven(rollout={"strategy": "Surge"})
    world.settle()
    world.verdicts[taken] = BAD
    world.change(replicas=2).settle()
    assert (world.deployed, padding(world)[0], taken_back(world)) == (taken, "Bucketed", [])


def test_another_run_may_verify_it_again() -> None:
    world, first, taken = proven(rollout={"strategy": "Surge"})
    world.verdicts[taken] = BAD
    world.settle()
    assert world.deployed == first
    world.verdicts[taken] = "good"
    run(world, PADDING, "tuesday").settle()
    assert (world.deployed, padding(world)[0]) == (taken, "Bucketed")


@pytest.mark.parametrize("restart", [False, True])
def test_a_choice_that_waits_for_its_patch_outlives_the_live_config_map(restart: bool) -> None:
    world, first, _ = proven(BOTH)
    known = choices(world)
    del world.children["ConfigMap", names.live_name(world.name)]
    if restart:
        world.forget()
    world.settle()
    assert (world.deployed, choices(world)) == (first, known)
    assert (
        "together with the patch in status.tuning; Auto uses it once the patch is applied"
        in padding(world)[1]
    )
    world.change(model={"maxBatchSize": 16}).settle()
    assert (padding(world)[0], world.reasons()["Ready"]) == ("Bucketed", "True Succeeded")
    assert not [
        item for item in world.status.get("warnings", []) if "TuningStale" in item["message"]
    ]


def test_a_reverted_padding_stays_so_without_the_live_config_map() -> None:
    world, first, taken = proven(rollout={"strategy": "Surge"})
    world.verdicts[taken] = BAD
    world.settle()
    del world.children["ConfigMap", names.live_name(world.name)]
    world.forget()
    world.settle()
    assert_reverted(world, first, taken, "output logits is FP16")


def test_a_choice_that_the_steps_cannot_take_is_told() -> None:
    world, _, _ = proven()
    world.settle()
    (entry,) = world.status["padding"]["measured"]
    world.document["status"]["padding"]["measured"] = [
        entry | {"padding": "Ragged", "buckets": [], "time": "2030-01-01T00:00:00Z"}
    ]
    world.settle()
    assert padding(world)[0] == "Fixed"
    assert padding(world)[1].endswith(
        "; Ragged, which tuning run 'monday' measured, does not suit this pipeline"
    )
