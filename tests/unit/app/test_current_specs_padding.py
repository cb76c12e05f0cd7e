"""Scaling uses the effective spec: with the measured padding, or the loader's fallback."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.support import builders
from tests.support.loops import Loop, loop_of
from tests.support.worlds import STIFF, World
from triton_pipelines.api import names
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.fingerprint import cost_fingerprint
from triton_pipelines.controllers.current_specs import CurrentSpecs
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.padding_choices import VerifiedPadding, data

RANGE = {"initial": 1, "min": 1, "max": 8}
CHOICE = VerifiedPadding(Padding.BUCKETED, (32, 128), "measured: it is better", "monday")


def seen(loop: Loop) -> tuple[str, tuple[int, ...], Any]:
    """How the scaling loop takes tokens to be padded, and what a row of the model's input is."""
    graph = loop.scaler._states[loop.key].graph
    assert graph.padding is not None
    (model,) = [step for step in graph.steps if step.name == "model"]
    return graph.padding.chosen.value, graph.padding.buckets, model.flat


async def test_the_padding_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with a tuning run, and no spec changes."""
    document = builders.document(
        model={"platform": "tensorrt_plan"}, tokenizer={"instances": RANGE}
    )
    loop = loop_of(monkeypatch, World(document).started())
    loop.flow(1.0, service=0.010)
    await loop.tick()
    assert seen(loop) == ("Fixed", (), None)
    fingerprint = cost_fingerprint(builders.pipeline(**document["spec"]), loop.world.options, {})
    loop.live_config_map()["data"] |= data({fingerprint: CHOICE})
    loop.reconcile()
    assert loop.status()["padding"]["chosen"] == "Bucketed"
    await loop.tick()
    assert seen(loop) == ("Bucketed", (32, 128, 512), None)


async def test_the_padding_that_is_left_where_the_loader_refused_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(builders.document(tokenizer={"instances": RANGE}))
    world.step()
    world.verdicts[world.deployed] = STIFF
    loop = loop_of(monkeypatch, world.settle())
    assert json.loads(loop.live[names.KEY_PADDING])
    loop.flow(1.0, service=0.010)
    await loop.tick()
    assert loop.status()["padding"]["chosen"] == "Fixed"
    assert seen(loop) == ("Fixed", (), None)


async def test_nothing_is_scaled_before_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to run is the passes' decision."""
    loop = loop_of(monkeypatch, World(builders.document(tokenizer={"instances": RANGE})).started())
    loop.scaler.handover.effective_specs.clear()
    loop.flow(95.0, service=0.010, pending=100.0, growth=10.0)
    await loop.tick()
    assert loop.scaler.handover.intent(loop.key) is None
    loop.reconcile()
    loop.flow(95.0, service=0.010, pending=100.0, growth=10.0)
    await loop.tick()
    await loop.settle()
    assert loop.counts["tokenizer"] > 1


def test_a_spec_is_the_same_without_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not another reading of it: what passes go by is held once."""
    loop = loop_of(monkeypatch, World(builders.document()).started())
    loop.cache()
    alone = CurrentSpecs(Handover()).of(loop.store, loop.world.document)
    handover = loop.scaler.handover
    effective = handover.effective_spec(loop.world.document)
    assert effective is not None
    specs = CurrentSpecs(handover)
    assert specs.of(loop.store, loop.world.document) is effective.pipeline
    assert alone is not effective.pipeline
    other = copy.deepcopy(loop.world.document)
    other["metadata"]["uid"] = "another"
    assert handover.effective_spec(other) is None
