"""Test that a serving pod stays until the loader has checked the revision that replaces it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import (
    BAD,
    DELETING,
    ENDED,
    FAILS,
    LOADS,
    PASSES,
    REMOVED,
    SIDECAR,
    STARTS,
    STIFF,
    UNPLACED,
    ModelPod,
    World,
)
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadFinding, LoadReason
from triton_pipelines.controllers.pipeline.policies.preflight import PLACEMENT_SECONDS
from triton_pipelines.loader.main import EXIT_RETRY, EXIT_USER

STRATEGIES = ("Auto", "NoSurge", "Recreate")
MISSING = LoadFinding(
    step="model",
    reason=LoadReason.SOURCE_UNAVAILABLE,
    message="the source has no file model.onnx (404)",
    field="spec.model.source.uri",
)
FULL = LoadFinding(step="model", reason=LoadReason.NO_SPACE, message="the volume is full")
RENDERED: dict[str, Any] = {}


def served(strategy: str = "Auto", **changes: Any) -> World:
    """A pipeline that serves on a node with room for one pod."""
    spec = {"rollout": {"strategy": strategy, **changes.pop("rollout", {})}, **changes}
    return World(builders.document(**spec), room=1, rendered=RENDERED).started()


def edited(world: World, preflight: str, seconds: float = 60) -> str:
    """Edit the spec, and let time pass; the old revision."""
    old = world.deployed
    world.preflight = preflight
    world.change(tokenizer={"maxLength": 64})
    passed(world, seconds)
    return old


def passed(world: World, seconds: float) -> None:
    """Let time pass in steps of five seconds."""
    for _ in range(int(seconds // 5)):
        world.step()
        world.pass_time(5).control().run_pods()
    world.step()


def events(world: World) -> list[str]:
    """Reasons of the events of all iterations."""
    return [event.reason for plan in world.log for event in (*plan.action_events, *plan.events)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_wrong_edit_keeps_the_serving_pod(strategy: str, messages: Messages) -> None:
    world = served(strategy)
    old = edited(world, FAILS, seconds=600)
    assert [pod.revision for pod in world.serving] == [old]
    assert world.reasons()["Available"] == "True Serving"
    assert world.reasons()["Ready"] == "False ModelMismatch"
    assert world.reasons()["Stalled"] == "True ModelMismatch"
    message = world.condition("Ready")["message"]
    assert "FP16" in message
    assert old in message
    messages.check(message)
    assert "RolledBack" not in events(world)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_source_that_appears_continues_the_rollout(strategy: str) -> None:
    world = served(strategy)
    world.load_failure = (MISSING, EXIT_USER)
    edited(world, FAILS)
    assert len(world.serving) == 1
    assert world.reasons()["Reconciling"] == "True SourceUnavailable"
    assert "Stalled" not in world.reasons()
    assert "serves no requests" not in world.condition("Ready")["message"]
    world.preflight = PASSES
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.deployed == world.status["revision"]
    assert not world.preflights
    assert "PreflightPassed" in events(world)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_while_it_runs_the_old_revision_serves(strategy: str, messages: Messages) -> None:
    world = served(strategy)
    old = edited(world, LOADS)
    assert [pod.revision for pod in world.serving] == [old]
    assert world.reasons()["Reconciling"] == "True Preflight"
    message = world.condition("Ready")["message"]
    assert old in message
    cause = "the cluster has no room" if strategy == "Auto" else f"the strategy is {strategy},"
    assert cause in message
    messages.check(message)
    (job,) = world.preflights
    assert job["metadata"]["labels"][names.LABEL_REVISION] == world.status["revision"]
    assert (strategy == "Auto") is (world.deployed != old)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_preflight_without_a_node_does_not_block(strategy: str) -> None:
    world = served(strategy)
    old = edited(world, UNPLACED, seconds=PLACEMENT_SECONDS)
    assert [pod.revision for pod in world.serving] == [old]
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert events(world).count("PreflightSkipped") == 1
    (skipped,) = [
        event.note
        for plan in world.log
        for event in plan.action_events
        if event.reason == "PreflightSkipped"
    ]
    assert "the pod could not be scheduled for 300 s" in skipped
    assert "no node has enough cpu" in skipped


@pytest.mark.parametrize("lost", [DELETING, ENDED, REMOVED])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_lost_pod_does_not_release_a_wrong_revision(strategy: str, lost: str) -> None:
    world = served(strategy)
    old = edited(world, FAILS, seconds=PLACEMENT_SECONDS + 60)
    world.preflight_pod = lost
    passed(world, 60)
    assert "PreflightSkipped" not in events(world)
    assert [pod.revision for pod in world.serving] == [old]
    assert (world.reasons()["Ready"] == "False ModelMismatch") is (lost != REMOVED)
    world.preflight_pod = ""
    passed(world, 60)
    assert world.reasons()["Ready"] == "False ModelMismatch"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_recreated_pod_has_its_own_time_to_find_a_node(strategy: str) -> None:
    world = served(strategy)
    old = edited(world, FAILS, seconds=PLACEMENT_SECONDS + 60)
    world.preflight, world.preflight_pod_created = UNPLACED, world.now
    passed(world, PLACEMENT_SECONDS - 10)
    assert [pod.revision for pod in world.serving] == [old]
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert events(world).count("PreflightSkipped") == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_job_that_never_has_a_pod_does_not_block(strategy: str) -> None:
    world = served(strategy)
    edited(world, LOADS, seconds=0)
    while not world.preflights:
        world.pass_time(5).control().run_pods().step()
    (job,) = world.preflights
    old = world.serving[0].revision
    world.preflight_pod = REMOVED
    for _ in range(PLACEMENT_SECONDS // 5 - 1):
        world.pass_time(5).control().step()  # no Job controller reports a pod
    assert [pod.revision for pod in world.serving] == [old]
    assert world.preflights == [job]
    world.pass_time(5).step()
    assert events(world).count("PreflightSkipped") == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sidecar_that_keeps_the_pod_running_does_not_block(strategy: str) -> None:
    world = served(strategy)
    edited(world, SIDECAR)
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert events(world).count("PreflightPassed") == 1
    assert not world.preflights


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_short_unreadiness_does_not_release_a_wrong_revision(strategy: str) -> None:
    world = served(strategy)
    old = edited(world, FAILS)
    (job,) = world.preflights
    for _ in range(3):
        (pod,) = [pod for pod in world.pods if pod.revision == old]
        pod.phase = "Loading"
        world.step()
        world.pass_time(5).control().step()
    passed(world, 30)
    assert [one["metadata"]["uid"] for one in world.preflights] == [job["metadata"]["uid"]]
    assert [pod.revision for pod in world.serving] == [old]


@pytest.mark.parametrize("strategy", ["NoSurge", "Recreate"])
def test_a_replaced_pod_does_not_release_a_wrong_revision(strategy: str) -> None:
    """A pod repair and a certificate renewal delete the pod, and the Deployment replaces it."""
    world = served(strategy)
    old = edited(world, FAILS)
    before = world.serving[0]
    before.away = True
    world.step()
    passed(world, 30)
    assert [pod.revision for pod in world.serving] == [old]
    assert world.serving[0].name != before.name
    assert world.deployed == old


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pod_that_is_unready_before_the_preflight_needs_none(strategy: str) -> None:
    world = served(strategy)
    world.preflight = LOADS
    world.change(tokenizer={"maxLength": 64})
    for _ in range(6):
        for pod in world.serving:
            pod.phase = "Loading"
        world.step()
        world.pass_time(5).control()
    assert not world.preflights


def test_an_edit_during_a_failing_rollout_restores_the_verified_revision() -> None:
    world = served("NoSurge", replicas=2, rollout={"progressDeadlineSeconds": 7200})
    world.room = 2
    first = world.settle().deployed
    world.load_failure = (MISSING, EXIT_RETRY)
    world.change(tokenizer={"maxLength": 64}).step()
    world.verdicts[world.status["revision"]] = BAD
    passed(world, 60)
    assert [pod.revision for pod in world.serving] == [first]
    assert world.deployed == world.status["revision"]
    world.preflight = FAILS
    world.change(tokenizer={"maxLength": 32})
    passed(world, 60)
    assert world.deployed == first
    assert [pod.revision for pod in world.serving] == [first, first]
    assert world.preflights
    world.preflight = PASSES
    world.load_failure = None
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"


def test_a_new_pod_that_took_the_room_of_a_lost_one_is_rolled_back() -> None:
    """The old pod is evicted, and the scheduler places the new one first."""
    world = served()
    world.load_failure = (MISSING, EXIT_USER)
    old = edited(world, FAILS)
    world.verdicts[world.status["revision"]] = BAD
    (lost,) = world.serving
    world.pods.remove(lost)
    world.pods.append(ModelPod("again", old, lost.template, world.now))
    world.run_pods()
    passed(world, 120)
    assert [pod.revision for pod in world.serving] == [old]
    assert world.reasons()["Ready"] == "False RolledBack"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_preflight_that_the_api_server_rejects_does_not_block(strategy: str) -> None:
    world = served(strategy)
    world.preflight_rejection = "the API server rejects one of its objects: exceeded quota"
    edited(world, LOADS)
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert events(world).count("PreflightSkipped") == 1


def test_a_full_disk_says_nothing_about_the_revision() -> None:
    world = served()
    world.load_failure = (FULL, EXIT_USER)
    edited(world, FAILS)
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert events(world).count("PreflightSkipped") == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ends", [STARTS, LOADS, FAILS])
def test_what_does_not_pass_by_the_deadline_fails_and_keeps_the_pod(
    strategy: str, ends: str, messages: Messages
) -> None:
    world = served(strategy, rollout={"progressDeadlineSeconds": 120})
    world.load_failure = (MISSING, EXIT_RETRY)
    old = edited(world, ends, seconds=180)
    assert [pod.revision for pod in world.serving] == [old]
    assert world.reasons()["Stalled"] == "True RolloutFailed"
    message = world.condition("Ready")["message"]
    assert "120" in message
    assert "spec.rollout.preflight" in message
    messages.check(message)
    assert ("has no file model.onnx (404)" in message) is (ends == FAILS)
    world.preflight = PASSES
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"


@pytest.mark.proves("spec.rollout.preflight", "behaviour")
@pytest.mark.parametrize(
    "change",
    [{"rollout": {"preflight": "Disabled"}}, {"suspend": "Enabled"}, {"replicas": 0}],
    ids=str,
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_change_that_needs_no_preflight_deletes_it(strategy: str, change: Any) -> None:
    world = served(strategy)
    edited(world, LOADS)
    assert world.preflights
    world.change(**change)
    world.settle()
    assert not world.preflights
    assert world.reasons()["Ready"].startswith("True")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_edit_replaces_the_preflight(strategy: str) -> None:
    world = served(strategy)
    edited(world, LOADS)
    (first,) = world.preflights
    world.change(tokenizer={"maxLength": 32})
    passed(world, 60)
    (second,) = world.preflights
    assert second["metadata"]["name"] != first["metadata"]["name"]
    assert len(world.serving) == 1
    world.preflight = PASSES
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_returning_to_the_old_spec_ends_it(strategy: str) -> None:
    world = served(strategy)
    old = edited(world, LOADS)
    world.change(tokenizer={"maxLength": None})
    world.settle()
    assert (world.deployed, world.reasons()["Ready"]) == (old, "True Succeeded")
    assert not world.preflights


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_restarted_operator_continues(strategy: str) -> None:
    world = served(strategy)
    old = edited(world, LOADS)
    (job,) = world.preflights
    world.forget()
    passed(world, 30)
    assert world.preflights == [job]
    assert [pod.revision for pod in world.serving] == [old]


@pytest.mark.parametrize(
    ("strategy", "room"), [("Surge", None), ("Surge", 1), ("Auto", None)], ids=str
)
def test_a_surge_needs_none(strategy: str, room: int | None) -> None:
    world = served(strategy)
    world.room = room
    edited(world, LOADS)
    assert not world.preflights
    assert not any(plan.preflight_objects for plan in world.log)


def test_a_surge_that_is_ended_by_an_edit_is_checked_first() -> None:
    world = served("Surge")
    old = edited(world, LOADS)
    world.change(rollout={"strategy": "NoSurge"})
    passed(world, 60)
    assert [pod.revision for pod in world.serving] == [old]
    assert world.reasons()["Reconciling"] == "True Preflight"
    world.preflight = PASSES
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"


def test_a_first_revision_needs_none() -> None:
    world = World(builders.document(rollout={"strategy": "Recreate"}), preflight=LOADS).started()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert not any(plan.preflight_objects for plan in world.log)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_file_that_takes_no_ragged_batches_falls_back(strategy: str) -> None:
    """The loader's report comes from the preflight before any pod of the revision has one."""
    spec = {"rollout": {"strategy": strategy}, "tokenizer": {"padding": "Fixed"}}
    world = World(builders.document(**spec), room=1).started()
    world.preflight = FAILS
    world.change(tokenizer={"padding": None})
    world.step()
    world.verdicts[world.status["revision"]] = STIFF
    passed(world, 30)
    assert len(world.serving) == 1
    world.preflight = PASSES
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.status["padding"]["chosen"] != "Ragged"


def test_pods_are_still_scaled_while_it_holds() -> None:
    world = served("NoSurge", replicas=2)
    world.room = None
    world.settle()
    edited(world, FAILS)
    world.change(replicas=3)
    passed(world, 60)
    assert len(world.serving) == 3


def test_room_that_appears_ends_it() -> None:
    world = served()
    edited(world, LOADS)
    assert world.preflights
    world.room = 2
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert not world.preflights


def test_a_job_of_others_is_not_believed() -> None:
    world = served("NoSurge")
    edited(world, LOADS)
    (job,) = world.preflights
    forged = copy.deepcopy(job)
    forged["metadata"]["ownerReferences"] = []
    forged["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.children["Job", job["metadata"]["name"]] = forged
    world.step()
    assert len(world.serving) == 1
    assert world.reasons()["Reconciling"] == "True Preflight"
