"""Run the operator process: credentials, caches, queue, Kopf's watches, probes and metrics."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final

import kopf
import structlog

from triton_pipelines.app import control_key
from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.health_server import UnhealthyError, serve_health
from triton_pipelines.app.leadership import leader_elector
from triton_pipelines.app.metrics_server import serve_metrics
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.app.relisting import Relisting, jittered
from triton_pipelines.app.services import Background, Build, Reconcile, Services
from triton_pipelines.app.start_retries import retry_start
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.kopf_internals import Insights, identity
from triton_pipelines.cluster.leader_election import LeaderElector
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, Resource
from triton_pipelines.cluster.store import Store
from triton_pipelines.cluster.watch_lists import WatchLists
from triton_pipelines.cluster.watches import (
    WATCHED,
    ObjectEvents,
    check_watches,
    kopf_settings,
    register_login,
    register_watches,
    selector_of,
)
from triton_pipelines.cluster.work_queue import Key, Result, WorkQueue

# Interval of the event loop's heartbeat, and the age at which the process counts as dead.
HEARTBEAT_SECONDS: Final = 1.0
STALE_SECONDS: Final = 60.0
# Delay after a change of a pipeline's objects. These changes come in bursts: a Deployment's status
# and its pods change several times within moments, and one reconcile is enough for all of them.
CHILD_EVENTS_SECONDS: Final = 0.2
# Time limit of one reconcile. One that exceeds it by the margin cannot be cancelled.
RECONCILE_SECONDS: Final = 300.0
_RECONCILE_MARGIN_SECONDS: Final = 60.0

_log = structlog.get_logger(__name__)


async def run_operator(
    config: OperatorConfig,
    build: Build,
    *,
    stop: asyncio.Event | None = None,
    ready: asyncio.Event | None = None,
    metrics: OperatorMetrics | None = None,
) -> None:
    """Run the operator until SIGTERM, SIGINT or ``stop``.

    Order: credentials, the Lease (with leader election), the operator key, then a list of every
    kind in the store, then reconciles. So a restarted operator never takes empty caches for an
    empty cluster. Until it holds the Lease, its watches already fill the store.

    Args:
        config: options.
        build: builds the reconcile function on the services.
        stop: set it to end the operator gracefully.
        ready: set once every kind is listed and reconciles begin.
        metrics: the operator's own metrics; by default a new set.

    Raises:
        Exception: a part of the operator failed; the process should exit non-zero and be restarted.
    """
    await Operator(config, build, metrics or OperatorMetrics()).run(
        stop or asyncio.Event(), ready or asyncio.Event()
    )


class Operator:
    """One running operator. Use :func:`run_operator`."""

    def __init__(self, config: OperatorConfig, build: Build, metrics: OperatorMetrics) -> None:
        self.config = config
        self.metrics = metrics
        self.store = Store()
        self.client = Client(
            lambda: load_configuration(config.kubeconfig, config.context),
            options=ClientOptions(
                timeout_seconds=config.api_timeout_seconds, max_in_flight=config.api_max_in_flight
            ),
            observe=metrics.observe_api,
            may_write=self._may_write,
        )
        self._elector: LeaderElector | None = None
        self.queue = WorkQueue(
            self._reconcile,
            workers=config.workers,
            timeout_seconds=RECONCILE_SECONDS,
            observe=self._observe_reconcile,
        )
        self._relisting = Relisting(
            self.client,
            self.store,
            config.scopes,
            config.relist_seconds,
            metrics,
            self.queue.add,
            lambda scope: self._lists.is_listed(scope),
        )
        self._build = build
        self._reconcile_pipeline: Reconcile | None = None
        self._events = ObjectEvents(self.store, self._enqueue, metrics, config.scopes)
        self._lists = WatchLists(
            WATCHED, config.scopes, self._events.take_listed, self._events.release
        )
        self._insights = Insights()
        self._last_heartbeat = self._longest_work = 0.0
        self._is_reconciling = False

    async def run(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        """Run until ``stop``, a signal, or the failure of a part."""
        config = self.config
        self._last_heartbeat = time.monotonic()
        self._register_gauges()
        async with (
            serve_metrics(
                self.metrics.registry, config, self.client.login, self.metrics.observe_api
            ),
            serve_health(config.liveness_host, config.liveness_port, self.health),
            self.client,
            leader_elector(config, self.client.login, self.metrics.observe_api) as self._elector,
        ):
            # Our tasks start before Kopf, which cancels at its end whatever was started after it.
            own = asyncio.create_task(self._run_tasks(ready), name="operator")
            own.add_done_callback(lambda _: stop.set())
            try:
                await kopf.operator(
                    registry=self._registry(own),
                    settings=kopf_settings(
                        cluster_wide=config.cluster_wide,
                        request_timeout_seconds=config.api_timeout_seconds,
                        shutdown_seconds=config.shutdown_seconds,
                    ),
                    insights=self._insights,
                    identity=identity(config.instance),
                    standalone=True,
                    clusterwide=config.cluster_wide,
                    namespaces=config.namespaces,
                    stop_flag=stop,
                )
            except Exception as failed:
                # Kopf raises errors of its own if it is stopped while starting; what stopped it is
                # the error to report.
                await self._drain(own)
                _raise_failure(own, failed)
                raise
            finally:
                await self._drain(own)
            _raise_failure(own, None)

    # --- tasks ----------------------------------------------------------------------------------

    async def _run_tasks(self, ready: asyncio.Event) -> None:
        """Start up and reconcile until the queue is stopped; raise if any task fails.

        The Lease is released after all work has ended.
        """
        try:
            await self._start_and_reconcile(ready)
        finally:
            if self._elector is not None:
                await self._elector.release()

    async def _start_and_reconcile(self, ready: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            check = check_watches(self._insights, self._is_served)
            running = [
                group.create_task(self._heartbeat(), name="heartbeat"),
                group.create_task(check, name="watches"),
            ]
            if self._elector is not None:
                await self._elector.acquire()
                running.append(group.create_task(self._elector.renew(), name="leader election"))
            background: dict[str, Background] = {}
            key = await retry_start("operator key", self._control_key)
            self._reconcile_pipeline = self._build(
                Services(
                    config=self.config,
                    client=self.client,
                    store=self.store,
                    metrics=self.metrics,
                    control_key=key,
                    enqueue=self.queue.add,
                    run_in_background=background.__setitem__,
                )
            )
            await self._lists.wait()
            if self._elector is not None:
                # The lists may be those of a standby, from long ago.
                await retry_start("lists of a new leader", self._relist_any)
            for pipeline in self.store.pipelines():
                self.queue.add(pipeline)
            await _log.ainfo("caches are filled", pipelines=self.store.count(WATCHED[0]))
            background |= {
                "resync": self._resync,
                "relist": self._relisting.run,
            }
            running += [group.create_task(work(), name=name) for name, work in background.items()]
            self._is_reconciling = True
            ready.set()
            await self.queue.run()
            for task in running:
                task.cancel()

    async def _control_key(self) -> bytes:
        config = self.config
        return await control_key.load_or_create(
            self.client,
            path=config.operator_key_file,
            namespace=config.operator_namespace,
            secret=config.operator_key_secret,
            wait_seconds=config.operator_key_wait_seconds,
        )

    async def _relist_any(self) -> None:
        """Compare the lists of all scopes with the store.

        One that fails is left to the periodic comparison.

        Raises:
            ClusterError: all of them failed.
        """
        scopes = [scope for scope in self.config.scopes if self._lists.is_listed(scope)]
        failures = list[ClusterError]()
        for scope in scopes:
            try:
                await self._relisting.restart(scope)
            except ClusterError as error:
                failures.append(error)
                await _log.awarning("list failed", namespace=scope, error=str(error))
        if len(failures) == len(scopes):
            raise failures[0]

    async def _is_served(self, resource: Resource) -> bool:
        """Return whether the API server serves a kind; False if it cannot be read."""
        for scope in self.config.scopes:
            try:
                await self.client.list(resource, scope, label_selector=selector_of(resource))
            except ClusterError:
                continue
            return True
        return False

    async def _resync(self) -> None:
        """Make every pipeline due once per period, spread over it."""
        while True:
            period = jittered(self.config.resync_seconds)
            for pipeline in self.store.pipelines():
                self.queue.add_after(pipeline, self.queue.uniform(0.0, period))
            await asyncio.sleep(period)

    async def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_SECONDS
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._last_heartbeat = time.monotonic()
            self.metrics.loop_lag.observe(max(0.0, loop.time() - due))
            self._longest_work = self.queue.longest_work()
            self.metrics.queue_longest_work.set(self._longest_work)

    async def _drain(self, own: asyncio.Task[None]) -> None:
        """Let running reconciles finish within the time there is, then end all tasks.

        Raises nothing, and may be called again.
        """
        self.queue.stop()
        if not self._is_reconciling:
            own.cancel()
        _, pending = await asyncio.wait({own}, timeout=self.config.shutdown_seconds)
        if pending:
            await _log.awarning(
                "reconciles did not finish in time and were canceled", in_work=self.queue.in_work
            )
            own.cancel()
            await asyncio.wait({own})

    def _enqueue(self, key: Key, changed: Resource) -> None:
        """Make a pipeline due after a watch event. A new leader enqueues all of them itself.

        Args:
            key: the pipeline.
            changed: the kind of the object that changed.
        """
        if not self._may_write():
            return
        if changed == INFERENCE_PIPELINES:
            self.queue.add(key, urgent=True)
        else:
            self.queue.add_after(key, CHILD_EVENTS_SECONDS)

    # --- reconcile ------------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> Result:
        assert self._reconcile_pipeline is not None, "reconciles begin after the build"
        with structlog.contextvars.bound_contextvars(namespace=key[0], pipeline=key[1]):
            result = await self._reconcile_pipeline(key)
        if self.store.get(INFERENCE_PIPELINES, *key) is None:
            self.queue.forget(key)
        return result

    def _observe_reconcile(
        self, key: Key, *, outcome: str, seconds: float, waited: float, error: BaseException | None
    ) -> None:
        self.metrics.observe_reconcile(result=outcome, seconds=seconds, waited=waited)
        failures = self.queue.failures(key)
        # Users decide how often events repeat a failure: of many in a row, ever fewer are logged.
        if error is not None and failures & (failures - 1) == 0:
            log = _log.bind(namespace=key[0], pipeline=key[1], result=outcome, failures=failures)
            if isinstance(error, ClusterError):
                log.warning("reconcile failed", error=str(error))
            else:
                log.error("reconcile failed", error=str(error), exc_info=error)

    def _may_write(self) -> bool:
        return self._elector is None or self._elector.is_valid()

    # --- Kopf, probes, metrics ------------------------------------------------------------------

    def _registry(self, own: asyncio.Task[None]) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        register_login(registry, self.config.kubeconfig, self.config.context, self._lists)
        register_watches(registry, self._events)

        # Some seconds after its end Kopf cancels what was started after it, reconciles included;
        # its clean-up comes before that.
        async def cleanup(**_: Any) -> None:
            await self._drain(own)

        kopf.on.cleanup(registry=registry, id="drain")(cleanup)
        return registry

    def health(self) -> dict[str, Any]:
        """Answer the liveness probe, in a thread: the event loop runs, and reconciles end.

        An unreachable API server is no reason for a restart.

        Raises:
            UnhealthyError: the process has to be restarted.
        """
        age = time.monotonic() - self._last_heartbeat
        if age > STALE_SECONDS:
            raise UnhealthyError(f"no heartbeat for {age:.0f} s")
        longest = self._longest_work
        if longest > RECONCILE_SECONDS + _RECONCILE_MARGIN_SECONDS:
            raise UnhealthyError(f"a reconcile has been running for {longest:.0f} s")
        return {
            "heartbeatSeconds": round(age, 3),
            "inWork": self.queue.in_work,
            "leading": self._may_write(),
            "queued": self.queue.depth,
        }

    def _register_gauges(self) -> None:
        self.metrics.leading.set_function(self._may_write)
        self.metrics.synced.set_function(
            lambda: self._is_reconciling and all(map(self._lists.is_listed, self.config.scopes))
        )
        for scope in self.config.scopes:
            self.metrics.watch_failing.labels(scope or "").set_function(
                partial(self._lists.is_failing, scope)
            )
        self.metrics.queue_depth.set_function(lambda: self.queue.depth)
        self.metrics.queue_in_work.set_function(lambda: self.queue.in_work)
        self.metrics.queue_delayed.set_function(lambda: self.queue.delayed)
        for resource in WATCHED:
            self.metrics.watch_objects.labels(resource.plural).set_function(
                partial(self.store.count, resource)
            )


def _raise_failure(task: asyncio.Task[None], cause: Exception | None) -> None:
    if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
        raise failure from cause
