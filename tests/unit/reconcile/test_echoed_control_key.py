"""A pod that writes its control key into its log does not reveal it in the status."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.support.reconcilers import KEY
from tests.unit.reconcile.test_idle_pipelines import Place
from triton_pipelines.api import names
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS
from triton_pipelines.controllers.pipeline.snapshot import Pod


@pytest.mark.parametrize("phase", ["state", "lastState"])
@pytest.mark.parametrize("padding", [0, 570], ids=["within", "across the cut"])
async def test_the_log_of_a_crashed_server_is_shown_without_the_control_key(
    monkeypatch: pytest.MonkeyPatch, phase: str, padding: int
) -> None:
    place = Place(monkeypatch)
    await place.settle()
    pipeline = place.store.get(INFERENCE_PIPELINES, *KEY)
    (stored,) = place.store.all(PODS)
    assert pipeline is not None
    key = place.reconciler.derive(pipeline["metadata"]["uid"], Pod.of(stored).revision)
    text = f"environment: KEY={key} {'x' * padding}"
    pod = copy.deepcopy(stored)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    pod["status"]["containerStatuses"] = [
        crashed({phase: {"terminated": {"message": text, "exitCode": 1}}})
    ]
    pod["metadata"]["resourceVersion"] = "77"
    place.store.put(PODS, pod)
    await place.reconcile(1.0)
    await place.reconcile(60.0)
    shown = json.dumps([place.client.statuses, place.client.events])
    assert key not in shown
    assert key[-20:] not in shown
    assert "its log ends with" in shown
    assert key in json.dumps(place.store.all(PODS)), "the cache is not changed"


def crashed(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": names.CONTAINER_SERVER, "ready": False, "restartCount": 1, **state}
