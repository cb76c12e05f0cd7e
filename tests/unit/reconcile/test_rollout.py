"""Test complete rollouts in the model world.

The tests cover which revision runs, how it gets there, and what happens when it fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import BAD, DUMB, GOOD, World
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.deployment_progress import serves_whole
from triton_pipelines.controllers.pipeline.planner import Plan

CHANGE = {"tokenizer": {"maxLength": 64}}


def served(room: int | None = None, **spec: Any) -> World:
    """A pipeline whose first revision serves."""
    world = World(builders.document(**spec), room=room).started()
    assert world.reasons()["Ready"] == "True Succeeded"
    return world


def failing(world: World, **change: Any) -> str:
    """Change the spec to one whose pods do not come up; the new revision."""
    world.change(**(change or CHANGE)).step()
    world.verdicts[world.status["revision"]] = BAD
    return str(world.status["revision"])


def mode(world: World) -> str:
    strategy = world.deployment["spec"]["strategy"]
    return (
        str(strategy["type"])
        if strategy["type"] == "Recreate"
        else f"surge {strategy['rollingUpdate']['maxSurge']}"
    )


def events(plans: list[Plan]) -> list[str]:
    return [event.reason for plan in plans for event in plan.events]


@pytest.mark.parametrize("replicas", [1, 3])
def test_surge_keeps_serving(replicas: int) -> None:
    world = served(replicas=replicas)
    old = world.deployed
    world.change(**CHANGE)
    for _ in range(12):
        world.step()
        world.pass_time(5).control().run_pods()
        assert len(world.serving) >= replicas
        assert world.condition("Available").get("status", "True") == "True"
    assert world.settle().reasons()["Ready"] == "True Succeeded"
    assert world.deployed != old
    assert {pod.revision for pod in world.pods} == {world.deployed}
    assert world.status["servingRevision"] == world.deployed == world.status["revision"]
    assert world.state.rollout.verified == world.deployed


def test_a_failed_surge_leaves_the_old_revision_serving(messages: Messages) -> None:
    world = served()
    old = world.deployed
    new = failing(world)
    world.settle()
    assert world.reasons() == {
        "Ready": "False ModelMismatch",
        "Available": "True Serving",
        "ModelsReady": "False ModelMismatch",
        "Stalled": "True ModelMismatch",
    }
    assert old in world.condition("Ready")["message"]
    messages.check(world.condition("Ready")["message"])
    assert (
        world.deployed,
        world.status["servingRevision"],
        world.state.rollout.failed_revision,
    ) == (
        new,
        old,
        "",
    )
    assert world.status["observedGeneration"] == 2
    assert [pod.revision for pod in world.serving] == [old]


@pytest.mark.proves("spec.rollout.progressDeadlineSeconds", "behaviour")
def test_a_rollout_without_progress_has_failed(messages: Messages) -> None:
    world = served(room=1, rollout={"strategy": "Surge", "progressDeadlineSeconds": 60})
    world.change(**CHANGE).settle()
    assert world.reasons()["Reconciling"] == "True WaitingForGPU"
    world.pass_time(90).control().step()
    assert world.reasons()["Ready"] == "False RolloutFailed"
    assert world.reasons()["Stalled"] == "True RolloutFailed"
    assert world.reasons()["Available"] == "True Serving"
    message = world.condition("Ready")["message"]
    assert "Insufficient nvidia.com/gpu" in message
    messages.check(message)
    # When room comes after all, the rollout ends well.
    world.room = 2
    assert world.settle().reasons()["Ready"] == "True Succeeded"


def test_pods_that_the_api_server_rejects_are_reported() -> None:
    """Report pods that the API server rejects.

    The cause is quota, admission or a missing service account. No pod exists that could give the
    reason; only the Deployment does.
    """
    words = (
        'pods "sentiment-6c9d8f7b5-" is forbidden: error looking up service account '
        'default/tritn: serviceaccount "tritn" not found'
    )
    world = World(
        builders.document(
            server={"serviceAccountName": "tritn"}, rollout={"progressDeadlineSeconds": 60}
        ),
        options=builders.options(service_accounts=("tritn",)),
    )
    world.step()
    refused = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": words,
    }
    progressing = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetCreated"}
    world.deployment["status"] = {"observedGeneration": 1, "conditions": [progressing, refused]}
    world.step()
    assert world.reasons()["Ready"] == "False APIError"
    assert world.reasons()["Reconciling"] == "True APIError"
    assert words in world.condition("Ready")["message"]
    progressing |= {
        "status": "False",
        "reason": "ProgressDeadlineExceeded",
        "message": "has timed out progressing.",
    }
    world.step()
    assert world.reasons()["Stalled"] == "True RolloutFailed"
    assert words in world.condition("Ready")["message"]
    # What it said of pods that came after all is no news.
    refused["status"], progressing["reason"] = "False", "NewReplicaSetCreated"
    world.step()
    assert world.reasons()["Ready"] == "False Progressing"
    assert words not in world.condition("Ready")["message"]


def test_the_deadline_of_an_outdated_status_does_not_count() -> None:
    rollout = {"strategy": "NoSurge", "progressDeadlineSeconds": 60, "preflight": "Disabled"}
    world = served(rollout=rollout)
    old = world.deployed
    world.change(**CHANGE).step()
    status = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.deployment["status"] = {
        "observedGeneration": world.deployment["metadata"]["generation"] - 1,
        "conditions": [status],
    }
    world.step()
    assert world.deployed != old
    assert "Stalled" not in world.reasons()
    world.deployment["status"] |= {"observedGeneration": world.deployment["metadata"]["generation"]}
    world.step()
    assert (world.deployed, world.reasons()["Ready"]) == (old, "False RolledBack")


@pytest.mark.parametrize("strategy", ["NoSurge", "Recreate", "Auto"])
def test_where_one_pod_fits_a_failed_revision_is_taken_back(strategy: str) -> None:
    world = served(room=1, rollout={"strategy": strategy})
    old, template = world.deployed, world.deployment["spec"]["template"]
    new = failing(world)
    gap = []
    for _ in range(20):
        world.pass_time(5).control().run_pods().step()
        if world.reasons()["Available"].startswith("False"):
            gap.append(world.condition("Ready")["message"])
    world.settle()
    assert world.reasons() == {
        "Ready": "False RolledBack",
        "Available": "True Serving",
        "ModelsReady": "Unknown WaitingForPods",
        "Stalled": "True RolledBack",
    }
    assert world.deployment["spec"]["template"] == template
    assert (world.status["revision"], world.status["servingRevision"]) == (new, old)
    assert world.status["observedGeneration"] == 2
    message = world.condition("Ready")["message"]
    for word in (
        f"revision {new} failed",
        f"rolled back to revision {old} ",
        "ModelMismatch",
        "output logits is FP16",
        "change the spec to retry",
    ):
        assert word in message
    assert gap, "there was no gap to announce"
    assert any("the pipeline serves no requests until the new pod is ready" in text for text in gap)
    assert world.state.rollout.verified == old


@pytest.mark.parametrize("strategy", ["NoSurge", "Recreate"])
def test_a_lost_state_costs_a_second_try_and_not_the_way_back(strategy: str) -> None:
    """Delete the live ConfigMap during a rollback: the serving revision is known from its pods."""
    world = served(rollout={"strategy": strategy})
    old = world.deployed
    failing(world)
    assert world.settle().reasons()["Ready"] == "False RolledBack"
    del world.children["ConfigMap", names.live_name(world.name)]
    world.settle()
    assert (world.deployed, len(world.serving), world.reasons()["Ready"]) == (
        old,
        1,
        "False RolledBack",
    )
    assert world.state.rollout.verified == world.state.rollout.restored == old


@pytest.mark.parametrize("strategy", ["NoSurge", "Recreate", "Auto"])
def test_a_state_lost_in_mid_rollout_costs_not_the_way_back(strategy: str) -> None:
    """Delete the live ConfigMap while no pod serves.

    The old pod has gone and the new one has not arrived.
    """
    world = served(room=1, rollout={"strategy": strategy})
    old = world.deployed
    new = failing(world)
    for _ in range(20):
        if (
            world.deployed == new
            and not world.serving
            and "Failing" not in [pod.phase for pod in world.pods]
        ):
            break
        world.pass_time(5).control().run_pods().step()
    else:
        pytest.fail("the old pod did not go first")
    del world.children["ConfigMap", names.live_name(world.name)]
    world.settle()
    assert (world.deployed, len(world.serving), world.reasons()["Ready"]) == (
        old,
        1,
        "False RolledBack",
    )
    assert (world.state.rollout.verified, world.state.rollout.failed_revision) == (old, new)


def test_what_served_before_is_nothing_to_go_back_to_once_a_rollout_has_ended() -> None:
    world = served(room=1, rollout={"strategy": "NoSurge"})
    new = world.change(**CHANGE).settle().deployed
    del world.children["ConfigMap", names.live_name(world.name)]
    world.verdicts[new] = BAD
    world.pods[0].phase = "Loading"
    world.settle()
    assert (world.deployed, world.reasons()["Ready"]) == (new, "False ModelMismatch")


def test_a_surge_that_fails_half_way_is_stuck_until_more_pods_come() -> None:
    world = served(replicas=3, rollout={"strategy": "Surge", "progressDeadlineSeconds": 60})
    new = half_way(world)
    world.room = 3  # none for a pod beside them
    for _ in range(20):
        world.pass_time(5).control().run_pods().step()
    assert world.condition("Ready")["reason"] == "RolloutFailed"
    there = sum(pod.revision == new for pod in world.serving)
    assert (world.state.stalled_rollout.revision, world.state.stalled_rollout.pods) == (new, there)
    assert 0 < there < 3
    # More room: one more pod comes, and it is a rollout again.
    world.room = None
    while sum(pod.revision == new for pod in world.serving) == there:
        world.pass_time(5).control().run_pods().step()
    world.control().step()
    assert (world.state.stalled_rollout.revision, world.state.stalled_rollout.pods) == ("", 0)
    assert world.settle().reasons()["Ready"] == "True Succeeded"
    assert world.state.stalled_rollout.revision == ""


def half_way(world: World) -> str:
    """Roll out another revision until its first pod serves; the revision."""
    world.change(**CHANGE).step()
    new = world.deployed
    while new not in {pod.revision for pod in world.serving}:
        world.pass_time(5).control().run_pods().step()
    return new


def test_suspension_takes_no_revision_back() -> None:
    """It wants no pods, which is no other number of those that serve."""
    world = served(
        tokenizer={"instances": {"initial": 1, "min": 1, "max": 4}},
        scaling={"pods": {"min": 2, "max": 4}},
        rollout={"strategy": "Surge"},
    )
    new = failing(world, tokenizer={"maxLength": 64})
    world.settle()
    assert (world.state.stalled_rollout.revision, len(world.serving)) == (new, 2)
    world.change(suspend="Enabled").settle()
    assert (world.deployed, world.state.rollout.failed_revision, world.pods) == (new, "", [])
    world.verdicts[new] = "good"
    world.change(suspend="Disabled").settle()
    assert (world.deployed, len(world.serving), world.reasons()["Ready"]) == (
        new,
        2,
        "True Succeeded",
    )


def test_a_taken_back_revision_is_tried_again_with_the_next_spec() -> None:
    world = served(room=1, rollout={"strategy": "NoSurge"})
    old = world.deployed
    new = failing(world)
    world.settle()
    # The same spec: not again, whatever happens to the pods.
    world.pods.clear()
    assert world.settle().deployed == old
    # Another spec that asks for the same revision: the cause may have been mended elsewhere.
    del world.verdicts[new]
    world.change(server={"service": {"annotations": {"a": "b"}}}).settle()
    assert (world.deployed, world.reasons()["Ready"]) == (new, "True Succeeded")
    assert world.state.rollout.failed_revision == ""
    # And a third revision after it.
    assert world.change(tokenizer={"maxLength": 32}).settle().reasons()["Ready"] == "True Succeeded"
    assert world.deployed not in (old, new)


def test_going_back_to_the_old_spec_ends_a_failed_rollout() -> None:
    world = served(room=1, rollout={"strategy": "NoSurge"})
    old = world.deployed
    failing(world)
    world.settle()
    world.change(tokenizer={"maxLength": None}).settle()
    assert (world.deployed, world.reasons()["Ready"]) == (old, "True Succeeded")


def test_without_a_proven_revision_there_is_nothing_to_go_back_to() -> None:
    world = World(builders.document(rollout={"strategy": "Recreate"}))
    world.step()
    world.verdicts[world.status["revision"]] = BAD
    world.settle()
    assert world.reasons()["Ready"] == "False ModelMismatch"
    assert world.reasons()["Stalled"] == "True ModelMismatch"
    good = failing(world, tokenizer={"maxLength": 32})
    assert world.settle().deployed == good


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("strategy", ["Auto", "Surge", "NoSurge", "Recreate"])
def test_a_revision_that_keeps_failing_inference_is_rolled_back(
    strategy: str, replicas: int
) -> None:
    world = served(replicas=replicas, rollout={"strategy": strategy})
    old = world.deployed
    world.change(**CHANGE).step()
    world.verdicts[world.status["revision"]] = DUMB
    world.settle()
    assert world.deployed == old
    assert len(world.serving) == replicas
    assert {pod.revision for pod in world.pods} == {old}
    assert world.reasons()["Ready"] == "False RolledBack"
    assert world.reasons()["Available"] == "True Serving"
    assert world.state.rollout.verified == old
    assert "(InferenceFailed)" in world.condition("Ready")["message"]


def test_a_verified_revision_that_fails_inference_is_not_rolled_back() -> None:
    world = served(replicas=3)
    world.change(**CHANGE).settle()
    new = world.deployed
    assert world.state.rollout.verified == new
    world.verdicts[new] = DUMB
    for _ in range(20):
        world.pass_time(5).control().run_pods().step()
    assert (world.deployed, world.reasons()["Ready"]) == (new, "False InferenceFailed")
    world.verdicts[new] = GOOD
    assert world.settle().reasons()["Ready"] == "True Succeeded"


def test_a_problem_of_the_restored_revision_is_reported(messages: Messages) -> None:
    world = served(room=1, rollout={"strategy": "NoSurge"})
    old = world.deployed
    failing(world)
    world.verdicts[old] = BAD
    world.settle()
    assert (world.deployed, world.reasons()["Ready"]) == (old, "False RolledBack")
    message = world.condition("Ready")["message"]
    assert f"; revision {old} has a problem too: pod {world.pods[0].name}: spec." in message
    messages.check(message)


def test_a_lost_record_of_the_restored_revision_ends_the_rollback() -> None:
    world = served(room=1, rollout={"strategy": "NoSurge"})
    old = world.deployed
    new = failing(world)
    world.settle()
    del world.children["ConfigMap", names.revision_name(world.name, old)]
    world.settle()
    assert world.deployed == new
    assert world.reasons()["Ready"] == "False ModelMismatch"


def test_auto_reads_the_scheduler_and_waits_before_it_gives_the_old_pod_up(
    messages: Messages,
) -> None:
    world = served(room=1)
    world.change(**CHANGE).step()
    assert mode(world) == "surge 1"
    world.control().run_pods()
    decided = world.step()
    assert (mode(world), world.reasons()["Ready"]) == ("surge 1", "False WaitingForGPU")
    assert decided.requeue_after == 10.0
    messages.check(world.condition("Ready")["message"])
    assert world.pass_time(9).step().requeue_after == 1.0
    assert world.serving
    world.pass_time(1).step()
    assert (mode(world), world.reasons()["Ready"]) == ("surge 1", "False Preflight")
    messages.check(world.condition("Ready")["message"])
    world.run_pods().step()
    assert mode(world) == "surge 0"
    messages.check(world.condition("Ready")["message"])
    assert world.serving, "announced before it happens"
    assert world.settle().reasons()["Ready"] == "True Succeeded"
    # Kept for this rollout alone: there may be room for the next.
    assert mode(world) == "surge 1"
    world.room = 2
    world.change(tokenizer={"maxLength": 32}).step()
    assert mode(world) == "surge 1"


def least_serving(world: World, seconds: int) -> int:
    """Run all parts for a while, second by second; return the least number of serving pods."""
    least = len(world.serving)
    for _ in range(seconds):
        world.step()
        world.pass_time(1).control().run_pods()
        least = min(least, len(world.serving))
    return least


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_auto_waits_for_the_room_of_pods_that_leave(replicas: int) -> None:
    """With room for one more pod, which an old pod keeps for as long as it drains."""
    world = served(room=replicas + 1, replicas=replicas)
    world.linger, world.load = 60.0, 20.0
    world.change(**CHANGE)
    assert least_serving(world, 25) == replicas
    world.change(tokenizer={"maxLength": 32})
    assert least_serving(world, 500) == replicas
    world.linger = 0.0
    assert world.settle().reasons()["Ready"] == "True Succeeded"
    assert world.observed().state().rollout.left == ""


def test_auto_still_makes_room_once_pods_have_left() -> None:
    """Pods of others take the room that the old pod left; a lost node keeps its pods."""
    world = served(room=2)
    world.linger = 60.0
    world.change(**CHANGE)
    assert least_serving(world, 10) == 1
    world.room = 1
    world.change(tokenizer={"maxLength": 32})
    assert least_serving(world, 60) == 1
    assert least_serving(world, 60) == 0
    assert world.settle().reasons()["Ready"] == "True Succeeded"


def test_the_deadline_of_a_new_pod_begins_when_it_has_room() -> None:
    world = served(room=1, rollout={"strategy": "NoSurge", "progressDeadlineSeconds": 60})
    world.linger, world.load = 70.0, 50.0
    world.change(**CHANGE)
    least_serving(world, 200)
    assert world.settle().reasons()["Ready"] == "True Succeeded"
    world.linger, world.load = 70.0, 1e6
    world.change(tokenizer={"maxLength": 32})
    old, _ = world.deployed, least_serving(world, 110)
    new, exceeded = world.deployed, world.deployment["status"]["conditions"][0]
    assert (new != old, exceeded["reason"]) == (True, "ProgressDeadlineExceeded")
    assert world.condition("Ready")["reason"] != "RolloutFailed"
    assert 0 < (world.step().requeue_after or 0) < 60
    least_serving(world, 60)
    assert world.deployed == old, "the new pod has had a minute on its node"


def test_a_revision_whose_pods_answer_no_probe_is_not_verified() -> None:
    """A crash at the first test inference is a probe without a response."""
    observed = served().observed()
    (pod,) = observed.pods
    silent = replace(observed.probes[pod.uid], error="no response within 10 s")
    assert serves_whole(observed, pod.revision, 1)
    assert not serves_whole(replace(observed, probes={pod.uid: silent}), pod.revision, 1)


HOPELESS = (
    (
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. "
        "preemption: 0/3 nodes are available: 3 Preemption is not helpful."
    ),
    "0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: batch}.",
    '0/1 nodes are available: persistentvolumeclaim "models" not found.',
)


@pytest.mark.parametrize("words", HOPELESS, ids=["selector", "taint", "claim"])
def test_auto_gives_no_pod_up_where_that_makes_no_room(words: str) -> None:
    world = served(room=1)
    old = world.deployed
    world.scheduler = words
    world.change(server={"nodeSelector": {"gpu": "h100"}}).settle()
    assert mode(world) == "surge 1"
    assert [pod.revision for pod in world.serving] == [old]
    assert world.reasons()["Available"] == "True Serving"


def node(gpus: str, *, cordoned: bool = False) -> dict[str, Any]:
    """Return a node as the list of nodes reduces it, with plenty of CPU and memory."""
    allocatable = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": gpus}
    return {
        "metadata": {"name": "node-1", "labels": {}},
        "spec": {"unschedulable": cordoned},
        "status": {"allocatable": allocatable},
    }


@pytest.mark.parametrize(
    ("there", "removes"),
    [(node("1"), True), (node("1", cordoned=True), False), (node("0"), False)],
    ids=["room", "cordoned", "too small"],
)
def test_auto_gives_no_pod_up_whose_node_cannot_take_the_new_one(
    there: dict[str, Any], removes: bool
) -> None:
    world = served(room=1)
    world.nodes = (there,)
    world.change(**CHANGE)
    assert least_serving(world, 120) == (0 if removes else 1)


def test_auto_makes_room_where_only_some_nodes_are_hopeless() -> None:
    world = served(room=1)
    world.scheduler = (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's "
        "node affinity/selector."
    )
    assert world.change(**CHANGE).settle().reasons()["Ready"] == "True Succeeded"


@pytest.mark.proves("spec.rollout.strategy", "behaviour")
def test_strategies_set_the_mode() -> None:
    for strategy, expected in (
        ("Surge", "surge 1"),
        ("NoSurge", "surge 0"),
        ("Recreate", "Recreate"),
        ("Auto", "surge 1"),
    ):
        assert mode(World(builders.document(rollout={"strategy": strategy})).started()) == expected


@pytest.mark.proves("spec.suspend", "behaviour")
def test_suspend_and_back() -> None:
    world = served(replicas=2)
    children = set(world.children)
    world.change(suspend="Enabled").settle()
    assert (world.pods, world.reasons()) == (
        [],
        {"Ready": "True Suspended", "Available": "False Suspended"},
    )
    assert set(world.children) == children
    assert world.status["observedGeneration"] == 2
    world.change(suspend="Disabled").settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert len(world.serving) == 2


def test_a_change_under_suspend_rolls_out_when_it_ends() -> None:
    world = served()
    old = world.deployed
    world.change(suspend="Enabled").settle().change(**CHANGE).settle()
    assert world.pods == []
    world.change(suspend="Disabled").settle()
    assert world.deployed != old
    assert world.reasons()["Ready"] == "True Succeeded"


@pytest.mark.proves("spec.replicas", "behaviour")
def test_replicas_up_and_down_roll_nothing() -> None:
    world = served()
    revision, pods = world.deployed, {pod.name for pod in world.pods}
    world.change(replicas=3).settle()
    assert (world.deployed, len(world.serving)) == (revision, 3)
    assert ("PodDisruptionBudget", world.name) in world.children
    assert pods < {pod.name for pod in world.pods}
    world.change(replicas=1).settle()
    assert (world.deployed, len(world.serving)) == (revision, 1)
    assert ("PodDisruptionBudget", world.name) not in world.children


def test_a_restart_finds_its_way_where_no_second_pod_fits() -> None:
    world = served(room=1)
    before = world.serving[0].name
    template = world.children["Deployment", world.name]["spec"]["template"]
    template["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/restartedAt": "2026-01-01T13:00:00Z"
    }
    assert world.settle().reasons()["Ready"] == "True Succeeded"
    assert [pod.name for pod in world.serving] != [before]
    assert mode(world) == "surge 1"


def test_kubectl_rollout_restart_survives() -> None:
    world = served()
    deployment = world.deployment
    deployment["spec"]["template"]["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/restartedAt": "2026-01-01T13:00:00Z"
    }
    deployment["metadata"]["generation"] += 1
    before = {pod.name for pod in world.pods}
    world.settle()
    assert world.deployment["spec"]["template"]["metadata"]["annotations"]
    assert before.isdisjoint(pod.name for pod in world.pods)
    world.change(**CHANGE).settle()
    assert world.deployment["spec"]["template"]["metadata"]["annotations"]


def test_events_tell_the_story_once(messages: Messages) -> None:
    world = World().started()
    assert [reason for reason in events(world.log) if reason != "SpecWarning"] == [
        "RolloutStarted",
        "Succeeded",
        "Serving",
    ]
    world.log.clear()
    failing(world)
    world.settle()
    assert events(world.log) == ["RolloutStarted", "ModelMismatch"]
    (event,) = (
        event for plan in world.log for event in plan.events if event.reason == "ModelMismatch"
    )
    assert event.warning
    assert "FP16" in event.note
    messages.check(event.note)
    world.log.clear()
    for _ in range(5):
        world.pass_time(60).control().run_pods().step()
    assert events(world.log) == []
    world.change(postprocess={"labels": ["a", "b", "c"]}).step()
    world.step()
    assert events(world.log) == ["InvalidSpec"]
