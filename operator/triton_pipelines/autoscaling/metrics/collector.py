"""Collect the samples of all pipelines from one Prometheus connection.

One set of queries serves all pipelines: at each call for few pods, and once per scrape interval for
many. The newest raw samples are kept in ring buffers. Earlier samples are queried once, when a pod
is new to the collector. Queries and the parsing of results run in the connection's only thread, so
that a slow server neither blocks the event loop nor lets collections pile up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from . import queries, query_results
from .collection import CollectionPlan, CollectionQueries, CollectionResult
from .connection import Connection
from .connection_messages import CONNECTIONS, source_name
from .namespace_query import NamespaceQuery, QueryKind, namespace_queries
from .prometheus_client import Prometheus
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
# Allowance beyond the thread's own deadline, for parsing and for names that do not resolve.
_GRACE_SECONDS: Final = 1.0
# Scrapes that are closer together are discarded: Prometheus stores the times that a pod writes on
# its page, and they can be milliseconds apart.
GAP_SECONDS_MIN: Final = 0.5
# As many pods are collected per second between two collections: 100 pods every 2 s, and more pods
# less often, but once per scrape interval. A collection costs as much as there are pods.
_PODS_PER_SECOND: Final = 50.0
# Half of the time between two calls, so that the time between two collections is rounded to calls.
_EARLY_SECONDS: Final = 1.0
# A scrape becomes visible no sooner than this long after its own time.
_VISIBLE_SECONDS: Final = 2.0


class PrometheusCollector:
    """Collect from one connection; an async context manager. ``clock`` returns Unix seconds."""

    def __init__(
        self,
        connection: Connection,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connection = connection
        self.source = source_name(connection.name)
        self._clock, self._monotonic = clock, monotonic
        self._client = Prometheus(connection, monotonic)
        self._queries = CollectionQueries(connection, self._client, clock, monotonic)
        self._histories = ScrapeHistories()
        self._pool = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix=f"prometheus-{connection.name}"
        )
        self._running: asyncio.Future[CollectionResult] | None = None
        self._looked_back: set[PodKey] = set()
        self._last = -float("inf")
        self._usage_at = -float("inf")
        self._usage_window = 0
        self._targets_at = -float("inf")
        self._up: Mapping[PodKey, bool] | None = None
        self._expected: Mapping[PipelineKey, ExpectedPods] = {}
        self._samples: dict[PipelineKey, PipelineSample | MetricsFailure] = {}
        self._samples_until = -float("inf")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def permits(self, namespace: str) -> bool:
        """Return whether pipelines of a namespace may use the connection."""
        return self.connection.permits(namespace)

    async def collect(
        self, expected: Mapping[PipelineKey, ExpectedPods]
    ) -> dict[PipelineKey, PipelineSample | MetricsFailure]:
        """Return a current sample, or the failure, for every pipeline.

        The same samples are returned again until the next collection is due, unless pods come or
        go. Server errors never raise; each is returned as a ``MetricsFailure``.
        """
        pods = {(one.namespace, pod) for one in expected.values() for pod in one.pods}
        self._histories.keep(pods)
        self._looked_back &= pods
        if self._running is not None and not self._running.done():
            return self._all_failed(expected, "the previous collection has not finished yet")
        if not pods:
            self._up = None
            return {
                key: assess_sample(
                    one, self._histories, CollectionEvidence(0.0, 0.0), self.source, str
                )
                for key, one in expected.items()
            }
        began = self._monotonic()
        if began < self._samples_until and expected == self._expected:
            return dict(self._samples)
        self._samples_until = -float("inf")
        plan = self._plan(expected, began)
        running = asyncio.get_running_loop().run_in_executor(self._pool, self._queries.run, plan)
        self._running = running
        try:
            # Shielded because the thread continues after a timeout or a cancellation. No other
            # collection starts until it is done.
            got = await asyncio.wait_for(
                asyncio.shield(running), self.connection.timeout_seconds + _GRACE_SECONDS
            )
        except TimeoutError:
            return self._all_failed(
                expected, f"no complete response within {self.connection.timeout_seconds:g} s"
            )
        if got.error:
            return self._all_failed(expected, got.error, has_remedy=got.has_remedy)
        evidence = self._merge(expected, plan, got, began)
        self._expected = dict(expected)
        self._samples = {key: self._assess(one, evidence, got) for key, one in expected.items()}
        if got.is_complete:
            seconds = min(self._histories.interval(pods, 0.0), len(pods) / _PODS_PER_SECOND)
            if seconds > 2 * _EARLY_SECONDS:
                self._samples_until = began + seconds - _EARLY_SECONDS
        return dict(self._samples)

    # --- Plan the queries ---------------------------------------------------------------------

    def _plan(self, expected: Mapping[PipelineKey, ExpectedPods], began: float) -> CollectionPlan:
        models: dict[PodKey, frozenset[str]] = {}
        addresses: dict[PodKey, str] = {}
        slow: dict[PodKey, float] = {}
        for one in expected.values():
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
        usage_seconds = queries.USAGE_SECONDS[self._usage_window]
        is_usage_due = began - self._usage_at >= USAGE_EVERY_SECONDS
        counter_queries = (
            *_counter_queries(known, models, min(short, _look_back(slow, known))),
            *_counter_queries(new, models, _look_back(slow, new)),
        )
        return CollectionPlan(
            counter_queries=counter_queries,
            usage_queries=namespace_queries(QueryKind.USAGE, models, (), usage_seconds)
            if is_usage_due
            else (),
            models=models,
            addresses=addresses,
            interval=interval,
            usage_seconds=usage_seconds,
            targets=began - self._targets_at >= TARGETS_EVERY_SECONDS,
        )

    # --- Evaluate the results ------------------------------------------------------------------

    def _merge(
        self,
        expected: Mapping[PipelineKey, ExpectedPods],
        plan: CollectionPlan,
        got: CollectionResult,
        began: float,
    ) -> CollectionEvidence:
        """Merge the results into the histories and return the evidence for assessing samples."""
        slow = {(one.namespace, pod): one.slow for one in expected.values() for pod in one.pods}
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
                    self._histories.add(pod, scrape, slow[pod], GAP_SECONDS_MIN)
                else:
                    ahead[pod] = scrape.at - got.server
        # Pods whose query failed are new again: the others need no earlier samples for them.
        self._looked_back = (self._looked_back | got.queried) - got.errors.keys()
        self._last = began
        if got.figures is not None:
            self._usage_at = began
            self._use(plan, got)
        if got.up is not None:
            self._targets_at, self._up = began, got.up
        elif not any(pod not in got.seen for pod in plan.models):
            self._up = None
        skew = got.server - got.at
        skew = skew if abs(skew) > SKEW_SECONDS else 0.0
        return CollectionEvidence(
            now=got.server,
            skew=skew,
            interval=plan.interval,
            problems={pod: seen.problem for pod, seen in got.seen.items() if seen.problem},
            notes=got.pod_notes | {pod: seen.note for pod, seen in got.seen.items() if seen.note},
            ahead=ahead,
            up=self._up,
            general_notes=(*got.notes, *_skew_notes(skew)),
        )

    def _use(self, plan: CollectionPlan, got: CollectionResult) -> None:
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

    def _assess(
        self, one: ExpectedPods, evidence: CollectionEvidence, got: CollectionResult
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
        self,
        expected: Mapping[PipelineKey, ExpectedPods],
        why: str,
        *,
        has_remedy: bool = False,
    ) -> dict[PipelineKey, PipelineSample | MetricsFailure]:
        checks = (
            ". Check that (1) Prometheus is running and responds at "
            f"{self.connection.url}/api/v1/query, (2) the operator's pod can reach it "
            f"(NetworkPolicy), and (3) the connection is configured correctly in {CONNECTIONS}"
        )
        return dict.fromkeys(
            expected,
            MetricsFailure(
                MetricsProblem.ERROR,
                f"{self._at}: {why}{'' if has_remedy else checks}",
                self.source,
            ),
        )

    @property
    def _at(self) -> str:
        return f"{self.source} ({self.connection.url})"


def _look_back(slow: Mapping[PodKey, float], pods: Iterable[PodKey]) -> float:
    return min(
        LOOK_BACK_MAX, max([LOOK_BACK_SECONDS, *(slow[pod] + SLACK_SECONDS for pod in pods)])
    )


def _counter_queries(
    pods: Iterable[PodKey], models: Mapping[PodKey, frozenset[str]], seconds: float
) -> tuple[NamespaceQuery, ...]:
    chosen = set(pods)
    return namespace_queries(
        QueryKind.COUNTERS, chosen, frozenset().union(*{models[pod] for pod in chosen}), seconds
    )


def _skew_notes(skew: float) -> tuple[str, ...]:
    """Return the note about a difference of the clocks, in seconds; none for 0."""
    if not skew:
        return ()
    direction = "ahead of" if skew > 0 else "behind"
    return (
        f"the clock of Prometheus is more than {SKEW_SECONDS:g} s {direction} the operator's; the"
        " operator compensates for the difference",
    )
