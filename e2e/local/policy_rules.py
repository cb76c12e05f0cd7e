"""Translate NetworkPolicies into packet filter rules of a node. Pure.

The meaning follows the reference of networking.k8s.io/v1: policies add up, a direction that no
policy covers is open, and replies always pass. Traffic of the node itself is never filtered.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

Object = Mapping[str, Any]
Selector = Mapping[str, Any]

CHAIN = "TRITONPIPE-POLICIES"
DIRECTIONS = {"Egress": "TRITONPIPE-EGRESS", "Ingress": "TRITONPIPE-INGRESS"}
"""Chain of each direction of a policy."""
ANYWHERE = "0.0.0.0/0"
_ENDED = ("Succeeded", "Failed")
_PEERS = {"Egress": "to", "Ingress": "from"}
# A refused connection is visible at once; a dropped one only after the client's timeout.
_REFUSE = "-j REJECT"


@dataclass(frozen=True)
class Objects:
    """Objects of the API that decide the rules."""

    policies: Sequence[Object]
    pods: Sequence[Object]
    namespaces: Sequence[Object]


def document(objects: Objects, trusted: Iterable[str]) -> str:
    """Return the input of `iptables-restore --noflush`: all three chains, replaced as one.

    Args:
        objects: the cluster's objects.
        trusted: addresses that may reach everything, such as the host's end of the node's link.
    """
    chains = [CHAIN, *DIRECTIONS.values()]
    lines = [f"-A {CHAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"]
    lines += [f"-A {CHAIN} -s {address} -j RETURN" for address in trusted]
    lines += [f"-A {CHAIN} -j {chain}" for chain in DIRECTIONS.values()]
    for pod in _addressed(objects.pods):
        for direction in DIRECTIONS:
            lines += _pod_rules(objects, pod, direction)
    declared = [f":{chain} - [0:0]" for chain in chains]
    return "\n".join(["*filter", *declared, *lines, "COMMIT", ""])


def _addressed(pods: Sequence[Object]) -> list[Object]:
    """Return pods with an address of their own; that of a pod that ended may be in use again."""
    return [
        pod
        for pod in pods
        if pod.get("status", {}).get("podIP")
        and pod["status"].get("phase") not in _ENDED
        and not pod["spec"].get("hostNetwork")
    ]


def _pod_rules(objects: Objects, pod: Object, direction: str) -> Iterator[str]:
    """Yield the rules of one pod and direction: what passes, and at the end the refusal."""
    policies = [
        policy
        for policy in objects.policies
        if policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and direction in policy["spec"].get("policyTypes", ())
        and selects(policy["spec"].get("podSelector") or {}, _labels(pod))
    ]
    if not policies:
        return
    chain, own, other = (
        DIRECTIONS[direction],
        *(("-s", "-d") if direction == "Egress" else ("-d", "-s")),
    )
    subject = f"-A {chain} {own} {pod['status']['podIP']}"
    for policy in policies:
        for rule in policy["spec"].get(direction.lower()) or ():
            for address, peer in _peers(objects, policy, rule.get(_PEERS[direction])):
                server = pod if direction == "Ingress" else peer
                for port in _ports(rule.get("ports"), server):
                    yield f"{subject} {other} {address}{port} -j RETURN"
    yield f"{subject} {_REFUSE}"


def _peers(
    objects: Objects, policy: Object, declared: Sequence[Object] | None
) -> Iterator[tuple[str, Object | None]]:
    """Yield the addresses of a rule's peers, each with its pod if it is one."""
    if not declared:
        yield ANYWHERE, None
    for peer in declared or ():
        if "ipBlock" in peer:
            yield from ((address, None) for address in _block(peer["ipBlock"]))
        else:
            own = policy["metadata"]["namespace"]
            yield from ((pod["status"]["podIP"], pod) for pod in _selected(objects, peer, own))


def _selected(objects: Objects, peer: Object, own_namespace: str) -> Iterator[Object]:
    namespaces = {own_namespace}
    if peer.get("namespaceSelector") is not None:
        namespaces = {
            item["metadata"]["name"]
            for item in objects.namespaces
            if selects(peer["namespaceSelector"], _labels(item))
        }
    for pod in _addressed(objects.pods):
        if pod["metadata"]["namespace"] in namespaces and selects(
            peer.get("podSelector") or {}, _labels(pod)
        ):
            yield pod


def _block(block: Object) -> list[str]:
    """Return the networks of an `ipBlock` without its exceptions; the node knows IPv4 alone."""
    if ":" in block["cidr"]:
        return []
    found = [IPv4Network(block["cidr"])]
    for excluded in (IPv4Network(text) for text in block.get("except") or ()):
        found = [part for network in found for part in _without(network, excluded)]
    return [str(network) for network in found]


def _without(network: IPv4Network, excluded: IPv4Network) -> list[IPv4Network]:
    if excluded.subnet_of(network):
        return list(network.address_exclude(excluded))
    return [] if network.subnet_of(excluded) else [network]


def _ports(declared: Sequence[Object] | None, server: Object | None) -> Iterator[str]:
    """Yield the matches of a rule's ports; names are those of the pod that is connected to."""
    if not declared:
        yield ""
    for item in declared or ():
        protocol = str(item.get("protocol", "TCP")).lower()
        port = item.get("port")
        if port is None:
            yield f" -p {protocol}"
            continue
        number = port if isinstance(port, int) else _number(server, port)
        if number is not None:
            last = f":{item['endPort']}" if item.get("endPort") else ""
            yield f" -p {protocol} --dport {number}{last}"


def _number(server: Object | None, name: str) -> int | None:
    """Return the number of a pod's named port."""
    for container in (server or {}).get("spec", {}).get("containers", ()):
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return None


def _labels(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches these labels."""
    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        _holds(item, labels) for item in selector.get("matchExpressions") or ()
    )


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            raise ValueError(f"unknown operator {operator!r} of a label selector")
