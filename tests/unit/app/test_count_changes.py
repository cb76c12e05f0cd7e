"""Changes of counts: several steps, pods that do not answer, and what changes in mid change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.support.flows import Flow
from tests.support.loops import PACE, Loop, loop_of
from tests.support.messages import Messages
from tests.support.operators import eventually
from tests.unit.app.test_autoscaler_controller import BUSY, CUSTOM, RANGE, condition, settled
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, MetricsProblem
from triton_pipelines.controllers.autoscaler.actuator import (
    PodGoneError,
    PodRejectedError,
    PodUnresponsiveError,
)

POST = {"type": "Softmax", "instances": RANGE}
CALM: dict[str, Any] = {"rate": 20.0, "service": 0.010}


def of(monkeypatch: pytest.MonkeyPatch, **spec: Any) -> Loop:
    return loop_of(monkeypatch, settled(**spec))


def flows(loop: Loop, tokenizer: dict[str, Any], postprocess: dict[str, Any]) -> None:
    """The collector's samples from now on."""
    loop.flows(
        tokenizer=Flow(**tokenizer), model=Flow(95.0, 0.0005), postprocess=Flow(**postprocess)
    )


async def ticks(loop: Loop, count: int, tokenizer: dict[str, Any]) -> None:
    """Tick while the postprocessing is overloaded; each change ends."""
    for _ in range(count):
        flows(loop, tokenizer, BUSY)
        await loop.tick()
        await loop.settle()


async def test_a_step_whose_change_fails_does_not_delay_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = of(monkeypatch, postprocess=POST)
    post = f"{loop.world.pods[0].name}/postprocess"
    loop.tritons.refuse[post] = PodRejectedError("No space left on device")
    await ticks(loop, 30, CALM)
    attempts = [name for name, _ in loop.tritons.loads].count(post)
    assert attempts > 1, "its pause is long by now"
    assert loop.counts["tokenizer"] == 1
    await ticks(loop, 2, BUSY)
    assert loop.counts["tokenizer"] > 1
    assert loop.tritons.counts[loop.world.pods[0].name] == loop.counts["tokenizer"]
    assert [name for name, _ in loop.tritons.loads].count(post) == attempts
    assert loop.counts["postprocess"] == 1
    history = loop.status()["scaling"]["history"]
    assert (history[0]["step"], history[0]["to"]) == ("tokenizer", loop.counts["tokenizer"])


async def test_a_success_of_a_step_does_not_hide_the_failure_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = of(monkeypatch, tokenizer=CUSTOM, postprocess=POST)
    post = f"{loop.world.pods[0].name}/postprocess"
    loop.tritons.refuse[post] = PodRejectedError("No space left on device")
    loop.tritons.gates["tokenizer"] = asyncio.Event()
    flows(loop, BUSY, BUSY)
    await loop.tick()
    await eventually("both steps are being changed", lambda: len(loop.tritons.loads) == 2)
    loop.tritons.gates["tokenizer"].set()
    await loop.settle()
    assert loop.counts["tokenizer"] > 1
    await ticks(loop, 1, BUSY)
    assert condition(loop, "ScalingActive")["reason"] == "ActuationFailed"
    assert "No space left" in condition(loop, "ScalingActive")["message"]


async def started(loop: Loop) -> None:
    """An overload of the tokenizer begins, and the first pod is being changed."""
    loop.flow(**BUSY)
    await loop.tick()
    await eventually("a pod is being changed", lambda: loop.tritons.loads)


async def test_a_pod_that_goes_in_mid_change_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = of(monkeypatch, replicas=2)
    loop.tritons.gate = asyncio.Event()
    await started(loop)
    ((gone, count),) = loop.tritons.loads
    loop.tritons.refuse[gone] = PodGoneError("connection refused")
    loop.world.pods = [
        replace(pod, phase="Loading") if pod.name == gone else pod for pod in loop.world.pods
    ]
    await loop.tick()
    loop.tritons.gate.set()
    await loop.settle()
    assert loop.counts["tokenizer"] == count
    (other,) = (pod.name for pod in loop.world.pods if pod.name != gone)
    assert loop.tritons.counts[other] == count
    await loop.tick()
    assert condition(loop, "ScalingActive")["reason"] == "Succeeded"


async def test_a_serving_pod_that_refuses_connections_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """As with a NetworkPolicy that admits only the metrics port."""
    loop = of(monkeypatch)
    loop.tritons.refuse[loop.world.pods[0].name] = PodGoneError("connection refused")
    tried = []
    for _ in range(60):
        loop.flow(**BUSY)
        before = len(loop.tritons.loads)
        await loop.tick()
        await loop.settle()
        if len(loop.tritons.loads) > before:
            tried.append(loop.now)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps[:2] == [16, 32]
    reported = condition(loop, "ScalingActive")
    assert reported["reason"] == "ActuationFailed"
    assert "connection refused" in reported["message"]
    messages.check(reported["message"])
    assert loop.counts["tokenizer"] == 1


async def with_pending_increase(monkeypatch: pytest.MonkeyPatch) -> tuple[Loop, str, int]:
    """Return a loop in which the postprocess is being changed, its pod and the new count."""
    loop = of(monkeypatch, postprocess=POST)
    (pod,) = (pod.name for pod in loop.world.pods)
    loop.tritons.gates["postprocess"] = asyncio.Event()
    flows(loop, CALM, BUSY)
    await loop.tick()
    await eventually("a step is being changed", lambda: loop.tritons.loads)
    ((_, pending),) = loop.tritons.loads
    return loop, pod, pending


async def test_a_pending_increase_delays_no_other_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can last as long as an overload; another step can need more at any time of it."""
    loop, pod, pending = await with_pending_increase(monkeypatch)
    flows(loop, BUSY, BUSY)
    await loop.tick()
    await eventually("the other step is changed", lambda: pod in dict(loop.tritons.loads))
    state = loop.scaler._states[loop.key]
    await eventually("its change ends", lambda: state.changing_steps == {"postprocess"})
    assert loop.counts == {"tokenizer": loop.tritons.counts[pod], "postprocess": pending}
    assert loop.counts["tokenizer"] > 1
    loop.tritons.gates["postprocess"].set()
    await loop.settle()
    assert loop.tritons.counts[f"{pod}/postprocess"] == pending
    assert [name for name, _ in loop.tritons.loads].count(f"{pod}/postprocess") == 1


async def test_a_pending_increase_delays_pods_for_two_minutes_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = of(monkeypatch, tokenizer=CUSTOM, scaling={"pods": {"min": 1, "max": 4}})
    loop.tritons.gate = asyncio.Event()
    high = {"rate": 780.0, "service": 0.010, "pending": 400.0, "growth": 60.0}
    loop.flow(**BUSY)
    await loop.tick()
    await eventually("a pod is being changed", lambda: loop.tritons.loads)
    began = loop.now
    state = loop.scaler._states[loop.key]
    while loop.now - began < 240 and loop.world.deployment["spec"]["replicas"] == 1:
        loop.flow(**high)
        await loop.tick()
    assert 118 <= loop.now - began <= 130
    assert loop.world.deployment["spec"]["replicas"] > 1
    assert state.is_changing
    state.cancel_changes()


async def test_a_count_that_cannot_be_recorded_stops_no_other_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pending increase stays; only the new one is given up."""
    loop, pod, pending = await with_pending_increase(monkeypatch)
    loop.writes = False
    flows(loop, BUSY, BUSY)
    await loop.tick()
    state = loop.scaler._states[loop.key]
    await eventually("it is given up", lambda: state.changing_steps == {"postprocess"})
    loop.writes = True
    loop.reconcile()
    assert "could not be saved" in state.action_failure
    assert loop.counts == {"tokenizer": 1, "postprocess": pending}
    assert len(loop.tritons.loads) == 1
    loop.tritons.gates["postprocess"].set()
    await loop.settle()
    await loop.tick(20.0)
    await loop.settle()
    assert loop.counts["tokenizer"] == loop.tritons.counts[pod] > 1
    assert loop.counts["postprocess"] == loop.tritons.counts[f"{pod}/postprocess"] == pending


@pytest.mark.parametrize(
    ("tokenizer", "is_measured"), [({}, True), (CUSTOM, False)], ids=["built-in", "custom"]
)
async def test_an_increase_during_which_an_overload_begins_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tokenizer: dict[str, Any], is_measured: bool
) -> None:
    """The next decisions would expect each increase to take as long as this overload."""
    loop = of(monkeypatch, tokenizer=tokenizer)
    loop.tritons.gate = asyncio.Event()
    loop.flow(90.0, service=0.010)
    await loop.tick()
    await eventually("a pod is being changed", lambda: loop.tritons.loads)
    loop.flow(**BUSY)
    await loop.tick()
    loop.flow(90.0, service=0.010)  # the overload is over, so Triton completes the increase
    await loop.tick(10.0)
    loop.tritons.gate.set()
    await loop.settle()
    state = loop.scaler._states[loop.key].scaling_state
    assert state is not None
    assert loop.counts["tokenizer"] > 1
    assert (state.actuation is not None) is is_measured


async def test_a_metrics_outage_does_not_end_the_wait_for_an_increase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recorded count would fall without metrics."""
    loop = of(monkeypatch, tokenizer=CUSTOM)
    (pod,) = loop.world.pods
    loop.tritons.refuse[pod.name] = PodUnresponsiveError("deadline")
    loop.scaler.pace = replace(PACE, settle=0.2, overload=5.0)
    await started(loop)
    ((_, count),) = loop.tritons.loads
    loop.collector.says = MetricsFailure(MetricsProblem.ERROR, "Prometheus does not answer")
    await loop.tick()
    await asyncio.sleep(0.5)
    assert loop.scaler._states[loop.key].is_changing
    assert loop.counts == {"tokenizer": count}
    loop.tritons.counts[pod.name] = count  # Triton completes the increase after all
    await loop.settle()
    await loop.tick()
    assert loop.counts == {"tokenizer": count}
    assert loop.tritons.loads == [(pod.name, count)]


@pytest.mark.parametrize(
    "spec",
    [
        {"scaling": {"mode": "Advisory"}},
        {"scaling": {"mode": "Disabled"}},
        {"tokenizer": {"instances": {**RANGE, "max": 2}}},
    ],
    ids=["Advisory", "Disabled", "lower maximum"],
)
async def test_a_new_mode_or_maximum_ends_a_running_change(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    """A pod that is being changed gets the count; the others do not, and this is no failure."""
    loop = of(monkeypatch, tokenizer=CUSTOM, replicas=3)
    loop.tritons.gate = asyncio.Event()
    await started(loop)
    ((canary, count),) = loop.tritons.loads
    assert count > 2
    loop.world.change(**spec)
    await loop.tick()
    loop.tritons.gate.set()
    state = loop.scaler._states[loop.key]
    await loop.settle()
    assert loop.tritons.loads == [(canary, count)]
    assert state.action_failure == ""
    await loop.tick()
    await loop.settle()
    assert all(wanted <= 2 for _, wanted in loop.tritons.loads[1:])
