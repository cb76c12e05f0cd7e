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
from .prometheus_client import Prometheus, PrometheusError
from .scrape_history import PodKey


@dataclass(frozen=True, slots=True)
class CounterQuery:
    """One query for counters and the pods that it covers."""

    group: queries.PodGroup
    """Namespaces, pods and models that the query selects."""
    seconds: float
    """How far back the query reaches."""
    pods: frozenset[PodKey]
    """The pods whose series are expected in the result."""


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The queries of one collection."""

    counter_queries: tuple[CounterQuery, ...]
    """Queries for counters."""
    models: Mapping[PodKey, frozenset[str]]
    """Models expected in each pod."""
    addresses: Mapping[PodKey, str]
    """Address of each pod's metrics port."""
    interval: float
    """Seconds between scrapes."""
    usage: bool
    """Whether CPU, memory and GPU usage is queried."""
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

    def run(self, plan: CollectionPlan) -> CollectionResult:
        """Run all queries in sequence, within the connection's time limit.

        Raises nothing: errors are part of the result.
        """
        deadline = self._monotonic() + self._connection.timeout_seconds
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
        over = ""
        for query in plan.counter_queries:
            over = over or self._counters(query, plan, got, deadline)
            if over:
                got.errors.update(dict.fromkeys(query.pods, over))
        if not over and plan.usage:
            self._usage(plan, got, deadline)
        absent = {
            pod
            for query in plan.counter_queries
            for pod in query.pods
            if pod not in got.seen and pod not in got.errors
        }
        if not over and absent and plan.targets:
            self._targets(absent, got, deadline)
        return got

    def _counters(
        self, query: CounterQuery, plan: CollectionPlan, got: CollectionResult, deadline: float
    ) -> str:
        """Query counters. Return why no further query is worth sending, or ""."""
        try:
            with _no_cycles():
                answer = self._client.query(
                    queries.counters(self._connection, query.group, query.seconds), deadline
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
        except (PrometheusError, query_results.QueryResultError) as error:
            got.errors.update(dict.fromkeys(query.pods, str(error)))
            return str(error) if isinstance(error, PrometheusError) and error.final else ""
        got.seen.update(seen)
        got.queried |= query.pods
        got.notes += [f"Prometheus warns: {one}" for one in answer.warnings if len(got.notes) < 3]
        return ""

    def _usage(self, plan: CollectionPlan, got: CollectionResult, deadline: float) -> None:
        """Query CPU, memory and GPU usage. It is optional, so an error becomes a note."""
        found: dict[str, dict[PodKey, float]] = {}
        try:
            for group in queries.pod_groups(plan.models, ()):
                for text in queries.usage(self._connection, group, plan.usage_seconds):
                    answer = self._client.query(text, deadline)
                    for name, values in query_results.figures(
                        answer.kind, answer.result, self._connection
                    ).items():
                        found.setdefault(name, {}).update(values)
        except (PrometheusError, query_results.QueryResultError) as error:
            got.notes.append(f"CPU and GPU metrics are missing: {error}")
        got.figures = found

    def _targets(self, absent: Iterable[PodKey], got: CollectionResult, deadline: float) -> None:
        up: dict[PodKey, bool] = {}
        try:
            for group in queries.pod_groups(absent, ()):
                answer = self._client.query(queries.targets(self._connection, group), deadline)
                up.update(query_results.targets(answer.kind, answer.result, self._connection))
        except (PrometheusError, query_results.QueryResultError):
            return
        got.up = up
