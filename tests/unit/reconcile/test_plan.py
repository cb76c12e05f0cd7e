"""Test what a reconcile writes and what it leaves alone.

Covered are children, Secrets, the live ConfigMap, history, images, pause and deletion.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.compile.graph.advisories import describe_advisories
from triton_pipelines.compile.render import Revision, render
from triton_pipelines.controllers.pipeline import compiled_pipeline
from triton_pipelines.controllers.pipeline.planner import Context, Plan, plan
from triton_pipelines.controllers.pipeline.snapshot import Object, Pod, Snapshot

CHANGE = {"tokenizer": {"maxLength": 64}}
NEW_SERVER = "registry.example/tritonserver:24.12-py3"
NEW_LOADER = "registry.example/triton-pipelines:9.9.9"


def kinds(decided: Plan) -> list[str]:
    return [item["kind"] for item in decided.apply]


def live(world: World, key: str) -> Any:
    return json.loads(world.children["ConfigMap", names.live_name(world.name)]["data"][key])


def edit_live(world: World, **data: str | None) -> None:
    found = world.children["ConfigMap", names.live_name(world.name)]
    found["data"] = {
        key: value for key, value in {**found["data"], **data}.items() if value is not None
    }


def containers(world: World) -> dict[str, str]:
    spec = world.deployment["spec"]["template"]["spec"]
    return {item["name"]: item["image"] for item in (*spec["initContainers"], *spec["containers"])}


def test_first_pass_applies_everything_in_an_order_that_may_end_anywhere() -> None:
    world = World(builders.document(replicas=2))
    decided = world.step()
    assert kinds(decided) == [
        "ConfigMap",
        "Secret",
        "ConfigMap",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Deployment",
    ]
    assert (
        decided.apply[0]["metadata"]["name"]
        == decided.apply[1]["metadata"]["name"]
        == names.revision_name(world.name, world.deployed)
    )
    assert decided.apply[2]["metadata"]["name"] == names.live_name(world.name)
    for item in decided.apply:
        (owner,) = item["metadata"]["ownerReferences"]
        assert owner["uid"] == world.document["metadata"]["uid"]
        assert owner["controller"] is True
    assert [event.reason for event in decided.events if event.reason != "SpecWarning"] == [
        "RolloutStarted"
    ]
    assert world.step().is_empty


def test_after_a_kill_at_any_write_the_next_reconcile_continues() -> None:
    rendered: dict[str, Any] = {}
    whole = World(rendered=rendered).started()
    for writes in range(9):
        world = World(rendered=rendered)
        world.step(writes)
        world.settle()
        assert set(world.children) == set(whole.children), writes
        assert set(world.secrets) == set(whole.secrets)
    leaving = World(rendered=rendered).started()
    for writes in range(9):
        world = copy.deepcopy(leaving)
        world.rendered = rendered
        world.change(**CHANGE).step(writes)
        # The next process finds another spec: nothing of the one in between is left over.
        world.change(tokenizer={"maxLength": 32}, rollout={"revisionHistoryLimit": 1}).settle()
        world.change(tokenizer={"maxLength": 33}).settle().change(
            tokenizer={"maxLength": 34}
        ).settle()
        revisions = {name for kind, name in world.children if kind == "ConfigMap"} - {
            names.live_name(world.name)
        }
        assert set(world.secrets) == revisions, writes
        assert len(revisions) == 2


def test_paused_writes_nothing_whatever_changes() -> None:
    world = World().started()
    world.document["metadata"]["annotations"] = {names.ANNOTATION_PAUSED: "true"}
    world.change(**CHANGE)
    del world.children["Service", world.name]
    assert world.step() == Plan()
    world.document["metadata"]["annotations"] = {names.ANNOTATION_PAUSED: "false"}
    assert "Service" in kinds(world.step())


def test_deletion_is_the_garbage_collectors() -> None:
    world = World().started()
    world.document["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    world.change(**CHANGE)
    assert world.step() == Plan()


CHILDREN = ["Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"]


@pytest.mark.parametrize("kind", [*CHILDREN, "live", "revision"])
def test_a_deleted_child_comes_back(kind: str) -> None:
    world = World(builders.document(replicas=2)).started()
    named = {
        "live": names.live_name(world.name),
        "revision": names.revision_name(world.name, world.deployed),
    }
    key = ("ConfigMap", named[kind]) if kind in named else (kind, world.name)
    before = world.children.pop(key)
    decided = world.step()
    # The lost state of what was applied costs one more apply of the Secret.
    assert kinds(decided) == (["Secret", "ConfigMap"] if kind == "live" else [key[0]])
    for field in ("spec", "data"):
        if kind != "live":
            assert world.children[key].get(field) == before.get(field)
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded"


EDITS: list[tuple[str, list[Any], Any]] = [
    ("Deployment", ["spec", "replicas"], 7),
    ("Deployment", ["spec", "template", "spec", "containers", 0, "image"], "evil"),
    ("Deployment", ["spec", "strategy", "rollingUpdate", "maxUnavailable"], 1),
    ("Service", ["spec", "ports", 0, "port"], 9000),
    ("Service", ["spec", "selector", names.LABEL_PIPELINE], "other"),
    ("NetworkPolicy", ["spec", "policyTypes"], ["Ingress", "Egress"]),
    ("PodDisruptionBudget", ["spec", "maxUnavailable"], 2),
    ("Service", ["metadata", "labels", names.LABEL_MANAGED_BY], "me"),
    ("Deployment", ["metadata", "ownerReferences"], []),
]


@pytest.mark.parametrize(
    ("kind", "path", "value"), EDITS, ids=[f"{kind}-{path[-1]}" for kind, path, _ in EDITS]
)
def test_an_edited_child_is_repaired(kind: str, path: list[Any], value: Any) -> None:
    world = World(builders.document(replicas=2)).started()
    before = world.edit(kind, path, value)
    assert kinds(world.step()) == [kind]
    for part in ("spec", "metadata"):
        now = world.children[kind, world.name][part]
        assert {**now, "generation": 0, "annotations": {}} == {
            **before[part],
            "generation": 0,
            "annotations": {},
        }


def test_a_child_that_is_no_longer_wanted_goes_and_others_objects_stay() -> None:
    world = World().started()
    foreign: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mine", "labels": names.labels(world.name), "uid": "u"},
    }
    world.children["ConfigMap", "mine"] = foreign
    left = copy.deepcopy(foreign)
    left["metadata"] |= {
        "name": "left",
        "ownerReferences": [{"uid": world.document["metadata"]["uid"]}],
    }
    world.children["ConfigMap", "left"] = left
    decided = world.change(server={"networkPolicy": {"mode": "Disabled"}}).step()
    assert [(item.kind, item.name) for item in decided.delete] == [
        ("ConfigMap", "left"),
        ("NetworkPolicy", world.name),
    ]
    assert all(item.uid for item in decided.delete)
    assert ("ConfigMap", "mine") in world.children


def test_history_is_pruned_secret_first() -> None:
    world = World(builders.document(rollout={"revisionHistoryLimit": 2})).started()
    revisions = [world.deployed]
    for length in (64, 32, 16, 8):
        world.pass_time(60).change(tokenizer={"maxLength": length}).settle()
        revisions.append(world.deployed)
    kept = {names.revision_name(world.name, revision) for revision in revisions[-3:]}
    assert {name for kind, name in world.children if kind == "ConfigMap"} == kept | {
        names.live_name(world.name)
    }
    assert set(world.secrets) == kept
    pruned = [item for decided in world.log for item in decided.delete]
    assert [(item.kind, item.name) for item in pruned] == [
        (kind, names.revision_name(world.name, revision))
        for revision in revisions[:2]
        for kind in ("Secret", "ConfigMap")
    ]
    assert (
        set(live(world, names.KEY_STATE)["control_secrets"]["digests"])
        == set(live(world, names.KEY_RESOLVED))
        == set(revisions[-3:])
    )
    # An old revision that comes back within the history is the one that was kept.
    world.change(tokenizer={"maxLength": 32}).settle()
    assert world.deployed == revisions[2]


def test_another_operator_key_changes_the_secret_but_no_pod() -> None:
    """A pod that is created later, as by ``kubectl rollout restart``, reads the new key."""
    world = World(builders.document()).started()
    context = Context(world.options, lambda uid, revision: f"another key of {uid} {revision}", True)
    decided = plan(world.observed(), context, world.now)
    secret, live_config = decided.objects
    name = names.revision_name(world.name, world.deployed)
    assert (secret["kind"], secret["metadata"]["name"]) == ("Secret", name)
    assert secret["stringData"] != world.secrets[name]["stringData"]
    assert live_config["metadata"]["name"] == names.live_name(world.name)
    assert (decided.delete, decided.starts_rollout) == ((), False)
    (server,) = world.deployment["spec"]["template"]["spec"]["containers"]
    read = [item for item in server["env"] if item["name"] == names.ENV_CONTROL_KEY]
    assert read[0]["valueFrom"]["secretKeyRef"]["name"] == name


@pytest.mark.parametrize(
    ("name", "revision"),
    [
        ("database-password", "0123456789"),
        ("{pipeline}-database-password", "database-password"),
        ("{pipeline}-0123456789", "9876543210"),
        ("{pipeline}-01234567890", "01234567890"),
        ("{pipeline}-database-0123456789", "0123456789"),
        ("{pipeline}-ABCDEF0123", "ABCDEF0123"),
    ],
)
def test_a_config_map_made_by_hand_takes_no_secret_with_it(name: str, revision: str) -> None:
    """Never let a user who can write ConfigMaps, but no Secrets, make the operator delete a Secret.

    The operator deletes Secrets by name alone.
    """
    world = World(builders.document(rollout={"revisionHistoryLimit": 1})).started()
    name = name.format(pipeline=world.name)
    for number, made in enumerate((name, f"{name}-2", f"{name}-3")):  # more than the history keeps
        labels = {**names.labels(world.name), names.LABEL_REVISION: f"{revision}{number or ''}"}
        metadata = {
            "name": made,
            "uid": made,
            "labels": labels,
            "ownerReferences": [{"uid": world.document["metadata"]["uid"]}],
        }
        world.children["ConfigMap", made] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
        }
    decided = world.step()
    assert ("ConfigMap", name) in {(item.kind, item.name) for item in decided.delete}
    assert [item for item in decided.delete if item.kind == "Secret"] == []


def test_a_revision_in_use_outlives_the_history_limit() -> None:
    world = World(
        builders.document(rollout={"revisionHistoryLimit": 1, "strategy": "Surge"}), room=1
    ).started()
    serving = world.deployed
    for length in (64, 32, 16, 8):
        world.pass_time(60).change(tokenizer={"maxLength": length}).step()
        world.control().run_pods()
        world.step()
    assert [pod.revision for pod in world.serving] == [serving]
    assert names.revision_name(world.name, serving) in world.secrets


def missing(name: str) -> Object:
    return {
        "state": {
            "waiting": {
                "reason": "CreateContainerConfigError",
                "message": f'secret "{name}" not found',
            }
        }
    }


def pod_that_misses(world: World, name: str) -> Snapshot:
    observed = world.observed()
    raw = copy.deepcopy(observed.pods[0].raw)
    raw["status"]["conditions"] = []
    raw["status"]["containerStatuses"] = [
        {"name": names.CONTAINER_SERVER, "ready": False, **missing(name)}
    ]
    return replace(observed, pods=(Pod.of(raw),))


def test_a_secret_that_a_pod_misses_is_applied_again() -> None:
    world = World().started()
    context = Context(world.options, lambda uid, revision: f"key of {uid} {revision}")
    ours = names.revision_name(world.name, world.deployed)
    decided = plan(pod_that_misses(world, ours), context, world.now)
    assert kinds(decided) == ["Secret"]
    assert decided.apply[0]["stringData"] == world.secrets[ours]["stringData"]
    # The user's own Secret is not ours to make; without a change nothing is written about it.
    assert kinds(plan(pod_that_misses(world, "huggingface-token"), context, world.now)) == []


def test_a_pod_made_by_hand_gets_no_secret_of_its_choice() -> None:
    world = World().started()
    observed = pod_that_misses(world, f"{world.name}-database-password")
    raw = copy.deepcopy(observed.pods[0].raw)
    raw["metadata"]["labels"][names.LABEL_REVISION] = "database-password"
    context = Context(world.options, lambda uid, revision: f"key of {uid} {revision}")
    decided = plan(replace(observed, pods=(Pod.of(raw),)), context, world.now)
    assert [item["metadata"]["name"] for item in decided.apply if item["kind"] == "Secret"] == []


def test_another_operator_key_applies_the_secret_again() -> None:
    world = World().started()
    decided = plan(
        world.observed(), Context(world.options, lambda uid, revision: "another"), world.now
    )
    assert kinds(decided) == ["Secret", "ConfigMap"]
    assert "another" not in json.dumps(decided.apply[1])


def test_no_key_is_told_but_in_the_secret() -> None:
    world = World()
    decided = world.step()
    key = decided.apply[1]["stringData"][names.KEY_CONTROL]
    others = [item for item in decided.apply if item["kind"] != "Secret"]
    assert key not in json.dumps([others, decided.status, [event.note for event in decided.events]])
    assert "key of" not in repr(Context(world.options, lambda uid, revision: "key of"))


def test_live_counts_are_kept_and_clamped() -> None:
    world = World(
        builders.document(tokenizer={"instances": {"initial": 2, "min": 1, "max": 4}})
    ).started()
    assert live(world, names.KEY_COUNTS) == {"tokenizer": 2}
    edit_live(world, **{names.KEY_COUNTS: '{"tokenizer": 3}'})
    world.settle()
    assert live(world, names.KEY_COUNTS) == {"tokenizer": 3}
    # The pod there is keeps its two until scaling brings it in line.
    assert world.status["tokenizer"] == {"instances": 2, "desiredInstances": 3, "summary": "3/4"}
    revision = world.deployed
    edit_live(world, **{names.KEY_COUNTS: '{"tokenizer": 99, "gone": 1}'})
    assert world.settle().deployed == revision
    assert live(world, names.KEY_COUNTS) == {"tokenizer": 4}
    world.change(tokenizer={"instances": {"initial": 1, "min": 1, "max": 2}}).settle()
    assert live(world, names.KEY_COUNTS) == {"tokenizer": 2}


NONSENSE = [
    "",
    "[]",
    "3",
    "null",
    "{",
    '"x"',
    '{"tokenizer": "many"}',
    '{"tokenizer": true}',
    '{"secrets": [], "failed_reason": "Weather"}',
]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_in_the_live_config_map_is_forgotten(text: str) -> None:
    world = World().started()
    revision, counts = world.deployed, live(world, names.KEY_COUNTS)
    edit_live(world, **{names.KEY_COUNTS: text, names.KEY_STATE: text, names.KEY_RESOLVED: text})
    world.settle()
    assert (world.deployed, live(world, names.KEY_COUNTS)) == (revision, counts)
    assert world.reasons()["Ready"] == "True Succeeded"
    assert live(world, names.KEY_RESOLVED)[revision]


def test_sources_are_resolved_by_the_first_load_alone() -> None:
    world = World(builders.document(replicas=2)).started()
    first = min(world.pods, key=lambda pod: pod.name)
    assert live(world, names.KEY_RESOLVED) == {
        world.deployed: {"model": {"revision": f"etag-of-{first.name}"}}
    }
    kept = live(world, names.KEY_RESOLVED)
    world.pods.clear()
    world.settle()
    assert first.name not in {pod.name for pod in world.pods}
    assert live(world, names.KEY_RESOLVED) == kept
    old = world.deployed
    world.change(**CHANGE).settle()
    assert set(live(world, names.KEY_RESOLVED)) == {old, world.deployed}
    assert world.status["sources"][0]["resolvedRevision"].startswith("etag-of-")


def test_default_images_stay_until_the_spec_changes() -> None:
    world = World().started()
    before, revision, generation = (
        containers(world),
        world.deployed,
        world.deployment["metadata"]["generation"],
    )
    world.options = builders.options(server_image=NEW_SERVER, loader_image=NEW_LOADER)
    assert world.step().is_empty
    # Neither a new size nor a restart is a change of what the pods run.
    world.change(replicas=2).settle()
    assert (containers(world), world.deployed) == (before, revision)
    world.change(**CHANGE).settle()
    assert containers(world) == {
        names.CONTAINER_SERVER: NEW_SERVER,
        names.CONTAINER_LOADER: NEW_LOADER,
    }
    assert world.deployment["metadata"]["generation"] > generation
    # And from there on the new ones are kept.
    world.options = builders.options()
    assert world.step().is_empty


def test_a_patched_default_image_reaches_a_pipeline_with_its_next_change() -> None:
    """Until then the status says that the server that runs is affected."""

    def warned() -> set[str]:
        return {
            item["message"].partition(";")[0]
            for item in world.status.get("warnings", [])
            if item["path"] == "spec.server.image"
        }

    advisory = describe_advisories((24, 10))
    world = World(builders.document())
    world.options = builders.options(server_image="registry.example/tritonserver:24.10-py3")
    world.settle()
    before, revision = containers(world), world.deployed
    assert advisory in warned()
    world.options = builders.options()
    assert world.step().is_empty
    assert (containers(world), world.deployed) == (before, revision)
    assert advisory in warned()
    world.change(**CHANGE).settle()
    assert containers(world)[names.CONTAINER_SERVER] == builders.SERVER_IMAGE
    assert warned() == set()


def test_a_named_image_is_the_users() -> None:
    world = World(builders.document(server={"image": "registry.example/own:24.10-py3"})).started()
    old = world.deployed
    world.change(server={"image": "registry.example/own:24.10-py3.1"}).settle()
    assert containers(world)[names.CONTAINER_SERVER].endswith("3.1")
    assert world.deployed != old


@pytest.fixture
def new_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new operator release whose templates differ."""

    def changed(*arguments: Any) -> Revision:
        revision = render(*arguments)
        name = revision.name[::-1]
        text = json.dumps({**revision.data, "template": revision.template}).replace(
            revision.name, name
        )
        data = json.loads(text)
        template = data.pop("template")
        return replace(revision, name=name, content=lambda: (template, data))

    monkeypatch.setattr(compiled_pipeline, "render", changed)


def test_a_new_release_rolls_when_it_may(request: pytest.FixtureRequest) -> None:
    world = World().started()
    scaled = World().started().change(replicas=2).settle()
    old = world.deployed
    request.getfixturevalue("new_templates")
    for each in (world, scaled):
        each.may_roll = False
        decided = each.step()
        assert decided.is_empty
        assert decided.requeue_after is not None, "its turn must come by itself"
        assert (each.deployed, each.reasons()["Ready"]) == (old, "True Succeeded")
    # What the user changes does not wait for anybody.
    world.change(**CHANGE).settle()
    assert world.deployed != old
    scaled.may_roll = True
    assert scaled.settle().deployed == old[::-1]
    assert scaled.reasons()["Ready"] == "True Succeeded"
    assert scaled.step().requeue_after is None


def test_drift_is_repaired_while_a_release_waits(request: pytest.FixtureRequest) -> None:
    world = World().started()
    old = world.deployed
    request.getfixturevalue("new_templates")
    world.may_roll = False
    world.deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "evil"
    assert kinds(world.step()) == ["Deployment"]
    assert containers(world)[names.CONTAINER_SERVER] == builders.SERVER_IMAGE
    assert world.deployed == old


def test_a_spec_that_is_too_large_is_the_users_to_mend() -> None:
    labels = [f"{number:05d}{'x' * 251}" for number in range(4096)]
    world = World(
        builders.document(
            model={"outputs": [{"name": "logits", "dataType": "FP32", "dims": [4096]}]},
            postprocess={"labels": labels},
        )
    )
    decided = world.step()
    assert decided.apply == ()
    assert world.reasons()["Ready"] == "False InvalidSpec"
    assert "spec.postprocess.labels" in world.condition("Ready")["message"]


def test_status_is_written_only_when_it_says_something_else() -> None:
    world = World().started()
    for _ in range(3):
        assert world.pass_time(3600).control().run_pods().step().status is None
    world.document["status"]["conditions"][0]["message"] = "edited by hand"
    assert world.step().status is not None
    world.document["status"]["nonsense"] = 1
    assert world.step().status is not None
    assert world.step().is_empty


@pytest.mark.parametrize(
    "key",
    [
        names.KEY_STATE,
        names.KEY_COUNTS,
        names.KEY_PODS,
        names.KEY_PADDING,
        names.KEY_RESOLVED,
        names.KEY_SCALING,
    ],
)
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "null", "[1]", '{"replicas": 1e999, "tokenizer": true}'],
)
def test_an_edited_live_config_map_stops_nothing(key: str, text: str) -> None:
    world = World(builders.document(scaling={"pods": {"max": 3}})).started()
    world.children["ConfigMap", names.live_name(world.name)]["data"][key] = text
    assert world.settle().reasons()["Ready"] == "True Succeeded"
    assert len(world.serving) == 1


@pytest.mark.parametrize(
    "text", ['{"tokenizer": "3"}', '{"tokenizer": null}', '{"tokenizer": true}', "{}", "[]"]
)
def test_a_count_that_cannot_be_read_is_what_runs(text: str) -> None:
    """Pods that start must not bring fewer than those that run."""
    world = World(
        builders.document(tokenizer={"instances": {"initial": 1, "min": 1, "max": 4}})
    ).started()
    edit_live(world, **{names.KEY_COUNTS: '{"tokenizer": 3}'})
    world.settle()
    edit_live(world, **{names.KEY_COUNTS: text})
    world.step()
    assert live(world, names.KEY_COUNTS) == {"tokenizer": 3}
    assert world.step().is_empty


def test_without_a_source_a_pods_cpu_is_looked_after_and_no_tuning_run_begins() -> None:
    spec: dict[str, Any] = {
        "scaling": {"cpuResize": "InPlace"},
        "tokenizer": {"instances": {"initial": 1, "max": 4}},
    }
    world = World(builders.document(**spec, slo={"p99Milliseconds": 100})).started()
    (pod,) = world.pods
    world.missing_sources = {
        "model": "spec.model.source.uri: there is no ConfigMap weights; create it"
    }
    world.change(tuning={"request": "a"}).step()
    pod.asked = pod.given = {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}
    assert world.step().resize is not None, "as with the source"
    world.pass_time(1200).settle()
    assert not world.state.tuning_run.document.get("start"), "its pod could not load either"
    world.missing_sources = {}
    world.step()
    assert world.state.tuning_run.document["state"] == "Pending"
    assert any(item["kind"] == "Deployment" for item in world.log[-1].tuning_objects)


def test_a_source_that_went_missing_freezes_nothing_else() -> None:
    world = World(room=4).started()
    deployed = world.deployed
    world.missing_sources = {
        "model": "spec.model.source.uri: there is no ConfigMap weights; create it"
    }
    world.change(replicas=2, postprocess={"labels": ["down", "up"]}).settle()
    assert world.deployed == deployed, "no new revision can be made"
    assert world.deployment["spec"]["replicas"] == 2
    assert world.reasons()["Ready"] == "False SourceUnavailable"
    assert world.reasons()["Available"] == "True Serving"
    del world.children["Service", world.name]
    world.change(suspend="Enabled").settle()
    assert ("Service", world.name) in world.children
    assert world.deployment["spec"]["replicas"] == 0
