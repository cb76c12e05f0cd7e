"""Collect the samples of all pipelines from one Prometheus connection.

One set of queries per interval serves all pipelines. The newest raw samples are kept in ring
buffers. Earlier samples are queried once, when a pod is new to the collector. Queries and the
parsing of results run in the connection's only thread, so that a slow server neither blocks the
event loop nor lets collections pile up.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Self

from . import queries, query_results
from .connection import Connection
from .prometheus_client import Prometheus, PrometheusError
from .sample_quality import INTERVAL_UNKNOWN, SKEW_SECONDS, CollectionEvidence, assess_sample
from .samples import ExpectedPods, MetricsFailure, MetricsProblem, PipelineSample
from .scrape_history import SLACK_SECONDS, PodKey, ScrapeHistories

PipelineKey = tuple[str, str]
"""Namespace and name of a pipeline."""

LOOK_BACK_SECONDS: Final = 75.0
LOOK_BACK_MAX: Final = 3700.0
# Container metrics (cAdvisor) are refreshed no more often, and GPU metrics are means.
USAGE_EVERY_SECONDS: Final = 10.0
# Targets are queried less often because they only appear in messages.
TARGETS_EVERY_SECONDS: Final = 30.0
# Where users configure connections.
CONNECTIONS: Final = (
    "the chart's prometheus.url or prometheus.connections (--prometheus-url, --metrics-connections)"
)
# Allowance beyond the thread's own deadline, for parsing and for names that do not resolve.
_GRACE_SECONDS: Final = 1.0
# A scrape becomes visible no sooner than this long after its own time.
_VISIBLE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class _CounterQuery:
    """One query for counters and the pods that it covers."""

    group: queries.PodGroup
    """Namespaces, pods and models that the query selects."""
    seconds: float
    """How far back the query reaches."""
    pods: frozenset[PodKey]
    """The pods whose series are expected in the result."""


@dataclass(frozen=True, slots=True)
class _CollectionPlan:
    """The queries of one collection."""

    asks: tuple[_CounterQuery, ...]
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
class _CollectionResult:
    """The results of one collection."""

    server: float = 0.0
    """Time of the server, Unix seconds."""
    at: float = 0.0
    """The operator's time halfway through the query for the server's time, Unix seconds."""
    seen: dict[PodKey, query_results.PodSeries] = field(default_factory=dict)
    """Series found, by pod."""
    asked: set[PodKey] = field(default_factory=set)
    """Pods whose counter query succeeded."""
    errors: dict[PodKey, str] = field(default_factory=dict)
    """Why the counter query of a pod failed."""
    figures: dict[str, dict[PodKey, float]] | None = None
    """Usage by figure and pod; ``None`` if it was not queried."""
    up: dict[PodKey, bool] | None = None
    """Whether the last scrape of a target worked; ``None`` if targets were not queried."""
    error: str = ""
    """Why the whole collection failed."""
    notes: list[str] = field(default_factory=list)
    """Notes on the collection as a whole."""


class PrometheusCollector:
    """Collect from one connection; an async context manager. ``clock`` returns Unix seconds."""

    def __init__(
        self,
        connection: Connection,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connection = connection
        self.source = _source(connection.name)
        self._clock, self._monotonic = clock, monotonic
        self._client = Prometheus(connection, monotonic)
        self._histories = ScrapeHistories()
        self._pool = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix=f"prometheus-{connection.name}"
        )
        self._running: asyncio.Future[_CollectionResult] | None = None
        self._looked_back: set[PodKey] = set()
        self._last = -float("inf")
        self._usage_at = -float("inf")
        self._usage_window = 0
        self._targets_at = -float("inf")
        self._up: Mapping[PodKey, bool] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def collect(
        self, wanted: Mapping[PipelineKey, ExpectedPods]
    ) -> dict[PipelineKey, PipelineSample | MetricsFailure]:
        """Return a current sample, or the failure, for every pipeline.

        Server errors never raise; each is returned as a ``MetricsFailure``.
        """
        pods = {(one.namespace, pod) for one in wanted.values() for pod in one.pods}
        self._histories.keep(pods)
        self._looked_back &= pods
        if self._running is not None and not self._running.done():
            return self._all_failed(wanted, "the last collection has not come back yet")
        if not pods:
            return {
                key: assess_sample(
                    one, self._histories, CollectionEvidence(0.0, 0.0), self.source, str
                )
                for key, one in wanted.items()
            }
        began = self._monotonic()
        plan = self._plan(wanted, began)
        running = asyncio.get_running_loop().run_in_executor(self._pool, self._fetch, plan)
        self._running = running
        try:
            # Shielded because the thread continues after a timeout or a cancellation. No other
            # collection starts until it is done.
            got = await asyncio.wait_for(
                asyncio.shield(running), self.connection.timeout_seconds + _GRACE_SECONDS
            )
        except TimeoutError:
            return self._all_failed(
                wanted, f"no whole answer within {self.connection.timeout_seconds:g} s"
            )
        if got.error:
            return self._all_failed(wanted, got.error)
        evidence = self._merge(wanted, plan, got, began)
        return {key: self._judged(one, evidence, got) for key, one in wanted.items()}

    # --- Plan the queries ---------------------------------------------------------------------

    def _plan(self, wanted: Mapping[PipelineKey, ExpectedPods], began: float) -> _CollectionPlan:
        models: dict[PodKey, frozenset[str]] = {}
        addresses: dict[PodKey, str] = {}
        slow: dict[PodKey, float] = {}
        for one in wanted.values():
            for name, address in one.pods.items():
                (
                    models[one.namespace, name],
                    addresses[one.namespace, name],
                    slow[one.namespace, name],
                ) = one.models, address, one.slow
        interval = self._histories.interval(models, INTERVAL_UNKNOWN)
        known = {pod for pod in models if pod in self._looked_back}
        new = models.keys() - known
        # Everything since the last collection, and always enough to hold one scrape, so that two
        # targets of the same name appear in the same result.
        short = max(began - self._last + max(_VISIBLE_SECONDS, interval / 2), 1.2 * interval)
        asks = [
            *_asks(known, models, min(short, _look_back(slow, known))),
            *_asks(new, models, _look_back(slow, new)),
        ]
        return _CollectionPlan(
            asks=tuple(asks),
            models=models,
            addresses=addresses,
            interval=interval,
            usage=began - self._usage_at >= USAGE_EVERY_SECONDS,
            usage_seconds=queries.USAGE_SECONDS[self._usage_window],
            targets=began - self._targets_at >= TARGETS_EVERY_SECONDS,
        )

    # --- Run the queries, in the thread --------------------------------------------------------

    def _fetch(self, plan: _CollectionPlan) -> _CollectionResult:
        """Run all queries in sequence, within the connection's time limit.

        Raises nothing: errors are part of the result.
        """
        deadline = self._monotonic() + self.connection.timeout_seconds
        got = _CollectionResult()
        try:
            before = self._clock()
            answer = self._client.query(queries.CLOCK, deadline)
            got.server, got.at = (
                query_results.clock(answer.kind, answer.result),
                (before + self._clock()) / 2,
            )
        except (PrometheusError, query_results.QueryResultError) as error:
            got.error = _text(error)
            return got
        over = ""
        for ask in plan.asks:
            over = over or self._counters(ask, plan, got, deadline)
            if over:
                got.errors.update(dict.fromkeys(ask.pods, over))
        if not over and plan.usage:
            self._usage(plan, got, deadline)
        absent = {
            pod
            for ask in plan.asks
            for pod in ask.pods
            if pod not in got.seen and pod not in got.errors
        }
        if not over and absent and plan.targets:
            self._targets(absent, got, deadline)
        return got

    def _counters(
        self, ask: _CounterQuery, plan: _CollectionPlan, got: _CollectionResult, deadline: float
    ) -> str:
        """Query counters. Return why no further query is worth sending, or ""."""
        try:
            with _no_cycles():
                answer = self._client.query(
                    queries.counters(self.connection, ask.group, ask.seconds), deadline
                )
                wanted = {pod: plan.models[pod] for pod in ask.pods}
                seen = query_results.counters(
                    answer.kind,
                    answer.result,
                    self.connection.labels,
                    wanted,
                    plan.addresses,
                    plan.interval,
                )
        except (PrometheusError, query_results.QueryResultError) as error:
            got.errors.update(dict.fromkeys(ask.pods, _text(error)))
            return _text(error) if isinstance(error, PrometheusError) and error.final else ""
        got.seen.update(seen)
        got.asked |= ask.pods
        got.notes += [f"Prometheus warns: {one}" for one in answer.warnings if len(got.notes) < 3]
        return ""

    def _usage(self, plan: _CollectionPlan, got: _CollectionResult, deadline: float) -> None:
        """Query CPU, memory and GPU usage. It is optional, so an error becomes a note."""
        found: dict[str, dict[PodKey, float]] = {}
        try:
            for group in queries.pod_groups(plan.models, ()):
                for text in queries.usage(self.connection, group, plan.usage_seconds):
                    answer = self._client.query(text, deadline)
                    for name, values in query_results.figures(
                        answer.kind, answer.result, self.connection
                    ).items():
                        found.setdefault(name, {}).update(values)
        except (PrometheusError, query_results.QueryResultError) as error:
            got.notes.append(f"CPU and GPU figures are missing: {_text(error)}")
        got.figures = found

    def _targets(self, absent: Iterable[PodKey], got: _CollectionResult, deadline: float) -> None:
        up: dict[PodKey, bool] = {}
        try:
            for group in queries.pod_groups(absent, ()):
                answer = self._client.query(queries.targets(self.connection, group), deadline)
                up.update(query_results.targets(answer.kind, answer.result, self.connection))
        except (PrometheusError, query_results.QueryResultError):
            return
        got.up = up

    # --- Evaluate the results ------------------------------------------------------------------

    def _merge(
        self,
        wanted: Mapping[PipelineKey, ExpectedPods],
        plan: _CollectionPlan,
        got: _CollectionResult,
        began: float,
    ) -> CollectionEvidence:
        """Merge the results into the histories and return the evidence for assessing samples."""
        slow = {(one.namespace, pod): one.slow for one in wanted.values() for pod in one.pods}
        latest = got.server + plan.interval + _VISIBLE_SECONDS
        ahead: dict[PodKey, float] = {}
        for pod, seen in got.seen.items():
            known = self._histories.scrapes(pod)
            if known and known[-1].at > latest:
                # The server's clock was set back. Without this, no scrape would count as newer
                # until the clock caught up.
                self._histories.forget(pod)
            for scrape in seen.scrapes:
                if scrape.at <= latest:
                    self._histories.add(pod, scrape, slow[pod])
                else:
                    ahead[pod] = scrape.at - got.server
        self._looked_back |= got.asked
        if not got.errors:
            self._last = began
        if got.figures is not None:
            self._usage_at = began
            self._use(plan, got)
        if got.up is not None:
            self._targets_at, self._up = began, got.up
        elif not any(pod not in got.seen for pod in plan.models):
            self._up = None
        skew = got.server - got.at
        said = list(got.notes)
        if abs(skew) <= SKEW_SECONDS:
            skew = 0.0
        else:
            said.append(
                f"the clock of Prometheus is {abs(skew):.0f} s "
                f"{'ahead of' if skew > 0 else 'behind'} the operator's, which is allowed for"
            )
        return CollectionEvidence(
            now=got.server,
            skew=skew,
            interval=plan.interval,
            problems={pod: seen.problem for pod, seen in got.seen.items() if seen.problem},
            notes={pod: seen.note for pod, seen in got.seen.items() if seen.note},
            ahead=ahead,
            up=self._up,
            said=tuple(said),
        )

    def _use(self, plan: _CollectionPlan, got: _CollectionResult) -> None:
        found = got.figures or {}
        containers, measured = (
            found.get(queries.MEMORY, {}).keys() & plan.models.keys(),
            found.get(queries.CPU, {}).keys(),
        )
        if self._usage_window == 0 and containers and not containers & measured:
            # cAdvisor is not scraped often enough for the short window. Query the long window in
            # the next collection, without waiting for USAGE_EVERY_SECONDS.
            self._usage_window = 1
            self._usage_at = -float("inf")
        for pod, usage in query_results.usages(
            found, plan.models, got.server - plan.usage_seconds
        ).items():
            self._histories.use(pod, usage)

    def _judged(
        self, one: ExpectedPods, evidence: CollectionEvidence, got: _CollectionResult
    ) -> PipelineSample | MetricsFailure:
        failed = [pod for pod in one.pods if (one.namespace, pod) in got.errors]
        if failed:
            return MetricsFailure(
                MetricsProblem.ERROR,
                f"{self._at}: {got.errors[one.namespace, failed[0]]}",
                self.source,
            )
        return assess_sample(
            one,
            self._histories,
            evidence,
            self.source,
            lambda: queries.example_query(self.connection, one.namespace, tuple(one.pods)),
        )

    def _all_failed(
        self, wanted: Mapping[PipelineKey, ExpectedPods], why: str
    ) -> dict[PipelineKey, PipelineSample | MetricsFailure]:
        looks = (
            f"Look: 1. does it run, and answer {self.connection.url}/api/v1/query? 2. may "
            "the operator's pod reach it (NetworkPolicy)? "
            f"3. does the connection say what it should, in {CONNECTIONS}?"
        )
        return dict.fromkeys(
            wanted, MetricsFailure(MetricsProblem.ERROR, f"{self._at}: {why}. {looks}", self.source)
        )

    @property
    def _at(self) -> str:
        return f"{self.source} ({self.connection.url})"


def unknown_connection(name: str, connections: Iterable[str]) -> MetricsFailure:
    """Return the failure for a pipeline that names a connection the operator does not have."""
    known = ", ".join(sorted(connections))
    return MetricsFailure(
        MetricsProblem.ERROR,
        (
            f"spec.scaling.prometheusRef: the operator has no connection {name!r}; it has "
            f"{known}. Name one of these, or add it to {CONNECTIONS}"
        ),
        _source(name),
    )


def unused_connection_note(name: str) -> str:
    """Return a note for a pipeline that names a connection when the operator has none at all.

    The note is appended to the source. The pipeline's pods are then read directly.
    """
    return (
        f"; spec.scaling.prometheusRef: the operator has no connection {name!r}, nor any "
        "other. Leave the field out, or give the operator that "
        f"connection with {CONNECTIONS}"
    )


def _source(name: str) -> str:
    return f'Prometheus connection "{name}"'


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


def _look_back(slow: Mapping[PodKey, float], pods: Iterable[PodKey]) -> float:
    return min(
        LOOK_BACK_MAX, max([LOOK_BACK_SECONDS, *(slow[pod] + SLACK_SECONDS for pod in pods)])
    )


def _asks(
    pods: Iterable[PodKey], models: Mapping[PodKey, frozenset[str]], seconds: float
) -> list[_CounterQuery]:
    chosen = set(pods)
    asks = []
    for group in queries.pod_groups(chosen, frozenset().union(*{models[pod] for pod in chosen})):
        inside = set(group.namespaces)
        asks.append(
            _CounterQuery(group, seconds, frozenset(pod for pod in chosen if pod[0] in inside))
        )
    return asks


def _text(error: Exception) -> str:
    return (
        f"its answer {error}" if isinstance(error, query_results.QueryResultError) else str(error)
    )
