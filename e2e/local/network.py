"""Addresses of a local cluster, and the network namespace and link that they live on.

Every cluster has an index; from it follow its three networks, so that several clusters run side by
side and their Services and pods are reachable from the host by plain routes.
"""

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from e2e.local import packages

MAX_CLUSTERS = 16
"""So many /20 Service ranges fit into the customary 10.96.0.0/16."""

BROAD_PREFIX = 13
"""Routes this broad do not show that an address is in use, because narrower ones win.

Examples are a default route and all of 10.0.0.0/8.
"""


class NetworkError(RuntimeError):
    """The cluster's network could not be made; the message says why."""


@dataclass(frozen=True)
class Subnets:
    """The networks of the cluster with this index."""

    index: int

    @property
    def link(self) -> IPv4Network:
        """The link between host (first address) and node (second)."""
        return IPv4Network(f"10.99.{self.index}.0/30")

    @property
    def services(self) -> IPv4Network:
        """Addresses of Services."""
        return IPv4Network(f"10.96.{16 * self.index}.0/20")

    @property
    def pods(self) -> IPv4Network:
        """Addresses of pods."""
        return IPv4Network(f"10.244.{self.index}.0/24")

    @property
    def host_address(self) -> str:
        """The host's end of the link: where pods reach servers that tests run on the host."""
        return str(self.link[1])

    @property
    def node_address(self) -> str:
        """The node's end of the link: API server, kubelet, node ports."""
        return str(self.link[2])

    @property
    def all(self) -> tuple[IPv4Network, ...]:
        """All three."""
        return (self.link, self.services, self.pods)


def allocate(routes: Iterable[IPv4Network], taken: Iterable[int]) -> Subnets:
    """Return the networks with the lowest free index.

    An index is free if it is not taken and no route of the host leads to its addresses.

    Raises:
        NetworkError: no index is free.
    """
    narrow = [route for route in routes if route.prefixlen > BROAD_PREFIX]
    used = set(taken)
    for index in range(MAX_CLUSTERS):
        candidate = Subnets(index)
        if index not in used and not any(
            route.overlaps(network) for route in narrow for network in candidate.all
        ):
            return candidate
    raise NetworkError(
        f"no free addresses for another cluster: all {MAX_CLUSTERS} sets in 10.96.0.0/16, "
        f"10.99.0.0/16 and 10.244.0.0/16 are taken or routed on "
        "this machine; remove a cluster (python -m e2e.local down --name NAME) or see `ip route`"
    )


def parse_routes(document: str) -> list[IPv4Network]:
    """Destinations in the output of `ip -json -4 route show table all`."""
    found = []
    for route in json.loads(document or "[]"):
        destination = route["dst"]
        found.append(
            IPv4Network("0.0.0.0/0" if destination == "default" else destination, strict=False)
        )
    return found


def host_routes() -> list[IPv4Network]:
    """Destinations of all IPv4 routes of the host."""
    return parse_routes(_ip("-json", "-4", "route", "show", "table", "all"))


def namespace_path(namespace: str) -> Path:
    """Where `ip netns` keeps the handle of a network namespace."""
    return Path("/run/netns") / namespace


def create(namespace: str, subnets: Subnets) -> None:
    """Make the network namespace, the link into it and the host's routes to Services and pods.

    Raises:
        NetworkError: a step was refused; call `delete_link` and `delete_namespace` to remove what
            was made.
    """
    outside, inside = link_names(subnets)
    prefix = subnets.link.prefixlen
    _ip("netns", "add", namespace)
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", namespace)
    _ip("address", "add", f"{subnets.host_address}/{prefix}", "dev", outside)
    _ip("link", "set", outside, "up")
    _ip("-n", namespace, "address", "add", f"{subnets.node_address}/{prefix}", "dev", inside)
    _ip("-n", namespace, "link", "set", inside, "up")
    _ip("-n", namespace, "route", "add", "default", "via", subnets.host_address)
    for network in (subnets.services, subnets.pods):
        _ip("route", "add", str(network), "via", subnets.node_address)


def delete_link(subnets: Subnets) -> None:
    """Remove the link, if there is one; the host's routes go with it."""
    outside, _ = link_names(subnets)
    if (Path("/sys/class/net") / outside).exists():
        _ip("link", "delete", outside)


def delete_namespace(namespace: str) -> None:
    """Remove the network namespace, if there is one."""
    if namespace_path(namespace).exists():
        _ip("netns", "delete", namespace)


def processes(namespace: str) -> list[int]:
    """Ids of the processes in a network namespace; none when it does not exist."""
    if not namespace_path(namespace).exists():
        return []
    return [int(pid) for pid in _ip("netns", "pids", namespace).split()]


def link_names(subnets: Subnets) -> tuple[str, str]:
    """Interface names of the link's ends on the host and on the node (at most 15 bytes)."""
    return f"tpl-host{subnets.index}", f"tpl-node{subnets.index}"


def _ip(*arguments: str) -> str:
    env = {**os.environ, "PATH": packages.search_path()}
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise NetworkError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout
