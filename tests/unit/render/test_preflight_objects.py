"""The objects of a preflight: the loader of a revision as a serving pod runs it, without GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.builders import built, options
from tests.support.networkpolicies import Endpoint, admits
from tests.support.podtemplates import templated
from tests.support.worldchecks import check_object
from triton_pipelines.api import names
from triton_pipelines.compile.render.network_policies import network_policy
from triton_pipelines.compile.render.preflight_objects import preflight_job, preflight_policy

REVISION = "0123456789"


def job_of(one: Any) -> dict[str, Any]:
    """The Job of a built resource, checked against Kubernetes' schema."""
    job = preflight_job(one.pipeline, REVISION, one.render().template)
    check_object(job)
    return job


def pod_of(**spec: Any) -> dict[str, Any]:
    pod: dict[str, Any] = job_of(built(**spec))["spec"]["template"]["spec"]
    return pod


GPU_NODE = {
    "gpu": {"products": ["NVIDIA-A10"]},
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "team", "operator": "Exists"}],
    "priorityClassName": "high",
    "serviceAccountName": "default",
    "runtimeClassName": "gvisor",
    "imagePullSecrets": [{"name": "registry"}],
    "modelCache": {"claimName": "cache"},
}


def test_the_loader_runs_as_in_a_serving_pod() -> None:
    one = built(server=GPU_NODE)
    template = one.render().template["spec"]
    pod = pod_of(server=GPU_NODE)
    assert pod["containers"] == template["initContainers"]
    for field in (
        "securityContext",
        "automountServiceAccountToken",
        "serviceAccountName",
        "runtimeClassName",
        "imagePullSecrets",
        "nodeSelector",
        "tolerations",
    ):
        assert pod[field] == template[field], field
    mounts = {item["name"] for item in pod["containers"][0]["volumeMounts"]}
    assert {item["name"] for item in pod["volumes"]} == mounts
    assert all(item in template["volumes"] for item in pod["volumes"])
    assert pod["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize(
    "server", [GPU_NODE, {"gpu": {"claimTemplate": "one-gpu"}}, {"gpu": {"count": 2}}], ids=str
)
def test_it_asks_for_no_gpu_and_preempts_nothing(server: dict[str, Any]) -> None:
    text = json.dumps(job_of(built(server=server))["spec"]["template"]["spec"])
    pod = json.loads(text)
    assert "resourceClaims" not in pod
    assert "priorityClassName" not in pod
    assert "nvidia.com/gpu.product" not in text
    assert not any("nvidia.com/gpu" in str(item.get("resources")) for item in pod["containers"])


def test_other_rules_about_nodes_are_kept() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [zone]}]
            }
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {names.LABEL_PIPELINE: "sentiment"}},
                }
            ]
        },
    }
    found = pod_of(server={"affinity": affinity, "gpu": {"products": ["NVIDIA-A10"]}})["affinity"]
    assert found["nodeAffinity"] == affinity["nodeAffinity"]
    assert "podAntiAffinity" not in found
    (preferred,) = found["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    selected = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert selected == names.selector("sentiment")


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ({}, "preferredDuringSchedulingIgnoredDuringExecution"),
        (
            {"server": {"modelCache": {"claimName": "cache"}}},
            "requiredDuringSchedulingIgnoredDuringExecution",
        ),
        (
            {"model": {"source": {"uri": "pvc://models/model.onnx"}}},
            "requiredDuringSchedulingIgnoredDuringExecution",
        ),
    ],
    ids=str,
)
def test_a_shared_claim_requires_the_node_of_the_serving_pods(
    spec: dict[str, Any], rule: str
) -> None:
    """A volume that one node has mounted may not be mounted on another one."""
    rules = pod_of(**spec)["affinity"]["podAffinity"]
    assert list(rules) == [rule]
    (found,) = rules[rule]
    term = found.get("podAffinityTerm", found)
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == names.selector("sentiment")


def test_the_service_does_not_select_it() -> None:
    labels = job_of(built())["spec"]["template"]["metadata"]["labels"]
    assert not names.selector("sentiment").items() <= labels.items()
    assert labels[names.LABEL_REVISION] == REVISION


def test_init_containers_before_the_loader_run_and_sidecars_of_the_server_do_not() -> None:
    first = {"name": "first", "image": "registry.example/first:1"}
    sidecar = {"name": "proxy", "image": "registry.example/proxy:1"}
    one = templated({"spec": {"initContainers": [first], "containers": [sidecar]}})
    template = one.render().template["spec"]["initContainers"]
    pod = job_of(one)["spec"]["template"]["spec"]
    assert [item["name"] for item in pod["containers"]] == [names.CONTAINER_LOADER]
    index = [item["name"] for item in template].index(names.CONTAINER_LOADER)
    assert pod.get("initContainers", []) == template[:index]


def test_it_may_reach_what_pods_may_reach_and_nothing_may_reach_it() -> None:
    store = {"ipBlock": {"cidr": "10.9.0.0/16"}}
    one = built(server={"networkPolicy": {"egress": [{"to": [store]}]}})
    policy = preflight_policy(one.pipeline, REVISION)
    assert policy is not None
    check_object(policy)
    pipeline_policy = network_policy(one.pipeline, options(operator_namespace="ops"))
    assert pipeline_policy is not None
    assert policy["spec"]["egress"] == pipeline_policy["spec"]["egress"]
    labels = job_of(one)["spec"]["template"]["metadata"]["labels"]
    pod = Endpoint("nlp", labels, "10.244.0.9")
    neighbor = Endpoint("nlp", {"app": "client"}, "10.244.0.8", {"http": 8000})
    assert not admits([policy], neighbor, pod, 8000)
    assert not admits([policy], pod, neighbor, 8000)
    assert (
        preflight_policy(built(server={"networkPolicy": {"mode": "Disabled"}}).pipeline, REVISION)
        is None
    )
