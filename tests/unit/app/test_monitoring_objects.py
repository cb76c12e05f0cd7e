"""Findings about PodMonitors and PrometheusRules make a reconcile due (simulated API server)."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import START
from triton_pipelines.api import names, parse
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import Forbidden, NotFound
from triton_pipelines.cluster.resources import CONFIG_MAPS, INFERENCE_PIPELINES, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.render.monitoring import MonitoringSettings
from triton_pipelines.compile.render.objects import live_config_map
from triton_pipelines.controllers import monitoring_objects
from triton_pipelines.controllers.current_specs import CurrentSpecs
from triton_pipelines.controllers.failure_log import FailureLog
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.monitoring_objects import REJECTED, SLOTS, MonitoringObjects
from triton_pipelines.controllers.pipeline.policies.last_good_spec import last_good_data
from triton_pipelines.controllers.pipeline.report_state import WarningsState
from triton_pipelines.controllers.pipeline.snapshot import Object, Snapshot
from triton_pipelines.controllers.pipeline.state import PipelineState
from triton_pipelines.controllers.rejected_writes import RejectedWrites

KEY = ("nlp", "sentiment")
PATH = "spec.observability.podMonitor"


@dataclass
class Server:
    """Lists both kinds, or knows neither; what is applied is there."""

    serves: bool = True
    made: list[str] = field(default_factory=list)
    now: dt.datetime = START
    slow: dict[str, asyncio.Event] = field(default_factory=dict)
    """Namespaces in which writes wait."""
    waiting: int = 0
    """Number of these writes."""
    error: Exception | None = None
    """Raised by each write."""
    writes: int = 0

    async def list(self, resource: Resource, namespace: str | None, *, label_selector: str) -> Any:
        if not self.serves:
            raise NotFound(404, "NotFound", "page not found")
        return SimpleNamespace(items=[])

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        raise NotFound(404, "NotFound", f"{name} not found")

    async def apply(self, item: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
        self.writes += 1
        if (released := self.slow.get(item["metadata"]["namespace"])) is not None:
            self.waiting += 1
            await released.wait()
        if self.error is not None:
            raise self.error
        self.made.append(item["kind"])
        return item


def add(store: Store, document: Object, *findings: Finding) -> None:
    """Store a pipeline with its live ConfigMap."""
    document["metadata"]["resourceVersion"] = "1"
    store.put(INFERENCE_PIPELINES, document)
    pipeline, _ = parse(document)
    assert pipeline is not None
    state = PipelineState().with_states(WarningsState(monitoring=findings))
    live = live_config_map(pipeline, {names.KEY_STATE: state.to_json()})
    live["metadata"]["resourceVersion"] = "1"
    store.put(CONFIG_MAPS, live)


def watching(
    *findings: Finding, **observability: str
) -> tuple[MonitoringObjects, Server, list[tuple[str, str]]]:
    store, server, dues = Store(), Server(), list[tuple[str, str]]()
    add(store, builders.document(observability=observability), *findings)
    return (
        MonitoringObjects(
            cast(Client, server),
            store,
            (None,),
            MonitoringSettings(),
            frozenset(),
            dues.append,
            handover := Handover(),
            CurrentSpecs(handover),
            FailureLog("failed", OperatorMetrics().monitor_errors),
            Options(),
            RejectedWrites(lambda: server.now, REJECTED),
        ),
        server,
        dues,
    )


REPORTED = Finding(
    PATH,
    "the cluster does not serve PodMonitor",
    Severity.WARNING,
    code=FindingCode.MONITORING_NOT_APPLIED,
)


@pytest.mark.parametrize("mode", ["Enabled", "Auto", "Disabled"])
async def test_what_an_earlier_process_said_and_is_no_longer_true_is_cleared_at_the_first_look(
    mode: str,
) -> None:
    monitors, _, dues = watching(REPORTED, podMonitor=mode)
    assert monitors.handover.monitoring.get(KEY) is None
    await monitors.round()
    assert (monitors.handover.monitoring.get(KEY), dues) == ((), [KEY])
    await monitors.round()
    assert dues == [KEY], "once"


async def test_nothing_is_due_where_nothing_changes() -> None:
    monitors, _, dues = watching(podMonitor="Enabled")
    for _ in range(3):
        await monitors.round()
    assert dues == []


async def test_a_kind_that_comes_and_goes_is_told_each_time_once(messages: Messages) -> None:
    monitors, server, dues = watching(podMonitor="Enabled")
    server.serves = False
    for _ in range(3):
        await monitors.round()
    (found,) = monitors.handover.monitoring.get(KEY) or ()
    assert (found.path, dues) == (PATH, [KEY])
    assert "CRDs" in found.message
    messages.check(found.message)
    server.serves = True
    for _ in range(3):
        await monitors.round()
    assert (monitors.handover.monitoring.get(KEY), dues) == ((), [KEY, KEY])


async def test_a_warning_that_still_holds_after_a_restart_is_no_news() -> None:
    monitors, server, dues = watching(podMonitor="Enabled")
    server.serves = False
    await monitors.round()
    (found,) = monitors.handover.monitoring.get(KEY) or ()
    again, server, dues = watching(found, podMonitor="Enabled")
    server.serves = False
    await again.round()
    assert (again.handover.monitoring.get(KEY), dues) == ((found,), [])


async def test_a_spec_that_cannot_be_acted_on_takes_no_object_away() -> None:
    monitors, server, _ = watching(podMonitor="Enabled")
    pipeline, _ = parse(document := builders.document(observability={"podMonitor": "Enabled"}))
    assert pipeline is not None
    data = last_good_data(pipeline, Snapshot(document), is_blocked=False)
    live = live_config_map(pipeline, data)
    live["metadata"]["resourceVersion"] = "2"
    monitors.store.put(CONFIG_MAPS, live)
    refused = builders.document(
        observability={"podMonitor": "Disabled"}, postprocess={"labels": ["a", "b", "c"]}
    )
    refused["metadata"]["resourceVersion"] = "3"
    monitors.store.put(INFERENCE_PIPELINES, refused)
    await monitors.round()
    assert server.made == ["PodMonitor"]


async def test_slow_writes_in_one_namespace_delay_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitoring_objects, "PATIENCE_SECONDS", 0.05)
    monitors, server, _ = watching(podMonitor="Enabled")
    server.slow["hostile"] = asyncio.Event()
    for number in range(2 * SLOTS):
        document = builders.document(
            name=f"p{number}", namespace="hostile", observability={"podMonitor": "Enabled"}
        )
        add(monitors.store, document)
    for _ in range(3):
        await monitors.round()
    assert set(server.made) == {"PodMonitor"}
    assert (KEY, server.waiting) == (("nlp", "sentiment"), 1)
    assert monitors.handover.monitoring.keys() == {KEY}
    server.slow["hostile"].set()
    async with asyncio.timeout(30):
        while len(monitors.handover.monitoring) <= 2 * SLOTS:
            await monitors.round()


async def test_a_rejected_object_is_applied_less_and_less_often() -> None:
    monitors, server, _ = watching(podMonitor="Enabled")
    server.error = Forbidden(403, "Forbidden", "exceeded quota: team")
    for _ in range(2 * 60 * 2):  # two hours
        await monitors.round()
        server.now += dt.timedelta(seconds=monitors.round_seconds)
    assert 12 <= server.writes <= 16
    (found,) = monitors.handover.monitoring[KEY]
    assert "exceeded quota: team" in found.message
    server.error = None
    for _ in range(21):
        await monitors.round()
        server.now += dt.timedelta(seconds=monitors.round_seconds)
    assert server.made
    assert monitors.handover.monitoring[KEY] == ()
