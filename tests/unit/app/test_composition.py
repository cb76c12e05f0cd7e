"""The composition root connects every part to one hand-over, and none can be built without it."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest

from tests.support import builders
from triton_pipelines.api.parse import parse
from triton_pipelines.app.composition import build_parts, start
from triton_pipelines.app.config import load_config
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.app.services import Services
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers import current_specs
from triton_pipelines.controllers.autoscaler.controller import Autoscaler
from triton_pipelines.controllers.current_specs import CurrentSpecs
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.monitoring_objects import MonitoringObjects
from triton_pipelines.controllers.pipeline import effective_spec
from triton_pipelines.controllers.pipeline.reconciler import Reconciler
from triton_pipelines.controllers.slo_latency import SloLatencyMonitor

CONNECTED = [Autoscaler, CurrentSpecs, MonitoringObjects, Reconciler, SloLatencyMonitor]


def services() -> tuple[Services, dict[str, Any]]:
    background: dict[str, Any] = {}
    return (
        Services(
            config=load_config(environ={}),
            client=cast(Client, None),
            store=Store(),
            metrics=OperatorMetrics(),
            control_key=b"k" * 32,
            enqueue=lambda key: None,
            run_in_background=background.__setitem__,
        ),
        background,
    )


async def test_all_parts_share_one_handover() -> None:
    given, _ = services()
    parts = build_parts(given)
    for part in (
        parts.reconciler,
        parts.autoscaler,
        parts.latency_monitor,
        parts.monitoring_objects,
    ):
        assert part.handover is parts.handover


async def test_specs_are_parsed_once_for_all_parts() -> None:
    parts = build_parts(services()[0])
    assert parts.latency_monitor.specs is parts.monitoring_objects.specs
    assert parts.latency_monitor.specs.handover is parts.handover


async def test_the_monitors_and_the_reconciler_parse_a_spec_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a restart, the monitors read each spec before it is reconciled."""
    parsed = list[Any]()

    def counted(raw: Any) -> Any:
        parsed.append(raw)
        return parse(raw)

    for module in (current_specs, effective_spec):
        monkeypatch.setattr(module, "parse", counted)
    given, _ = services()
    parts, document = build_parts(given), builders.document()
    pipeline = parts.monitoring_objects.specs.of(given.store, document)
    assert pipeline is not None
    assert parts.reconciler.resolver.read(document).pipeline is pipeline
    assert len(parsed) == 1


async def test_the_loops_run_in_the_background() -> None:
    given, background = services()
    parts = build_parts(given)
    assert background == {}
    start(parts, given)
    assert set(background) == {"scaling", "latency", "monitoring"}


async def test_no_metric_is_served_twice() -> None:
    """Two families of one name have different labels, and queries would mix them."""
    given, _ = services()
    given.store.put(INFERENCE_PIPELINES, builders.document())
    start(build_parts(given), given)
    names = [family.name for family in given.metrics.registry.collect()]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("part", CONNECTED)
def test_a_missing_handover_fails_at_start_up(part: type) -> None:
    parameters = dict(inspect.signature(part).parameters)
    given = {
        name: None
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name != "handover"
    }
    with pytest.raises(TypeError, match="handover"):
        part(**given)


def test_what_is_known_of_an_earlier_pipeline_of_the_name_is_not_returned() -> None:
    handover = Handover()
    raw = {"metadata": {"namespace": "n", "name": "p", "uid": "second"}}
    handover.effective_specs["n", "p"] = cast(Any, type("Spec", (), {"uid": "first"}))
    assert handover.effective_spec(raw) is None
    assert handover.intent(("n", "p")) is None
    assert handover.view(("n", "p")) is None
