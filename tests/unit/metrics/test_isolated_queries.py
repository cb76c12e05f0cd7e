"""Queries of many namespaces, one of which is slow, on a simulated clock."""

from __future__ import annotations

import pytest

from triton_pipelines.autoscaling.metrics.isolated_queries import IsolatedQueries
from triton_pipelines.autoscaling.metrics.namespace_query import (
    NamespaceQuery,
    QueryKind,
    namespace_queries,
)
from triton_pipelines.autoscaling.metrics.prometheus_response import PrometheusError

TIMEOUT = 4.0
NAMESPACES = 1000


class Place:
    """A connection, its clock, and namespaces whose queries never end."""

    def __init__(self, *slow: int) -> None:
        self.now = 0.0
        self.slow = {self.name(number) for number in slow}
        self.queries = IsolatedQueries(lambda: self.now)
        self.found: set[str] = set()

    @staticmethod
    def name(number: int) -> str:
        return f"team-{number:04}"

    def send(self, query: NamespaceQuery, until: float) -> None:
        names = set(query.group.namespaces)
        end = self.now + len(names) * 0.5 / NAMESPACES
        if self.slow & names or end > until:
            self.now = max(self.now, until)
            raise PrometheusError("no complete response in time", is_timeout=True)
        self.now = end
        self.found |= names

    def collect(self) -> None:
        """Collect 2 s after the last collection."""
        self.now += 2.0
        self.found = set()
        begin = self.now
        pods = [(self.name(number), "p") for number in range(NAMESPACES)]
        queries = namespace_queries(QueryKind.COUNTERS, pods)
        self.queries.run(queries, self.send, begin, begin + TIMEOUT)
        assert self.now <= begin + TIMEOUT


@pytest.mark.parametrize(("slow", "most"), [((617,), 9), ((3, 333, 334, 900), 11)])
def test_slow_namespaces_are_found_in_few_collections(slow: tuple[int, ...], most: int) -> None:
    place = Place(*slow)
    missed = 0
    for _ in range(most):
        place.collect()
        missed += NAMESPACES - len(place.found)
    assert len(place.found) == NAMESPACES - len(slow)
    assert missed <= 4 * NAMESPACES, "most namespaces are back after two or three collections"
