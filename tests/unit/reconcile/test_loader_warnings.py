"""Check that loader warnings are in status.warnings and that each is reported once by an event."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.support.worlds import World
from triton_pipelines.api.loadplan import LoadFinding, LoadReason, LoadReport
from triton_pipelines.controllers.pipeline.planner import Context, Plan, plan

NOTE = LoadFinding(
    step="model",
    reason=LoadReason.ANSWERS_NOT_COMPARED,
    field="spec.model.source",
    message="5 GiB are not run here",
)
WARNED = {"path": "spec.model.source", "message": "AnswersNotCompared: 5 GiB are not run here"}


def seen(world: World, *findings: tuple[LoadFinding, ...]) -> Plan:
    """Reconcile while pods report these findings, pod by pod; write objects and status."""
    observed = world.observed()
    for pod, noted in zip(observed.pods, findings, strict=True):
        report = LoadReport(ok=True, revision=pod.revision, findings=noted)
        pod.raw["status"]["initContainerStatuses"][0]["state"] = {
            "terminated": {"exitCode": 0, "message": report.to_json()}
        }
    decided = plan(
        observed,
        Context(builders.options(), lambda uid, revision: f"key of {uid} {revision}"),
        world.now,
    )
    for item in decided.apply:
        world.take(item)
    if decided.status is not None:
        world.document["status"] = decided.status
    return decided


def warnings(world: World) -> list[Any]:
    return [
        item
        for item in world.status.get("warnings", [])
        if item["message"].startswith("AnswersNotCompared")
    ]


def test_it_is_told_once_whatever_the_number_of_pods() -> None:
    world = World(builders.document(replicas=2)).started()
    other = NOTE.model_copy(update={"message": "5.1 GiB are not run here"})
    decided = seen(world, (NOTE,), (other,))
    assert warnings(world) == [WARNED]
    assert [event.note for event in decided.events if event.reason == "SpecWarning"] == [
        f"{WARNED['path']}: {WARNED['message']}"
    ]
    assert seen(world, (NOTE,), (other,)).is_empty, "it stands, and nothing is written again"
    assert seen(world, (), ()).status is not None
    assert warnings(world) == []


def test_a_pod_that_words_it_otherwise_is_no_news() -> None:
    world = World(builders.document(replicas=2)).started()
    first, other = (
        NOTE.model_copy(update={"message": f"{size} GiB are not run here"})
        for size in ("5.1", "4.9")
    )
    seen(world, (first,), (first,))
    for findings in [((other,), (first,)), ((first,), (other,))]:
        assert seen(world, *findings).is_empty
    seen(world, (other,), (other,))
    assert [item["message"] for item in warnings(world)] == [
        "AnswersNotCompared: 4.9 GiB are not run here"
    ]


def test_a_recreated_pod_is_no_news() -> None:
    world = World(builders.document()).started()
    seen(world, (NOTE,))
    world.pods.clear()
    world.control()
    world.step()
    assert warnings(world) == [WARNED]
    world.change(tokenizer={"maxLength": 64}).step()
    assert warnings(world) == [], "another revision has not loaded anything"


@pytest.mark.parametrize(
    "reason", [LoadReason.MODEL_MISMATCH, LoadReason.TOKENIZER_SETTINGS_IGNORED]
)
def test_neither_what_fails_a_load_nor_what_is_the_rule_is_a_warning(reason: LoadReason) -> None:
    world = World(builders.document()).started()
    seen(world, (NOTE.model_copy(update={"reason": reason}),))
    assert not [item for item in world.status.get("warnings", []) if "5 GiB" in item["message"]]
