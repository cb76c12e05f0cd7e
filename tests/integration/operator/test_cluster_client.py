"""Client and comparison against a real API server.

They run directly and through a proxy that injects faults.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import Fault, FaultProxy
from triton_pipelines.api.names import LABEL_PIPELINE
from triton_pipelines.cluster.apply import apply_new, apply_over, metadata_of
from triton_pipelines.cluster.client import PAGE_SIZE, Client, ClientOptions, Object
from triton_pipelines.cluster.diff import covers, needs_apply, owned_extra
from triton_pipelines.cluster.errors import Conflict, Invalid, NotFound, TooMany, Unavailable
from triton_pipelines.cluster.events import event_object, post_event
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    SERVICES,
    resource_of,
)
from triton_pipelines.cluster.store import Store, relist

pytestmark = pytest.mark.integration
NAMESPACE = "default"
MANAGER = "triton-pipelines"


@pytest.fixture
async def client(api_server: ControlPlane) -> AsyncIterator[Client]:
    async with Client(lambda: load_configuration(str(api_server.kubeconfig))) as client:
        yield client


@pytest.fixture
async def proxy(api_server: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(api_server.kubeconfig) as proxy:
        yield proxy


def through(proxy: FaultProxy, tmp_path: Any, **options: Any) -> Client:
    kubeconfig = str(proxy.write_kubeconfig(tmp_path / "proxy.kubeconfig"))
    return Client(
        lambda: load_configuration(kubeconfig),
        options=ClientOptions(backoff_seconds=0.01, **options),
    )


def config_map(name: str, **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": data,
    }


def deployment(name: str) -> Object:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": {}},
        "spec": {
            "replicas": 0,
            "minReadySeconds": 0,
            "selector": {"matchLabels": labels},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "hostNetwork": False,
                    "securityContext": {
                        "runAsUser": 1000,
                        "runAsNonRoot": True,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "initContainers": [
                        {
                            "name": "load",
                            "image": "loader:1",
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        }
                    ],
                    "containers": [
                        {
                            "name": "triton",
                            "image": "triton:1",
                            "args": ["--exit-on-error=false"],
                            "env": [
                                {"name": "A", "value": ""},
                                {"name": "B", "value": "x"},
                                {
                                    "name": "KEY",
                                    "valueFrom": {
                                        "secretKeyRef": {"name": "s", "key": "k", "optional": False}
                                    },
                                },
                            ],
                            "ports": [
                                {"name": "http", "containerPort": 8000},
                                {"name": "grpc", "containerPort": 8001},
                            ],
                            "resources": {
                                "requests": {"cpu": "1500m", "memory": "1024Mi"},
                                "limits": {"cpu": 2, "memory": "2.5Gi", "nvidia.com/gpu": 1},
                            },
                            "readinessProbe": {
                                "httpGet": {"path": "/v2/health/ready", "port": 8000},
                                "periodSeconds": 5,
                            },
                            "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}},
                            "volumeMounts": [
                                {"name": "data", "mountPath": "/data", "readOnly": True},
                                {"name": "shm", "mountPath": "/dev/shm"},
                            ],
                            "securityContext": {
                                "capabilities": {"drop": ["ALL"]},
                                "readOnlyRootFilesystem": True,
                                "privileged": False,
                            },
                        }
                    ],
                    "volumes": [
                        {"name": "data", "emptyDir": {}},
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
                        {"name": "live", "configMap": {"name": "live", "optional": True}},
                    ],
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "nodeSelector": {},
                    "imagePullSecrets": [],
                },
            },
        },
    }


def other_children(name: str) -> list[Object]:
    metadata = {"name": name, "namespace": NAMESPACE}
    selector = {"matchLabels": {"app": name}}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "type": "ClusterIP",
                "selector": {"app": name},
                "ports": [
                    {"name": "http", "port": 8000, "targetPort": "http"},
                    {"name": "grpc", "port": 8001, "targetPort": 8001},
                ],
            },
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata,
            "spec": {
                "podSelector": selector,
                "policyTypes": ["Ingress"],
                "ingress": [
                    {"ports": [{"port": 8000}, {"port": 8001}]},
                    {"from": [{"podSelector": {}}, {"namespaceSelector": {}}]},
                ],
            },
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {
                "maxUnavailable": 1,
                "selector": selector,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        },
        config_map(name, **{"plan.json": "{}", "empty": ""}) | {"immutable": True},
    ]


async def test_what_was_applied_needs_no_apply(client: Client) -> None:
    for desired in [deployment("settled"), *other_children("settled")]:
        applied = await client.apply(copy.deepcopy(desired))
        assert needs_apply(applied, desired, MANAGER) == [], desired["kind"]
        again = await client.apply(copy.deepcopy(desired))
        assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"], (
            desired["kind"]
        )


async def test_an_empty_list_makes_each_apply_a_write_but_needs_none(client: Client) -> None:
    desired = other_children("empties")[1]
    desired["spec"]["ingress"][0]["from"] = []
    applied = await client.apply(copy.deepcopy(desired))
    again = await client.apply(copy.deepcopy(desired))
    assert again["metadata"]["resourceVersion"] != applied["metadata"]["resourceVersion"]
    assert needs_apply(again, desired, MANAGER) == []


HAND_EDITS: list[tuple[str, Callable[[Any], None]]] = [
    ("image", lambda pod: pod["containers"][0].update(image="other:2")),
    ("env value", lambda pod: pod["containers"][0]["env"][1].update(value="y")),
    ("env removed", lambda pod: pod["containers"][0]["env"].pop(1)),
    ("args", lambda pod: pod["containers"][0]["args"].append("--more")),
    ("limit", lambda pod: pod["containers"][0]["resources"]["limits"].update(memory="3Gi")),
    ("port", lambda pod: pod["containers"][0]["ports"][1].update(containerPort=9001)),
    ("mount", lambda pod: pod["containers"][0]["volumeMounts"][0].pop("readOnly")),
    ("token", lambda pod: pod.pop("automountServiceAccountToken")),
    ("toleration", lambda pod: pod["tolerations"].clear()),
    (
        "volume",
        lambda pod: pod["volumes"].__setitem__(
            1, {"name": "shm", "hostPath": {"path": "/dev/shm"}}
        ),
    ),
    ("probe", lambda pod: pod["containers"][0].pop("readinessProbe")),
    ("capabilities", lambda pod: pod["containers"][0]["securityContext"].pop("capabilities")),
]


@pytest.mark.parametrize(("what", "edit"), HAND_EDITS, ids=[what for what, _ in HAND_EDITS])
async def test_a_manual_edit_is_corrected(
    client: Client, what: str, edit: Callable[[Any], None]
) -> None:
    desired = deployment("edited")
    applied = await client.apply(copy.deepcopy(desired))
    edited = copy.deepcopy(applied)
    edit(edited["spec"]["template"]["spec"])
    live = await client.replace(edited, manager="hand")
    assert covers(live, desired), what
    corrected = await apply_over(client, copy.deepcopy(desired), live)
    # What a hand added stays its own where lists are merged by key; everything of ours is back.
    assert needs_apply(corrected, desired, MANAGER) == [], what


async def test_what_apply_alone_cannot_mend_is_replaced_on_what_was_seen(client: Client) -> None:
    desired = other_children("rekeyed")[0]
    applied = await client.apply(copy.deepcopy(desired))
    edited = copy.deepcopy(applied)
    edited["spec"]["ports"][0]["port"] = 9000
    edited["metadata"]["annotations"] = {"hand": "made"}
    live = await client.replace(edited, manager="hand")
    assert covers(live, desired) == ["spec.ports[port=8000]"]
    with pytest.raises(Invalid, match="Duplicate value"):
        await client.apply(copy.deepcopy(desired))
    with pytest.raises(Conflict):
        await apply_over(client, copy.deepcopy(desired), applied)
    corrected = await apply_over(client, copy.deepcopy(desired), live)
    assert [port["port"] for port in corrected["spec"]["ports"]] == [8000, 8001]
    assert corrected["metadata"]["annotations"] == {"hand": "made"}
    assert corrected["spec"]["clusterIP"] == live["spec"]["clusterIP"]
    assert needs_apply(corrected, desired, MANAGER) == []
    # Only one manager owns the ports: dropping one from the applied set removes it.
    del desired["spec"]["ports"][1]
    shrunk = await client.apply(copy.deepcopy(desired))
    assert [port["port"] for port in shrunk["spec"]["ports"]] == [8000]
    with pytest.raises(Invalid, match="must be between 1 and 65535"):
        await apply_over(
            client, copy.deepcopy(desired) | {"spec": {"ports": [{"port": 0}]}}, shrunk
        )


async def test_replacing_keeps_a_replica_count_that_is_not_ours(client: Client) -> None:
    desired = deployment("scaled")
    del desired["spec"]["replicas"]
    applied = await client.apply(copy.deepcopy(desired))
    applied["spec"]["replicas"] = 3
    applied["spec"]["template"]["spec"]["volumes"][0] = {
        "name": "data",
        "hostPath": {"path": "/data"},
    }
    live = await client.replace(applied, manager="hand")
    corrected = await apply_over(client, copy.deepcopy(desired), live)
    assert corrected["spec"]["replicas"] == 3
    assert corrected["spec"]["template"]["spec"]["volumes"][0] == {"name": "data", "emptyDir": {}}
    assert "hand" in {entry["manager"] for entry in corrected["metadata"]["managedFields"]}


async def test_a_field_no_longer_wanted_is_seen_and_given_up(client: Client) -> None:
    desired = deployment("shrinking")
    await client.apply(copy.deepcopy(desired))
    pod = desired["spec"]["template"]["spec"]
    del pod["tolerations"]
    del pod["containers"][0]["env"][1]
    del pod["containers"][0]["ports"][1]
    del pod["volumes"][2]
    desired["metadata"]["labels"] = {}
    live = await client.get(DEPLOYMENTS, NAMESPACE, "shrinking")
    assert covers(live, desired) == []
    prefix = "spec.template.spec"
    assert owned_extra(live, desired, MANAGER) == [
        "metadata.labels.app",
        f"{prefix}.containers[name=triton].env[name=B]",
        f"{prefix}.containers[name=triton].ports[containerPort=8001,protocol=TCP]",
        f"{prefix}.tolerations",
        f"{prefix}.volumes[name=live]",
    ]
    applied = await client.apply(copy.deepcopy(desired))
    assert needs_apply(applied, desired, MANAGER) == []
    assert "tolerations" not in applied["spec"]["template"]["spec"]
    assert [volume["name"] for volume in applied["spec"]["template"]["spec"]["volumes"]] == [
        "data",
        "shm",
    ]


async def test_errors_carry_the_servers_words(client: Client) -> None:
    with pytest.raises(NotFound, match='configmaps "absent" not found'):
        await client.get(CONFIG_MAPS, NAMESPACE, "absent")
    bad = deployment("bad")
    bad["spec"]["selector"]["matchLabels"] = {"other": "x"}
    with pytest.raises(Invalid, match=r"selector.*does not match template") as caught:
        await client.apply(bad)
    assert caught.value.status == 422
    assert caught.value.causes[0].field == "spec.template.metadata.labels"
    with pytest.raises(Invalid):
        await client.apply(config_map("bad") | {"data": {"a": 1}})
    created = await client.create(config_map("twice"))
    with pytest.raises(Conflict) as conflict:
        await client.create(config_map("twice"))
    assert conflict.value.already_exists
    stale = config_map("twice", a="1")
    stale["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"]
    await client.apply(copy.deepcopy(stale))
    stale["data"]["a"] = "2"
    with pytest.raises(Conflict) as conflict:
        await client.apply(stale)
    assert not conflict.value.already_exists


async def test_apply_without_force_meets_the_other_owner(client: Client) -> None:
    await client.apply(config_map("shared", a="1"), manager="other")
    with pytest.raises(Conflict, match="other"):
        await client.apply(config_map("shared", a="2"), force=False)
    await client.apply(config_map("shared", a="2"))
    tried = await client.apply(config_map("shared", a="3"), dry_run=True)
    assert tried["data"]["a"] == "3"
    assert (await client.get(CONFIG_MAPS, NAMESPACE, "shared"))["data"]["a"] == "2"


async def test_a_new_object_is_applied_and_an_existing_one_is_not_changed(client: Client) -> None:
    desired = [*other_children("new"), deployment("new")]
    created = [await apply_new(client, copy.deepcopy(item)) for item in desired]
    for item, made in zip(desired, created, strict=True):
        assert made is not None
        assert needs_apply(made, item, MANAGER) == []
        changed = copy.deepcopy(item)
        changed["metadata"]["labels"] = {"changed": "by a second apply"}
        assert await apply_new(client, changed) is None
        now = await client.get(resource_of(item), NAMESPACE, "new")
        assert now["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_of_a_secret_nothing_but_metadata_comes_back(client: Client) -> None:
    """Only a Secret's metadata is returned.

    This holds for writes and for the ownership check, which needs no read permission and changes
    nothing.
    """
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "whose", "namespace": NAMESPACE},
        "stringData": {"password": "s3cret"},
    }
    assert await metadata_of(client, secret) is None
    with pytest.raises(NotFound):
        await client.get(SECRETS, NAMESPACE, "whose")
    owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "x",
        "uid": "11111111-2222-3333-4444-555555555555",
    }
    made = await client.apply(
        {**secret, "metadata": {**secret["metadata"], "ownerReferences": [owner]}}, manager="other"
    )
    seen = await metadata_of(client, secret)
    assert seen is not None
    assert seen["metadata"]["ownerReferences"] == [owner]
    assert seen["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    for answer in (made, seen):
        assert answer["kind"] == "PartialObjectMetadata"
        assert not {"data", "stringData"} & answer.keys()
    live = await client.get(SECRETS, NAMESPACE, "whose")
    assert live["data"].keys() == {"password"}
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {"other"}
    await client.delete(SECRETS, NAMESPACE, "whose")


async def test_delete_keeps_to_its_preconditions(client: Client) -> None:
    live = await client.apply(config_map("doomed"))
    with pytest.raises(Conflict):
        await client.delete(
            CONFIG_MAPS, NAMESPACE, "doomed", uid="00000000-0000-0000-0000-000000000000"
        )
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, NAMESPACE, "doomed", resource_version="1")
    uid, version = live["metadata"]["uid"], live["metadata"]["resourceVersion"]
    assert (
        await client.delete(CONFIG_MAPS, NAMESPACE, "doomed", uid=uid, resource_version=version)
        is True
    )
    assert await client.delete(CONFIG_MAPS, NAMESPACE, "doomed", uid=uid) is False


async def test_status_is_its_own_subresource(client: Client) -> None:
    name = {"name": "stated", "namespace": NAMESPACE}
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": name,
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    await client.apply(pod)
    status = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    live = await client.apply_status(
        {"apiVersion": "v1", "kind": "Pod", "metadata": name, "status": status}
    )
    assert covers(live, {"status": status}) == []
    assert owned_extra(
        live, {"status": {"phase": "Running"}}, "triton-pipelines-status", subresource="status"
    ) == ["status.conditions"]
    with pytest.raises(NotFound):
        await client.apply_status(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": name | {"name": "none"},
                "status": status,
            }
        )
    await client.delete(PODS, NAMESPACE, "stated", grace_seconds=0)


async def test_another_pod_of_the_same_name_is_not_resized(client: Client) -> None:
    cpu = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    container = {
        "name": "c",
        "image": "i",
        "resources": cpu,
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
    }
    created = await client.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "resized", "namespace": NAMESPACE},
            "spec": {"containers": [container]},
        }
    )
    more = {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}
    patch = {"spec": {"containers": [{"name": "c", "resources": more}]}}
    try:
        with pytest.raises(Conflict):
            await client.resize_pod(
                NAMESPACE, "resized", patch, uid="11111111-2222-3333-4444-555555555555"
            )
        same = await client.get(PODS, NAMESPACE, "resized")
        assert same["spec"]["containers"][0]["resources"] == cpu
        resized = await client.resize_pod(
            NAMESPACE, "resized", patch, uid=created["metadata"]["uid"]
        )
        assert resized["spec"]["containers"][0]["resources"] == more
    finally:
        await client.delete(PODS, NAMESPACE, "resized", grace_seconds=0)


async def test_a_list_longer_than_a_page(client: Client) -> None:
    label = {"test": "pages"}
    objects = [config_map(f"page-{number:03}") for number in range(501)]
    for obj in objects:
        obj["metadata"]["labels"] = label
    await asyncio.gather(*(client.create(obj) for obj in objects))
    listing = await client.list(CONFIG_MAPS, NAMESPACE, label_selector="test=pages")
    assert len(listing.items) == 501
    assert listing.items[-1]["kind"] == "ConfigMap"
    assert listing.resource_version.isdecimal()
    store = Store()
    assert (
        await relist(client, store, CONFIG_MAPS, label_selector="test=pages") == set()
    )  # of no pipeline
    assert store.count(CONFIG_MAPS) == 501


async def test_a_list_of_metadata_reads_only_the_objects_that_differ(
    proxy: FaultProxy, client: Client, tmp_path: Path
) -> None:
    names = ("kept", "changed", "deleted")
    for name in names:
        obj: Object = config_map(name, key="before")
        obj["metadata"]["labels"] = {"test": "metadata", LABEL_PIPELINE: name}
        await client.apply(obj)
    store, selector = Store(), "test=metadata"
    await relist(client, store, CONFIG_MAPS, label_selector=selector)
    changed = config_map("changed", key="after")
    changed["metadata"]["labels"] = {"test": "metadata", LABEL_PIPELINE: "changed"}
    await client.apply(changed)
    await client.delete(CONFIG_MAPS, NAMESPACE, "deleted")

    async with through(proxy, tmp_path) as proxied:
        listing = await proxied.list(
            CONFIG_MAPS, NAMESPACE, label_selector=selector, metadata_only=True
        )
        assert {item["metadata"]["name"] for item in listing.items} == {"kept", "changed"}
        assert all(item.keys() == {"apiVersion", "kind", "metadata"} for item in listing.items)
        missed = await relist(
            proxied, store, CONFIG_MAPS, label_selector=selector, metadata_only=True
        )

    assert missed == {(NAMESPACE, "changed"), (NAMESPACE, "deleted")}
    found = {name: store.get(CONFIG_MAPS, NAMESPACE, name) for name in names}
    assert {name: obj and obj["data"]["key"] for name, obj in found.items()} == {
        "kept": "before",
        "changed": "after",
        "deleted": None,
    }
    assert proxy.count("GET", "configmaps/changed") == 1
    assert proxy.count("GET", "configmaps/kept") == 0


async def test_an_object_that_cannot_be_read_keeps_no_other_from_being_compared(
    proxy: FaultProxy, client: Client, tmp_path: Path
) -> None:
    for name in ("unreadable", "readable"):
        await client.apply(labeled(name, "unread", key="before"))
    store, selector = Store(), "test=unread"
    await relist(client, store, CONFIG_MAPS, label_selector=selector)
    for name in ("unreadable", "readable"):
        await client.apply(labeled(name, "unread", key="after"))
    proxy.inject(Fault(method="GET", path=".*configmaps/unreadable", status=500, times=None))
    async with through(proxy, tmp_path) as proxied:
        missed = await relist(
            proxied, store, CONFIG_MAPS, label_selector=selector, metadata_only=True
        )
    assert missed == {(NAMESPACE, "readable")}
    assert kept_data(store, "unreadable") == {"key": "before"}
    assert kept_data(store, "readable") == {"key": "after"}


async def test_an_object_that_lost_its_label_during_a_list_is_not_kept(
    proxy: FaultProxy, client: Client, tmp_path: Path
) -> None:
    """Another object may have the name by then, and the operator must not take it for its own."""
    store, selector = Store(), "test=lost"
    await client.apply(labeled("lost", "lost", key="ours"))
    await relist(client, store, CONFIG_MAPS, label_selector=selector)
    await client.apply(labeled("lost", "lost", key="changed"))

    def without_label(body: bytes) -> bytes:
        found = json.loads(body)
        del found["metadata"]["labels"]["test"]
        return json.dumps(found).encode()

    proxy.inject(Fault(method="GET", path=".*configmaps/lost", rewrite=without_label))
    async with through(proxy, tmp_path) as proxied:
        missed = await relist(
            proxied, store, CONFIG_MAPS, label_selector=selector, metadata_only=True
        )
    assert missed == {(NAMESPACE, "lost")}
    assert store.get(CONFIG_MAPS, NAMESPACE, "lost") is None


def labeled(name: str, test: str, **data: str) -> Object:
    obj: Object = config_map(name, **data)
    obj["metadata"]["labels"] = {"test": test, LABEL_PIPELINE: name}
    return obj


def kept_data(store: Store, name: str) -> Object | None:
    found = store.get(CONFIG_MAPS, NAMESPACE, name)
    return found and found["data"]


async def test_an_event_is_taken_by_the_server(client: Client) -> None:
    live = await client.apply(config_map("eventful"))
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    event = event_object(
        live,
        type="Warning",
        reason="Tried",
        action="Try",
        note="ä" * 2000,
        instance="pod-0",
        now=now,
    )
    assert await post_event(client, event) is None
    stored = await client.get(EVENTS, NAMESPACE, event["metadata"]["name"])
    assert stored["eventTime"] == "2026-01-02T03:04:05.678901Z"
    assert stored["regarding"]["uid"] == live["metadata"]["uid"]
    assert len(stored["note"].encode()) <= 1024
    refused = await post_event(
        client, event | {"type": "Odd", "metadata": {"name": "odd.1", "namespace": NAMESPACE}}
    )
    assert refused is not None
    assert refused.status in (400, 422)


# --- faults ---------------------------------------------------------------------------------------


async def test_faults_before_the_server_are_ridden_out(proxy: FaultProxy, tmp_path: Any) -> None:
    proxy.inject(Fault(method="PATCH", status=500))
    proxy.inject(Fault(method="PATCH", drop=True))
    proxy.inject(Fault(method="PATCH", status=429, retry_after=0))
    async with through(proxy, tmp_path) as client:
        applied = await client.apply(config_map("ridden-out", a="1"))
    assert applied["data"] == {"a": "1"}
    assert len(proxy.mutating) == 4


async def test_an_effect_whose_answer_was_lost_is_not_doubled(
    proxy: FaultProxy, tmp_path: Any
) -> None:
    async with through(proxy, tmp_path) as client:
        proxy.inject(Fault(method="PATCH", drop_after_effect=True))
        first = await client.apply(config_map("lost-answer", a="1"))
        assert await client.apply(config_map("lost-answer", a="1")) == first
        proxy.inject(Fault(method="DELETE", drop_after_effect=True))
        assert (
            await client.delete(CONFIG_MAPS, NAMESPACE, "lost-answer", uid=first["metadata"]["uid"])
            is False
        )
        proxy.inject(Fault(method="POST", drop_after_effect=True))
        with pytest.raises(Unavailable):
            await client.create(config_map("lost-answer"))
        assert proxy.count("POST", "configmaps") == 1
        await client.delete(CONFIG_MAPS, NAMESPACE, "lost-answer")


async def test_faults_that_stay_reach_the_caller(proxy: FaultProxy, tmp_path: Any) -> None:
    async with through(proxy, tmp_path, attempts=3) as client:
        proxy.inject(Fault(path="stay-429", status=429, retry_after=3600, times=None))
        with pytest.raises(TooMany):
            await client.get(CONFIG_MAPS, NAMESPACE, "stay-429")
        proxy.inject(Fault(path="stay-503", status=503, times=None))
        with pytest.raises(Unavailable):
            await client.get(CONFIG_MAPS, NAMESPACE, "stay-503")
        assert proxy.count("GET", "stay-503") == 3
        proxy.inject(Fault(path="stay-409", method="PATCH", status=409, reason="Conflict"))
        with pytest.raises(Conflict):
            await client.apply(config_map("stay-409"))
    async with through(proxy, tmp_path, timeout_seconds=0.3, attempts=3) as impatient:
        stall = proxy.inject(Fault(path="stay-stalled", release=threading.Event()))
        with pytest.raises(Unavailable):
            await impatient.get(CONFIG_MAPS, NAMESPACE, "stay-stalled")
        assert stall.hits == 1


async def test_a_list_cut_off_in_the_middle_is_read_again(proxy: FaultProxy, tmp_path: Any) -> None:
    async with through(proxy, tmp_path) as client:
        await client.apply(config_map("cut", a="x" * 4000))
        proxy.inject(Fault(path="configmaps.limit", cut_after=1000))
        listing = await client.list(CONFIG_MAPS, NAMESPACE)
        assert any(item["metadata"]["name"] == "cut" for item in listing.items)
        assert proxy.count("GET", f"limit={PAGE_SIZE}") >= 2


async def test_every_kind_of_child_has_the_right_path(client: Client) -> None:
    for resource in (
        DEPLOYMENTS,
        SERVICES,
        NETWORK_POLICIES,
        POD_DISRUPTION_BUDGETS,
        PODS,
        CONFIG_MAPS,
    ):
        listing = await client.list(resource, NAMESPACE)
        assert all(item["kind"] == resource.kind for item in listing.items)


async def test_any_text_of_a_pod_can_be_written(client: Client) -> None:
    """YAML, as which the API server reads an apply, excludes some characters of JSON."""
    text = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA1), 0x2028, 0x202E, 0xFEFF, 0xFFFE]))
    written = await client.apply(config_map("any-text", text=f"a{text}\ud800\U0001f642b"))
    assert written["data"]["text"] == f"a{text}?\U0001f642b"
