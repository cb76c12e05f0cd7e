"""The queries of one collection, and their results.

They run in sequence in the connection's own thread.
"""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from . import queries, query_results
from .connection import Connection
from .prometheus_client import Prometheus, PrometheusError
from .scrape_history import PodKey

REJECTED_SECONDS: Final = 30.0
"""How long a query that failed is not sent again."""
REJECTIONS_MAX: Final = 64
"""Rejected queries of a collection before the first success. After them, none is divided again."""


@dataclass(frozen=True, slots=True)
class CounterQuery:
    """One query for counters and the pods that it covers."""

    group: queries.PodGroup
    """Namespaces, pods and models that the query selects."""
    seconds: float
    """How far back the query reaches."""
    pods: frozenset[PodKey]
    """The pods whose series are expected in the result."""

    def halves(self) -> tuple[CounterQuery, ...]:
        """Return two queries for half of the namespaces each; none for a single namespace."""
        names = self.group.namespaces
        middle = len(names) // 2
        return (self._within(names[:middle]), self._within(names[middle:])) if middle else ()

    def _within(self, namespaces: tuple[str, ...]) -> CounterQuery:
        pods = frozenset(pod for pod in self.pods if pod[0] in namespaces)
        names = tuple(sorted({name for _, name in pods})) if self.group.pods else ()
        return CounterQuery(
            replace(self.group, namespaces=namespaces, pods=names), self.seconds, pods
        )


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
    is_complete: bool = True
    """Whether every counter query had its turn."""
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
        self._rejected: dict[tuple[str, ...], tuple[float, str]] = {}
        """When and why a counter query failed, by its namespaces."""

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
        self._all_counters(plan, got, deadline)
        if got.is_complete and plan.usage:
            self._usage(plan, got, deadline)
        absent = {
            pod
            for query in plan.counter_queries
            for pod in query.pods
            if pod not in got.seen and pod not in got.errors
        }
        if got.is_complete and absent and plan.targets:
            self._targets(absent, got, deadline)
        return got

    def _all_counters(self, plan: CollectionPlan, got: CollectionResult, deadline: float) -> None:
        """Query all counters.

        Tenants choose how many series and samples their pods have. So a query that the server
        rejects, or whose result is too large, is repeated for half of its namespaces each, after
        all others, until only the namespace at fault is left. That one is not queried again for a
        short time. If no query succeeds, the server is at fault and not a namespace.
        """
        now = self._monotonic()
        oldest = now - REJECTED_SECONDS
        self._rejected = {key: one for key, one in self._rejected.items() if one[0] > oldest}
        waiting, rejected = deque(plan.counter_queries), dict[tuple[str, ...], tuple[float, str]]()
        while waiting:
            query = waiting.popleft()
            try:
                self._counters(query, plan, got, deadline)
            except query_results.QueryResultError as error:
                got.errors.update(dict.fromkeys(query.pods, str(error)))
            except PrometheusError as error:
                if error.final:
                    got.is_complete = False
                    failed = [pod for one in (query, *waiting) for pod in one.pods]
                    got.errors.update(dict.fromkeys(failed, str(error)))
                    return
                rejected.setdefault(query.group.namespaces, (now, str(error)))
                halves = query.halves()
                if halves and (got.queried or len(rejected) < REJECTIONS_MAX):
                    waiting.extend(halves)
                else:
                    got.errors.update(dict.fromkeys(query.pods, str(error)))
        if got.queried:
            self._rejected = rejected | self._rejected

    def _counters(
        self, query: CounterQuery, plan: CollectionPlan, got: CollectionResult, deadline: float
    ) -> None:
        """Query counters; raise what the query raises, or raised a short time ago."""
        namespaces = query.group.namespaces
        if namespaces in self._rejected:
            raise PrometheusError(self._rejected[namespaces][1])
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
        got.seen.update(seen)
        got.queried |= query.pods
        got.notes += [f"Prometheus warns: {one}" for one in answer.warnings if len(got.notes) < 3]

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
