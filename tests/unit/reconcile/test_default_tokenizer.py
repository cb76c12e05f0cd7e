"""A release with another default implementation of the tokenizer replaces no running pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import builders
from tests.support.tuningworld import Tuning
from tests.support.worlds import BAD, World
from triton_pipelines.api import names
from triton_pipelines.api.tokenizer import TokenizerImplementation

PYTHON, NATIVE = TokenizerImplementation.PYTHON, TokenizerImplementation.NATIVE
ROLLS = {"tokenizer": {"maxLength": 64}}
KEEPS_PODS = {"scaling": {"scaleUp": {"cooldownSeconds": 20}}}


def upgraded(world: World | None = None, **spec: Any) -> World:
    """Return a settled pipeline of a release with the Python default, under the present one."""
    world = world or World(builders.document(**spec))
    world.options = builders.options(tokenizer=PYTHON)
    world.settle()
    assert implementation(world) is PYTHON
    world.options = builders.options(loader_image="registry.example/triton-pipelines:next")
    return world


def implementation(world: World, revision: str = "") -> TokenizerImplementation:
    """Return what the pods of a revision run: of the deployed one, if none is named."""
    name = names.revision_name(world.name, revision or world.deployed)
    data = world.children["ConfigMap", name]["data"]
    assert ("tokenizer.model.py" in data) == ("libraries" not in json.loads(data[names.KEY_PLAN]))
    return PYTHON if "tokenizer.model.py" in data else NATIVE


def test_a_new_pipeline_gets_the_native_tokenizer() -> None:
    assert implementation(World(builders.document()).started()) is NATIVE


def test_an_upgrade_changes_nothing() -> None:
    world = upgraded()
    assert world.step().is_empty


@pytest.mark.parametrize(
    "change", [{"replicas": 2}, {"tuning": {"request": "monday"}}, KEEPS_PODS], ids=str
)
def test_a_change_that_replaces_no_pods_keeps_the_implementation(change: dict[str, Any]) -> None:
    world = upgraded()
    before = world.deployed
    world.change(**change).settle()
    assert world.deployed == before
    assert world.step().is_empty


def test_a_change_that_replaces_pods_brings_the_native_tokenizer() -> None:
    world = upgraded()
    world.change(**ROLLS).settle()
    assert implementation(world) is NATIVE
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.step().is_empty


def test_an_upgrade_that_changes_the_pods_keeps_the_implementation() -> None:
    world = upgraded()
    before = world.deployed
    world.options = builders.options(substitute_runner=frozenset({"onnxruntime_onnx"}))
    world.settle()
    assert world.deployed != before
    assert implementation(world) is PYTHON


def test_a_lost_state_replaces_no_pods() -> None:
    world = upgraded()
    before = world.deployed
    del world.children["ConfigMap", names.live_name(world.name)]
    world.settle()
    assert world.deployed == before


@pytest.mark.parametrize("strategy", ["Surge", "NoSurge"])
def test_after_a_failed_native_tokenizer_the_former_spec_returns_to_its_pods(strategy: str) -> None:
    world = upgraded(rollout={"strategy": strategy})
    before, pods = world.deployed, [pod.name for pod in world.serving]
    world.change(**ROLLS)
    wanted = world.think().status
    assert wanted is not None
    world.verdicts[wanted["revision"]] = BAD
    world.settle()
    assert implementation(world, wanted["revision"]) is NATIVE
    world.change(tokenizer={"maxLength": None}).settle()
    assert world.deployed == before
    assert strategy == "NoSurge" or [pod.name for pod in world.serving] == pods
    assert world.reasons()["Ready"] == "True Succeeded"


def test_a_spec_that_becomes_valid_again_keeps_the_implementation() -> None:
    world = upgraded()
    before = world.deployed
    world.change(postprocess={"labels": ["a", "b", "c"]}).settle()
    assert world.reasons()["Ready"] == "False InvalidSpec"
    world.change(postprocess={"labels": ["negative", "positive"]}).settle()
    assert world.deployed == before


@pytest.mark.parametrize("written", [PYTHON, NATIVE])
def test_a_written_implementation_is_kept(written: TokenizerImplementation) -> None:
    world = upgraded()
    world.change(tokenizer={"implementation": written.value}).settle()
    assert implementation(world) is written
    world.change(**ROLLS).settle()
    assert implementation(world) is written


def test_a_removed_native_field_replaces_no_pods() -> None:
    world = World(builders.document(tokenizer={"implementation": "Native"})).started()
    before = world.deployed
    world.change(tokenizer={"implementation": None}).settle()
    assert world.deployed == before
    assert world.step().is_empty


def test_a_tuning_run_measures_the_implementation_that_serves() -> None:
    world = Tuning(builders.document(slo={"p99Milliseconds": 100}))
    upgraded(world)
    world.change(tuning={"request": "monday"}).step()
    (inputs,) = world.ours("ConfigMap")
    document = json.loads(inputs["data"]["pipeline.json"])
    assert document["spec"]["tokenizer"]["implementation"] == "Python"
