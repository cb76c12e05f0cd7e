"""The store against a model: whatever watch events and lists come, it ends as the cluster is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.api import names
from triton_pipelines.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store, owner_key


def obj(
    name: str, version: int, *, namespace: str = "n", uid: str = "", pipeline: str = "p"
) -> dict[str, Any]:
    labels = {names.LABEL_PIPELINE: pipeline} if pipeline else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or name,
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def test_owner_is_the_labelled_pipeline_or_the_pipeline_itself() -> None:
    assert owner_key(INFERENCE_PIPELINES, obj("a", 1)) == ("n", "a")
    assert owner_key(PODS, obj("a", 1)) == ("n", "p")
    assert owner_key(PODS, obj("a", 1, pipeline="")) is None


def test_put_tells_news_from_echoes() -> None:
    store = Store()
    assert store.put(DEPLOYMENTS, obj("a", 9))
    assert not store.put(DEPLOYMENTS, obj("a", 9))
    assert not store.put(DEPLOYMENTS, obj("a", 8))
    assert store.put(DEPLOYMENTS, obj("a", 10, uid="later"))
    found = store.get(DEPLOYMENTS, "n", "a")
    assert found is not None
    assert found["metadata"]["uid"] == "later"


def test_the_answer_to_a_write_does_not_bring_back_what_was_deleted_meanwhile() -> None:
    store = Store()
    store.put(DEPLOYMENTS, obj("a", 5))
    since = store.mark()
    store.remove(DEPLOYMENTS, "n", "a")
    assert not store.put(DEPLOYMENTS, obj("a", 6), since=since)
    assert store.get(DEPLOYMENTS, "n", "a") is None
    # A write that was sent later is news, and so is what the watch tells.
    assert store.put(DEPLOYMENTS, obj("a", 7), since=store.mark())
    store.remove(DEPLOYMENTS, "n", "a")
    assert store.put(DEPLOYMENTS, obj("a", 8))


def test_remove_spares_a_later_object_of_the_name() -> None:
    store = Store()
    store.put(DEPLOYMENTS, obj("a", 9, uid="later"))
    assert not store.remove(DEPLOYMENTS, "n", "a", uid="earlier")
    assert store.remove(DEPLOYMENTS, "n", "a", uid="later")
    assert not store.remove(DEPLOYMENTS, "n", "a")


def test_children_follow_the_label() -> None:
    store = Store()
    store.put(CONFIG_MAPS, obj("b", 1))
    store.put(CONFIG_MAPS, obj("a", 2))
    store.put(CONFIG_MAPS, obj("a", 3, namespace="other"))
    assert [child["metadata"]["name"] for child in store.children(CONFIG_MAPS, ("n", "p"))] == [
        "a",
        "b",
    ]
    store.put(CONFIG_MAPS, obj("a", 4, pipeline="q"))
    assert [child["metadata"]["name"] for child in store.children(CONFIG_MAPS, ("n", "p"))] == ["b"]
    assert [child["metadata"]["name"] for child in store.children(CONFIG_MAPS, ("n", "q"))] == ["a"]
    assert store.children(PODS, ("n", "p")) == []
    assert (store.count(CONFIG_MAPS), len(store.all(CONFIG_MAPS, "n"))) == (3, 2)


def test_of_a_pods_managed_fields_is_kept_who_resized_it_alone() -> None:
    store = Store()
    created, resized = (
        {"manager": "kube-controller-manager", "fieldsV1": {}},
        {"manager": "vpa", "subresource": "resize", "fieldsV1": {}},
    )
    for name, fields in (("a", [created]), ("b", [created, resized])):
        pod = obj(name, 1)
        pod["metadata"]["managedFields"] = fields
        store.put(PODS, pod)
    listed = obj("c", 1)
    listed["metadata"]["managedFields"] = [created, resized]
    store.replace(PODS, [*store.all(PODS), listed], since=store.mark())
    assert [pod["metadata"].get("managedFields") for pod in store.children(PODS, ("n", "p"))] == [
        None,
        [resized],
        [resized],
    ]


def test_a_list_finds_what_the_watch_missed() -> None:
    store = Store()
    store.put(PODS, obj("gone", 1, pipeline="gone"))
    store.put(PODS, obj("old", 2, pipeline="old"))
    store.put(PODS, obj("same", 3, pipeline="same"))
    store.put(PODS, obj("elsewhere", 4, namespace="other"))
    since = store.mark()
    listed = [
        obj("old", 5, pipeline="new-owner"),
        obj("same", 3, pipeline="same"),
        obj("new", 6, pipeline="new"),
    ]
    assert store.replace(PODS, listed, since=since, namespace="n") == {
        ("n", name) for name in ("gone", "old", "new-owner", "new")
    }
    assert {pod["metadata"]["name"] for pod in store.all(PODS)} == {
        "old",
        "same",
        "new",
        "elsewhere",
    }
    assert store.replace(PODS, listed, since=store.mark(), namespace="n") == set()


def test_a_list_does_not_undo_what_happened_while_it_was_on_its_way() -> None:
    store = Store()
    store.put(PODS, obj("deleted", 1))
    store.put(PODS, obj("changed", 2))
    since = store.mark()
    listed = [obj("deleted", 1), obj("changed", 2)]
    store.remove(PODS, "n", "deleted")
    store.put(PODS, obj("changed", 3))
    store.put(PODS, obj("created", 4))
    assert store.replace(PODS, listed, since=since) == set()
    assert {
        (pod["metadata"]["name"], pod["metadata"]["resourceVersion"]) for pod in store.all(PODS)
    } == {("changed", "3"), ("created", "4")}


NAMES = st.sampled_from(["a", "b", "c"])
OWNERS = st.sampled_from(["p", "q", ""])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "missed put", "missed delete", "echo", "list"]),
        NAMES,
        OWNERS,
    ),
    max_size=40,
)


@given(STEPS)
def test_after_a_list_the_store_is_what_the_cluster_is(steps: list[tuple[str, str, str]]) -> None:
    cluster: dict[str, dict[str, Any]] = {}
    past: list[dict[str, Any]] = []
    missed = False
    store = Store()
    for version, (step, name, owner) in enumerate([*steps, ("list", "a", "")], start=1):
        if step.endswith("put"):
            cluster[name] = obj(name, version, pipeline=owner)
            past.append(cluster[name])
            if step == "put":
                store.put(PODS, cluster[name])
            else:
                missed = True
        elif step.endswith("delete"):
            if cluster.pop(name, None) and step == "delete":
                store.remove(PODS, "n", name)
            else:
                missed = True
        elif step == "echo":
            # An older state of an object, as a slow watch delivers it after our own write.
            for old in past:
                if (
                    old["metadata"]["name"] == name
                    and name in cluster
                    and store.get(PODS, "n", name) is cluster[name]
                ):
                    assert not store.put(PODS, old)
        else:
            reported = store.replace(PODS, list(cluster.values()), since=store.mark())
            assert missed or not reported
            missed = False
            assert {pod["metadata"]["name"]: pod for pod in store.all(PODS)} == cluster
            for pipeline in ("p", "q"):
                expected = sorted(
                    key for key, pod in cluster.items() if owner_key(PODS, pod) == ("n", pipeline)
                )
                assert [
                    pod["metadata"]["name"] for pod in store.children(PODS, ("n", pipeline))
                ] == expected


def test_matching_reads_each_state_of_an_object_once() -> None:
    store, read = Store(), list[str]()

    def is_even(item: dict[str, Any]) -> bool:
        read.append(item["metadata"]["name"])
        return int(item["metadata"]["resourceVersion"]) % 2 == 0

    for number in range(100):
        store.put(DEPLOYMENTS, obj(f"d{number}", 1))
    assert store.matching(DEPLOYMENTS, is_even) == set()
    read.clear()
    store.put(DEPLOYMENTS, obj("d7", 2))
    assert store.matching(DEPLOYMENTS, is_even) == {("n", "d7")}
    assert read == ["d7"]
    store.put(DEPLOYMENTS, obj("d7", 3))
    store.put(DEPLOYMENTS, obj("d8", 4))
    store.remove(DEPLOYMENTS, "n", "d8")
    assert store.matching(DEPLOYMENTS, is_even) == set()


def test_the_state_of_a_pipeline_changes_with_each_of_its_objects() -> None:
    store, states = Store(), list[int]()
    changes: list[Callable[[], object]] = [
        lambda: store.put(INFERENCE_PIPELINES, obj("p", 1)),
        lambda: store.put(PODS, obj("a", 2)),
        lambda: store.put(PODS, obj("b", 3)),
        lambda: store.remove(PODS, "n", "a"),
        lambda: store.put(CONFIG_MAPS, obj("c", 4)),
        lambda: store.put(PODS, obj("b", 5)),
        lambda: store.put(PODS, obj("b", 6, pipeline="other")),
    ]
    for change in changes:
        change()
        states.append(store.state_of(("n", "p")))
    assert len(set(states)) == len(changes)
    store.put(PODS, obj("b", 7, pipeline="other"))
    assert store.state_of(("n", "p")) == states[-1]


def test_no_state_is_kept_of_a_pipeline_without_objects() -> None:
    store = Store()
    store.put(INFERENCE_PIPELINES, obj("p", 1))
    store.put(CONFIG_MAPS, obj("c", 2))
    before = store.state_of(("n", "p"))
    store.remove(INFERENCE_PIPELINES, "n", "p")
    assert store._changed.keys() == {("n", "p")}
    store.remove(CONFIG_MAPS, "n", "c")
    assert not store._changed
    store.put(INFERENCE_PIPELINES, obj("p", 3))
    assert store.state_of(("n", "p")) not in {0, before}
