"""What NetworkPolicies permit, as the API defines it, for policies that are rendered and not run.

The meaning follows the reference of networking.k8s.io/v1: policies add up, and a direction that no
policy covers is open. Expressions of selectors are not implemented; the tests need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """A pod, or with ``namespace`` None a machine outside the cluster."""

    namespace: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "10.244.0.9"
    ports: Mapping[str, int] = field(default_factory=dict)
    """Named ports."""


def admits(
    policies: Sequence[Policy], client: Endpoint, server: Endpoint, port: int, protocol: str = "TCP"
) -> bool:
    """Whether a connection is permitted at both ends."""
    return _passes(policies, "Egress", client, server, server, port, protocol) and _passes(
        policies, "Ingress", server, client, server, port, protocol
    )


def _passes(
    policies: Sequence[Policy],
    direction: str,
    subject: Endpoint,
    peer: Endpoint,
    server: Endpoint,
    port: int,
    protocol: str,
) -> bool:
    specs = [
        item["spec"]
        for item in policies
        if item["metadata"]["namespace"] == subject.namespace
        and direction in item["spec"]["policyTypes"]
        and _selects(item["spec"]["podSelector"], subject.labels)
    ]
    side = {"Ingress": "from", "Egress": "to"}[direction]
    rules = [
        (rule, spec_namespace)
        for spec, spec_namespace in ((spec, subject.namespace) for spec in specs)
        for rule in spec.get(direction.lower(), ())
    ]
    return not specs or any(
        _is_port(rule, server, port, protocol)
        and (not rule.get(side) or any(_is_peer(one, peer, where) for one in rule[side]))
        for rule, where in rules
    )


def _is_port(rule: Mapping[str, Any], server: Endpoint, port: int, protocol: str) -> bool:
    declared = rule.get("ports")
    return not declared or (port, protocol) in set(_ports(declared, server))


def _ports(declared: Sequence[Mapping[str, Any]], server: Endpoint) -> Iterator[tuple[int, str]]:
    for item in declared:
        number = item["port"] if isinstance(item["port"], int) else server.ports.get(item["port"])
        if number is not None:
            yield number, item.get("protocol", "TCP")


def _is_peer(peer: Mapping[str, Any], other: Endpoint, namespace: str | None) -> bool:
    if "ipBlock" in peer:
        address = ip_address(other.address)
        block = peer["ipBlock"]
        return address in ip_network(block["cidr"]) and not any(
            address in ip_network(excluded) for excluded in block.get("except", ())
        )
    if other.namespace is None:
        return False
    in_namespace = (
        _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
        if "namespaceSelector" in peer
        else other.namespace == namespace
    )
    return in_namespace and _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}, "expressions are not implemented here"
    return selector.get("matchLabels", {}).items() <= labels.items()
