"""The autoscaler's loop: decisions on all kinds of samples, and what it publishes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.support import builders
from tests.support.flows import Flow, history
from tests.support.loops import Loop, Told, loop_of
from tests.support.messages import Messages
from tests.support.operators import eventually
from tests.support.worlds import ModelPod, World
from triton_pipelines.api import names
from triton_pipelines.autoscaling.decide import decide as control_decide
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)
from triton_pipelines.autoscaling.types import Verdict
from triton_pipelines.controllers.autoscaler import controller
from triton_pipelines.controllers.autoscaler.actuator import PodGoneError, PodRejectedError

RANGE = {"initial": 1, "min": 1, "max": 8}
RENDERED: dict[str, Any] = {}
BUSY: dict[str, Any] = {"rate": 95.0, "service": 0.010, "pending": 100.0, "growth": 10.0}


def settled(**spec: Any) -> World:
    return World(
        builders.document(**builders.merge({"tokenizer": {"instances": RANGE}}, spec)),
        rendered=RENDERED,
    ).started()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return loop_of(monkeypatch, settled())


def condition(loop: Loop, kind: str) -> dict[str, Any]:
    return loop.world.condition(kind)


async def grown(loop: Loop) -> Loop:
    """Under load that one instance does not carry, and the change is done."""
    loop.flow(**BUSY)
    await loop.tick()
    await loop.settle()
    await loop.tick()
    return loop


async def touched(loop: Loop) -> None:
    """Wait until a pod is being changed."""
    await eventually("a pod is touched", lambda: loop.tritons.loads)


# --- acting ---------------------------------------------------------------------------------------


async def test_a_change_is_recorded_before_a_pod_is_touched(loop: Loop, messages: Messages) -> None:
    loop.tritons.gate = asyncio.Event()
    loop.flow(**BUSY)
    await loop.tick()
    await touched(loop)
    ((_, wanted),) = loop.tritons.loads
    assert loop.counts == {"tokenizer": wanted}
    assert wanted > 1
    loop.tritons.gate.set()
    await loop.settle()
    assert set(loop.tritons.counts.values()) == {wanted}
    (event,) = [event for made in loop.plans for event in made.events if event.reason == "Scaled"]
    assert str(wanted) in event.note
    messages.check(event.note)
    assert (
        loop.status()["scaling"]["history"][0]["from"],
        loop.status()["tokenizer"]["desiredInstances"],
    ) == (1, wanted)


async def test_what_cannot_be_recorded_changes_nothing(loop: Loop, messages: Messages) -> None:
    loop.writes = False
    loop.flow(**BUSY)
    await loop.tick()
    await loop.settle()
    assert loop.tritons.loads == []
    assert loop.scaler.handover.intent(loop.key) is None
    loop.writes = True
    await loop.tick()
    assert condition(loop, "ScalingActive")["reason"] == "ActuationFailed"
    messages.check(condition(loop, "ScalingActive")["message"])
    assert loop.counts == {"tokenizer": 1}
    await loop.tick(20.0)
    await loop.settle()
    assert loop.counts["tokenizer"] > 1, "tried again after the pause"


async def test_what_is_refused_is_taken_back_and_tried_again_ever_more_seldom(
    loop: Loop, messages: Messages
) -> None:
    (pod,) = loop.world.pods
    loop.tritons.refuse[pod.name] = PodRejectedError("no space left on /dev/shm")
    loop.flow(**BUSY)
    tried = []
    for _ in range(100):
        await loop.tick()
        if loop.scaler._states[loop.key].is_changing:
            tried.append(loop.now)
            await loop.settle()
            assert loop.counts == {"tokenizer": 1}, "new pods start from what works"
            loop.flow(**BUSY)
    assert "dev/shm" in condition(loop, "ScalingActive")["message"]
    messages.check(condition(loop, "ScalingActive")["message"])
    assert (
        condition(loop, "ScalingActive")["reason"],
        loop.status()["scaling"]["history"][0]["to"],
    ) == ("ActuationFailed", 1)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[:3] == [16, 32, 64]


async def test_a_failed_growth_that_is_no_longer_wanted_is_no_failure(loop: Loop) -> None:
    (pod,) = loop.world.pods
    loop.tritons.refuse[pod.name] = PodRejectedError("no")
    loop.flow(**BUSY)
    await loop.tick()
    await loop.settle()
    loop.flow(10.0, service=0.010)
    for _ in range(20):
        loop.flow(10.0, service=0.010)
        await loop.tick(2.0)
    assert condition(loop, "ScalingActive")["reason"] == "Succeeded"


@pytest.mark.parametrize("pods", [1, 3])
async def test_a_drifted_pod_is_brought_in_line_and_no_other_follows_it(
    monkeypatch: pytest.MonkeyPatch, pods: int
) -> None:
    loop = await grown(loop_of(monkeypatch, settled(replicas=pods)))
    count = loop.counts["tokenizer"]
    loop.flow(rate=95.0 * count * 0.7, service=0.010)
    strayed = loop.world.pods[-1].name
    loop.tritons.counts[strayed] = 1
    loop.tritons.loads.clear()
    loop.tritons.refuse[strayed] = PodRejectedError("not now")
    for _ in range(20):
        await loop.tick()
        await loop.settle()
    assert {pod for pod, _ in loop.tritons.loads} == {strayed}
    assert loop.counts == {"tokenizer": count}, "one pod's trouble lowers nobody's count"
    loop.tritons.refuse.clear()
    for _ in range(40):
        await loop.tick(5.0)
        await loop.settle()
    assert loop.tritons.counts[strayed] == loop.counts["tokenizer"]


async def test_a_new_spec_in_mid_change_loses_nothing_of_it(loop: Loop) -> None:
    loop.tritons.gate = asyncio.Event()
    loop.flow(**BUSY)
    await loop.tick()
    await touched(loop)
    change = loop.scaler._states[loop.key].changes["tokenizer"]
    loop.world.change(replicas=1, scaling={"targetUtilizationPercent": 60})
    await loop.tick()
    assert loop.scaler._states[loop.key].changes["tokenizer"] is change
    loop.tritons.refuse[loop.world.pods[0].name] = PodRejectedError("late")
    loop.tritons.gate.set()
    await loop.settle()
    await loop.tick()
    assert "late" in condition(loop, "ScalingActive")["message"]


CUSTOM: dict[str, Any] = {
    "type": "Python",
    "source": None,
    "python": {"code": {"inline": "x = 1"}},
    "outputs": [{"name": "input_ids"}, {"name": "attention_mask"}],
}


@pytest.mark.parametrize(
    ("tokenizer", "pending", "is_measured"),
    [({}, 100.0, True), (CUSTOM, 100.0, False), (CUSTOM, 0.0, True)],
    ids=["built-in", "custom, requests wait", "custom"],
)
async def test_an_increase_that_waits_for_the_end_of_an_overload_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
    tokenizer: dict[str, Any],
    pending: float,
    is_measured: bool,
) -> None:
    """The next decisions would expect each increase to take as long as this overload."""
    loop = loop_of(monkeypatch, settled(tokenizer=tokenizer))
    loop.flow(rate=95.0, service=0.010, pending=pending)
    await loop.tick()
    await loop.settle()
    state = loop.scaler._states[loop.key].scaling_state
    assert state is not None
    assert loop.counts["tokenizer"] > 1
    assert (state.actuation is not None) is is_measured


async def test_an_increase_does_not_wait_for_that_of_another_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of Python code can last as long as an overload."""
    post = {"type": "Softmax", "instances": {"initial": 1, "min": 1, "max": 8}}
    loop = loop_of(monkeypatch, settled(tokenizer=CUSTOM, postprocess=post))
    loop.tritons.gate = asyncio.Event()

    def says(one: ExpectedPods) -> PipelineSample:
        flows = {
            "tokenizer": Flow(**BUSY),
            "model": Flow(95.0, 0.0005),
            "postprocess": Flow(**BUSY),
        }
        return PipelineSample({pod: history(flows, now=loop.now) for pod in one.pods}, 5.0, "test")

    loop.collector.says = says
    await loop.tick()
    await eventually("both steps are being changed", lambda: len(loop.tritons.loads) == 2)
    loop.scaler._states[loop.key].cancel_changes()


# --- over a restart -------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", [False, True])
async def test_another_process_takes_recorded_counts_over(
    monkeypatch: pytest.MonkeyPatch, loop: Loop, spoil: bool
) -> None:
    """Even if the recorded state is not readable, and before any pod has reported its count."""
    await grown(loop)
    count = loop.counts["tokenizer"]
    if spoil:
        loop.world.children["ConfigMap", names.live_name(loop.world.name)]["data"][
            names.KEY_SCALING
        ] = "{broken"
    second = loop_of(monkeypatch, loop.world)
    (pod,) = loop.world.pods
    second.tritons.mute[pod.name] = PodGoneError("away")
    before = dict(second.live)
    for _ in range(10):
        second.flow(50.0, service=0.010)
        await second.tick()
    assert second.counts == {"tokenizer": count}
    assert second.live == before
    assert second.tritons.loads == []


async def test_a_start_says_nothing_until_it_has_looked(
    monkeypatch: pytest.MonkeyPatch, loop: Loop
) -> None:
    await grown(loop)
    reported = loop.status()
    second = loop_of(monkeypatch, loop.world)
    second.collector.says = MetricsFailure(MetricsProblem.MISSING, "one look is no rate")
    for _ in range(10):
        await second.tick(2.0)
        second.reconcile()
    assert second.status() == reported
    for _ in range(60):
        await second.tick(2.0)
    assert condition(second, "MetricsAvailable")["reason"] == "MetricsMissing"
    assert second.counts == loop.counts


# --- quiet ----------------------------------------------------------------------------------------


async def test_ten_minutes_of_the_same_write_nothing(loop: Loop) -> None:
    """Rates that vary by a few percent write nothing; reconciles are due at most once a minute."""
    loop.flow(50.0, service=0.010)
    for _ in range(5):
        await loop.tick()
    loop.plans.clear()
    loop.dues.clear()
    live = loop.live
    for number in range(300):
        loop.flow(50.0 + number % 3, service=0.010)
        await loop.tick(2.0)
    assert loop.live == live
    assert len(loop.dues) <= 10
    assert len(loop.collector.asked) == 305
    assert [item for made in loop.plans for item in (*made.apply, *made.events)] == []
    assert [made.status for made in loop.plans if made.status is not None] == []
    loop.flow(20.0, service=0.010)  # the other way round: what has changed is written
    for _ in range(40):
        loop.flow(20.0, service=0.010)
        await loop.tick(2.0)
    assert [made.status for made in loop.plans if made.status is not None]


async def test_a_decision_waits_for_a_new_sample_at_most_one_scrape_interval(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions: list[object] = []

    def decide(*arguments: Any) -> Any:
        decisions.append(arguments[2])
        return control_decide(*arguments)

    monkeypatch.setattr(controller, "decide", decide)

    async def decided(seconds: float) -> int:
        before = len(decisions)
        await loop.tick(seconds)
        return len(decisions) - before

    def use(sample: object) -> None:
        loop.collector.says = lambda _: sample

    loop.flow(50.0, service=0.010)
    for _ in range(3):
        await loop.tick()
    use(decisions[-1])
    assert await decided(2.0) == 0
    assert await decided(2.0) == 0
    # Without a new sample, after the interval of 5 s.
    assert await decided(2.0) == 1
    assert await decided(2.0) == 0
    # At once for a new sample, another count, and during an outage of metrics.
    loop.flow(50.0, service=0.010)
    assert await decided(2.0) == 1
    use(decisions[-1])
    assert await decided(1.0) == 0
    loop.tritons.counts = dict.fromkeys(loop.tritons.counts, 3)
    for state in loop.scaler._states.values():
        state.pod_counts.clear()
    assert await decided(1.0) == 1
    await loop.settle()
    failure = MetricsFailure(MetricsProblem.MISSING, "no samples")
    use(failure)
    for _ in range(3):
        assert await decided(1.0) == 1


# --- modes and states -----------------------------------------------------------------------------


@pytest.mark.proves("spec.scaling.mode", "behaviour")
async def test_advice_is_told_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    loop = loop_of(monkeypatch, settled(scaling={"mode": "Advisory"}))
    live = loop.live
    for _ in range(60):
        loop.flow(**BUSY)
        await loop.tick()
    without_report = live.keys() - {names.KEY_STATE}
    assert {key: loop.live[key] for key in without_report} == {
        key: live[key] for key in without_report
    }
    assert loop.live.keys() == live.keys()
    assert (loop.tritons.loads, loop.scaler.handover.intent(loop.key)) == ([], None)
    reported = condition(loop, "ScalingActive")
    assert (reported["status"], reported["reason"]) == ("False", "Advisory")
    messages.check(reported["message"])
    state = loop.status()["scaling"]
    assert (state["bottleneck"], state["mode"], "lastScaleTime" in state) == (
        "TokenizerBound",
        "Advisory",
        False,
    )
    events = [event for made in loop.plans for event in made.events if event.action == "Scale"]
    assert [event.reason for event in events] == ["ScalingAdvised"]
    again = loop_of(monkeypatch, loop.world)
    for _ in range(60):
        again.flow(**BUSY)
        await again.tick()
    assert [event for made in again.plans for event in made.events if event.action == "Scale"] == []


@pytest.mark.proves("spec.scaling.mode", "behaviour")
async def test_disabled_does_not_look(monkeypatch: pytest.MonkeyPatch, loop: Loop) -> None:
    await grown(loop)
    loop.world.change(scaling={"mode": "Disabled"})
    asked = len(loop.collector.asked)
    for _ in range(5):
        await loop.tick()
        loop.reconcile()
    assert all(not wanted for wanted in loop.collector.asked[asked:])
    assert "scaling" not in loop.status()
    assert condition(loop, "ScalingActive") == {}
    assert loop.counts["tokenizer"] > 1, "counts stay as they are"


async def test_a_pipeline_without_scaling_is_observed_when_its_spec_changes(
    monkeypatch: pytest.MonkeyPatch, loop: Loop
) -> None:
    observed: list[Any] = []
    is_unmanaged = controller.is_unmanaged
    monkeypatch.setattr(
        controller, "is_unmanaged", lambda raw: observed.append(raw) or is_unmanaged(raw)
    )
    loop.world.change(scaling={"mode": "Disabled"})
    await loop.tick()
    loop.reconcile()
    await loop.scaler.tick()
    observed.clear()
    await loop.scaler.tick()
    assert not observed
    loop.world.change(scaling={"mode": "Active"})
    loop.reconcile()
    await loop.scaler.tick()
    await loop.scaler.tick()
    assert len(observed) == 2
    assert loop.scaler._states[loop.key].steps


async def test_suspended_says_nothing_of_scaling(loop: Loop) -> None:
    await grown(loop)
    loop.world.change(suspend="Enabled")
    loop.reconcile()
    loop.world.settle()
    for _ in range(5):
        await loop.tick()
        loop.reconcile()
    assert condition(loop, "ScalingActive") == {}
    assert condition(loop, "Ready")["reason"] == "Suspended"
    assert loop.counts["tokenizer"] > 1


async def test_without_a_ready_pod_counts_stay_and_it_is_said(loop: Loop) -> None:
    await grown(loop)
    before = loop.counts
    loop.world.pods[0] = replace(loop.world.pods[0], phase="Loading")
    for _ in range(40):
        await loop.tick()
    assert condition(loop, "ScalingActive")["reason"] == "NoPods"
    assert loop.status()["scaling"]["bottleneck"] == Verdict.UNKNOWN
    assert loop.counts == before


async def test_pods_of_two_revisions_are_each_changed_by_their_own_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = settled(replicas=2)
    old = world.pods[0]
    world.change(tokenizer={"maxLength": 128})
    world.step()
    world.control()
    new = next(pod for pod in world.pods if pod.revision != old.revision)
    world.pods = [
        old,
        ModelPod(new.name, new.revision, new.template, new.created, phase="Ready", since=world.now),
    ]
    loop = loop_of(monkeypatch, world)
    loop.flow(**BUSY)
    await loop.tick()
    await loop.settle()
    assert {pod for pod, _ in loop.tritons.loads} == {old.name, new.name}
    assert len(loop.tritons.keys) == 2, "each revision has its control key"


async def test_a_paused_or_deleted_pipeline_is_left_alone(loop: Loop) -> None:
    await grown(loop)
    loop.world.document["metadata"]["annotations"] = {names.ANNOTATION_PAUSED: "true"}
    loop.cache()
    await loop.scaler.tick()
    assert loop.scaler.handover.view(loop.key) is None
    assert not loop.scaler._states
    assert not [
        sample for family in loop.scaler.metrics.desired.collect() for sample in family.samples
    ]


@pytest.mark.proves("spec.scaling.prometheusRef", "behaviour")
async def test_each_pipeline_asks_the_connection_that_it_names(
    loop: Loop, messages: Messages
) -> None:
    """Without connections the pods are read; else only the connection that the spec names."""
    default, other = Told(loop.collector.says), Told()
    loop.flow(50.0, service=0.010)
    await loop.tick()
    assert len(loop.collector.asked) == 1
    loop.scaler.collectors = {"": loop.collector, "default": default, "other": other}
    default.says = loop.collector.says
    await loop.tick()
    assert (len(loop.collector.asked), len(default.asked), len(other.asked)) == (1, 1, 0)
    loop.world.change(scaling={"prometheusRef": "elsewhere"})
    for _ in range(3):
        await loop.tick()
    assert (len(loop.collector.asked), len(default.asked), len(other.asked)) == (1, 1, 0)
    reported = condition(loop, "MetricsAvailable")
    assert reported["reason"] == "PrometheusError"
    assert "'elsewhere'" in reported["message"]
    messages.check(reported["message"])


async def test_a_connection_serves_only_the_namespaces_that_it_lists(
    loop: Loop, messages: Messages
) -> None:
    """A pipeline of another namespace gets no samples from it, and the condition says why."""
    own, foreign = Told(), Told(namespaces=frozenset({"b"}))
    loop.flow(50.0, service=0.010)
    await loop.tick()
    own.says = foreign.says = loop.collector.says
    loop.scaler.collectors = {"": loop.collector, "own": own, "default": foreign}
    for connection in ("default", "nosuch"):
        loop.world.change(scaling={"prometheusRef": connection})
        await loop.tick()
        assert (len(loop.collector.asked), len(own.asked), len(foreign.asked)) == (1, 0, 0)
        reported = condition(loop, "MetricsAvailable")
        assert reported["reason"] == "PrometheusError"
        assert "spec.scaling.prometheusRef" in reported["message"]
        messages.check(reported["message"])
    foreign.namespaces = frozenset({"b", loop.key[0]})
    loop.world.change(scaling={"prometheusRef": "default"})
    await loop.tick()
    assert (len(own.asked), len(foreign.asked)) == (0, 1)
