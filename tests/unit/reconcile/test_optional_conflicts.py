"""Another manager undoes each write of an object of a preflight or a tuning run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.builders import merge
from tests.support.messages import Messages
from tests.support.reconcilers import KEY
from tests.support.tuningworld import SLO
from tests.unit.reconcile.test_idle_pipelines import Place
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import ClusterError, Unavailable
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    JOBS,
    NETWORK_POLICIES,
    resource_of,
)
from triton_pipelines.controllers.pipeline.child_conflicts import name_of

SECONDS = 90
KINDS = (CONFIG_MAPS, DEPLOYMENTS, JOBS, NETWORK_POLICIES)
EGRESS = [{"ports": [{"port": 443}]}]


@dataclass(frozen=True)
class Case:
    """An edit of the spec, and an object that it requires."""

    edit: dict[str, Any]
    kind: str


CASES = {
    "the Job of a preflight": Case({"tokenizer": {"maxLength": 64}}, "Job"),
    "the NetworkPolicy of a preflight": Case({"tokenizer": {"maxLength": 64}}, "NetworkPolicy"),
    "the Deployment of a tuning run": Case({"tuning": {"request": "monday"}}, "Deployment"),
    "the NetworkPolicy of a tuning run": Case({"tuning": {"request": "monday"}}, "NetworkPolicy"),
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(
        monkeypatch,
        slo=SLO,
        rollout={"strategy": "NoSurge"},
        server={"networkPolicy": {"egress": EGRESS}},
    )


class Writes:
    """Applies of one object, which can be made to fail."""

    def __init__(self, place: Place, item: Object) -> None:
        self.count, self.error = 0, Exception()
        self.fails = False
        apply: Callable[..., Any] = place.client.apply

        async def counted(obj: Object, **options: Any) -> Object:
            if (obj["kind"], obj["metadata"]["name"]) == (item["kind"], item["metadata"]["name"]):
                self.count += 1
                if self.fails:
                    raise Unavailable(500, "InternalError", "failed calling webhook")
            found: Object = await apply(obj, **options)
            return found

        place.client.apply = counted  # type: ignore[method-assign]


async def begun(place: Place, case: Case) -> tuple[Object, Writes]:
    """Edit the spec of a pipeline that serves; return the object that this creates."""
    await place.settle()
    before = objects(place).keys()
    place.client.document = place.client.stored(
        merge(place.client.document, {"spec": case.edit, "metadata": {"generation": 2}})
    )
    place.store.put(INFERENCE_PIPELINES, place.client.document)
    for _ in range(5):
        await place.reconcile(1.0)
    item = min(
        (
            item
            for key, item in objects(place).items()
            if key not in before and item["kind"] == case.kind
        ),
        key=name_of,
    )
    return item, Writes(place, item)


def objects(place: Place) -> dict[tuple[str, str], Object]:
    return {
        (resource.kind, item["metadata"]["name"]): item
        for resource in KINDS
        for item in place.store.all(resource, KEY[0])
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_an_object_that_is_deleted_after_each_write_is_created_less_and_less_often(
    place: Place, case: Case, messages: Messages
) -> None:
    item, writes = await begun(place, case)
    for _ in range(SECONDS):
        place.store.remove(resource_of(item), KEY[0], item["metadata"]["name"])
        await place.reconcile(1.0)
    assert 1 <= writes.count <= 18
    warnings = place.client.statuses[-1]["warnings"]
    (warning,) = (found for found in warnings if found["path"] == "metadata.name")
    messages.check(warning["message"])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_write_that_always_fails_is_repeated_less_and_less_often(
    place: Place, case: Case
) -> None:
    item, writes = await begun(place, case)
    writes.fails = True
    place.store.remove(resource_of(item), KEY[0], item["metadata"]["name"])
    for _ in range(SECONDS):
        try:
            await place.reconcile(1.0)
        except ClusterError:
            continue
    assert 1 <= writes.count <= 18
