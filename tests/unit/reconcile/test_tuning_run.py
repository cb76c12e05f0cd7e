"""Test tuning runs in the model world.

Covered are when a run starts, its objects, how it ends, and that nothing else is affected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import builders
from tests.support.messages import Messages
from tests.support.simulated_nodes import ready_status
from tests.support.tuningworld import PATCH, RENDERED, RESULT, SLO, Tuning, asked
from triton_pipelines.api import names
from triton_pipelines.compile.render.tuning_objects import JOB_SECONDS
from triton_pipelines.controllers.pipeline.planner import Plan
from triton_pipelines.controllers.pipeline.policies.slo_guard import (
    WATCH_PERIOD,
    Latencies,
    RevisionLatency,
)
from triton_pipelines.controllers.pipeline.policies.tuning_run import WAITING_SECONDS
from triton_pipelines.controllers.pipeline.tuning_run_state import Run, State
from triton_pipelines.controllers.pipeline.tuning_steps import PENDING_SECONDS, SILENT_SECONDS
from triton_pipelines.controllers.timestamps import moment, rfc3339

NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def without_revision(world: Tuning) -> str:
    """What belongs to the pods that serve, as it stands."""
    serving = {
        kind: world.children[kind, world.name]
        for kind in ("Deployment", "Service", "NetworkPolicy")
    }
    return json.dumps(
        [{key: item[key] for key in ("spec",)} for item in serving.values()], sort_keys=True
    )


def test_a_run_from_the_request_to_the_result(messages: Messages) -> None:
    world = asked(None)
    before, spec = without_revision(world), json.dumps(world.document["spec"])
    world.change(tuning={"request": "monday"})
    world.step()
    assert world.run == {
        "state": "Pending",
        "message": "waiting for a pod without client traffic",
        "request": "monday",
    }
    assert [kind for kind, _ in sorted(world.left)] == [
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "NetworkPolicy",
    ]
    world.measuring()
    assert world.run["state"] == "Running"
    messages.check(world.run["message"])
    (job,) = world.ours("Job")
    assert world.step().is_empty
    world.job_ends(json.dumps(RESULT))
    assert world.left == []
    said = world.status["tuning"]
    assert {key: said[key] for key in RESULT} == RESULT
    assert (said["state"], said["revision"], said["request"]) == (
        "Succeeded",
        world.deployed,
        "monday",
    )
    assert said["startTime"] <= said["completionTime"]
    assert without_revision(world) == before, (
        "the pods that serve, and how they are reached, are as they were"
    )
    del world.document["spec"]["tuning"]
    assert json.dumps(world.document["spec"]) == spec
    assert job["spec"]["backoffLimit"] == 0
    recorded = world.step()
    assert [item["metadata"]["name"] for item in recorded.apply] == [names.live_name(world.name)], (
        "the spec that is acted on"
    )
    left = world.think()
    assert left == Plan(requeue_after=left.requeue_after)


@pytest.mark.proves("spec.tuning.request", "behaviour")
def test_the_same_request_is_answered_once_and_another_one_again() -> None:
    world = asked().canary_ready().job_ends(json.dumps(RESULT))
    world.run_pods_raw = []
    for _ in range(3):
        assert world.pass_time(600).step().is_empty
    world.change(tuning={"request": "2026-01-02"})
    world.step()
    assert world.run["state"] == "Pending"
    assert len(world.ours("Deployment")) == 1


@pytest.mark.proves("spec.tuning.mode", "behaviour")
@pytest.mark.parametrize(("mode", "seconds"), [(None, 900), ("Quick", 900), ("Thorough", 5400)])
def test_the_mode_says_how_long_is_measured(mode: str | None, seconds: int) -> None:
    world = asked(None)
    world.change(tuning={"request": "a", **({"mode": mode} if mode else {})})
    world.step()
    (job,) = world.canary_ready().ours("Job")
    assert job["spec"]["activeDeadlineSeconds"] == seconds
    assert ("--thorough" in job["spec"]["template"]["spec"]["containers"][0]["args"]) is (
        mode == "Thorough"
    )


# --- what it is made of ---------------------------------------------------------------------------


def test_the_canary_is_a_pod_of_the_revision_outside_the_service() -> None:
    world = asked(server={"gpu": {"count": 2}})
    (canary,) = world.ours("Deployment")
    template, live = canary["spec"]["template"], world.deployment["spec"]["template"]
    for kind in ("Service", "NetworkPolicy"):
        selector = world.children[kind, world.name]["spec"]
        chosen = selector.get("selector") or selector["podSelector"]["matchLabels"]
        assert not chosen.items() <= template["metadata"]["labels"].items(), "nobody is sent there"
    assert (
        not world.deployment["spec"]["selector"]["matchLabels"].items()
        <= template["metadata"]["labels"].items()
    )
    assert template["metadata"]["labels"][names.LABEL_REVISION] == world.deployed
    same = {**live["spec"], "terminationGracePeriodSeconds": 1}
    same["containers"] = [
        {key: value for key, value in item.items() if key != "lifecycle"}
        for item in same["containers"]
    ]
    assert template["spec"] == same, "its own GPUs, its own models, the same limits"
    assert canary["spec"]["replicas"] == 1


def test_the_job_has_the_key_as_a_file_and_no_token() -> None:
    (job,) = asked().canary_ready().ours("Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert container["image"] == builders.LOADER_IMAGE
    assert container["args"] == [
        "tune",
        "/etc/tritonpipe/tuning/pipeline.json",
        "--server=10.0.0.1:8001",
        "--control-key-file=/etc/tritonpipe/control/admin-key",
        "--operator-config=/etc/tritonpipe/tuning/operator.yaml",
        "--report-file=/dev/termination-log",
        "--cores=4.35",  # 0.25 of its own, four tokenizers, 0.1 for the postprocess
    ]
    assert "key of" not in json.dumps(job), "not the key itself"
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert secret["secretName"].startswith("sentiment-")
    assert job["metadata"]["ownerReferences"][0]["kind"] == names.KIND


def test_the_job_is_told_the_resource_and_the_options() -> None:
    world = asked(tokenizer={"maxLength": 77})
    (reported,) = world.ours("ConfigMap")
    document = json.loads(reported["data"]["pipeline.json"])
    assert document["spec"]["tokenizer"]["maxLength"] == 77
    assert "tuning" not in document["spec"]
    assert (
        json.loads(reported["data"]["operator.yaml"])["images"]["default"] == builders.SERVER_IMAGE
    )


def test_the_job_reaches_the_canary_alone() -> None:
    world = asked()
    canary, tuner = (item["spec"] for item in world.ours("NetworkPolicy"))
    (from_job,) = canary["ingress"]
    assert {"podSelector": tuner["podSelector"]} in from_job["from"]
    assert tuner["egress"] == [
        {"ports": from_job["ports"], "to": [{"podSelector": canary["podSelector"]}]}
    ]
    assert (tuner["ingress"], tuner["policyTypes"]) == ([], ["Ingress", "Egress"])
    (deployment,) = world.ours("Deployment")
    assert (
        canary["podSelector"]["matchLabels"].items()
        <= deployment["spec"]["template"]["metadata"]["labels"].items()
    )
    assert not asked(server={"networkPolicy": {"mode": "Disabled"}}).ours("NetworkPolicy")


# --- waiting --------------------------------------------------------------------------------------


def test_it_begins_when_the_wanted_revision_serves(messages: Messages) -> None:
    world = Tuning(builders.document(slo=SLO, tuning={"request": "first"}), rendered=RENDERED)
    world.step()
    assert world.run["state"] == "Pending"
    messages.check(world.run["message"])
    assert world.left == []
    world.settle()
    assert len(world.ours("Deployment")) == 1


@pytest.mark.parametrize(
    "slo",
    [
        {},
        {"networkAndQueueBudgetMilliseconds": 3},
    ],
)
def test_without_a_latency_to_keep_a_request_waits_for_the_field_and_has_nothing(
    slo: dict[str, Any], messages: Messages
) -> None:
    world = Tuning(builders.document(slo=slo), rendered=RENDERED).settle()
    world.change(tuning={"request": "monday"}).settle()
    for _ in range(2):
        assert world.run["state"] == "Pending"
        messages.check(world.run["message"])
        assert world.left == []
        assert not world.state.tuning_run.document.get("start")
        world.pass_time(WAITING_SECONDS + 1).step()
    world.change(slo=SLO).settle()
    assert world.run == {
        "state": "Pending",
        "message": "waiting for a pod without client traffic",
        "request": "monday",
    }
    assert len(world.ours("Deployment")) == 1


def test_a_run_does_not_wait_for_a_guard_that_cannot_evaluate(
    messages: Messages,
) -> None:
    """What the revision before had was never looked at: nothing can be taken back."""
    world = Tuning(builders.document(), rendered=RENDERED).settle()
    world.change(slo=SLO, tuning={"request": "monday"}).settle()
    assert world.state.slo_guard.since, "it is watched all the same"
    messages.check(world.run["message"])
    assert len(world.ours("Deployment")) == 1


def test_a_run_waits_for_the_slo_guard_and_reports_until_when(messages: Messages) -> None:
    world = asked(None)
    world.latencies = Latencies({world.deployed: RevisionLatency(30.0, 40.0, 50.0)})
    world.change(tokenizer={"maxLength": 64}, tuning={"request": "monday"}).settle()
    since = moment(world.state.slo_guard.since)
    assert since is not None
    until = since + WATCH_PERIOD
    assert str(rfc3339(until)) in world.run["message"]
    messages.check(world.run["message"])
    assert world.left == []
    world.pass_time((until - world.now).total_seconds() - 1).step()
    assert world.left == []
    world.pass_time(1).settle()
    messages.check(world.run["message"])


def test_a_canary_without_room_waits_with_the_schedulers_words_and_gives_up(
    messages: Messages,
) -> None:
    world = asked()
    before = [pod.name for pod in world.serving]
    unplaced = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": NO_GPU,
    }
    world.pod("Deployment", phase="Pending", conditions=[unplaced])
    world.step()
    assert world.run["state"] == "Pending"
    assert "WaitingForGPU" in world.run["message"]
    assert "nvidia.com/gpu" in world.run["message"]
    messages.check(world.run["message"])
    assert world.think().is_empty
    world.pass_time(PENDING_SECONDS + 1).step()
    assert world.run["state"] == "Failed"
    assert "900" in world.run["message"]
    assert "nvidia.com/gpu" in world.run["message"]
    messages.check(world.run["message"])
    assert world.left == []
    assert [pod.name for pod in world.serving] == before
    assert world.condition("Ready")["status"] == "True"


# --- endings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("error: the server failed", 3),
        ("", 137),
        ("no json", 0),
        ("[]", 0),
        (json.dumps({"points": [{"p99Microseconds": -1}]}), 0),
    ],
)
def test_a_measurement_that_fails(message: str, code: int, messages: Messages) -> None:
    world = asked().canary_ready().job_ends(message, code)
    assert world.run["state"] == "Failed"
    messages.check(world.run["message"])
    assert world.left == []
    assert world.condition("Ready")["status"] == "True", "tuning is nothing that serving depends on"
    assert [event.reason for event in world.log[-1].action_events] == ["TuningFailed"]


def test_a_job_that_does_not_end() -> None:
    world = asked().canary_ready()
    (job,) = world.ours("Job")
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "DeadlineExceeded",
        "message": "Job was active longer than specified deadline",
    }
    world.children["Job", job["metadata"]["name"]] = {**job, "status": {"conditions": [failed]}}
    world.step()
    assert world.run["state"] == "Failed"
    assert "DeadlineExceeded" in world.run["message"]
    # While its pod is there, and the failure is news, the pod's own words are waited for.
    other = asked().canary_ready()
    (job,) = other.ours("Job")
    other.pod("Job", phase="Running")
    now = {**failed, "lastTransitionTime": other.now.isoformat()}
    other.children["Job", job["metadata"]["name"]] = {**job, "status": {"conditions": [now]}}
    other.step()
    assert other.run["state"] == "Running"
    other.pass_time(SILENT_SECONDS + 1).step()
    assert other.run["state"] == "Failed"
    silent = asked().canary_ready()
    silent.pass_time(max(JOB_SECONDS.values()) + 100).step()
    assert silent.run["state"] == "Failed"
    assert silent.left == []


@pytest.mark.parametrize(
    "change",
    [
        {"suspend": "Enabled"},
        {"tokenizer": {"maxLength": 64}},
    ],
)
@pytest.mark.parametrize("running", [False, True])
def test_what_ends_a_run_early(
    change: Mapping[str, Any], running: bool, messages: Messages
) -> None:
    world = asked()
    if running:
        world.canary_ready()
    world.change(**change)
    world.step()
    assert world.run["state"] == "Failed"
    messages.check(world.run["message"])
    assert world.left == []


def test_a_request_taken_back_leaves_nothing() -> None:
    world = asked().canary_ready()
    world.change(tuning=None)
    world.step()
    assert (world.left, world.run) == ([], {})


def test_a_new_request_in_the_middle_is_a_new_run() -> None:
    world = asked().canary_ready()
    (first,) = world.ours("Job")
    world.change(tuning={"request": "again"})
    world.pass_time(1).step()
    (second,) = world.ours("Deployment")
    assert (
        second["metadata"]["labels"][names.LABEL_RUN]
        != first["metadata"]["labels"][names.LABEL_RUN]
    )
    assert world.ours("Job") == []
    # The first one's pod is there for a while, and nobody minds it.
    assert world.think().is_empty
    assert world.run["state"] == "Pending"


def test_what_the_api_server_refuses_ends_it() -> None:
    world = asked()
    world.tuning_rejection = "the API server rejects an object of the run: exceeded quota"
    world.step()
    assert world.run["state"] == "Failed"
    assert "exceeded quota" in world.run["message"]


def test_a_restarted_operator_knows_everything() -> None:
    """Even the result: a status that was lost between two writes is written again."""
    world = asked().canary_ready()
    assert Run.parse(world.state.tuning_run.document).state is State.RUNNING
    world.job_ends(json.dumps(RESULT))
    said = world.status["tuning"]
    del world.document["status"]["tuning"]
    world.step()
    assert world.status["tuning"] == said


@pytest.mark.parametrize("patch", ["a: 2001-99-99", "[" * 400, "? [a]\n: b", "spec: null", "{"])
def test_a_patch_that_cannot_be_read_is_told_and_recommends_nothing(patch: str) -> None:
    world = asked().canary_ready().job_ends(json.dumps(RESULT | {"patch": patch}))
    assert (world.status["tuning"]["state"], world.status["tuning"]["patch"]) == (
        "Succeeded",
        patch,
    )
    assert Run.parse(world.state.tuning_run.document).recommended == ""


def test_a_run_that_no_status_can_tell_is_none() -> None:
    assert Run.parse({"request": "a", "state": "Succeeded", "revision": "f" * 513}) == Run()


# --- staleness ------------------------------------------------------------------------------------


def stale(world: Tuning) -> list[str]:
    return [
        item["message"]
        for item in world.status.get("warnings", [])
        if "TuningStale" in item["message"]
    ]


def test_a_result_of_another_revision_is_stale_but_not_for_what_it_recommended() -> None:
    world = asked().canary_ready().job_ends(json.dumps(RESULT))
    measured = world.deployed
    assert stale(world) == []
    world.run_pods_raw = []
    world.change(**PATCH["spec"]).settle()
    assert world.deployed != measured
    assert stale(world) == [], "the recommendation was followed"
    world.change(tokenizer={"maxLength": 64}).settle()
    (said,) = stale(world)
    assert measured in said
    assert world.deployed in said


# --- properties -----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                "b",
                None,
                "ready",
                "good",
                "bad",
                "suspend",
                "resume",
                "other",
                "first",
                "late",
                "restart",
                "kill",
            ]
        ),
        max_size=14,
    )
)
def test_one_run_at_a_time_and_nothing_is_left(steps: list[str | None]) -> None:
    world = asked("start", rollout={"strategy": "Surge"})
    for step in steps:
        if step in ("a", "b", None):
            world.change(tuning={"request": step} if step else None)
        elif step == "ready" and world.ours("Deployment"):
            (made,) = world.ours("Deployment")
            world.pod(
                "Deployment",
                **ready_status(
                    {"metadata": {"labels": made["spec"]["template"]["metadata"]["labels"]}}
                ),
            )
        elif step in ("good", "bad") and world.ours("Job"):
            ended = {"exitCode": 0 if step == "good" else 1, "message": json.dumps(RESULT)}
            world.pod(
                "Job",
                phase="Succeeded",
                containerStatuses=[{"name": names.CONTAINER_TUNER, "state": {"terminated": ended}}],
            )
        elif step in ("suspend", "resume"):
            world.change(suspend="Enabled" if step == "suspend" else "Disabled")
        elif step in ("other", "first"):
            world.change(tokenizer={"maxLength": 64 if step == "other" else None})
        elif step == "late":
            world.pass_time(1000)
        elif step == "kill":
            world.step(2)
        world.pass_time(5).control().run_pods().step()
        assert len(world.ours("Job")) <= 1
        assert len(world.ours("Deployment")) <= 1
    world.change(tuning=None)
    world.settle()
    assert world.left == []
    run = Run.parse(world.state.tuning_run.document)
    assert not run.is_active


@given(
    st.dictionaries(
        st.sampled_from(list(Run.__slots__)),
        st.none() | st.text() | st.booleans() | st.dictionaries(st.text(), st.text()),
    )
)
def test_an_edited_state_has_no_effect(document: dict[str, Any]) -> None:
    run = Run.parse(document)
    assert Run.parse(run.to_document()) == run
    run.status()
