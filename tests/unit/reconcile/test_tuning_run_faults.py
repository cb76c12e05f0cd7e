"""Test tuning runs in which something fails.

Whatever happens, the status is true, nothing is left over, and pods that serve get room before a
canary does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.tuningworld import RENDERED, RESULT, SLO, Tuning, asked
from tests.support.worlds import BAD, rfc3339
from triton_pipelines.api import names
from triton_pipelines.compile.render.tuning_objects import JOB_SECONDS
from triton_pipelines.controllers.pipeline.policies.tuning_run import WAITING_SECONDS
from triton_pipelines.controllers.pipeline.snapshot import Object
from triton_pipelines.controllers.pipeline.tuning_run_state import Run
from triton_pipelines.controllers.pipeline.tuning_steps import PENDING_SECONDS

NO_ROOM = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient cpu.",
}
QUOTA = (
    "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1, "
    "limited: requests.nvidia.com/gpu=1"
)


def noted(world: Tuning) -> list[tuple[str, str]]:
    """Events of runs, in order."""
    return [
        (event.reason, event.note)
        for decided in world.log
        for event in decided.action_events
        if event.reason.startswith("Tuning")
    ]


def refuse_pods(world: Tuning, deployment: str, message: str = QUOTA) -> None:
    """The ReplicaSet controller's word on a Deployment."""
    item = world.children["Deployment", deployment]
    refused = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": message,
    }
    status = item.get("status") or {}
    kept = [
        condition
        for condition in status.get("conditions", [])
        if condition["type"] != "ReplicaFailure"
    ]
    world.children["Deployment", deployment] = {
        **item,
        "status": {**status, "conditions": [*kept, refused]},
    }


def failed(world: Tuning, words: str) -> None:
    """The run has failed with these words, and is gone."""
    assert world.run["state"] == "Failed", world.run
    assert words in world.run["message"]
    assert world.left == []


# --- a pipeline that is never whole ---------------------------------------------------------------


def test_a_pipeline_that_waits_says_for_what_and_is_not_waited_for_for_ever(
    messages: Messages,
) -> None:
    world = Tuning(
        builders.document(replicas=2, slo=SLO, tuning={"request": "a"}), room=1, rendered=RENDERED
    ).settle()
    assert world.state.rollout.verified == ""
    assert world.run["state"] == "Pending"
    assert "WaitingForGPU" in world.run["message"]
    assert "Insufficient nvidia.com/gpu" in world.run["message"]
    messages.check(world.run["message"])
    world.pass_time(WAITING_SECONDS).step()
    failed(world, "did not start within 60 min, because it was waiting until all pods serve")
    assert "Insufficient nvidia.com/gpu" in world.run["message"]
    world.room = None
    assert world.settle().run["state"] == "Failed", "what has ended does not begin again by itself"
    world.change(tuning={"request": "b"}).step()
    assert len(world.ours("Deployment")) == 1


def test_a_revision_that_cannot_come_up_ends_a_request_at_once(messages: Messages) -> None:
    world = Tuning(builders.document(slo=SLO, tuning={"request": "a"}), rendered=RENDERED)
    world.step()
    world.verdicts[world.status["revision"]] = BAD
    world.settle()
    failed(world, "does not serve (ModelMismatch: ")
    assert "FP16" in world.run["message"]
    messages.check(world.run["message"])
    assert [reason for reason, _ in noted(world)] == ["TuningFailed"]


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 0},
        {"suspend": "Enabled"},
    ],
)
def test_a_run_does_not_wait_for_pods_that_are_not_desired(
    spec: dict[str, Any], messages: Messages
) -> None:
    world = asked(**spec)
    assert world.run["state"] == "Pending"
    messages.check(world.run["message"])
    assert world.pass_time(10 * WAITING_SECONDS).step().requeue_after is None, (
        "a change of the spec wakes it"
    )
    assert world.run["state"] == "Pending"
    world.change(replicas=1, suspend="Disabled").settle()
    assert len(world.ours("Deployment")) == 1


def test_a_source_that_is_not_there_is_told() -> None:
    world = asked(None)
    world.missing_sources = {"tokenizer": "ConfigMap vocab has no key tokenizer.json"}
    world.change(tuning={"request": "a"}).step()
    assert world.run == {
        "state": "Pending",
        "request": "a",
        "message": "waiting for a source: ConfigMap vocab has no key tokenizer.json",
    }
    assert world.condition("Ready")["reason"] == "SourceUnavailable"
    world.missing_sources = {}
    world.step()
    assert len(world.ours("Deployment")) == 1


# --- taken back -----------------------------------------------------------------------------------


def rolled_back() -> Tuning:
    """A revision that failed under NoSurge, where trying it again costs the pod that serves."""
    world = asked(None, rollout={"strategy": "NoSurge"})
    world.change(tokenizer={"maxLength": 64})
    decided = world.think()
    assert decided.status is not None
    world.verdicts[decided.status["revision"]] = BAD
    world.settle()
    assert world.reasons()["Ready"] == "False RolledBack"
    return world


def test_a_request_after_a_rollback_is_told_why_and_tries_nothing_again(messages: Messages) -> None:
    world = rolled_back()
    serving, deployed = [pod.name for pod in world.serving], world.deployed
    world.change(tuning={"request": "a"}).step()
    failed(world, f"revision {world.status['revision']} does not serve (RolledBack: ")
    assert deployed in world.run["message"]
    messages.check(world.run["message"])
    for _ in range(5):
        world.pass_time(5).control().run_pods()
        assert [pod.name for pod in world.serving] == serving, (
            "asking for a measurement takes no pod away"
        )
        world.step()
    assert world.reasons()["Ready"] == "False RolledBack"


# --- another request, another mode ----------------------------------------------------------------


@pytest.mark.proves("spec.tuning.mode", "behaviour")
@pytest.mark.parametrize(("first", "then"), [("Thorough", "Quick"), ("Quick", "Thorough")])
def test_another_mode_in_mid_run_starts_over(first: str, then: str) -> None:
    world = asked(None)
    world.change(tuning={"request": "a", "mode": first}).step()
    world.measuring()
    before, (old,) = set(world.left), world.ours("Job")
    # Later than Quick may take: what is measured thoroughly is not over for that.
    world.pass_time(JOB_SECONDS_QUICK + 100 if first == "Thorough" else 10).step()
    assert world.run["state"] == "Running"
    world.change(tuning={"mode": then}).step()
    assert world.run["state"] == "Pending"
    assert not before & set(world.left), "nothing of the first one is left"
    world.measuring()
    (job,) = world.ours("Job")
    assert job["metadata"]["name"] != old["metadata"]["name"]
    assert ("--thorough" in job["spec"]["template"]["spec"]["containers"][0]["args"]) is (
        then == "Thorough"
    )
    assert [note for reason, note in noted(world) if reason == "TuningStopped"] == [
        f"request 'a': spec.tuning.mode was changed to {then}, so the run starts again"
    ]
    world.job_ends(json.dumps(RESULT))
    assert (world.run["state"], world.left) == ("Succeeded", [])
    world.change(tuning={"mode": first}).step()
    assert world.run["state"] == "Succeeded", "a mode alone asks for nothing"


JOB_SECONDS_QUICK = min(JOB_SECONDS.values())


def test_another_mode_before_the_beginning_is_taken_over() -> None:
    world = asked(None)
    world.change(suspend="Enabled").settle()
    world.change(tuning={"request": "a", "mode": "Thorough"}).step()
    world.change(tuning={"mode": "Quick"}).step()
    assert noted(world) == []
    world.change(suspend="Disabled").settle()
    (job,) = world.measuring().ours("Job")
    assert job["spec"]["activeDeadlineSeconds"] == JOB_SECONDS_QUICK


def test_requests_in_quick_succession_leave_the_last_one_alone() -> None:
    world = asked("a").measuring()
    for request in ("b", "a", "c", "b"):
        world.change(tuning={"request": request}).step()
        assert len(world.ours("Deployment")) == 1
        assert world.ours("Job") == []
        assert world.run["request"] == request
    assert [
        note.partition(":")[0] for reason, note in noted(world) if reason == "TuningStopped"
    ] == [f"request '{name}'" for name in "abac"]
    # What the API server said of an object of an earlier one is nothing against this one.
    world.change(tuning={"request": "d"})
    world.tuning_rejection = "the API server rejects an object of the run: exceeded quota"
    world.step()
    world.tuning_rejection = ""
    assert world.run["state"] == "Pending"


# --- room -----------------------------------------------------------------------------------------


def test_a_canary_gives_its_room_to_a_pod_that_serves() -> None:
    """A pod of the pipeline is lost, and its successor finds no room since the canary has it."""
    world = asked(replicas=2).measuring()
    world.room = 1
    del world.pods[0]
    world.control().run_pods().pass_time(1).step()
    assert [pod.phase for pod in world.pods if not pod.serving] == ["Unschedulable"]
    failed(world, "of the pipeline cannot be scheduled, so the run releases its resources")


def test_a_quota_is_the_pipelines_first() -> None:
    world = asked().measuring()
    refuse_pods(world, world.name)
    world.step()
    failed(
        world,
        (
            "the API server rejects further serving pods, so the run releases its resources: "
            "exceeded quota"
        ),
    )


def test_a_run_does_not_begin_while_pods_are_missing(messages: Messages) -> None:
    """Delay the run while fewer pods run than desired.

    One revision has served, but the quota does not admit all of the desired pods. A canary would
    take the next free place.
    """
    world = asked(None)
    assert world.state.rollout.verified
    world.room = 1
    world.change(replicas=2, tuning={"request": "a"}).step()
    world.control().run_pods().run_pods()
    world.step()
    assert world.run["state"] == "Pending"
    messages.check(world.run["message"])
    assert world.left == []


def test_a_canary_that_a_quota_refuses_says_so_while_it_waits_and_gives_up(
    messages: Messages,
) -> None:
    world = asked()
    (canary,) = world.ours("Deployment")
    refuse_pods(world, canary["metadata"]["name"])
    world.step()
    assert world.run["state"] == "Pending"
    assert QUOTA in world.run["message"]
    messages.check(world.run["message"])
    assert world.condition("Ready")["status"] == "True"
    assert world.step().is_empty
    world.pass_time(PENDING_SECONDS + 1).step()
    failed(world, QUOTA)


def test_a_canary_goes_before_the_rollout_that_wants_its_room() -> None:
    """Delete the canary in the same reconcile, before the Deployment is changed.

    The API server may even reject that change.
    """
    world = asked().measuring()
    world.change(tokenizer={"maxLength": 64})
    decided = world.think()
    assert {deletion.kind for deletion in decided.clear} == {
        "ConfigMap",
        "Deployment",
        "Job",
        "NetworkPolicy",
    }
    assert not [deletion for deletion in decided.delete if deletion in decided.clear]
    assert "Deployment" in {item["kind"] for item in decided.apply}


def test_the_canary_preempts_no_pod_and_terminates_at_once() -> None:
    """Give the canary no priority class and a short grace period.

    With its own priority it might evict pods that serve. With a long grace period, a rollout would
    give up an old pod to get the canary's room.
    """
    world = asked(server={"priorityClassName": "serving"})
    assert world.deployment["spec"]["template"]["spec"]["priorityClassName"] == "serving"
    (job,) = world.measuring().ours("Job")
    for made in (*world.ours("Deployment"), job):
        pod = made["spec"]["template"]["spec"]
        assert "priorityClassName" not in pod
        assert pod["terminationGracePeriodSeconds"] <= 2


# --- what is killed -------------------------------------------------------------------------------


def test_a_deleted_job_is_not_made_again() -> None:
    """Do not recreate a deleted Job.

    By then the canary has settings of an unfinished measurement, and another Job would take them
    for the current ones.
    """
    world = asked().measuring()
    (job,) = world.ours("Job")
    del world.children["Job", job["metadata"]["name"]]
    world.run_pods_raw = [
        pod
        for pod in world.run_pods_raw
        if pod["metadata"]["labels"][names.LABEL_COMPONENT] != names.COMPONENT_TUNER
    ]
    world.step()
    failed(world, "its Job was deleted; change spec")


def test_a_job_that_was_never_made_is_made() -> None:
    """The operator was killed between the record and the Job."""
    world = asked().canary_ready()
    (job,) = world.ours("Job")
    del world.children["Job", job["metadata"]["name"]]
    assert Run.parse(world.state.tuning_run.document).job_uid == ""
    world.step()
    assert len(world.ours("Job")) == 1


def gone(world: Tuning, pod: Object) -> None:
    world.run_pods_raw.remove(pod)


def evicted(_: Tuning, pod: Object) -> None:
    pod["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
    }


def node_lost(world: Tuning, pod: Object) -> None:
    pod["metadata"]["deletionTimestamp"] = rfc3339(world.now)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]


def replaced(world: Tuning, pod: Object) -> None:
    """Another one has its place and is ready, at the same address."""
    world.run_pods_raw.remove(pod)
    world.run_pods_raw.append(
        {**pod, "metadata": {**pod["metadata"], "name": "another", "uid": "another"}}
    )


def crashed(_: Tuning, pod: Object) -> None:
    """The same pod, but its server was started again, with the settings of its files."""
    pod["status"] = json.loads(json.dumps(pod["status"]))
    pod["status"]["containerStatuses"][0]["restartCount"] = 1


@pytest.mark.parametrize("fate", [gone, evicted, node_lost, replaced, crashed])
def test_a_canary_that_goes_ends_the_run(fate: Callable[[Tuning, Object], None]) -> None:
    """Its address may be another pod's by then, one that serves."""
    world = asked().measuring()
    (canary,) = [
        pod
        for pod in world.run_pods_raw
        if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_CANARY
    ]
    fate(world, canary)
    world.step()
    failed(
        world,
        "which was being measured, has terminated (Evicted: The node was low"
        if fate is evicted
        else "the measured pod no longer exists, or its server",
    )
    assert [pod.serving for pod in world.pods] == [True]


def test_an_evicted_canary_says_nothing_for_its_successor() -> None:
    world = asked()
    (made,) = world.ours("Deployment")
    labels = made["spec"]["template"]["metadata"]["labels"]
    world.run_pods_raw = [
        {
            "metadata": {"name": "old", "uid": "old", "labels": labels},
            "status": {"phase": "Failed", "reason": "Evicted"},
        },
        {
            "metadata": {"name": "new", "uid": "new", "labels": labels},
            "status": {"phase": "Pending", "conditions": [NO_ROOM]},
        },
    ]
    world.step()
    assert "Insufficient cpu" in world.run["message"]


def test_a_job_whose_pod_finds_no_place_says_so_and_does_not_hold_the_canary(
    messages: Messages,
) -> None:
    world = asked(None)
    world.change(tuning={"request": "a", "mode": "Thorough"}).step()
    world.canary_ready()
    world.pod("Job", phase="Pending", conditions=[NO_ROOM])
    world.step()
    assert world.run["state"] == "Running"
    messages.check(world.run["message"])
    world.pass_time(PENDING_SECONDS + 1).step()
    failed(world, "the pod of the Job did not start within 900 s: Unschedulable")


def test_a_job_whose_result_is_lost() -> None:
    """It has ended, and its pod was deleted before anybody has read it."""
    world = asked().canary_ready()
    world.step()
    (job,) = world.ours("Job")
    ended = {"type": "Complete", "status": "True", "lastTransitionTime": rfc3339(world.now)}
    world.children["Job", job["metadata"]["name"]] = {**job, "status": {"conditions": [ended]}}
    world.step()
    failed(world, "the Job ended, but its result was lost with its pod")


# --- the operator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", range(9))
@pytest.mark.parametrize("moment", ["begin", "ready", "end"])
def test_an_operator_that_is_killed_between_any_two_writes(moment: str, writes: int) -> None:
    world = asked(None)
    world.change(tuning={"request": "a"})
    if moment != "begin":
        world.step()
        if moment == "end":
            world.measuring()
            ended = {
                "name": names.CONTAINER_TUNER,
                "state": {"terminated": {"exitCode": 0, "message": json.dumps(RESULT)}},
            }
            world.pod("Job", phase="Succeeded", containerStatuses=[ended])
        else:
            (made,) = world.ours("Deployment")
            status = world.serving_status(made)
            world.pod("Deployment", **status)
    world.step(writes)
    world.step()
    if moment == "begin":
        world.measuring()
    if moment != "end":
        world.job_ends(json.dumps(RESULT))
    assert (world.run["state"], world.left) == ("Succeeded", [])
    assert len(noted(world)) >= 1


def test_a_spec_that_becomes_invalid_ends_the_run() -> None:
    """Else a canary would hold its GPU for as long as nobody mends it."""
    world = asked().measuring()
    world.change(model={"maxBatchSize": -1})
    assert world.step().status is not None
    assert world.condition("Ready")["reason"] == "InvalidSpec"
    failed(world, "the spec became invalid during the run; fix the cause, and then change spec")
    assert not Run.parse(world.state.tuning_run.document).is_active
    assert noted(world)[-1][0] == "TuningFailed"
    assert world.step().is_empty
    world.change(model={"maxBatchSize": 64}).settle()
    assert world.run["state"] == "Failed"


def test_an_invalid_spec_ends_a_run_whose_config_map_was_edited() -> None:
    world = asked().measuring()
    del world.children["ConfigMap", names.live_name(world.name)]["metadata"]["ownerReferences"]
    world.change(model={"maxBatchSize": -1}).step()
    failed(world, "the spec became invalid during the run; fix the cause, and then change spec")
    assert world.left == []


@pytest.mark.parametrize("code", [0, 1])
def test_a_result_outlives_the_config_map_that_remembers_it(code: int) -> None:
    world = asked().measuring().job_ends(json.dumps(RESULT), code)
    world.run_pods_raw = []
    world.settle()
    reported = world.status["tuning"]
    del world.children["ConfigMap", names.live_name(world.name)]
    assert not world.settle().left
    assert world.status["tuning"] == reported
    del world.children["ConfigMap", names.live_name(world.name)]
    world.change(tuning={"request": "another"}).settle()
    assert world.run["state"] == "Pending", "which is asked for"


def test_a_run_whose_state_is_deleted_starts_over_and_leaves_nothing() -> None:
    world = asked().measuring()
    before = world.left
    del world.children["ConfigMap", names.live_name(world.name)]
    world.run_pods_raw = []
    world.pass_time(15).step()
    assert world.run["state"] == "Pending"
    assert not set(before) & set(world.left)
    world.measuring().job_ends(json.dumps(RESULT))
    assert (world.run["state"], world.left) == ("Succeeded", [])


@pytest.mark.parametrize("held", ["deletionTimestamp", "paused"])
def test_a_pipeline_that_goes_or_is_paused_is_left_alone(held: str) -> None:
    """What a deleted one has goes with it, by its owner references."""
    world = asked().measuring()
    metadata = world.document["metadata"]
    if held == "paused":
        metadata["annotations"] = {names.ANNOTATION_PAUSED: "true"}
    else:
        metadata["deletionTimestamp"] = rfc3339(world.now)
    world.run_pods_raw = []
    assert world.step().is_empty
    assert all(
        world.children[key]["metadata"]["ownerReferences"][0]["uid"] == metadata["uid"]
        for key in world.left
    )
