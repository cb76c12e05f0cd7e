"""Restart the operator over a pipeline that serves, while its pods do not respond in time."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
from collections import Counter

import pytest

from tests.support.builders import merge
from tests.support.reconcilers import reconciler_of
from tests.support.worlds import START
from tests.unit.reconcile.test_idle_pipelines import Place, running_probes
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import PODS
from triton_pipelines.cluster.work_queue import OUTCOME_OK
from triton_pipelines.controllers.pipeline.probe_record import MISSES_ALLOWED
from triton_pipelines.controllers.pipeline.reported_probes import (
    FIRST_PROBE_SECONDS,
    first_probe_after,
)
from triton_pipelines.controllers.timestamps import rfc3339

LATE = "no response before the deadline"


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """A settled pipeline with a new operator that has reconciled nothing yet."""
    place = Place(monkeypatch)
    await place.settle()
    restart(place)
    return place


def restart(place: Place) -> None:
    former = place.reconciler
    place.reconciler = reconciler_of(
        place.client, place.store, prober=place.probe, clock=former.clock
    )
    place.reconciler._probes.enqueue = place.enqueued.append


def written(place: Place) -> tuple[int, int]:
    return len(place.client.statuses), len(place.client.events)


def ready(place: Place) -> Object:
    conditions: list[Object] = place.client.statuses[-1]["conditions"]
    return next(item for item in conditions if item["type"] == "Ready")


async def test_a_first_probe_without_a_response_changes_nothing(place: Place) -> None:
    before, place.error = written(place), LATE
    await place.reconcile()
    await place.reconcile(31.0)
    assert place.probe_record.misses == 1
    assert written(place) == before
    place.error = ""
    await place.reconcile(31.0)
    assert written(place) == before
    assert not place.probe_record.is_reported


async def test_a_pod_that_stays_without_a_response_is_reported(place: Place) -> None:
    before, place.error = written(place), LATE
    await place.reconcile()
    for _ in range(MISSES_ALLOWED):
        await place.reconcile(31.0)
    assert written(place) == before
    await place.reconcile(31.0)
    assert ready(place)["status"] == "False"
    assert LATE in ready(place)["message"]


async def test_a_failed_test_inference_is_reported_with_the_first_probe(place: Place) -> None:
    before, place.fault = written(place), "output LABEL is missing"
    await place.reconcile()
    assert written(place) == before
    await place.reconcile(FIRST_PROBE_SECONDS)
    assert ready(place)["reason"] == "InferenceFailed"


async def test_recorded_output_mismatches_hold_until_a_pod_responds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place(monkeypatch)
    await place.settle()
    place.mismatch = "output A is INT64, declared FP32"
    await place.reconcile(31.0)
    await place.reconcile(31.0)
    assert "INT64" in str(place.client.statuses[-1]["warnings"])
    restart(place)
    before, place.error = written(place), LATE
    await place.reconcile()
    await place.reconcile(31.0)
    assert written(place) == before
    place.error = place.mismatch = ""
    await place.reconcile(31.0)
    assert "INT64" not in str(place.client.statuses[-1].get("warnings"))


async def test_a_pod_that_the_status_does_not_report_gets_no_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place(monkeypatch)
    await place.reconcile()
    restart(place)
    place.store.put(PODS, place.client.pod)
    place.error = LATE
    await place.reconcile()
    assert LATE in ready(place)["message"]


async def test_a_pod_that_is_newer_than_the_status_gets_no_credit(place: Place) -> None:
    pod = copy.deepcopy(place.client.pod)
    place.elapsed += 60.0
    pod["metadata"] |= {"uid": "replaced", "creationTimestamp": rfc3339(place.now())}
    place.store.put(PODS, merge(pod, {"metadata": {"resourceVersion": "9000"}}))
    place.error = LATE
    await place.reconcile()
    assert LATE in ready(place)["message"]


async def test_a_pod_whose_server_was_restarted_since_the_status_gets_no_credit(
    place: Place,
) -> None:
    pod = copy.deepcopy(place.client.pod)
    place.elapsed += 60.0
    (server,) = pod["status"]["containerStatuses"]
    server |= {"state": {"running": {"startedAt": rfc3339(place.now())}}, "restartCount": 1}
    pod["metadata"]["resourceVersion"] = "9000"
    place.store.put(PODS, pod)
    place.error = LATE
    await place.reconcile()
    assert LATE in ready(place)["message"]


async def test_a_restart_waits_for_no_probe_of_a_healthy_pod(place: Place) -> None:
    before, probes, place.hang = written(place), place.probes, asyncio.Event()
    result = await place.reconcile()
    assert result.outcome == OUTCOME_OK
    assert result.requeue_after is not None
    assert result.requeue_after <= FIRST_PROBE_SECONDS
    assert (written(place), place.probes) == (before, probes)


async def test_nothing_is_decided_before_the_first_probe_of_another_pod(place: Place) -> None:
    """The status does not report it as healthy."""
    pod = copy.deepcopy(place.client.pod)
    pod["metadata"] |= {"uid": "replaced", "resourceVersion": "9000"}
    pod["metadata"]["creationTimestamp"] = rfc3339(START + dt.timedelta(hours=1))
    place.store.put(PODS, pod)
    plans, place.hang = place.plans, asyncio.Event()
    assert (await place.reconcile()).outcome == "probing"
    assert place.plans == plans
    place.hang.set()
    await asyncio.wait_for(asyncio.gather(*running_probes(place)), 5)


def test_the_first_probes_of_healthy_pods_are_spread() -> None:
    uids = [f"pod-{number}" for number in range(300)]
    for period in (5.0, FIRST_PROBE_SECONDS, 3600.0):
        most = min(period, FIRST_PROBE_SECONDS)
        slots = Counter(int(10 * first_probe_after(uid, period) / most) for uid in uids)
        assert sorted(slots) == list(range(10))
        assert max(slots.values()) < 60


async def test_a_restart_plans_once(place: Place) -> None:
    plans = place.plans
    for _ in range(3):
        await place.reconcile(31.0)
    assert place.plans == plans + 1
