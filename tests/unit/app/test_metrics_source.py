"""The metrics source in the status: after a restart, after a change, and if it does not exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.loops import Loop, loop_of
from tests.support.messages import Messages
from tests.support.worlds import World
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)
from triton_pipelines.autoscaling.types import REASON_MAX
from triton_pipelines.controllers.autoscaler.actuator import PodRejectedError

CONNECTION = 'Prometheus connection "default"'


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return loop_of(
        monkeypatch,
        World(
            builders.document(tokenizer={"instances": {"initial": 1, "min": 1, "max": 8}}),
            rendered={},
        ).started(),
    )


def available(loop: Loop) -> dict[str, Any]:
    """Condition MetricsAvailable."""
    return loop.world.condition("MetricsAvailable")


def gone(address: str) -> MetricsFailure:
    """What a collector says where nobody listens."""
    return MetricsFailure(
        MetricsProblem.ERROR, f"{CONNECTION} ({address}): refuses the connection", CONNECTION
    )


async def reported_by_another(
    monkeypatch: pytest.MonkeyPatch, loop: Loop, says: MetricsFailure | None, ticks: int = 1
) -> dict[str, Any]:
    """Return MetricsAvailable after some ticks of a new process with this failure, if any."""
    second = loop_of(monkeypatch, loop.world)
    for _ in range(ticks):
        if says is None:
            second.flow(50.0, service=0.010)
        else:
            second.collector.says = says
        await second.tick(2.0)
    return available(second)


async def test_another_process_that_asks_elsewhere_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch, loop: Loop
) -> None:
    """A URL that is set, wrong, changed to another wrong one and removed, each with a restart."""
    for _ in range(5):
        loop.flow(50.0, service=0.010)
        await loop.tick()
    assert available(loop)["reason"] == "Succeeded"
    for address in ("http://10.99.0.1:1234", "http://10.99.0.2:1234"):
        reported = await reported_by_another(monkeypatch, loop, gone(address))
        assert (reported["status"], reported["reason"]) == ("False", "PrometheusError")
        assert address in reported["message"]
    reported = await reported_by_another(monkeypatch, loop, None)
    assert (reported["status"], reported["message"]) == (
        "True",
        "metrics of every ready pod are read from test",
    )


async def test_a_connection_that_fails_since_a_start_is_told_within_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, loop: Loop
) -> None:
    loop.flow(50.0, service=0.010)
    await loop.tick()
    connection = replace(gone("http://10.99.0.1:1234"), source="test")
    assert (await reported_by_another(monkeypatch, loop, connection, ticks=10))["status"] == "True"
    assert (await reported_by_another(monkeypatch, loop, connection, ticks=17))["status"] == "False"


async def test_a_load_that_is_not_known_has_no_figures(loop: Loop) -> None:
    """Zero requests would be said of a pipeline that nobody measures."""
    for _ in range(5):
        loop.flow(50.0, service=0.010)
        await loop.tick()
    (figures,) = loop.status()["scaling"]["figures"]
    assert figures["requestsPerSecond"] == pytest.approx(50, rel=0.1)
    loop.collector.says = gone("http://10.99.0.1:1234")
    await loop.tick()
    assert loop.status()["scaling"]["bottleneck"] == "Unknown"
    assert "figures" not in loop.status()["scaling"]


async def test_a_metrics_failure_is_reported_once_without_its_reason(loop: Loop) -> None:
    """Users see the reason in front of it: in kubectl describe, events and the history."""
    loop.flow(50.0, service=0.010)
    await loop.tick()
    trouble = MetricsFailure(
        MetricsProblem.ERROR, f"{CONNECTION} (http://10.99.0.1:1234): gave no answer", CONNECTION
    )
    loop.collector.says = trouble
    await loop.tick()
    for kind in ("MetricsAvailable", "ScalingActive"):
        found = loop.world.condition(kind)
        assert (found["reason"], found["message"]) == ("PrometheusError", trouble.message)
    assert [
        event.note
        for made in loop.plans
        for event in made.events
        if event.reason == "PrometheusError"
    ] == [trouble.message]
    loop.plans.clear()
    for _ in range(40):
        await loop.tick()
    assert [made.status for made in loop.plans if made.status is not None] == []
    loop.collector.says = replace(trouble, message=f"{CONNECTION}: HTTP 401")
    for _ in range(40):  # a view in which only messages change is published once a minute
        await loop.tick()
    assert loop.world.condition("MetricsAvailable")["message"] == f"{CONNECTION}: HTTP 401"


async def test_a_history_entry_that_is_too_long_is_marked_as_cut(loop: Loop) -> None:
    (pod,) = loop.world.pods
    loop.tritons.refuse[pod.name] = PodRejectedError("no room, " * 60)
    loop.flow(95.0, service=0.010, pending=100.0, growth=10.0)
    await loop.tick()
    await loop.settle()
    await loop.tick()
    reason = loop.status()["scaling"]["history"][0]["reason"]
    assert reason.startswith("reverted: ")
    assert reason.endswith("…")
    assert len(reason) == REASON_MAX


async def test_where_metrics_are_read_from_is_told_though_no_figure_moves(
    loop: Loop, messages: Messages
) -> None:
    for source in ("test", "another"):
        for _ in range(40):
            loop.flow(50.0, service=0.010)
            made = loop.collector.says

            def says(
                one: ExpectedPods,
                made: Callable[[ExpectedPods], PipelineSample] = made,
                source: str = source,
            ) -> PipelineSample:
                return replace(made(one), source=source)

            loop.collector.says = says
            await loop.tick()
        assert source in available(loop)["message"]
        messages.check(available(loop)["message"])


async def test_an_unknown_connection_is_reported_even_if_pods_can_be_read(
    loop: Loop,
    messages: Messages,
) -> None:
    loop.flow(50.0, service=0.010)
    await loop.tick()
    assert "prometheusRef" not in available(loop)["message"]
    loop.world.change(scaling={"prometheusRef": "nosuch"})
    loop.flow(50.0, service=0.010)
    await loop.tick()
    reported = available(loop)
    assert reported["status"] == "True"
    assert "spec.scaling.prometheusRef" in reported["message"]
    assert "prometheus.url" in reported["message"]
    messages.check(reported["message"])
