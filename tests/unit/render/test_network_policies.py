"""Who may reach the pods of a pipeline, and what they may reach, by the meaning of the API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built, options
from tests.support.networkpolicies import Endpoint, admits
from triton_pipelines.api import names
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.render import tuning_objects
from triton_pipelines.compile.render.network_policies import network_policy

OPERATOR = Endpoint("ops", {names.LABEL_NAME: names.APP, names.LABEL_COMPONENT: "operator"})
NEIGHBOR = Endpoint("nlp", {"app": "client"})
STRANGER = Endpoint("other", {"app": "client"})
PROMETHEUS = Endpoint("monitoring", {"app": "prometheus"})
OUTSIDE = Endpoint(None, address="203.0.113.7")
METADATA = Endpoint(None, address="169.254.169.254")
DNS = Endpoint("kube-system", {"k8s-app": "kube-dns"})
NODE_DNS = Endpoint(None, address="169.254.20.10")
OPTIONS = options(operator_namespace="ops")


def pod(**spec: Any) -> tuple[list[dict[str, Any]], Endpoint]:
    """The policy of a pipeline, and one of its pods."""
    return pod_with(OPTIONS, **spec)


def pod_with(used: Options, **spec: Any) -> tuple[list[dict[str, Any]], Endpoint]:
    one = built(**spec)
    policy = network_policy(one.pipeline, used)
    labels = names.selector(one.pipeline.name)
    ports = {"http": 8000, "grpc": 8001, "metrics": 8002}
    return [policy] if policy else [], Endpoint("nlp", labels, "10.244.0.5", ports)


def reaching(policies: list[dict[str, Any]], server: Endpoint, port: int) -> set[str]:
    """Names of those who may reach a port."""
    everyone = {
        "operator": OPERATOR,
        "neighbor": NEIGHBOR,
        "stranger": STRANGER,
        "prometheus": PROMETHEUS,
        "outside": OUTSIDE,
    }
    return {name for name, one in everyone.items() if admits(policies, one, server, port)}


ALL = {"operator", "neighbor", "stranger", "prometheus", "outside"}


def test_by_default_only_the_namespace_and_the_operator_are_admitted() -> None:
    policies, server = pod()
    for port in (8000, 8001, 8002):
        assert reaching(policies, server, port) == {"operator", "neighbor"}
    assert reaching(policies, server, 22) == set()


def test_a_pod_that_only_claims_to_be_the_operator_is_not_admitted() -> None:
    policies, server = pod()
    assert not admits(policies, Endpoint("other", OPERATOR.labels), server, 8000)


@pytest.mark.proves("spec.server.networkPolicy.inferenceFrom", "behaviour")
@pytest.mark.proves("spec.server.networkPolicy.metricsFrom", "behaviour")
def test_declared_peers_replace_the_namespace() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}
    policies, server = pod(server={"networkPolicy": {"inferenceFrom": [peer]}})
    assert reaching(policies, server, 8000) == {"operator", "stranger"}
    assert reaching(policies, server, 8002) == {"operator", "neighbor"}
    policies, server = pod(server={"networkPolicy": {"metricsFrom": [peer]}})
    assert reaching(policies, server, 8001) == {"operator", "neighbor"}
    assert reaching(policies, server, 8002) == {"operator", "stranger"}


def test_the_operators_options_admit_further_namespaces() -> None:
    used = options(
        operator_namespace="ops",
        inference_namespaces=("other",),
        metrics_namespaces=("monitoring",),
    )
    policies, server = pod_with(used)
    assert reaching(policies, server, 8000) == {"operator", "neighbor", "stranger"}
    assert reaching(policies, server, 8002) == {"operator", "neighbor", "prometheus"}
    policies, server = pod_with(
        used, server={"networkPolicy": {"inferenceFrom": [{"podSelector": {}}]}}
    )
    assert reaching(policies, server, 8000) == {"operator", "neighbor"}


def test_an_asterisk_admits_everyone() -> None:
    used = options(inference_namespaces=("*",), metrics_namespaces=("other", "*"))
    policies, server = pod_with(used)
    for port in (8000, 8001, 8002):
        assert reaching(policies, server, port) == ALL
    assert reaching(policies, server, 22) == set()


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_a_service_for_clients_outside_admits_them_to_inference(kind: str) -> None:
    policies, server = pod(server={"service": {"type": kind}})
    assert reaching(policies, server, 8000) == ALL
    assert reaching(policies, server, 8002) == {"operator", "neighbor"}
    peers = [{"ipBlock": {"cidr": "203.0.113.0/24"}}]
    policies, server = pod(
        server={"service": {"type": kind}, "networkPolicy": {"inferenceFrom": peers}}
    )
    assert reaching(policies, server, 8000) == {"operator", "outside"}


def test_egress_is_open_by_default() -> None:
    policies, server = pod()
    for target in (OUTSIDE, METADATA, STRANGER):
        assert admits(policies, server, target, 443)


@pytest.mark.proves("spec.server.networkPolicy.egress", "behaviour")
def test_declared_rules_replace_open_egress() -> None:
    rule = {
        "to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}}],
        "ports": [{"port": 443}],
    }
    policies, server = pod(server={"networkPolicy": {"egress": [rule]}})
    assert admits(policies, server, OUTSIDE, 443)
    assert not admits(policies, server, OUTSIDE, 80)
    assert not admits(policies, server, METADATA, 443)
    assert reaching(policies, server, 8000) == {"operator", "neighbor"}


def test_names_can_be_resolved_whatever_the_rules() -> None:
    rule = {"to": [{"podSelector": {"matchLabels": {"app": "store"}}}]}
    policies, server = pod(server={"networkPolicy": {"egress": [rule]}})
    for protocol in ("UDP", "TCP"):
        assert admits(policies, server, DNS, 53, protocol)
        assert admits(policies, server, NODE_DNS, 53, protocol)
        assert not admits(policies, server, OUTSIDE, 53, protocol)
    assert not admits(policies, server, DNS, 443)


def test_a_disabled_policy_is_not_created() -> None:
    policies, _ = pod(server={"networkPolicy": {"mode": "Disabled"}})
    assert policies == []


def test_the_canary_of_a_tuning_run_may_reach_what_pods_may_reach() -> None:
    rule = {"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}
    one = built(server={"networkPolicy": {"egress": [rule]}})
    policies = tuning_objects.policies(one.pipeline, "run", "ops")
    canary_labels, tuner_labels = (item["spec"]["podSelector"]["matchLabels"] for item in policies)
    ports = {"http": 8000, "grpc": 8001, "metrics": 8002}
    canary = Endpoint("nlp", canary_labels, "10.244.0.6", ports)
    tuner = Endpoint("nlp", tuner_labels)
    assert admits(policies, canary, OUTSIDE, 443)
    assert admits(policies, canary, DNS, 53, "UDP")
    assert not admits(policies, canary, METADATA, 80)
    assert admits(policies, tuner, canary, 8000)
    assert not admits(policies, tuner, OUTSIDE, 443)
    assert not admits(policies, NEIGHBOR, canary, 8000)
    assert admits(policies, OPERATOR, canary, 8001)
