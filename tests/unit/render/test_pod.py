"""Pods and objects: what Kubernetes takes, placement, mounts, source maps, drain."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import yaml

from tests.support.builders import built, options
from tests.support.golden import CASES, path_of
from tests.support.schemas import validate
from triton_pipelines.api.rollout_strategy import RolloutStrategy
from triton_pipelines.compile.render.objects import (
    deployment,
    disruption_budget,
    strategy,
)
from triton_pipelines.compile.render.pod_scheduling import affinity
from triton_pipelines.compile.render.pod_volumes import relevant_source_map

PRODUCT = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["A", "B"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def spec_of(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = built(**changes).render().template["spec"]
    return spec


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_every_object(case: str) -> None:
    parts = path_of(case).read_text(encoding="utf-8").split("===== ")
    objects = [yaml.safe_load(part.split("\n", 1)[1]) for part in parts if "\napiVersion: " in part]
    assert {item["kind"] for item in objects} >= {"Deployment", "ConfigMap", "Secret", "Service"}
    for item in objects:
        validate(item)


def terms(given: Any) -> Any:
    server = built(server={"gpu": {"products": ["B", "A"]}, "affinity": given}).pipeline.spec.server
    return affinity(server)["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]


@pytest.mark.parametrize(
    "given",
    [
        None,
        {"podAffinity": {}},
        {"nodeAffinity": None},
        {"nodeAffinity": {}},
        {"nodeAffinity": {REQUIRED: None}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": None}}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}},
    ],
)
def test_products_become_the_only_term(given: Any) -> None:
    # A document may carry a null that merging would take as a removal.
    one = built(server={"gpu": {"products": ["B", "A"]}})
    server = one.pipeline.spec.server.model_copy(update={"affinity": given})
    assert affinity(server)["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [PRODUCT]}
    ]


def test_products_are_added_to_every_alternative() -> None:
    zone = {"key": "zone", "operator": "Exists"}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n"]}]
    got = terms(
        {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": fields}]
                }
            },
            "podAffinity": {"x": 1},
        }
    )
    assert got == [
        {"matchExpressions": [zone, PRODUCT]},
        {"matchFields": fields, "matchExpressions": [PRODUCT]},
    ]


def test_affinity_without_products_is_as_written() -> None:
    given = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert spec_of(server={"affinity": given})["affinity"] == given
    assert "affinity" not in spec_of()


def test_tolerations_for_gpus_are_added_only_with_gpus() -> None:
    mine = {"key": "x", "operator": "Exists"}
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    mig = {"key": "nvidia.com/mig-1g.5gb", "operator": "Exists"}
    assert spec_of(server={"tolerations": [mine]})["tolerations"] == [gpu, mine]
    assert spec_of(server={"gpu": {"resourceName": "nvidia.com/mig-1g.5gb"}})["tolerations"] == [
        gpu,
        mig,
    ]
    none = spec_of(server={"gpu": {"count": 0}, "tolerations": [mine]})
    assert none["tolerations"] == [mine]
    assert set(none["containers"][0]["resources"]["limits"]) == {"cpu", "memory"}


def test_dates_and_numbers_of_a_yaml_file_become_json() -> None:
    got = spec_of(server={"tolerations": [{"key": "since", "value": dt.date(2024, 1, 1), 1: 2}]})[
        "tolerations"
    ][1]
    assert got == {"key": "since", "value": "2024-01-01", "1": 2}


def mounts(spec: dict[str, Any]) -> dict[str, str]:
    sources = {
        item["name"]: next(value for key, value in item.items() if key != "name")
        for item in spec["volumes"]
    }
    loader = spec["initContainers"][0]["volumeMounts"]
    assert {item["name"] for item in loader} <= set(sources)
    assert {item["name"] for item in spec["containers"][0]["volumeMounts"]} <= set(sources)
    assert len({item["mountPath"] for item in loader}) == len(loader)
    return {
        item["mountPath"]: value.get("secretName") or value.get("claimName") or value.get("name")
        for item in loader
        if (value := sources[item["name"]]) and item["mountPath"].startswith("/etc/tritonpipe/c")
    }


def test_a_claim_of_two_steps_is_mounted_once() -> None:
    got = mounts(
        spec_of(
            tokenizer={"source": {"uri": "pvc://a/t"}}, model={"source": {"uri": "pvc://a/m.onnx"}}
        )
    )
    assert got == {"/etc/tritonpipe/claims/a": "a"}
    two = mounts(
        spec_of(
            tokenizer={"source": {"uri": "pvc://a"}}, model={"source": {"uri": "pvc://b/m.onnx"}}
        )
    )
    assert two == {"/etc/tritonpipe/claims/a": "a", "/etc/tritonpipe/claims/b": "b"}


def test_secrets_certificates_and_config_maps_reach_the_loader_alone() -> None:
    spec = spec_of(
        tokenizer={"source": {"uri": "configmap://vocabulary/t.json"}},
        model={
            "source": {"secretRef": {"name": "keys"}, "caRef": {"name": "company", "key": "x.pem"}}
        },
    )
    assert mounts(spec) == {
        "/etc/tritonpipe/configmaps/tokenizer": "vocabulary",
        "/etc/tritonpipe/credentials/model": "keys",
        "/etc/tritonpipe/ca/model": "company",
    }
    assert {item["name"] for item in spec["containers"][0]["volumeMounts"]} == {
        "tritonpipe",
        "dshm",
        "tmp",
    }
    ca = next(item for item in spec["volumes"] if item["name"] == "ca-model")
    assert ca["configMap"]["items"] == [{"key": "x.pem", "path": "ca.crt"}]


def test_a_source_that_is_mapped_onto_a_claim_is_mounted() -> None:
    one = built(
        options(source_map=("s3://models/=pvc://mirror/models/", "hf://=http://hub.example"))
    )
    spec = one.render().template["spec"]
    assert mounts(spec) == {"/etc/tritonpipe/claims/mirror": "mirror"}
    assert spec["initContainers"][0]["args"] == [
        "load",
        "--source-map=hf://=http://hub.example",
        "--source-map=s3://models/=pvc://mirror/models/",
    ]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], []),
        (["s3://=http://x"], []),
        (["hf://=http://x", "s3://=http://y"], ["hf://=http://x"]),
        (["hf://=http://x", "hf://org/=file:///m/"], ["hf://org/=file:///m/"]),
        (["hf://org/=file:///m/", "hf://=http://x"], ["hf://org/=file:///m/"]),
        (["hf://=http://b", "hf://=http://a"], ["hf://=http://a"]),
        ([" hf://=http://x "], ["hf://=http://x"]),
        (["https://a/=https://c/", "hf://=http://x"], ["hf://=http://x", "https://a/=https://c/"]),
    ],
)
def test_only_the_entries_that_the_loader_applies_are_part_of_a_pod(
    entries: list[str], expected: list[str]
) -> None:
    uris = ["hf://org/name"] + (
        ["https://a/b"] if any("https://a/" in entry.partition("=")[0] for entry in entries) else []
    )
    assert relevant_source_map(entries, uris) == expected


@pytest.mark.parametrize(
    ("drain", "sleep", "exit_timeout", "grace", "age"),
    [(0, 1, 1, 12, 1000), (1, 1, 1, 12, 1000), (30, 30, 30, 70, 10000)],
)
def test_drain(drain: int, sleep: int, exit_timeout: int, grace: int, age: int) -> None:
    spec = spec_of(rollout={"drainSeconds": drain})
    server = spec["containers"][0]
    assert server["lifecycle"] == {"preStop": {"sleep": {"seconds": sleep}}}
    assert f"--exit-timeout-secs={exit_timeout}" in server["args"]
    assert f"--grpc-max-connection-age={age}" in server["args"]
    assert spec["terminationGracePeriodSeconds"] == grace > sleep + exit_timeout


def test_the_pod_is_hardened_and_the_key_stands_in_no_argument() -> None:
    spec = spec_of()
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    arguments = spec["containers"][0]["args"]
    groups = "model-repository,shared-memory,trace,logging:admin-key=$(TRITONPIPE_CONTROL_KEY)"
    assert [item.partition("=")[2] for item in arguments if "restricted" in item] == [
        groups,
        groups,
    ]
    assert (
        next(
            item
            for item in spec["containers"][0]["volumeMounts"]
            if item["mountPath"] == "/tritonpipe"
        )["readOnly"]
        is True
    )


@pytest.mark.parametrize(("name", "default"), [("HOME", "/tmp"), ("OPENBLAS_NUM_THREADS", "1")])
def test_variables_with_a_default_can_be_replaced(name: str, default: str) -> None:
    def values(**server: Any) -> list[str]:
        environment = spec_of(server=server)["containers"][0]["env"]
        return [item["value"] for item in environment if item["name"] == name]

    replaced = [{"name": name, "value": "4"}]
    container = {"name": "triton", "env": replaced}
    assert values() == [default]
    assert values(env=replaced) == ["4"]
    assert values(podTemplate={"spec": {"containers": [container]}}) == ["4"]


def test_own_arguments_come_last() -> None:
    assert spec_of(server={"args": ["--log-verbose=1"]})["containers"][0]["args"][-1] == (
        "--log-verbose=1"
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("Auto", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        ("Surge", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        (
            "NoSurge",
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        ),
        ("Recreate", {"type": "Recreate"}),
    ],
)
def test_strategy(mode: str, expected: dict[str, Any]) -> None:
    assert strategy(RolloutStrategy(mode)) == expected


def test_replicas_of_another_owner_are_left_out() -> None:
    one = built(replicas=5)
    template = one.render().template
    assert "replicas" not in deployment(one.pipeline, template, RolloutStrategy.SURGE, None)["spec"]
    assert deployment(one.pipeline, template, RolloutStrategy.SURGE, 0)["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("replicas", "mode", "made"),
    [(0, "Auto", False), (1, "Auto", False), (2, "Auto", True), (2, "Disabled", False)],
)
def test_disruption_budget(replicas: int, mode: str, made: bool) -> None:
    budget = disruption_budget(built(replicas=replicas, server={"disruptionBudget": mode}).pipeline)
    assert (budget is not None) == made
