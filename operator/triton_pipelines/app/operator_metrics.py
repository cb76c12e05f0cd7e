"""The operator's own metrics, all named ``tritonpipe_…``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from triton_pipelines.cluster.resources import Resource

# Reconciles take milliseconds from the caches, and up to the API's time-out and beyond if it is
# slow.
_RECONCILE_BUCKETS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
_API_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class OperatorMetrics:
    """Counters, gauges and histograms in a registry of their own.

    So several operators can run in one process (tests).

    Args:
        clock: seconds, for ages.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._clock = clock
        self._last_event: dict[str, float] = {}
        self._declare_queue_metrics()
        self._declare_api_metrics()
        self._declare_process_metrics()

    def _declare_queue_metrics(self) -> None:
        self.reconciles = self._counter(
            "reconciles", "Completed reconciles of pipelines.", "result"
        )
        self.reconcile_seconds = self._histogram(
            "reconcile_duration_seconds", "Duration of a reconcile.", _RECONCILE_BUCKETS, "result"
        )
        self.queue_wait_seconds = self._histogram(
            "queue_wait_seconds",
            "Time between the moment when a pipeline is due and the start of its reconcile.",
            _RECONCILE_BUCKETS,
        )
        self.queue_depth = self._gauge(
            "queue_depth", "Pipelines that are due and not being reconciled."
        )
        self.queue_in_work = self._gauge("queue_in_work", "Pipelines being reconciled.")
        self.queue_delayed = self._gauge("queue_delayed", "Pipelines with a scheduled reconcile.")
        self.queue_longest_work = self._gauge(
            "queue_longest_work_seconds", "Age of the longest-running reconcile."
        )

    def _declare_api_metrics(self) -> None:
        self.api_requests = self._counter(
            "api_requests",
            "Requests to the API server, including retries.",
            "verb",
            "resource",
            "code",
        )
        self.api_seconds = self._histogram(
            "api_request_duration_seconds",
            "Duration of a single request to the API server.",
            _API_BUCKETS,
            "verb",
            "resource",
        )
        self.watch_events = self._counter("watch_events", "Watch events.", "resource")
        self.objects_too_deep = self._counter(
            "objects_too_deep",
            "Watch events for objects that are nested too deeply to be valid.",
            "resource",
        )
        self.watch_age = self._gauge(
            "watch_age_seconds",
            "Time since the last watch event. It also grows if nothing changes in the cluster.",
            "resource",
        )
        self.watch_missed = self._counter(
            "watch_missed",
            "Pipelines for which a LIST showed objects that the watch had missed.",
            "resource",
        )
        self.watch_failing = self._gauge(
            "watch_failing",
            "1 while lists or watches of a watched namespace fail; the label is empty if all"
            " namespaces are watched.",
            "namespace",
        )
        self.watch_objects = self._gauge("watch_objects", "Objects in the store.", "resource")

    def _declare_process_metrics(self) -> None:
        self.loop_lag = self._histogram(
            "loop_lag_seconds", "Delay with which the event loop runs a timer.", _LAG_BUCKETS
        )
        self.monitor_errors = self._counter(
            "monitor_errors",
            "Unexpected errors while latency is measured or monitoring objects are applied.",
            "namespace",
            "pipeline",
            "kind",
        )
        self.synced = self._gauge(
            "synced", "1 once every kind has been listed in every watched namespace."
        )
        self.leading = self._gauge(
            "leading", "1 while this process is the leader, 0 while it is on standby."
        )

    def observe_api(self, *, verb: str, resource: str, code: str, seconds: float) -> None:
        """Count one attempt of the Kubernetes client."""
        self.api_requests.labels(verb, resource, code).inc()
        self.api_seconds.labels(verb, resource).observe(seconds)

    def observe_too_deep(self, resource: Resource) -> None:
        """Count a watch event of an object that is nested too deeply."""
        self.objects_too_deep.labels(resource.plural).inc()

    def observe_event(self, resource: Resource) -> None:
        """Count a watch event and restart the age of that watch."""
        self.watch_events.labels(resource.plural).inc()
        if resource.plural not in self._last_event:
            self.watch_age.labels(resource.plural).set_function(
                lambda: self._clock() - self._last_event[resource.plural]
            )
        self._last_event[resource.plural] = self._clock()

    def observe_reconcile(self, *, result: str, seconds: float, waited: float) -> None:
        """Count a finished reconcile."""
        self.reconciles.labels(result).inc()
        self.reconcile_seconds.labels(result).observe(seconds)
        self.queue_wait_seconds.observe(waited)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tritonpipe_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tritonpipe_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"tritonpipe_{name}", text, labels, registry=self.registry, buckets=buckets
        )
