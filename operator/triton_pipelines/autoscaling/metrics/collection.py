"""The queries of one collection, and their results.

They run in sequence in the connection's own thread.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from . import queries, query_results
from .connection import Connection
from .isolated_queries import IsolatedQueries
from .namespace_query import NamespaceQuery, QueryKind, namespace_queries
from .prometheus_client import Prometheus
from .prometheus_response import PrometheusError
from .scrape_history import PodKey


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The queries of one collection."""

    counter_queries: tuple[NamespaceQuery, ...]
    """Queries for counters."""
    usage_queries: tuple[NamespaceQuery, ...]
    """Queries for CPU, memory and GPU usage; empty if they are not due."""
    models: Mapping[PodKey, frozenset[str]]
    """Models expected in each pod."""
    addresses: Mapping[PodKey, str]
    """Address of each pod's metrics port."""
    interval: float
    """Seconds between scrapes."""
    usage_seconds: float
    """Window of the usage queries."""
    targets: bool
    """Whether the scrape targets of missing pods are queried."""


@dataclass(slots=True)
class CollectionResult:
    """The results of one collection."""

    server: float = 0.0
    """Time of the server, Unix seconds."""
    at: float = 0.0
    """The operator's time halfway through the query for the server's time, Unix seconds."""
    seen: dict[PodKey, query_results.PodSeries] = field(default_factory=dict)
    """Series found, by pod."""
    queried: set[PodKey] = field(default_factory=set)
    """Pods whose counter query succeeded."""
    errors: dict[PodKey, str] = field(default_factory=dict)
    """Why the counter query of a pod failed."""
    is_complete: bool = True
    """Whether every counter query that was due had its turn and enough time."""
    figures: dict[str, dict[PodKey, float]] | None = None
    """Usage by figure and pod; ``None`` if it was not queried."""
    up: dict[PodKey, bool] | None = None
    """Whether the last scrape of a target worked; ``None`` if targets were not queried."""
    error: str = ""
    """Why the whole collection failed."""
    has_remedy: bool = False
    """Whether ``error`` says what to do."""
    notes: list[str] = field(default_factory=list)
    """Notes on the collection as a whole."""
    pod_notes: dict[PodKey, str] = field(default_factory=dict)
    """Notes on the collection of one pod."""


@contextlib.contextmanager
def _no_cycles() -> Iterator[None]:
    """Disable the cyclic garbage collector.

    A query result is a tree of 100 000 objects, and searching it for cycles took half of a
    collection's CPU time. The switch is process-wide and short. If two connections overlap, one of
    them runs with garbage collection, which only costs time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class CollectionQueries:
    """Runs the queries of collections over one connection.

    ``clock`` returns Unix seconds.
    """

    def __init__(
        self,
        connection: Connection,
        client: Prometheus,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._connection, self._client = connection, client
        self._clock, self._monotonic = clock, monotonic
        self._queries = IsolatedQueries(monotonic)

    def run(self, plan: CollectionPlan) -> CollectionResult:
        """Run all queries in sequence, within the connection's time limit.

        Raises nothing: errors are part of the result.
        """
        begin = self._monotonic()
        deadline = begin + self._connection.timeout_seconds
        got = CollectionResult()
        try:
            before = self._clock()
            answer = self._client.query(queries.CLOCK, deadline)
            got.server, got.at = (
                query_results.clock(answer.kind, answer.result),
                (before + self._clock()) / 2,
            )
        except (PrometheusError, query_results.QueryResultError) as error:
            got.error = str(error)
            got.has_remedy = not isinstance(error, PrometheusError) or error.has_remedy
            return got
        self._counters_and_usage(plan, got, begin, deadline)
        absent = [
            pod
            for query in plan.counter_queries
            for pod in query.pods
            if pod not in got.seen and pod not in got.errors
        ]
        if got.is_complete and absent and plan.targets:
            self._targets(absent, got, begin, deadline)
        return got

    def _counters_and_usage(
        self, plan: CollectionPlan, got: CollectionResult, begin: float, deadline: float
    ) -> None:
        """Query counters, and usage if it is due. Usage is optional, so its errors become notes."""
        if plan.usage_queries:
            got.figures = {}

        def send(query: NamespaceQuery, until: float) -> None:
            if query.kind is QueryKind.COUNTERS:
                self._counters(query, plan, got, until)
            else:
                self._usage(query, got, until)

        outcome = self._queries.run(
            (*plan.counter_queries, *plan.usage_queries), send, begin, deadline
        )
        got.errors = outcome.errors[QueryKind.COUNTERS]
        got.is_complete = QueryKind.COUNTERS not in outcome.incomplete
        missing = {
            pod: f"CPU and GPU metrics are missing: {error}"
            for pod, error in outcome.errors[QueryKind.USAGE].items()
        }
        if len(missing) == len(plan.models):
            got.notes += sorted(set(missing.values()))[:1]
        else:
            got.pod_notes = missing

    def _counters(
        self, query: NamespaceQuery, plan: CollectionPlan, got: CollectionResult, until: float
    ) -> None:
        with _no_cycles():
            answer = self._client.query(
                queries.counters(self._connection, query.group, query.seconds), until
            )
            expected = {pod: plan.models[pod] for pod in query.pods}
            seen = query_results.counters(
                answer.kind,
                answer.result,
                self._connection.labels,
                expected,
                plan.addresses,
                plan.interval,
            )
        got.seen.update(seen)
        got.queried |= query.pods
        got.notes += [f"Prometheus warns: {one}" for one in answer.warnings if len(got.notes) < 3]

    def _usage(self, query: NamespaceQuery, got: CollectionResult, until: float) -> None:
        found = {} if got.figures is None else got.figures
        for text in queries.usage(self._connection, query.group, query.seconds):
            answer = self._client.query(text, until)
            for name, values in query_results.figures(
                answer.kind, answer.result, self._connection
            ).items():
                found.setdefault(name, {}).update(values)

    def _targets(
        self, absent: Iterable[PodKey], got: CollectionResult, begin: float, deadline: float
    ) -> None:
        """Query the scrape targets of missing pods. They only appear in messages."""
        up: dict[PodKey, bool] = {}

        def send(query: NamespaceQuery, until: float) -> None:
            answer = self._client.query(queries.targets(self._connection, query.group), until)
            up.update(query_results.targets(answer.kind, answer.result, self._connection))

        outcome = self._queries.run(
            namespace_queries(QueryKind.TARGETS, absent), send, begin, deadline
        )
        if not outcome.incomplete:
            got.up = up
