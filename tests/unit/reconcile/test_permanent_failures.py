"""Test that a load which cannot succeed does not keep the pipeline down until the deadline."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import BAD, World
from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.loadplan import LoadFinding, LoadReason
from triton_pipelines.controllers.pipeline.pod_problems import Problem
from triton_pipelines.controllers.pipeline.policies.rollout_failure import (
    failed_inference,
    failure_of,
)
from triton_pipelines.controllers.pipeline.probe_record import Probe
from triton_pipelines.controllers.pipeline.snapshot import Pod, Snapshot
from triton_pipelines.loader.main import EXIT_RETRY, EXIT_USER

MISSING = LoadFinding(
    step="model",
    reason=LoadReason.SOURCE_UNAVAILABLE,
    message="the source has no file model.onnx (404)",
    field="spec.model.source.uri",
)
FULL = LoadFinding(step="model", reason=LoadReason.NO_SPACE, message="the volume is full")


def rolled_out(
    finding: LoadFinding, code: int, strategy: str, room: int | None = 1
) -> tuple[World, str]:
    """A served pipeline after a change to a revision whose loader fails; the old revision."""
    world = World(builders.document(rollout={"strategy": strategy}), room=room).started()
    old = world.deployed
    world.load_failure = (finding, code)
    world.change(tokenizer={"maxLength": 64}).step()
    world.verdicts[world.status["revision"]] = BAD
    for _ in range(12):
        world.pass_time(5).control().run_pods().step()
    return world, old


@pytest.mark.parametrize("strategy", ["NoSurge", "Recreate", "Auto"])
def test_a_missing_source_is_rolled_back_where_one_pod_fits(
    strategy: str, messages: Messages
) -> None:
    world, old = rolled_out(MISSING, EXIT_USER, strategy)
    assert world.deployed == old
    world.settle()
    assert world.reasons()["Available"] == "True Serving"
    assert world.reasons()["Ready"] == "False RolledBack"
    assert "SourceUnavailable" in world.condition("Ready")["message"]
    assert "model.onnx" in world.condition("Ready")["message"]
    messages.check(world.condition("Ready")["message"])


@pytest.mark.parametrize(
    ("finding", "code"),
    [(MISSING, EXIT_RETRY), (FULL, EXIT_USER)],
    ids=["temporary", "no-space"],
)
def test_what_may_end_by_itself_is_waited_for(finding: LoadFinding, code: int) -> None:
    world, old = rolled_out(finding, code, "NoSurge")
    assert world.deployed != old
    assert world.reasons()["Ready"] == f"False {finding.reason.value}"


def test_a_surge_waits_for_its_source() -> None:
    world, old = rolled_out(MISSING, EXIT_USER, "Surge", room=None)
    assert world.deployed != old
    assert world.reasons()["Ready"] == "False SourceUnavailable"
    assert world.reasons()["Reconciling"] == "True SourceUnavailable"
    assert world.reasons()["Available"] == "True Serving"


def test_a_first_revision_waits_for_its_source() -> None:
    world = World(builders.document(rollout={"strategy": "NoSurge"}), room=1)
    world.load_failure = (MISSING, EXIT_USER)
    world.step()
    world.verdicts[world.status["revision"]] = BAD
    for _ in range(5):
        world.pass_time(5).control().run_pods().step()
    assert world.reasons()["Reconciling"] == "True SourceUnavailable"
    world.verdicts.clear()
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"


def test_a_first_failure_is_tried_again() -> None:
    """Rights of a new identity may take effect late."""
    world = World(builders.document(rollout={"strategy": "NoSurge"}), room=1).started()
    old = world.deployed
    world.load_failure, world.load_restarts = (MISSING, EXIT_USER), 0
    world.change(tokenizer={"maxLength": 64}).step()
    world.verdicts[world.status["revision"]] = BAD
    for _ in range(12):
        world.pass_time(5).control().run_pods().step()
    assert world.deployed != old
    world.load_restarts = 1
    for _ in range(3):
        world.pass_time(5).control().run_pods().step()
    assert world.deployed == old


def test_new_pods_that_serve_stay() -> None:
    problem = Problem(Reason.SOURCE_UNAVAILABLE, "404", "new-2", is_permanent=True)
    serving, failing, leaving = (
        Pod(name, name, "new", "10.0.0.1", ready, deleting, {"metadata": {}})
        for name, ready, deleting in (
            ("new-1", True, False),
            ("new-2", False, False),
            ("new-2", False, True),
        )
    )

    def failed(*pods: Pod) -> bool:
        snapshot = Snapshot(builders.document(), pods=pods)
        return (
            failure_of("new", snapshot, [problem], old_removed=True, counts_deadline=True)
            is not None
        )

    assert failed(failing)
    assert not failed(serving, failing)
    assert not failed(leaving)


@pytest.mark.parametrize("health", ["Healthy", "Unhealthy"])
def test_an_unhealthy_device_is_no_fault_of_the_revision(health: str) -> None:
    """The pod fails its test inferences, but another node's device would run them."""
    device = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-1", "health": health}]}
    server = {"name": names.CONTAINER_SERVER, "allocatedResourcesStatus": [device]}
    raw = {"metadata": {}, "status": {"containerStatuses": [server]}}
    pod = Pod("new-1", "new-1", "new", "10.0.0.1", True, False, raw)
    probe = Probe(dt.datetime.now(dt.UTC), True, inference_error="NaN", consecutive_wrong=2)
    snapshot = Snapshot(builders.document(), pods=(pod,), probes={pod.uid: probe})
    problem = Problem(Reason.INFERENCE_FAILED, "NaN", pod.name)
    assert (failed_inference("new", snapshot, [problem]) is None) == (health == "Unhealthy")
