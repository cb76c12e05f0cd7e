"""Which addresses clusters get: disjoint, and none that the machine already routes."""

import json
from ipaddress import IPv4Network
from itertools import combinations

import pytest

from e2e.local.network import (
    MAX_CLUSTERS,
    NetworkError,
    Subnets,
    allocate,
    link_names,
    parse_routes,
)

DEFAULT_ROUTE = IPv4Network("0.0.0.0/0")


def test_networks_of_all_clusters_are_disjoint() -> None:
    networks = [network for index in range(MAX_CLUSTERS) for network in Subnets(index).all]
    assert len(networks) == 3 * MAX_CLUSTERS
    assert not [pair for pair in combinations(networks, 2) if pair[0].overlaps(pair[1])]


def test_link_has_host_and_node() -> None:
    assert (Subnets(3).host_address, Subnets(3).node_address) == ("10.99.3.1", "10.99.3.2")


def test_lowest_free_index_is_given() -> None:
    assert allocate([DEFAULT_ROUTE], []).index == 0
    assert allocate([DEFAULT_ROUTE], [0, 1, 3]).index == 2


@pytest.mark.parametrize("route", ["10.99.0.0/24", "10.96.8.1/32", "10.244.0.0/16", "10.96.0.0/16"])
def test_routed_addresses_are_left_alone(route: str) -> None:
    taken = IPv4Network(route)
    if taken.prefixlen == 16:
        with pytest.raises(NetworkError, match="no free addresses"):
            allocate([taken], [])
    else:
        assert allocate([taken], []).index == 1


def test_broad_routes_do_not_count() -> None:
    assert allocate([IPv4Network("10.0.0.0/8"), DEFAULT_ROUTE], []).index == 0


def test_no_index_left() -> None:
    with pytest.raises(NetworkError, match="down --name NAME"):
        allocate([], range(MAX_CLUSTERS))


def test_routes_are_read_as_ip_prints_them() -> None:
    document = [
        {"dst": "default", "gateway": "192.0.2.1"},
        {"dst": "10.99.0.1", "type": "local"},
        {"dst": "192.0.2.0/24"},
    ]
    assert parse_routes(json.dumps(document)) == [
        DEFAULT_ROUTE,
        IPv4Network("10.99.0.1/32"),
        IPv4Network("192.0.2.0/24"),
    ]
    assert parse_routes("") == []


def test_interface_names_fit_the_kernel() -> None:
    assert all(
        len(name) <= 15 for index in range(MAX_CLUSTERS) for name in link_names(Subnets(index))
    )
