"""Rules of the local node's packet filter that enforce NetworkPolicies."""

from collections.abc import Sequence
from typing import Any

import pytest

from e2e.local.policy_rules import Objects, document, selects

Object = dict[str, Any]
SERVER, FRIEND, STRANGER = "10.244.0.2", "10.244.0.3", "10.244.0.4"
TRUSTED = ("10.99.0.1",)


def pod(name: str, namespace: str, address: str, **more: Any) -> Object:
    ports = [{"name": "http", "containerPort": 8000}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"containers": [{"name": name, "ports": ports}], **more.pop("spec", {})},
        "status": {"podIP": address, "phase": "Running", **more},
    }


PODS = [
    pod("server", "a", SERVER),
    pod("friend", "a", FRIEND),
    pod("stranger", "b", STRANGER),
]


def policy(namespace: str = "a", app: str = "server", **spec: Any) -> Object:
    types = [kind for kind in ("Ingress", "Egress") if kind.lower() in spec]
    return {
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": types, **spec},
    }


def rules(*policies: Object, pods: Sequence[Object] = PODS) -> list[str]:
    """Return the rules about pods, without the chains' names."""
    namespaces = [
        {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
        for name in ("a", "b")
    ]
    text = document(Objects(policies, pods, namespaces), TRUSTED)
    return [
        line.partition(" ")[2].partition(" ")[2]
        for line in text.splitlines()
        if line.startswith(("-A TRITONPIPE-INGRESS", "-A TRITONPIPE-EGRESS"))
    ]


def test_without_a_policy_everything_passes() -> None:
    assert rules() == []
    assert rules(policy(namespace="b", ingress=[])) == []


def test_replies_and_the_host_pass_first() -> None:
    lines = document(Objects([], [], []), TRUSTED).splitlines()
    own = [line for line in lines if line.startswith("-A TRITONPIPE-POLICIES")]
    assert own[:2] == [
        "-A TRITONPIPE-POLICIES -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN",
        "-A TRITONPIPE-POLICIES -s 10.99.0.1 -j RETURN",
    ]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ({"podSelector": {}}, SERVER),
        ({"podSelector": {"matchLabels": {"app": "friend"}}}, FRIEND),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}}, STRANGER),
    ],
)
def test_a_selected_peer_reaches_the_named_port_and_nobody_else_does(
    peer: Object, address: str
) -> None:
    found = rules(policy(ingress=[{"from": [peer], "ports": [{"port": "http"}]}]))
    assert f"-d {SERVER} -s {address} -p tcp --dport 8000 -j RETURN" in found
    assert found[-1] == f"-d {SERVER} -j REJECT"
    assert (f"-s {STRANGER} " in "".join(found)) is (address == STRANGER)


def test_a_namespace_and_a_label_must_both_match() -> None:
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}},
        "podSelector": {"matchLabels": {"app": "friend"}},
    }
    assert rules(policy(ingress=[{"from": [peer]}])) == [f"-d {SERVER} -j REJECT"]


def test_a_rule_without_peers_or_ports_admits_everyone() -> None:
    assert rules(policy(ingress=[{}]))[0] == f"-d {SERVER} -s 0.0.0.0/0 -j RETURN"


def test_egress_leaves_exceptions_out() -> None:
    block = {"cidr": "169.254.169.252/30", "except": ["169.254.169.254/32"]}
    found = rules(policy(egress=[{"to": [{"ipBlock": block}], "ports": [{"port": 80}]}]))
    assert found == [
        f"-s {SERVER} -d 169.254.169.252/31 -p tcp --dport 80 -j RETURN",
        f"-s {SERVER} -d 169.254.169.255/32 -p tcp --dport 80 -j RETURN",
        f"-s {SERVER} -j REJECT",
    ]


def test_a_name_in_egress_is_that_of_the_pod_that_is_connected_to() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "friend"}}}
    found = rules(policy(egress=[{"to": [peer], "ports": [{"port": "http"}, {"port": "none"}]}]))
    assert found == [
        f"-s {SERVER} -d {FRIEND} -p tcp --dport 8000 -j RETURN",
        f"-s {SERVER} -j REJECT",
    ]


def test_pods_without_an_address_of_their_own_have_no_rules() -> None:
    gone = pod("server", "a", SERVER, phase="Succeeded")
    on_node = pod("server", "a", "10.99.0.2", spec={"hostNetwork": True})
    waiting = pod("server", "a", "")
    assert rules(policy(ingress=[]), pods=[gone, on_node, waiting]) == []


@pytest.mark.parametrize(
    ("operator", "values", "labels", "expected"),
    [
        ("In", ["x"], {"app": "x"}, True),
        ("In", ["x"], {}, False),
        ("NotIn", ["x"], {"app": "x"}, False),
        ("NotIn", ["x"], {}, True),
        ("Exists", [], {"app": "x"}, True),
        ("DoesNotExist", [], {"app": "x"}, False),
    ],
)
def test_expressions_of_selectors(
    operator: str, values: list[str], labels: dict[str, str], expected: bool
) -> None:
    expression = {"key": "app", "operator": operator, "values": values}
    assert selects({"matchExpressions": [expression]}, labels) is expected
