"""A spec that cannot be acted on: the running revision is kept in repair all the same."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import builders
from tests.support.worlds import BAD, World
from triton_pipelines.api import names, parse
from triton_pipelines.api.spec_size import omit_large_spec
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.controllers.pipeline.policies import last_good_spec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

# Refused by a rule of the schema, by a check of the whole, and omitted when it is read.
INVALID: dict[str, dict[str, Any]] = {
    "schema": {"tokenizer": {"maxLength": "many"}},
    "check": {"postprocess": {"labels": ["a", "b", "c"]}},
    "size": {"server": {"podTemplate": {"metadata": {"annotations": {"a": "x" * 400_000}}}}},
}
MISSING = {
    "model": (
        "spec.model.source: configmap://weights/model.onnx: ConfigMap weights does not exist in "
        "namespace nlp; create it"
    )
}


def broken(how: str, **spec: Any) -> World:
    """A pipeline that serves, whose spec has then become invalid."""
    world = World(builders.document(replicas=2, **spec)).started()
    return spoiled(world, how)


def spoiled(world: World, how: str = "check") -> World:
    """Its spec becomes what cannot be acted on."""
    if how == "missing":
        world.missing_sources = MISSING
        world.digests = {}
        world.change(tokenizer={"maxLength": 64})
    else:
        world.change(**INVALID[how])
    if how == "size":
        omit_large_spec(world.document)
    world.step()
    return world


def reason(how: str) -> str:
    return "SourceUnavailable" if how == "missing" else "InvalidSpec"


HOW = [*INVALID, "missing"]
CHILDREN = ["Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget", "revision", "live"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", CHILDREN)
def test_a_deleted_child_of_the_running_revision_comes_back(kind: str, how: str) -> None:
    world = broken(how)
    revision, pods = world.deployed, [pod.name for pod in world.pods]
    named = {
        "live": names.live_name(world.name),
        "revision": names.revision_name(world.name, revision),
    }
    key = ("ConfigMap", named[kind]) if kind in named else (kind, world.name)
    before = world.children.pop(key)
    world.settle()
    for field in ("spec", "data"):
        if kind != "live":
            assert world.children[key].get(field) == before.get(field)
    assert world.children[key].get("data", {}).get(names.KEY_ACCEPTED) == before.get(
        "data", {}
    ).get(names.KEY_ACCEPTED)
    assert (world.deployed, [pod.name for pod in world.pods]) == (revision, pods)
    assert world.condition("Ready")["reason"] == reason(how)
    assert world.reasons()["Available"] == "True Serving"
    assert world.step().is_empty


@pytest.mark.parametrize("how", HOW)
def test_everything_deleted_at_once_comes_back(how: str) -> None:
    """Except for the state."""
    world = broken(how)
    revision = world.deployed
    kept = ("ConfigMap", names.live_name(world.name))
    world.children = {kept: world.children[kept]}
    world.pods.clear()
    world.settle()
    assert (world.deployed, {pod.revision for pod in world.serving}, len(world.serving)) == (
        revision,
        {revision},
        2,
    )
    assert world.condition("Ready")["reason"] == reason(how)


EDITS: list[tuple[str, list[Any], Any]] = [
    ("Deployment", ["spec", "replicas"], 7),
    ("Deployment", ["spec", "template", "spec", "containers", 0, "image"], "evil"),
    ("Deployment", ["spec", "template", "metadata", "labels", names.LABEL_REVISION], "0123456789"),
    ("Service", ["spec", "selector", names.LABEL_PIPELINE], "other"),
]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("kind", "path", "value"), EDITS, ids=[f"{kind}-{path[-1]}" for kind, path, _ in EDITS]
)
def test_an_edited_child_is_repaired(kind: str, path: list[Any], value: Any, how: str) -> None:
    world = broken(how)
    before = world.edit(kind, path, value)
    world.step()
    assert world.children[kind, world.name]["spec"] == before["spec"]


def test_a_rollout_that_has_started_continues() -> None:
    world = World(builders.document()).started()
    old = world.deployed
    world.change(tokenizer={"maxLength": 64}).step()
    new = world.deployed
    spoiled(world).settle()
    assert old != new
    assert {pod.revision for pod in world.serving} == {new} == {
        world.status["servingRevision"]
    } or world.state.rollout.verified == new
    assert world.state.rollout.verified == new


def test_a_rollout_that_has_begun_is_taken_back() -> None:
    world = World(builders.document(rollout={"strategy": "NoSurge"}), room=1).started()
    old = world.deployed
    world.change(tokenizer={"maxLength": 64}).step()
    world.run_pods().step()  # the preflight passes
    new = world.deployed
    world.verdicts[new] = BAD
    spoiled(world).settle()
    assert (world.deployed, {pod.revision for pod in world.serving}) == (old, {old})
    assert world.reasons()["Ready"] == "False InvalidSpec"
    assert world.state.rollout.failed_revision == new
    # Its own spec again is no other wish than the one that failed.
    world.change(postprocess={"labels": ["negative", "positive"]}).settle()
    assert (world.deployed, world.reasons()["Ready"]) == (old, "False RolledBack")


def test_a_valid_spec_is_acted_on_again() -> None:
    world = broken("check")
    old = world.deployed
    world.change(
        postprocess={"labels": ["negative", "positive"]}, tokenizer={"maxLength": 96}
    ).settle()
    assert world.deployed != old
    assert world.reasons()["Ready"] == "True Succeeded"


def test_a_new_release_of_the_operator_rolls_nothing_out_for_an_invalid_spec() -> None:
    world = broken("check")
    before = copy.deepcopy(world.deployment["spec"])
    world.options = builders.options(
        server_image="registry.example/tritonserver:24.12-py3",
        loader_image="registry.example/triton-pipelines:9",
    )
    world.settle()
    assert world.deployment["spec"] == before


def test_what_a_stricter_operator_refuses_keeps_serving() -> None:
    allowed = builders.options(pod_template=PodTemplateMode.ALLOW)
    template = {"spec": {"hostIPC": True}}
    world = World(builders.document(server={"podTemplate": template}), options=allowed).started()
    before, serving = copy.deepcopy(world.children), world.serving
    world.options = builders.options()
    world.settle()
    assert world.children == before
    assert world.serving == serving
    assert world.reasons()["Ready"] == "False InvalidSpec"
    assert world.reasons()["Available"].startswith("True")
    assert "--pod-template=allow" in world.condition("Stalled")["message"]
    world.options = allowed
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.serving == serving
    world.options = builders.options()
    world.change(server={"podTemplate": None}).settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert "hostIPC" not in world.deployment["spec"]["template"]["spec"]


def test_without_a_spec_that_was_ever_good_nothing_is_made() -> None:
    world = World(builders.document(postprocess={"labels": ["a", "b", "c"]}))
    world.step()
    assert world.children == {}
    assert world.reasons()["Stalled"] == "True InvalidSpec"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"spec": 3, "digests": {}}',
        '{"spec": {}, "digests": {}}',
        '{"spec": {"model": 1}, "digests": []}',
    ],
)
def test_an_invalid_record_is_no_error(text: str) -> None:
    world = broken("check")
    live = world.children["ConfigMap", names.live_name(world.name)]
    live["data"] = {**live["data"], names.KEY_ACCEPTED: text}
    world.forget()
    world.settle()
    assert world.reasons()["Stalled"] == "True InvalidSpec"
    world.change(postprocess={"labels": ["negative", "positive"]}).settle()
    assert world.reasons()["Ready"] == "True Succeeded"


def test_a_spec_that_is_very_long_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_good_spec, "KEPT_MAX", 100)
    world = World(builders.document()).settle()
    assert (
        names.KEY_ACCEPTED not in world.children["ConfigMap", names.live_name(world.name)]["data"]
    )


def test_a_spec_that_is_very_long_takes_the_place_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what is kept would be what nobody has wanted for a while."""
    world = World(builders.document(server={"networkPolicy": {"mode": "Disabled"}})).started()
    monkeypatch.setattr(last_good_spec, "KEPT_MAX", 100)
    world.change(server={"networkPolicy": {"mode": "Enabled"}}, replicas=3).settle()
    monkeypatch.undo()
    live = world.children["ConfigMap", names.live_name(world.name)]["data"]
    assert names.KEY_ACCEPTED not in live
    world.change(**INVALID["check"]).settle()
    assert world.deployment["spec"]["replicas"] == 3
    assert ("NetworkPolicy", world.name) in world.children


CORPUS = sorted((Path(__file__).parents[2] / "corpus" / "good").glob("*.yaml"))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_is_recorded_asks_for_the_same(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    pipeline, findings = parse(document)
    assert pipeline is not None
    assert not findings
    recorded = last_good_spec.last_good_data(pipeline, Snapshot(document), is_blocked=False)
    again, findings = parse({**document, "spec": json.loads(recorded[names.KEY_ACCEPTED])["spec"]})
    assert (again, findings) == (pipeline, [])
    # An API server stores the spec with its defaults filled in. The record must equal the output of
    # `tritonpipe render --manifests`.
    stored, findings = parse(
        {
            **document,
            "spec": pipeline.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"],
        }
    )
    assert stored is not None
    assert last_good_spec.last_good_data(stored, Snapshot(document), is_blocked=False) == recorded


def test_what_is_recorded_is_the_spec_as_it_was_acted_on() -> None:
    world = broken("check")
    recorded = json.loads(
        world.children["ConfigMap", names.live_name(world.name)]["data"][names.KEY_ACCEPTED]
    )
    assert recorded["spec"]["postprocess"]["labels"] == ["negative", "positive"]
    assert world.document["spec"]["postprocess"]["labels"] == ["a", "b", "c"]


@pytest.mark.parametrize("stored", [False, True], ids=["as written", "with defaults"])
@pytest.mark.parametrize("how", HOW)
def test_the_number_of_pods_and_suspension_are_those_of_the_present_spec(
    how: str, stored: bool
) -> None:
    """Autoscalers write the one, and people in need the other."""
    world = spoiled(World(builders.document(replicas=2), defaults=stored).started(), how)
    revision = world.deployed
    world.change(replicas=3).settle()
    assert (world.deployed, len(world.serving)) == (revision, 3)
    world.change(suspend="Enabled").settle()
    assert (world.deployed, world.pods) == (revision, [])
    world.change(suspend=None, replicas=None).settle()
    assert (world.deployed, len(world.serving), world.condition("Ready")["reason"]) == (
        revision,
        1,
        reason(how),
    )


@pytest.mark.parametrize(
    ("field", "value"), [("replicas", "many"), ("suspend", "Perhaps"), ("tuning", {"request": 5})]
)
def test_each_of_them_only_where_it_is_valid(field: str, value: Any) -> None:
    world = World(builders.document(replicas=2)).started()
    revision = world.deployed
    world.change(**{field: value}).settle()
    assert (world.deployed, len(world.serving), world.reasons()["Ready"]) == (
        revision,
        2,
        "False InvalidSpec",
    )
    rest: dict[str, Any] = {"replicas": 3, "suspend": "Disabled"}
    world.change(**(rest | {field: value})).settle()
    assert len(world.serving) == (2 if field == "replicas" else 3)
    del world.children["Service", world.name]
    world.settle()
    assert ("Service", world.name) in world.children


def test_fields_of_the_current_spec_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration reads the last good spec several times, and its record may be long."""
    world = broken("check")
    world.change(replicas=7, suspend="Enabled")
    snapshot, parsed = world.observed(), list[Any]()

    def counted(document: Any) -> Any:
        parsed.append(document)
        return parse(document)

    monkeypatch.setattr(last_good_spec, "parse", counted)
    for _ in range(3):
        last = last_good_spec.last_good_snapshot(snapshot)
        assert last is not None
        assert last.pipeline["spec"]["replicas"] == 7
        assert last.pipeline["spec"]["suspend"] == "Enabled"
    assert len(parsed) == 1


def test_an_invalid_field_of_the_current_spec_keeps_no_other_from_its_effect() -> None:
    world = broken("check")
    world.change(replicas=8, suspend="sometimes")
    last = last_good_spec.last_good_snapshot(world.observed())
    assert last is not None
    assert last.pipeline["spec"]["replicas"] == 8
    assert last.pipeline["spec"].get("suspend") != "sometimes"
