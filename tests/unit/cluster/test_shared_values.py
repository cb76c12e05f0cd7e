"""Sharing keeps the content of cached objects and stores equal parts once."""

from __future__ import annotations

import copy
import json
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.peakmemory import MIB, peak_growth
from triton_pipelines.cluster import shared_values
from triton_pipelines.cluster.resources import CONFIG_MAPS, PODS
from triton_pipelines.cluster.shared_values import SharedValues
from triton_pipelines.cluster.store import Store


class Phase(StrEnum):
    RUNNING = "Running"


FIELDS = st.recursive(
    st.just({}), lambda inner: st.dictionaries(st.sampled_from("abc."), inner, max_size=3)
)
TEXTS = st.sampled_from(["", "short", "x" * 2000, "y" * 2000, "ß" * 2000])


def revision(name: str, text: str = "x" * 2000, owner: str = "") -> dict[str, Any]:
    fields = {"f:data": {"f:model.py": {}, ".": {}}, "f:metadata": {"f:name": {}, owner: {}}}
    return {
        "metadata": {
            "name": name,
            "resourceVersion": "1",
            "managedFields": [{"manager": "m", "fieldsV1": fields}],
        },
        "data": {"model.py": text},
    }


@given(
    st.lists(
        st.tuples(st.dictionaries(st.sampled_from("kl"), TEXTS), st.lists(FIELDS, max_size=2)),
        max_size=6,
    )
)
def test_sharing_changes_no_content(contents: list[tuple[Any, list[Any]]]) -> None:
    shared = SharedValues()
    objects = [
        {"metadata": {"managedFields": [{"fieldsV1": one} for one in fields]}, "data": data}
        for data, fields in copy.deepcopy(contents)
    ]
    before = copy.deepcopy(objects)
    assert [shared.share(obj) for obj in objects] == before


def test_equal_files_and_fields_of_cached_objects_are_stored_once() -> None:
    store = Store()
    for name in ("a", "b"):
        # As decoded from two responses: equal, and not the same.
        store.put(CONFIG_MAPS, json.loads(json.dumps(revision(name))))
    store.put(CONFIG_MAPS, revision("c", "y" * 2000, owner="k:other"))
    a, b, c = (store.get(CONFIG_MAPS, "", name) for name in "abc")
    assert a is not None
    assert b is not None
    assert c is not None
    assert a["data"]["model.py"] is b["data"]["model.py"]
    of_a, of_b, of_c = (one["metadata"]["managedFields"][0]["fieldsV1"] for one in (a, b, c))
    assert of_a is of_b
    # Only what differs is separate.
    assert of_c is not of_a
    assert of_c["f:data"] is of_a["f:data"]


def test_equal_strings_of_cached_objects_are_stored_once() -> None:
    store = Store()
    for kind in (PODS, CONFIG_MAPS):
        obj = {"metadata": {"name": "a", "labels": {"app": "sentiment"}}, "x": [{"y": "sentiment"}]}
        store.put(kind, json.loads(json.dumps(obj)))
    pod, config_map = store.get(PODS, "", "a"), store.get(CONFIG_MAPS, "", "a")
    assert pod is not None
    assert config_map is not None
    assert pod["metadata"]["labels"]["app"] is config_map["metadata"]["labels"]["app"]
    assert pod["x"][0]["y"] is config_map["metadata"]["labels"]["app"]
    for one, other in ((pod, config_map), (pod["x"][0], config_map["x"][0])):
        for key, same in zip(one, other, strict=True):
            assert key is same


def test_a_string_is_not_replaced_by_an_equal_member_of_an_enumeration() -> None:
    shared = SharedValues()
    shared.share({"metadata": {"phase": Phase.RUNNING}})
    assert type(shared.share({"metadata": {"phase": "Running"}})["metadata"]["phase"]) is str


LARGE_EDITS = """
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Store

async def main(kind):
    store = Store()
    for number in range(60):
        metadata = {"name": "a", "resourceVersion": str(number)}
        obj = {"metadata": metadata, "data": {}}
        if kind == "fields":
            fields = {f"f:{number}-{key}": {} for key in range(30_000)}
            metadata["managedFields"] = [{"fieldsV1": {"f:data": fields}}]
        else:
            obj["data"]["model.py"] = f"{number:05}{kind}" + "x" * 1_000_000
        store.put(CONFIG_MAPS, obj)
"""


@pytest.mark.parametrize("kind", ["fields", "\N{GRINNING FACE}"])
def test_edits_of_large_objects_take_a_bounded_part_of_the_memory(kind: str) -> None:
    """Anyone who may edit a ConfigMap of a pipeline may do so any number of times."""
    assert peak_growth(LARGE_EDITS, kind) < 100 * MIB


def test_sharing_starts_anew_without_changing_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_values, "_BYTES_MAX", 10_000)
    monkeypatch.setattr(shared_values, "_STRINGS_MAX", 12)
    shared = SharedValues()
    for number in range(50):
        obj = revision("a", f"{number}" * 2000, owner=f"k:{number}")
        assert shared.share(obj) == revision("a", f"{number}" * 2000, owner=f"k:{number}")
    assert len(shared._texts) <= 5
    assert len(shared._strings) <= 12


def test_pods_have_no_managed_fields_to_share() -> None:
    store, pod = Store(), revision("a")
    store.put(PODS, pod)
    assert "managedFields" not in pod["metadata"]
