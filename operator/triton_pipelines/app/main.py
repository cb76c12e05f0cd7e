"""The operator process: credentials, caches, queue, Kopf's watches, probes and metrics under one roof."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import kopf
import prometheus_client
import structlog
from kopf._cogs.structs.references import Insights  # not exported
from kopf._core.engines import peering  # nor is this; a string to the type checker's eye alone

from triton_pipelines.app import control_key
from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.kubernetes_watches import (
    WATCHED,
    keep_watched,
    kopf_settings,
    register_login,
    register_watches,
    selector_of,
)
from triton_pipelines.app.operator_metrics import Metrics
from triton_pipelines.app.services import Build, Classify, Reconcile, Services
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import Resource
from triton_pipelines.cluster.store import Store, relist
from triton_pipelines.cluster.work_queue import TRANSIENT, Backoff, Key, Result, WorkQueue

# The loop's heartbeat, and how far behind it may be before the process counts as dead.
HEARTBEAT_SECONDS: Final = 1.0
STALE_SECONDS: Final = 60.0
# A pass that outlives the queue's own limit by this much shows that cancelling it does not work.
PASS_SECONDS: Final = 300.0
_PASS_MARGIN_SECONDS: Final = 60.0

T = TypeVar("T")
_uniform: Final[Callable[[float, float], float]] = random.uniform
_log = structlog.get_logger(__name__)


def classify_by_retry(error: BaseException) -> Backoff:
    """Back-off where the caller of :func:`run_operator` gives none: every error as transient, with the server's own wait in it."""
    at_least = error.retry_after or 0.0 if isinstance(error, ClusterError) else 0.0
    return Backoff(TRANSIENT.name, TRANSIENT.initial, TRANSIENT.maximum, at_least)


async def run_operator(
    config: OperatorConfig,
    build: Build,
    *,
    classify: Classify = classify_by_retry,
    stop: asyncio.Event | None = None,
    ready: asyncio.Event | None = None,
    metrics: Metrics | None = None,
) -> None:
    """Runs the operator until SIGTERM, SIGINT or ``stop``.

    Order: credentials and operator key, first listing of every kind into the store, then passes; so a restarted operator never takes a cold
    cache for an empty cluster.

    Args:
        config: options.
        build: makes the reconcile function of the services.
        classify: error of a pass → back-off.
        stop: set it to end the operator gracefully.
        ready: set once every kind is listed and passes begin.
        metrics: where to count; by default a set of its own.

    Raises:
        Exception: a part of the operator died; the process should exit non-zero and be started again.
    """
    # One replica runs at a time (Deployment strategy Recreate). Leader election, where wanted, goes round this call: acquire the Lease in a task
    # started before it, pass `stop`, set it when the Lease is lost.
    await Operator(config, build, classify, metrics or Metrics()).run(
        stop or asyncio.Event(), ready or asyncio.Event()
    )


class Operator:
    """One running operator. Use :func:`run_operator`."""

    def __init__(
        self, config: OperatorConfig, build: Build, classify: Classify, metrics: Metrics
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.store = Store()
        self.client = Client(
            lambda: load_configuration(config.kubeconfig, config.context),
            options=ClientOptions(
                timeout_seconds=config.api_timeout_seconds, max_in_flight=config.api_max_in_flight
            ),
            observe=metrics.observe_api,
        )
        self.queue = WorkQueue(
            self._reconcile,
            workers=config.workers,
            timeout_seconds=PASS_SECONDS,
            classify=classify,
            observe=self._observe_pass,
        )
        self._build = build
        self._work: Reconcile | None = None
        self._insights = Insights()
        self._beat = 0.0
        self._passing = False

    async def run(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        """Runs until ``stop``, a signal, or the death of a part."""
        self._beat = asyncio.get_running_loop().time()
        self._expose_figures()
        async with self._metrics_server(), self.client:
            # Our tasks start before Kopf, which cancels at its end whatever was started after it.
            own = asyncio.create_task(self._run_own(ready), name="operator")
            own.add_done_callback(lambda _: stop.set())
            try:
                await kopf.operator(
                    registry=self._registry(own),
                    settings=kopf_settings(self.config),
                    insights=self._insights,
                    # Its own choice asks for the user's name, which the image's numeric user has not got.
                    identity=peering.Identity(self.config.instance),
                    standalone=True,
                    clusterwide=self.config.cluster_wide,
                    namespaces=self.config.namespaces,
                    liveness_endpoint=f"http://{self.config.liveness_host}:{self.config.liveness_port}/healthz",
                    stop_flag=stop,
                )
            except Exception as failed:
                # Stopped while it was still starting, Kopf fails in ways of its own; what stopped it is the thing to tell.
                await self._drain(own)
                _raise_failure(own, failed)
                raise
            finally:
                await self._drain(own)
            _raise_failure(own, None)

    # --- our tasks -----------------------------------------------------------------------------------------------------

    async def _run_own(self, ready: asyncio.Event) -> None:
        """Ends when the queue has been stopped and is empty of work; raises when any part fails."""
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(self._heartbeat(), name="heartbeat")]
            beside: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = []
            key = await self._until_answered("operator key", self._control_key)
            self._work = self._build(
                Services(
                    config=self.config,
                    client=self.client,
                    store=self.store,
                    metrics=self.metrics,
                    control_key=key,
                    enqueue=self.queue.add,
                    enqueue_after=self.queue.add_after,
                    beside=lambda name, work: beside.append((name, work)),
                )
            )
            for resource in WATCHED:
                await self._until_answered(
                    f"list of {resource.plural}", partial(self._relist, resource)
                )
            self.metrics.synced.set(1)
            for pipeline in self.store.pipelines():
                self.queue.add(pipeline)
            await _log.ainfo("caches are filled", pipelines=self.store.count(WATCHED[0]))
            background.append(
                group.create_task(keep_watched(self._insights, self._listed), name="watches")
            )
            background.append(group.create_task(self._resync(), name="resync"))
            background.append(group.create_task(self._relist_forever(), name="relist"))
            background += [group.create_task(work(), name=name) for name, work in beside]
            self._passing = True
            ready.set()
            await self.queue.run()
            for task in background:
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

    async def _until_answered(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats a step of the start-up for as long as the API server refuses it: an operator that exits would only be started again."""
        failures = 0
        while True:
            try:
                return await call()
            except ClusterError as error:
                failures += 1
                delay = TRANSIENT.delay(failures, _uniform)
                await _log.awarning(
                    "start-up waits for the API server",
                    step=what,
                    error=str(error),
                    retry_seconds=round(delay, 1),
                )
                await asyncio.sleep(delay)

    async def _relist(self, resource: Resource) -> set[Key]:
        told: set[Key] = set()
        for namespace in self.config.scopes:
            told |= await relist(
                self.client,
                self.store,
                resource,
                namespace=namespace,
                label_selector=selector_of(resource),
            )
        return told

    async def _listed(self, resource: Resource) -> bool:
        """Whether the API server serves a kind; where it cannot be asked, nobody knows, and it is asked again."""
        try:
            await self.client.list(
                resource, self.config.scopes[0], label_selector=selector_of(resource)
            )
        except ClusterError:
            return False
        return True

    async def _relist_forever(self) -> None:
        """Compares lists with the store: Kopf loses deletions over a 410."""
        while True:
            await asyncio.sleep(_jittered(self.config.relist_seconds))
            for resource in WATCHED:
                try:
                    missed = await self._relist(resource)
                except ClusterError as error:
                    await _log.awarning("list failed", resource=resource.plural, error=str(error))
                    continue
                self.metrics.watch_missed.labels(resource.plural).inc(len(missed))
                for pipeline in missed:
                    self.queue.add(pipeline)

    async def _resync(self) -> None:
        """Makes every pipeline due once per period, spread over it."""
        while True:
            period = _jittered(self.config.resync_seconds)
            for pipeline in self.store.pipelines():
                self.queue.add_after(pipeline, _uniform(0.0, period))
            await asyncio.sleep(period)

    async def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_SECONDS
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._beat = loop.time()
            self.metrics.loop_lag.observe(max(0.0, self._beat - due))

    async def _drain(self, own: asyncio.Task[None]) -> None:
        """Lets passes in work finish, within the time there is, then ends everything of ours. Raises nothing; safe to call again."""
        self.queue.stop()
        if not self._passing:
            own.cancel()
        _, pending = await asyncio.wait({own}, timeout=self.config.shutdown_seconds)
        if pending:
            await _log.awarning(
                "passes did not finish in time and are cut off", in_work=self.queue.in_work
            )
            own.cancel()
            await asyncio.wait({own})

    # --- a pass ---------------------------------------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> Result:
        assert self._work is not None, "passes begin after the build"
        with structlog.contextvars.bound_contextvars(namespace=key[0], pipeline=key[1]):
            return await self._work(key)

    def _observe_pass(
        self, key: Key, *, outcome: str, seconds: float, waited: float, error: BaseException | None
    ) -> None:
        self.metrics.observe_pass(result=outcome, seconds=seconds, waited=waited)
        if error is not None:
            log = _log.bind(
                namespace=key[0], pipeline=key[1], result=outcome, failures=self.queue.failures(key)
            )
            if isinstance(error, ClusterError):
                log.warning("pass failed", error=str(error))
            else:
                log.error("pass failed", error=str(error), exc_info=error)

    # --- Kopf, probes, metrics ----------------------------------------------------------------------------------------------

    def _registry(self, own: asyncio.Task[None]) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        register_login(registry, self.config.kubeconfig, self.config.context)
        register_watches(registry, self.store, self.queue.add, self.metrics.observe_event)

        # Kopf cancels what was started after it (passes are) some seconds after its own end; its clean-up comes before that.
        async def cleanup(**_: Any) -> None:
            await self._drain(own)

        kopf.on.cleanup(registry=registry, id="drain")(cleanup)
        kopf.on.probe(registry=registry, id="operator")(self.health)
        return registry

    async def health(self, **_: Any) -> dict[str, Any]:
        """Liveness: the loop turns, and passes end. An unreachable API server is no reason to be restarted.

        Raises:
            kopf.PermanentError: dead (a plain exception would make Kopf hold the answer back for a minute).
        """
        behind = asyncio.get_running_loop().time() - self._beat
        if behind > STALE_SECONDS:
            raise kopf.PermanentError(f"no heartbeat for {behind:.0f} s")
        longest = self.queue.longest_work()
        if longest > PASS_SECONDS + _PASS_MARGIN_SECONDS:
            raise kopf.PermanentError(f"a pass has not ended for {longest:.0f} s")
        return {
            "heartbeatSeconds": round(behind, 3),
            "inWork": self.queue.in_work,
            "queued": self.queue.depth,
        }

    def _expose_figures(self) -> None:
        self.metrics.queue_depth.set_function(lambda: self.queue.depth)
        self.metrics.queue_in_work.set_function(lambda: self.queue.in_work)
        self.metrics.queue_delayed.set_function(lambda: self.queue.delayed)
        for resource in WATCHED:
            self.metrics.watch_objects.labels(resource.plural).set_function(
                partial(self.store.count, resource)
            )

    @asynccontextmanager
    async def _metrics_server(self) -> AsyncIterator[None]:
        server, thread = prometheus_client.start_http_server(
            self.config.metrics_port, addr=self.config.metrics_host, registry=self.metrics.registry
        )
        await _log.ainfo("metrics are served", port=server.server_port)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _raise_failure(task: asyncio.Task[None], cause: Exception | None) -> None:
    if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
        raise failure from cause


def _jittered(seconds: float) -> float:
    """± 10 %, so that several operators and kinds do not fall into step."""
    return _uniform(0.9 * seconds, 1.1 * seconds)
