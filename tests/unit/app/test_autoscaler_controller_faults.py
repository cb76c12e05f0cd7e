"""The scaling loop when its collector, an edited object or a pod does what it should not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import builders
from tests.support.flows import Flow, history
from tests.support.loops import Loop, loop_of
from tests.support.messages import Messages
from tests.support.worlds import World
from tests.unit.app.test_autoscaler_controller import BUSY, RANGE, condition, grown, settled
from triton_pipelines.api import names
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    ModelCounters,
    PipelineSample,
    PodHistory,
    Scrape,
)
from triton_pipelines.autoscaling.state_json import loads
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS
from triton_pipelines.controllers.autoscaler.actuator import PodRejectedError, PodUnresponsiveError
from triton_pipelines.controllers.autoscaler.pod_counts import UNANSWERED_SECONDS
from triton_pipelines.controllers.pipeline.snapshot import Pod


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return loop_of(monkeypatch, settled())


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", list(MetricsProblem))
async def test_without_metrics_counts_stay_and_the_cause_is_told(
    loop: Loop, trouble: MetricsProblem, messages: Messages
) -> None:
    await grown(loop)
    before = loop.counts
    loop.collector.says = MetricsFailure(trouble, "no usable samples; check the targets")
    for _ in range(100):
        await loop.tick()
    assert loop.counts == before
    reported = condition(loop, "MetricsAvailable")
    assert (reported["status"], reported["reason"]) == ("False", trouble.value)
    messages.check(reported["message"])
    (event,) = [
        event for made in loop.plans for event in made.events if event.action == "ReadMetrics"
    ]
    assert (event.warning, event.reason) == (True, trouble.value)
    loop.flow(50.0 * before["tokenizer"], service=0.010)
    await loop.tick()
    assert [event.reason for event in loop.plans[-1].events if event.action == "ReadMetrics"] == [
        "MetricsRecovered"
    ]


async def test_a_collector_that_fails_is_the_trouble_of_its_pipelines_alone(loop: Loop) -> None:
    loop.collector.says = RuntimeError("a defect")
    for _ in range(40):
        await loop.tick()
    assert condition(loop, "MetricsAvailable")["reason"] == "PrometheusError"
    assert "a defect" not in condition(loop, "MetricsAvailable")["message"], (
        "what an exception says may hold anything"
    )


async def test_a_pod_that_does_not_answer_is_left_alone_for_a_while_and_a_new_server_is_not(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = ["first"]
    monkeypatch.setattr(
        "triton_pipelines.controllers.autoscaler.pipeline_state.server_start_id",
        lambda _: starts[-1],
    )
    loop.cache()
    (pod,) = (Pod.of(item).name for item in loop.store.all(PODS))
    loop.tritons.mute[pod] = PodUnresponsiveError("no answer")
    ticks = 20
    for _ in range(ticks):
        await loop.tick()
    asked = len(loop.tritons.asked)
    assert 1 < asked <= 1 + ticks * 2.0 / UNANSWERED_SECONDS  # a tick of the loop under test is 2 s
    while len(loop.tritons.asked) == asked:
        await loop.tick()
    starts.append("second")
    await loop.tick()
    assert len(loop.tritons.asked) == asked + 2


async def test_one_pipeline_that_cannot_be_decided_is_not_the_others_trouble(loop: Loop) -> None:
    other = builders.document(name="other", tokenizer={"instances": RANGE})
    other["metadata"]["generation"] = 1
    loop.flow(50.0, service=0.010)
    await loop.tick()
    spoilt = World(other).started()
    loop.cache()
    broken = spoilt.document
    broken["metadata"]["annotations"] = "none"
    loop.store.put(INFERENCE_PIPELINES, broken)
    await loop.scaler.tick()
    assert loop.scaler.handover.view(loop.key) is not None
    assert failing(loop) == {"other"}
    loop.cache()  # without it
    await loop.scaler.tick()
    assert failing(loop) == set(), "what is deleted fails no longer"


def failing(loop: Loop) -> set[str]:
    """Pipelines with errors on the metrics page."""
    return {
        sample.labels["pipeline"]
        for family in loop.scaler.metrics.errors.collect()
        for sample in family.samples
    }


ODD = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -1.0, 1e300])
COUNTERS = st.builds(
    ModelCounters, success=ODD, execs=ODD, queue_us=ODD, compute_infer_us=ODD, pending=ODD
)
SCRAPES = st.lists(
    st.builds(
        Scrape, at=ODD, models=st.dictionaries(st.sampled_from(["tokenizer", "model"]), COUNTERS)
    ),
    max_size=4,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    says=st.one_of(
        st.builds(MetricsFailure, st.sampled_from(MetricsProblem), st.text(max_size=50)), SCRAPES
    )
)
def test_nothing_that_a_collector_says_ends_the_loop(
    says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts stay within their bounds, and the next tick comes."""
    loop = loop_of(
        monkeypatch,
        World(builders.document(tokenizer={"instances": RANGE}), rendered=RENDERED).started()
        if not WORLDS
        else WORLDS[0],
    )
    WORLDS[:] = [loop.world]
    loop.collector.says = (
        (lambda one: PipelineSample({pod: PodHistory(tuple(says)) for pod in one.pods}, 5.0))
        if isinstance(says, list)
        else says
    )

    async def ticks() -> None:
        for _ in range(2):
            await loop.tick()
            await loop.settle()

    asyncio.run(ticks())
    assert 1 <= loop.counts["tokenizer"] <= 8


WORLDS: list[World] = []
RENDERED: dict[str, Any] = {}


async def test_no_secret_is_told_anywhere(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    (pod,) = loop.world.pods
    loop.tritons.refuse[pod.name] = PodRejectedError("no")
    loop.flow(**BUSY)
    await loop.tick()
    await loop.settle()
    loop.collector.says = RuntimeError("defect")
    await loop.tick()
    (key,) = loop.tritons.keys
    assert key.startswith("key of ")
    reported = (
        json.dumps([loop.status(), loop.live, [str(made.events) for made in loop.plans]])
        + capsys.readouterr().out
    )
    assert "ActuationFailed" in reported
    assert "key of " not in reported


async def test_what_is_remembered_is_what_holds(loop: Loop) -> None:
    await grown(loop)
    remembered = loads(loop.live[names.KEY_SCALING])
    assert remembered.steps["tokenizer"].desired == loop.counts["tokenizer"]
    assert remembered.history[0].after == loop.counts["tokenizer"]


def test_flows_are_as_meant() -> None:
    """The load of these tests is more than one instance carries."""
    first, last = (
        history({"tokenizer": Flow(**BUSY)}).scrapes[0],
        history({"tokenizer": Flow(**BUSY)}).scrapes[-1],
    )
    assert last.models["tokenizer"].pending > first.models["tokenizer"].pending
