"""The model world with a pipeline whose padding is left to Auto, and tuning runs that prove one."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.support import builders
from tests.support.tuningworld import RESULT, Tuning
from triton_pipelines.api import names
from triton_pipelines.api.tuning_status import PaddingStatus
from triton_pipelines.controllers.pipeline.latency_figures import Latencies, RevisionLatency

SLO = {"p99Milliseconds": 85, "networkAndQueueBudgetMilliseconds": 5}
PLAN = {"platform": "tensorrt_plan"}
BUCKETED = {"padding": "Bucketed", "buckets": [32, 128]}
PADDING: dict[str, Any] = {"spec": {"tokenizer": BUCKETED}}
BOTH: dict[str, Any] = {"spec": {"model": {"maxBatchSize": 16}, "tokenizer": BUCKETED}}
FIGURES = (
    "Bucketed 32, 128, 512 is cheapest: Bucketed 32, 128, 512 21.5 ms, Fixed 38.5 ms (current) "
    "for 64 rows"
)
RENDERED: dict[str, Any] = {}
KEPT_FIGURE, BROKEN_FIGURE = RevisionLatency(30.0, 40.0, 50.0), RevisionLatency(90.0, 120.0, 55.0)


def result(patch: dict[str, Any], gain: int = 31) -> dict[str, Any]:
    """What a Job tells of a patch that it has proven."""
    return RESULT | {
        "message": "This setting is faster.",
        "patch": yaml.safe_dump(patch),
        "gainPercent": gain,
        "padding": FIGURES,
    }


def world_of(**spec: Any) -> Tuning:
    """A plan, which Auto's rule pads to maxLength, and which serves."""
    return Tuning(
        builders.document(**{"model": PLAN, "slo": SLO, **spec}), rendered=RENDERED
    ).started()


def run(world: Tuning, patch: dict[str, Any], request: str = "monday", gain: int = 31) -> Tuning:
    """Run a tuning that verifies the patch, after all watches have ended.

    The reconcile that sees its end is the last one.
    """
    world.pass_time(400).settle()
    world.change(tuning={"request": request})
    world.step()
    world.canary_ready().job_ends(json.dumps(result(patch, gain)))
    assert world.run["state"] == "Succeeded"
    world.run_pods_raw = []
    return world


def padding(world: Tuning) -> tuple[str, str]:
    """The padding that the status tells of, and why."""
    said = world.status["padding"]
    PaddingStatus.model_validate(said)
    return said["chosen"], said["reason"]


def live(world: Tuning) -> dict[str, str]:
    """Content of the live ConfigMap."""
    return dict(world.children["ConfigMap", names.live_name(world.name)]["data"])


def choices(world: Tuning) -> dict[str, Any]:
    """The proven paddings that are remembered, by fingerprint."""
    return dict(json.loads(live(world).get(names.KEY_MEASURED_PADDING, "{}")))


def config(world: Tuning) -> str:
    """The tokenizer's configuration in the revision that is deployed."""
    return str(
        world.children["ConfigMap", names.revision_name(world.name, world.deployed)]["data"][
            "tokenizer.config.pbtxt"
        ]
    )


def broken(world: Tuning, old: str) -> None:
    """The revision that is deployed breaks the promise which ``old`` kept."""
    world.latencies = Latencies({old: KEPT_FIGURE, world.deployed: BROKEN_FIGURE})
    world.pass_time(15).step()


def taken_and_broken(world: Tuning) -> tuple[str, str]:
    """Verify a padding whose revision violates the SLO that the one before met.

    Afterwards, no latency is known anymore. Returns both revisions.
    """
    first = world.deployed
    world.latencies = Latencies({first: KEPT_FIGURE})
    run(world, PADDING).settle()
    taken = world.deployed
    broken(world, first)
    world.latencies = None
    world.settle()
    return first, taken
