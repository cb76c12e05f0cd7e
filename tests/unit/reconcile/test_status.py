"""Test what the status and events report for a pipeline of any shape.

Covered are shapes, steps, sources, warnings, and what Triton would reject.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.worldchecks import check_status
from tests.support.worlds import START, World
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadReport, ReportSource
from triton_pipelines.controllers.pipeline.planner import Context, plan
from triton_pipelines.controllers.pipeline.snapshot import ModelState, Probe
from triton_pipelines.controllers.pipeline.status_events import transitions

CODE = {"platform": "python", "python": {"code": {"inline": "class TritonPythonModel: ..."}}}
TENSOR = {"dataType": "FP32", "dims": [4]}


def step(name: str, **fields: Any) -> dict[str, Any]:
    """A python step that reads X and makes Y."""
    return {
        "name": name,
        **CODE,
        "inputs": [{"name": "X", **TENSOR}],
        "outputs": [{"name": "Y", **TENSOR}],
        **fields,
    }


WITHOUT_TOKENIZER: dict[str, Any] = {
    "tokenizer": None,
    "model": None,
    "postprocess": None,
    "steps": [step("scale")],
}


def status(world: World) -> dict[str, Any]:
    """Its status after everything has settled."""
    return world.settle().status


# --- shapes and parts -----------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "shape"), [(8, [-1, 4]), (0, [4])])
def test_shapes_have_a_batch_axis_where_there_is_one(batch: int, shape: list[int]) -> None:
    reported = status(
        World(
            builders.document(**WITHOUT_TOKENIZER | {"steps": [step("scale", maxBatchSize=batch)]})
        )
    )
    assert reported["ensemble"]["inputs"] == [{"name": "X", "dataType": "FP32", "shape": shape}]
    assert reported["ensemble"]["outputs"] == [{"name": "Y", "dataType": "FP32", "shape": shape}]


def test_a_pipeline_without_tokenizer_tells_nothing_of_one() -> None:
    reported = status(World(builders.document(**WITHOUT_TOKENIZER)))
    assert "tokenizer" not in reported
    assert "padding" not in reported


def test_auxiliary_models_are_steps_too() -> None:
    changes = WITHOUT_TOKENIZER | {
        "steps": [step("entry")],
        "auxiliaryModels": [step("helper")],
        "ensemble": {"entryPoint": "entry"},
    }
    reported = status(World(builders.document(**changes)))
    assert [(item["name"], item["role"]) for item in reported["steps"]] == [
        ("entry", "Step"),
        ("helper", "Auxiliary"),
    ]


def test_a_model_with_several_versions_is_ready_once_in_a_pod() -> None:
    world = World(builders.document(replicas=2)).started()
    states = (
        ModelState("model", "READY"),
        ModelState("model", "UNAVAILABLE", "unloaded"),
        ModelState("model", "READY"),
    )
    probe = Probe(START, True, states, inference_error="")
    observed = world.observed()
    observed.pipeline.pop("status")
    observed = replace(observed, probes=dict.fromkeys(observed.probes, probe))
    decided = plan(
        observed,
        Context(world.options, lambda uid, revision: f"key of {uid} {revision}"),
        world.now,
    )
    assert decided.status is not None
    (model,) = [item for item in decided.status["steps"] if item["name"] == "model"]
    assert (model["readyPods"], model["pods"]) == (2, 2)
    assert "reason" not in model


def test_each_source_of_a_step_is_reported() -> None:
    world = World(builders.document()).started()
    observed = world.observed()
    sources = (
        ReportSource(step="model", uri="s3://models/model.onnx", resolved_revision="etag"),
        ReportSource(
            step="model", slot="code", uri="s3://models/model.py", resolved_revision="other"
        ),
    )
    message = LoadReport(ok=True, revision=world.deployed, sources=sources).to_json()
    for one in observed.pods:
        one.raw["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"] = message
    observed = replace(
        observed,
        children={
            key: item
            for key, item in observed.children.items()
            if key[1] != names.live_name(world.name)
        },
    )
    decided = plan(
        observed,
        Context(world.options, lambda uid, revision: f"key of {uid} {revision}"),
        world.now,
    )
    assert decided.status is not None
    check_status(decided.status)
    assert [(item["step"], item["resolvedRevision"]) for item in decided.status["sources"]] == [
        ("model", "etag"),
        ("model.code", "other"),
    ]


# --- what Triton would refuse ---------------------------------------------------------------------


def test_what_triton_would_refuse_stalls_with_every_finding() -> None:
    patches = {
        "configPatch": {
            "maxBatchSize": -1,
            "dynamicBatching": {
                "maxQueueDelayMicroseconds": 100,
                "priorityLevels": 2,
                "defaultPriorityLevel": 5,
            },
        }
    }
    world = World(
        builders.document(model=patches, postprocess={"configPatch": {"maxBatchSize": -2}})
    )
    decided = world.step()
    assert not decided.apply
    reported = {item["type"]: item for item in world.status["conditions"]}
    assert (reported["Stalled"]["status"], reported["Stalled"]["reason"]) == ("True", "InvalidSpec")
    message = reported["Stalled"]["message"]
    assert "findings: (1) " in message
    for words in (
        "spec.model.configPatch",
        "spec.postprocess.configPatch",
        "priority",
        "(in the config of model: ",
    ):
        assert words in message
    assert world.status["observedGeneration"] == 1
    assert any(event.warning and event.reason == "InvalidSpec" for event in decided.events)


def test_what_a_release_does_not_know_names_the_release() -> None:
    server = {"image": "registry.example/tritonserver:24.10-py3"}
    world = World(builders.document(server=server, ensemble={"maxInflightRequests": 4}))
    world.step()
    message = next(
        item["message"] for item in world.status["conditions"] if item["type"] == "Stalled"
    )
    assert message.startswith("spec.ensemble.maxInflightRequests: ")
    assert "24.10" in message


# --- warnings as events ---------------------------------------------------------------------------


def doubts(world: World) -> list[str]:
    """Notes of the events that told of warnings so far."""
    return [
        event.note
        for decided in world.log
        for event in decided.events
        if event.reason == "SpecWarning"
    ]


def test_each_warning_is_told_once_however_many_passes_and_generations() -> None:
    world = World().change(slo={"p99Milliseconds": 5}).settle()
    (first,) = doubts(world)
    reported = [f"{item['path']}: {item['message']}" for item in world.status["warnings"]]
    assert len(reported) > 1
    listed = "; ".join(f"({index}) {text}" for index, text in enumerate(reported, 1))
    assert first == f"{len(reported)} new warnings in status.warnings: {listed}"
    assert all(
        event.warning
        for decided in world.log
        for event in decided.events
        if event.reason == "SpecWarning"
    )
    world.settle()
    world.change(replicas=2).settle()
    assert doubts(world) == [first]
    world.change(model={"dynamicBatching": {"mode": "Disabled"}}).settle()
    assert len(doubts(world)) == 2
    assert doubts(world)[1].startswith("spec.model.dynamicBatching.mode: batching is disabled")


def test_a_warning_that_goes_is_no_event() -> None:
    many = [{"path": f"spec.steps[{index}]", "message": "doubtful"} for index in range(3)]
    assert len(transitions({}, {"warnings": many})) == 1
    assert transitions({"warnings": many}, {"warnings": many[1:]}) == []
