"""Comparison of live and desired objects: examples from a real API server, and properties."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.cluster.diff import covers, needs_apply, owned_extra

MANAGER = "triton-pipelines"


def deployment() -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "sentiment",
            "namespace": "default",
            "labels": {"app.kubernetes.io/name": "triton-pipelines"},
        },
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "containers": [
                        {
                            "name": "triton",
                            "image": "triton:24.10",
                            "env": [{"name": "A", "value": "1"}, {"name": "EMPTY", "value": ""}],
                            "ports": [
                                {"containerPort": 8000, "name": "http"},
                                {"containerPort": 8001, "name": "grpc"},
                            ],
                            "resources": {
                                "requests": {"cpu": "1500m", "memory": "1Gi"},
                                "limits": {"nvidia.com/gpu": 1},
                            },
                            "volumeMounts": [
                                {"name": "data", "mountPath": "/tripe", "readOnly": False}
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "data", "emptyDir": {}},
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
                    ],
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "nodeSelector": {},
                },
            },
        },
    }


def served() -> dict[str, Any]:
    """The object above as an API server returns it, with defaults and canonical quantities."""
    live = copy.deepcopy(deployment())
    live["metadata"] |= {
        "uid": "1",
        "resourceVersion": "7",
        "generation": 1,
        "annotations": {"deployment.kubernetes.io/revision": "1"},
    }
    live["spec"] |= {"progressDeadlineSeconds": 600, "strategy": {"type": "RollingUpdate"}}
    spec = live["spec"]["template"]["spec"]
    spec |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always"}
    del spec["nodeSelector"]
    container = spec["containers"][0]
    container["imagePullPolicy"] = "IfNotPresent"
    del container["env"][1]["value"]
    for port in container["ports"]:
        port["protocol"] = "TCP"
    container["resources"] = {
        "requests": {"cpu": "1.5", "memory": "1024Mi", "nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    del container["volumeMounts"][0]["readOnly"]
    spec["volumes"][1]["emptyDir"]["sizeLimit"] = "1Gi"
    spec["containers"].insert(0, {"name": "injected", "image": "sidecar"})
    return live


def test_server_defaults_and_canonical_forms_are_no_difference() -> None:
    assert covers(served(), deployment()) == []


def test_a_missing_object_differs() -> None:
    assert covers(None, deployment()) == [""]
    assert needs_apply(None, deployment(), MANAGER) == [""]


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (lambda o: o["spec"].update(replicas=3), "spec.replicas"),
        (lambda o: o["metadata"]["labels"].clear(), "metadata.labels[app.kubernetes.io/name]"),
        (
            lambda o: o["spec"]["template"]["spec"]["containers"][1].update(image="x"),
            "spec.template.spec.containers[name=triton].image",
        ),
        (
            lambda o: o["spec"]["template"]["spec"]["containers"][1]["env"][0].update(value="2"),
            "spec.template.spec.containers[name=triton].env[name=A].value",
        ),
        (
            lambda o: o["spec"]["template"]["spec"]["containers"][1]["env"].pop(0),
            "spec.template.spec.containers[name=triton].env[name=A]",
        ),
        (
            lambda o: o["spec"]["template"]["spec"]["containers"][1]["ports"].pop(1),
            "spec.template.spec.containers[name=triton].ports[containerPort=8001]",
        ),
        (
            lambda o: o["spec"]["template"]["spec"]["containers"][1]["resources"][
                "requests"
            ].update(memory="1G"),
            "spec.template.spec.containers[name=triton].resources.requests.memory",
        ),
        (
            lambda o: o["spec"]["template"]["spec"]["volumes"].__setitem__(
                0, {"name": "data", "hostPath": {"path": "/"}}
            ),
            "spec.template.spec.volumes[name=data].emptyDir",
        ),
        (
            lambda o: o["spec"]["template"]["spec"]["volumes"][1]["emptyDir"].update(
                sizeLimit="2Gi"
            ),
            "spec.template.spec.volumes[name=shm].emptyDir.sizeLimit",
        ),
        (
            lambda o: o["spec"]["template"]["spec"]["tolerations"].append({"operator": "Exists"}),
            "spec.template.spec.tolerations",
        ),
        (
            lambda o: o["spec"]["template"]["spec"]["containers"][1]["volumeMounts"][0].update(
                readOnly=True
            ),
            "spec.template.spec.containers[name=triton].volumeMounts[mountPath=/tripe].readOnly",
        ),
    ],
)
def test_an_edit_by_hand_is_found_at_its_path(edit: Any, path: str) -> None:
    live = served()
    edit(live)
    assert covers(live, deployment()) == [path]


def test_ports_of_a_service_by_number_and_of_a_network_policy_by_place() -> None:
    service = {
        "spec": {
            "ports": [{"port": 8000, "targetPort": 8000}, {"port": 8001, "targetPort": "grpc"}]
        }
    }
    live = {
        "spec": {
            "ports": [
                {"port": 8001, "targetPort": "grpc", "protocol": "TCP", "nodePort": 3},
                {"port": 8000, "targetPort": "8000", "protocol": "TCP"},
            ]
        }
    }
    assert covers(live, service) == []
    live["spec"]["ports"][0]["targetPort"] = "http"
    assert covers(live, service) == ["spec.ports[port=8001].targetPort"]
    policy = {"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 8000}], "from": []}, {}]}}
    stored = {
        "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 8000, "protocol": "TCP"}]}, {}]}
    }
    assert covers(stored, policy) == []
    stored["spec"]["ingress"][0]["ports"].append({"port": 22, "protocol": "TCP"})
    assert covers(stored, policy) == ["spec.ingress[0].ports"]


def test_an_empty_selector_is_not_an_absent_one() -> None:
    peer = {"spec": {"ingress": [{"from": [{"namespaceSelector": {}}]}]}}
    assert covers({"spec": {"ingress": [{"from": [{"podSelector": {}}]}]}}, peer) == [
        "spec.ingress[0].from[0].namespaceSelector"
    ]


@pytest.mark.parametrize(
    ("stored", "path"),
    [
        ({"selector": {"a": "b", "c": "d"}}, "spec.selector.c"),
        ({"selector": {"a": "b"}, "other": 1}, None),
        ({"selector": {"a": "b", "c": None}}, None),
    ],
)
def test_an_apply_replaces_selectors_as_a_whole(stored: dict[str, Any], path: str | None) -> None:
    found = covers({"spec": stored}, {"spec": {"selector": {"a": "b"}}})
    assert found == ([path] if path else [])


def test_an_expression_that_was_added_to_a_selector_differs() -> None:
    policy = {"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}
    added = [{"key": "c", "operator": "Exists"}]
    stored = {"spec": {"podSelector": {"matchLabels": {"a": "b"}, "matchExpressions": added}}}
    assert covers(stored, policy) == ["spec.podSelector.matchExpressions"]


def test_empty_strings_count_in_config_maps() -> None:
    assert covers({"data": {}}, {"data": {"a": ""}}) == ["data.a"]
    assert covers({}, {"data": {"a": ""}}) == ["data"]
    assert covers({"data": {"a": ""}}, {"data": {"a": ""}, "binaryData": None}) == []


def test_conditions_by_type_and_custom_lists_by_given_keys() -> None:
    status = {
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "steps": [{"name": "b", "pods": 1}, {"name": "a", "pods": 0}],
        }
    }
    live = {
        "status": {
            "conditions": [{"type": "X", "status": "True"}, {"type": "Ready", "status": "True"}],
            "steps": [{"name": "a", "pods": 0}, {"name": "b", "pods": 2}],
        }
    }
    assert covers(live, status, list_keys={"steps": ("name",)}) == ["status.steps[name=b].pods"]


def test_bool_and_int_are_different() -> None:
    assert covers({"a": 1}, {"a": True}) == ["a"]
    assert covers({"a": [{"b": {"c": 1}}]}, {"a": [{"b": {"c": True}}]}) == ["a[0].b.c"]


@pytest.mark.parametrize(
    ("live", "desired"), [("b", {"b": 1}), ("b", ["b"]), ({"b": 1}, ["b"]), (["b"], {"b": 1})]
)
def test_values_of_different_kinds_differ(live: Any, desired: Any) -> None:
    assert covers({"a": live}, {"a": desired}) == ["a"]
    assert covers({"a": False}, {"a": 0}) == ["a"]
    assert covers({"a": 1.0}, {"a": 1}) == []


def owned(obj: dict[str, Any], fields: dict[str, Any], **entry: Any) -> dict[str, Any]:
    obj.setdefault("metadata", {}).setdefault("managedFields", []).append(
        {"manager": MANAGER, "operation": "Apply", "fieldsV1": fields, **entry}
    )
    return obj


def test_what_we_owned_and_no_longer_want() -> None:
    fields = {
        "f:metadata": {
            "f:labels": {"f:a.b/c": {}, "f:gone": {}},
            "f:ownerReferences": {'k:{"uid":"u"}': {}},
            "f:finalizers": {'v:"x"': {}},
        },
        "f:spec": {
            "f:replicas": {},
            "f:template": {
                "f:spec": {
                    "f:containers": {
                        'k:{"name":"triton"}': {
                            ".": {},
                            "f:name": {},
                            "f:ports": {
                                'k:{"containerPort":8000,"protocol":"TCP"}': {
                                    ".": {},
                                    "f:containerPort": {},
                                }
                            },
                        },
                        'k:{"name":"old"}': {".": {}, "f:name": {}},
                    }
                }
            },
        },
    }
    desired = {
        "metadata": {"labels": {"a.b/c": "1"}, "ownerReferences": [{"uid": "u"}], "finalizers": []},
        "spec": {
            "template": {
                "spec": {"containers": [{"name": "triton", "ports": [{"containerPort": 8000}]}]}
            }
        },
    }
    assert owned_extra(owned({}, fields), desired, MANAGER) == [
        "metadata.finalizers[x]",
        "metadata.labels.gone",
        "spec.replicas",
        "spec.template.spec.containers[name=old]",
    ]


class Counted(dict[str, Any]):
    """A list item that counts how often it is read."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        Counted.reads += 1
        return super().get(key, default)


def test_the_cost_grows_with_the_number_of_items_and_not_with_its_square() -> None:
    """Users choose how many environment variables a container has."""
    number = 500
    fields = {f'k:{{"name":"V{index}"}}': {".": {}, "f:name": {}} for index in range(number)}
    live: dict[str, Any] = {}
    owned(live, {"f:spec": {"f:env": fields}})
    env = [Counted(name=f"V{index}", value="x") for index in range(number)]
    Counted.reads = 0
    assert owned_extra(live, {"spec": {"env": env}}, MANAGER) == []
    assert Counted.reads <= 4 * number


def test_other_managers_operations_and_subresources_do_not_count() -> None:
    live: dict[str, Any] = {}
    owned(live, {"f:spec": {"f:x": {}}}, manager="kubectl")
    owned(live, {"f:spec": {"f:x": {}}}, operation="Update")
    owned(live, {"f:status": {"f:x": {}}}, subresource="status")
    assert owned_extra(live, {}, MANAGER) == []
    assert owned_extra(live, {}, MANAGER, subresource="status") == ["status"]


# --- properties -----------------------------------------------------------------------------------

SCALARS = st.one_of(st.integers(1, 9), st.booleans(), st.text("abc", min_size=1, max_size=3))
NAMES = st.text("defgh", min_size=1, max_size=3)


def trees(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    maps = st.dictionaries(NAMES, children, min_size=1, max_size=3)
    named = st.lists(
        st.tuples(NAMES, maps), min_size=1, max_size=3, unique_by=lambda pair: pair[0]
    ).map(
        lambda pairs: {
            "containers": [
                {"name": name} | {"k" + key: value for key, value in body.items()}
                for name, body in pairs
            ]
        }
    )
    return st.one_of(maps, named, st.lists(SCALARS, min_size=1, max_size=3))


OBJECTS = st.dictionaries(
    NAMES, st.recursive(SCALARS, trees, max_leaves=12), min_size=1, max_size=3
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        # Names of list items are keys: a changed one is another item (see the examples above).
        return [
            leaf
            for key, item in value.items()
            if key != "name"
            for leaf in leaves(item, (*path, key))
        ]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))]
    return [path]


def with_defaults(value: Any) -> Any:
    """As a server stores it: maps gain a field, lists matched by name gain a first item."""
    if isinstance(value, dict):
        return {key: with_defaults(item) for key, item in value.items()} | {"zDefault": {"a": [1]}}
    if isinstance(value, list):
        items = [with_defaults(item) for item in value]
        return (
            [{"name": "zInjected"}, *reversed(items)]
            if items and isinstance(items[0], dict)
            else items
        )
    return value


@given(OBJECTS)
def test_every_object_covers_itself_and_survives_defaults(desired: dict[str, Any]) -> None:
    assert covers(desired, desired) == []
    assert covers(with_defaults(desired), desired) == []
    assert covers(json.loads(json.dumps(desired)), desired) == []


@given(OBJECTS, st.data())
def test_one_changed_leaf_is_one_path(desired: dict[str, Any], data: st.DataObject) -> None:
    places = leaves(desired)
    if not places:
        return
    path = data.draw(st.sampled_from(places))
    live = (
        with_defaults(desired)
        if data.draw(st.booleans()) and not any(isinstance(part, int) for part in path)
        else copy.deepcopy(desired)
    )
    node: Any = live
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = "changed"
    assert len(covers(live, desired)) == 1


def fields_of(value: Any) -> dict[str, Any]:
    """Return fieldsV1 of an applied value.

    Lists by name are associative, other lists are leaves.
    """
    if isinstance(value, dict):
        return {f"f:{key}": fields_of(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {
            f"k:{json.dumps({'name': item['name']})}": {".": {}} | fields_of(item) for item in value
        }
    return {}


@given(OBJECTS, st.data())
def test_one_dropped_field_is_one_owned_path(applied: dict[str, Any], data: st.DataObject) -> None:
    live = owned(copy.deepcopy(applied), fields_of(applied))
    assert owned_extra(live, applied, MANAGER) == []
    dropped = data.draw(st.sampled_from(sorted(applied)))
    desired = {key: value for key, value in applied.items() if key != dropped}
    assert owned_extra(live, desired, MANAGER) == [dropped]
    assert covers(live, desired) == []
    assert needs_apply(live, desired, MANAGER) == [dropped]
