"""Test the end of a tuning run.

The verified result is recorded before any object of the measurement is deleted.
"""

from __future__ import annotations

import json

import pytest
import yaml

from tests.support import builders
from tests.support.passes import Recording, passed
from tests.support.tuningworld import RENDERED, RESULT, SLO, Tuning
from triton_pipelines.api import names
from triton_pipelines.cluster.errors import ClusterError, Forbidden, Invalid

PATCH = {"spec": {"tokenizer": {"padding": "Bucketed", "buckets": [32, 128]}}}
MESSAGE = json.dumps(RESULT | {"patch": yaml.safe_dump(PATCH)})


def at_its_end() -> Tuning:
    """A run whose Job has ended, which no pass has seen."""
    world = Tuning(
        builders.document(model={"platform": "tensorrt_plan"}, slo=SLO), rendered=RENDERED
    )
    world.settle()
    world.change(tuning={"request": "monday"}).step()
    world.canary_ready()
    ended = {
        "name": names.CONTAINER_TUNER,
        "state": {"terminated": {"exitCode": 0, "message": MESSAGE, "reason": "Completed"}},
    }
    world.pod("Job", phase="Succeeded", containerStatuses=[ended])
    return world


@pytest.mark.parametrize("writes", range(9))
def test_an_operator_that_is_killed_then_loses_nothing(writes: int) -> None:
    world = at_its_end()
    world.step(writes)
    if not world.left:
        world.run_pods_raw = []  # the garbage collector has been there
    elif not world.ours("Job"):
        world.run_pods_raw = [
            item for item in world.run_pods_raw if "tuner" not in item["metadata"]["name"]
        ]
    world.settle()
    assert (world.run["state"], world.left) == ("Succeeded", [])
    assert (
        names.KEY_MEASURED_PADDING
        in world.children["ConfigMap", names.live_name(world.name)]["data"]
    )


LIVE = ("apply", names.live_name("sentiment"))
REFUSED = Forbidden(403, "Forbidden", "exceeded quota")
HELD = {("delete", kind) for kind in ("ConfigMap", "Deployment", "Job", "NetworkPolicy")}


async def test_the_record_comes_before_the_end_of_what_was_measured() -> None:
    reported = await passed(world := at_its_end(), Recording(world))
    assert reported[0] == LIVE
    assert {item for item in reported if item[0] == "delete"} == HELD


@pytest.mark.parametrize("refused", [False, True])
async def test_where_the_record_cannot_be_written_now_the_job_stays_for_the_next_pass(
    refused: bool,
) -> None:
    gone = ClusterError(500, "InternalError", "etcd has no leader")
    client = (
        Recording(world := at_its_end(), REFUSED, gone)
        if refused
        else Recording(world := at_its_end(), gone)
    )
    assert await passed(world, client) == [LIVE, *([("status", "Succeeded")] if refused else [])]
    assert world.ours("Job"), "its result is read again"


async def test_a_result_whose_record_is_rejected_is_reported_and_then_released() -> None:
    client = Recording(world := at_its_end(), REFUSED)
    reported = await passed(world, client)
    assert reported[:2] == [LIVE, ("status", "Succeeded")]
    assert set(reported[2:]) == HELD
    assert client.posted.count("TuningSucceeded") == 1


async def test_where_not_even_the_status_is_taken_nothing_is_held() -> None:
    reported = await passed(
        world := at_its_end(),
        Recording(world, REFUSED, Invalid(422, "Invalid", "status.tuning: too long")),
    )
    assert {item for item in reported if item[0] == "delete"} == HELD


@pytest.mark.parametrize(
    "error",
    [REFUSED, Invalid(400, "BadRequest", 'admission webhook "no.example.com" denied the request')],
)
async def test_a_result_whose_record_was_refused_is_acted_on_once_it_is_taken(
    error: ClusterError,
) -> None:
    world = at_its_end()
    client = Recording(world, error)
    first, known = world.deployed, dict(world.status)
    for _ in range(4):  # the second pass finds no Job any more, which is no failure of the run
        await passed(world, client)
        world.run_pods_raw = []
        assert (world.run["state"], world.deployed) == ("Succeeded", first)
        assert (
            names.KEY_MEASURED_PADDING
            not in world.children["ConfigMap", names.live_name(world.name)]["data"]
        )
        assert world.status["tuning"]["gainPercent"] == RESULT["gainPercent"]
        assert world.condition("Ready")["status"] == "False"
        assert world.condition("Ready")["message"].endswith(error.message)
    assert client.posted.count("TuningSucceeded") == 1
    assert world.status["padding"]["chosen"] == known["padding"]["chosen"] == "Fixed", (
        "nothing is applied half"
    )
    client.error = None
    await passed(world, client)
    assert (
        names.KEY_MEASURED_PADDING
        in world.children["ConfigMap", names.live_name(world.name)]["data"]
    )
    world.settle()
    assert world.deployed != first
    assert (world.status["padding"]["chosen"], world.reasons()["Ready"]) == (
        "Bucketed",
        "True Succeeded",
    )
    assert world.state.tuning_run.document["recommended"] == world.deployed
    assert not [
        item for item in world.status.get("warnings", []) if "TuningStale" in item["message"]
    ]
