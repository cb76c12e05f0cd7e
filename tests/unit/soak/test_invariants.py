"""Every invariant of the fault runs fails in a world that violates it, and holds in a good one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.copies import copied
from tests.support.soak import invariants
from tests.support.soak.observation import (
    Observation,
    PodSample,
    PodState,
    ProcessUse,
    Request,
    Write,
)
from triton_pipelines.api import names

REVISION, NAME = "0123456789", "ask"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/soak/deployments/{NAME}?force=true"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/soak/leases/operator"
STATUS = f"/apis/tritonpipelines.io/v1alpha1/namespaces/soak/inferencepipelines/{NAME}/status"
POD = "/api/v1/namespaces/soak/pods"
CONFIG = 'parameters {\n  key: "tritonpipe.max_length"\n  value { string_value: "64" }\n}\n'


def write(replica: str, at: float, target: str = DEPLOYMENTS, method: str = "PATCH") -> Write:
    return Write(replica, method, target, at, at + 0.1, 200)


def child(kind: str, name: str = NAME, owner: str = "uid-ask", **more: Any) -> dict[str, Any]:
    labels = {names.LABEL_PIPELINE: NAME}
    metadata = {"name": name, "uid": f"uid-{kind}-{name}", "labels": labels}
    return {"kind": kind, "metadata": {**metadata, "ownerReferences": [{"uid": owner}]}, **more}


def revision(name: str = REVISION) -> dict[str, Any]:
    made = child("ConfigMap", names.revision_name(NAME, name), data={"config.pbtxt": CONFIG})
    made["metadata"]["labels"][names.LABEL_REVISION] = name
    return made


def deployment() -> dict[str, Any]:
    template = {"metadata": {"labels": {names.LABEL_REVISION: REVISION}}}
    return child("Deployment", spec={"replicas": 2, "template": template})


def pipeline() -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "Serving"}
    metrics = {"type": "MetricsAvailable", "status": "True", "reason": "Succeeded"}
    status = {
        "observedGeneration": 3,
        "revision": REVISION,
        "servingRevision": REVISION,
        "conditions": [ready, metrics],
        "scaling": {"bottleneck": "Idle"},
    }
    return {"metadata": {"name": NAME, "uid": "uid-ask", "generation": 3}, "status": status}


def pods(at: float, *ready: str, faulty: str = "", instances: int = 3) -> PodSample:
    states = (
        PodState(pod, NAME, ready=pod in ready, faulty=pod == faulty, instances=instances)
        for pod in ("a", "b")
    )
    return PodSample(at, tuple(states))


GOOD = Observation(
    namespaces={"1": "default", "2": "soak"},
    first_namespaces={"1": "default", "2": "soak"},
    desired={NAME: {"replicas": 2, "tokenizer": {"maxLength": 64}}},
    pipelines=[pipeline()],
    children=[
        deployment(),
        child("Service"),
        revision(),
        child("ConfigMap", names.live_name(NAME), data={names.KEY_COUNTS: '{"tokenizer": 3}'}),
        child("ReplicaSet", owner="uid-Deployment-ask"),
        child("Pod", owner="uid-ReplicaSet-ask"),
    ],
    writes=[
        write("one", 1.0, LEASE, "POST"),
        write("one", 2.0),
        write("one", 3.0, LEASE, "PUT"),
        write("one", 4.0, f"{POD}/a", "DELETE"),
        write("two", 9.0, LEASE, "PUT"),
        write("two", 10.0),
        write("two", 21.0, LEASE, "PUT"),
    ],
    settled_since=20.0,
    samples=[pods(3.9, "a", "b"), pods(4.5, "b"), pods(8.0, "a", "b")],
    requests=[Request(1.0, NAME, "a"), Request(2.0, NAME, "b", "broken pipe", excused=True)],
    leaders=["two"],
    processes=[ProcessUse("two", 60, 110.0, 12)],
    expected_pids=frozenset({11, 12}),
    pids=frozenset({11, 12}),
)


def stored(**status: Any) -> Observation:
    changed = pipeline()
    changed["status"] |= status
    return replace(GOOD, pipelines=[changed])


def having(*more: dict[str, Any], without: str = "") -> Observation:
    kept = [copied(item) for item in GOOD.children if item["kind"] != without]
    return replace(GOOD, children=[*kept, *more])


def written(*more: Write) -> Observation:
    return replace(GOOD, writes=sorted([*GOOD.writes, *more], key=lambda item: item.at))


def scaled(replicas: int) -> Observation:
    changed = deployment()
    changed["spec"]["replicas"] = replicas
    return having(changed, without="Deployment")


def of_deleted(kind: str) -> dict[str, Any]:
    left = child(kind, "gone")
    left["metadata"]["labels"][names.LABEL_PIPELINE] = "gone"
    return left


VIOLATED = {
    invariants.only_the_leader_writes: [
        written(write("two", 2.5)),
        written(write("one", 10.5)),
        written(write("one", 0.5)),
        replace(GOOD, writes=[write("one", 2.0)]),
    ],
    invariants.one_replica_leads: [
        replace(GOOD, leaders=[]),
        replace(GOOD, leaders=["one", "two"]),
    ],
    invariants.nothing_is_written_when_settled: [
        written(write("two", 20.5)),
        written(write("two", 20.5, "/apis/events.k8s.io/v1/namespaces/soak/events", "POST")),
        written(write("two", 20.5, STATUS)),
    ],
    invariants.status_matches_spec: [
        stored(observedGeneration=2),
        stored(conditions=[{"type": "Ready", "status": "False", "reason": "Loading"}]),
        stored(conditions=[]),
        stored(servingRevision="9876543210"),
        replace(GOOD, pipelines=[{"metadata": pipeline()["metadata"]}]),
    ],
    invariants.objects_match_spec: [
        scaled(3),
        having(without="Deployment"),
        having(without="ConfigMap"),
        replace(GOOD, desired={NAME: {"replicas": 2, "tokenizer": {"maxLength": 65}}}),
        replace(GOOD, pipelines=[]),
        replace(GOOD, desired={}),
    ],
    invariants.instance_counts_match: [
        replace(GOOD, samples=[pods(8.0, "a", "b", instances=2)]),
        replace(GOOD, desired={NAME: {"replicas": 2, "tokenizer": {"instances": {"min": 4}}}}),
        having(without="ConfigMap"),
    ],
    invariants.scaling_has_metrics: [
        stored(conditions=[]),
        stored(scaling={"bottleneck": "Unknown"}),
        stored(scaling=None),
    ],
    invariants.every_object_has_an_owner: [
        having(child("Secret", owner="uid-earlier")),
        having(child("Pod", "other", owner="uid-earlier")),
        having({**child("Service", "x"), "metadata": {"name": "x", "uid": "x", "labels": {}}}),
    ],
    invariants.nothing_of_deleted_pipelines_is_left: [having(of_deleted("Secret"))],
    invariants.objects_exist_once: [
        having(child("Service", "second")),
        having(without="Service"),
        having(child("Deployment", "second")),
    ],
    invariants.revision_history_is_bounded: [
        having(*(revision(f"{number}" * 10) for number in range(1, 5)))
    ],
    invariants.the_last_serving_pod_is_not_deleted: [
        replace(GOOD, samples=[pods(3.9, "a"), pods(4.5)]),
        replace(GOOD, samples=[pods(3.9, "a", "b", faulty="b"), pods(4.5, "b")]),
    ],
    invariants.no_request_is_lost: [replace(GOOD, requests=[Request(1.0, NAME, "a", "refused")])],
    invariants.namespaces_are_unchanged: [
        replace(GOOD, namespaces={"1": "default", "2": "soak", "3": "left"}),
        replace(GOOD, namespaces={"1": "default"}),
        replace(GOOD, namespaces={"1": "default", "9": "soak"}),
    ],
    invariants.processes_are_those_started: [
        replace(GOOD, pids=frozenset({11, 12, 13})),
        replace(GOOD, pids=frozenset({11})),
        replace(GOOD, open_ports=[8081]),
    ],
    invariants.resources_of_processes_are_bounded: [
        replace(GOOD, processes=[ProcessUse("two", 1000, 110.0, 12)]),
        replace(GOOD, processes=[ProcessUse("two", 60, 4000.0, 12)]),
        replace(GOOD, processes=[ProcessUse("two", 60, 110.0, 500)]),
    ],
}


@pytest.mark.parametrize("invariant", invariants.INVARIANTS, ids=lambda item: item.__name__)
def test_an_invariant_fails_where_it_is_violated(invariant: invariants.Invariant) -> None:
    assert invariant(GOOD) == []
    for number, world in enumerate(VIOLATED[invariant]):
        assert invariant(world), f"world {number}"


def test_a_violation_names_its_invariant() -> None:
    seen = replace(GOOD, leaders=[])
    assert invariants.violations(seen) == ["one_replica_leads: replicas that lead: []"]
    assert invariants.violations(seen, invariants.no_request_is_lost) == []


def test_what_the_run_itself_broke_is_excused() -> None:
    dead = replace(GOOD, samples=[pods(3.9, "a", faulty="a"), pods(4.5)])
    assert invariants.the_last_serving_pod_is_not_deleted(dead) == []
    refused = Write("two", "PATCH", DEPLOYMENTS, 2.5, None, None)
    assert invariants.only_the_leader_writes(written(refused)), "sent is enough"
