"""What one look at a pod says in the reconciler's terms."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import built
from triton_pipelines.compile.graph.example_request import example_of
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.prober import probe_pod, probe_request
from triton_pipelines.controllers.pipeline.snapshot import Pod
from triton_pipelines.triton.model_index import ModelIndexEntry
from triton_pipelines.triton.probe import ProbeResult

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
POD = Pod.of({"metadata": {"name": "a", "uid": "u"}, "spec": {}, "status": {"podIP": "10.0.0.1"}})


def target(**spec: Any) -> ProbeTarget:
    subject = built(**spec)
    return ProbeTarget(POD, subject.graph, "key", example_of(subject.pipeline, subject.graph))


def test_rows_of_a_request_that_was_made_up_can_be_taken_back() -> None:
    example = target().example
    assert example is not None
    asked = probe_request(example)
    assert {name: len(array) for name, array in asked.inputs.items()} == {"TEXT": 2}
    assert asked.fallback_inputs == example.inputs
    written = target(health={"text": "SELECT 1"}).example
    assert written is not None
    assert {name: len(array) for name, array in probe_request(written).inputs.items()} == {
        "TEXT": 1
    }
    assert probe_request(written).fallback_inputs is None


@pytest.mark.parametrize(
    ("spec", "alone", "reported"),
    [
        (
            {},
            False,
            "no (probed with 'Hello.' in 2 rows; spec.health.text or spec.health.inputs sets "
            "another example, of one row)",
        ),
        (
            {},
            True,
            "no (probed with 'Hello.'; spec.health.text or spec.health.inputs sets "
            "another example)",
        ),
        ({"health": {"text": "SELECT 1"}}, False, "no"),
    ],
)
async def test_a_failure_says_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], alone: bool, reported: str
) -> None:
    async def looked(*_: object) -> ProbeResult:
        return ProbeResult(True, inference_error="no", used_fallback=alone)

    monkeypatch.setattr("triton_pipelines.controllers.pipeline.prober.probe", looked)
    assert (await probe_pod(target(**spec), NOW)).inference_error == reported


async def test_a_probe_with_the_same_result_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton lists each version of a model, in no certain order; the status reports no time."""
    models = tuple(
        ModelIndexEntry(step.model_name, "1", state, "")
        for step, state in zip(target().graph.steps, ("READY", "LOADING", "READY"), strict=True)
    )
    second = replace(models[0], version="2")
    listed = [models, (second, *models[::-1])]

    async def looked(*_: object) -> ProbeResult:
        return ProbeResult(True, listed.pop())

    monkeypatch.setattr("triton_pipelines.controllers.pipeline.prober.probe", looked)
    first = await probe_pod(target(), NOW)
    later = await probe_pod(target(), NOW + dt.timedelta(seconds=30))
    assert first == later == replace(first, is_reported=True)
    assert first != replace(first, models=first.models[:2])


async def test_a_mismatch_is_no_failure_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def looked(*_: object) -> ProbeResult:
        return ProbeResult(
            True, inference_error="output PROBABILITIES is FP64, declared FP32", mismatch=True
        )

    monkeypatch.setattr("triton_pipelines.controllers.pipeline.prober.probe", looked)
    seen = await probe_pod(target(), NOW)
    assert seen.inference_error == ""
    assert seen.mismatch.startswith("output PROBABILITIES is FP64, declared FP32")
    assert seen.is_healthy
