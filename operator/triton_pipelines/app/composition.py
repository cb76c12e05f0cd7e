"""The reconciler and the scaling loop on the operator's services: what they stand on, and how errors of passes back off."""

from __future__ import annotations

import contextlib
import datetime as dt
from functools import partial
from typing import Final

from triton_pipelines.app.control_key import derive
from triton_pipelines.app.main import classify_by_retry
from triton_pipelines.app.services import Reconcile, Services
from triton_pipelines.autoscaling.metrics.collector import PrometheusCollector
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.latency_reader import LatencyReader
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.work_queue import BUG, Backoff
from triton_pipelines.controllers.autoscaler.controller import Autoscaler
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.current_specs import Specs
from triton_pipelines.controllers.monitoring_objects import Monitors
from triton_pipelines.controllers.pipeline.prober import ask
from triton_pipelines.controllers.pipeline.reconciler import Reconciler
from triton_pipelines.controllers.slo_latency import LatencyWatch

# An inference after a change of counts (seconds): a pod with a long queue is busy, and need not prove itself behind it.
PROOF_SECONDS: Final = 3.0


def build_reconcile(services: Services) -> Reconcile:
    """The reconcile function of a running operator; its scaling loop runs beside it."""

    def key_of(uid: str, revision: str) -> str:
        return derive(services.control_key, uid, revision)

    def clock() -> dt.datetime:
        return dt.datetime.now(dt.UTC)

    direct, specs = DirectReader(), Specs()
    asked = {
        name: PrometheusCollector(connection)
        for name, connection in services.config.connections.items()
    }
    autoscaler = Autoscaler(
        store=services.store,
        derive=key_of,
        prober=partial(ask, deadline_s=PROOF_SECONDS),
        collectors={"": direct, **asked},
        clock=clock,
        enqueue=services.enqueue,
        metrics=ScalingMetrics(services.metrics.registry),
    )

    async def scale() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(direct)
            for collector in asked.values():
                await stack.enter_async_context(collector)
            await autoscaler.run()

    services.beside("scaling", scale)
    latency = LatencyWatch(
        store=services.store,
        reader=LatencyReader(),
        clock=clock,
        enqueue=services.enqueue,
        specs=specs,
    )
    services.beside("latency", latency.run)
    config = services.config
    automatic = frozenset(config.monitoring_auto)
    monitors = Monitors(
        services.client,
        services.store,
        config.scopes,
        config.monitoring_labels,
        automatic,
        services.enqueue,
        specs=specs,
    )
    services.beside("monitoring", monitors.run)
    reconciler = Reconciler(
        client=services.client,
        store=services.store,
        options=services.config.render_options,
        derive=key_of,
        prober=ask,
        clock=clock,
        instance=services.config.instance,
        max_concurrent_rollouts=services.config.max_concurrent_rollouts,
        intent=autoscaler.intent,
        view=autoscaler.view,
        latencies=latency.latencies,
        monitoring=monitors.findings,
    )
    autoscaler.refusals = reconciler.refusals
    autoscaler.going = specs.going = reconciler.resolver.effective
    return reconciler.reconcile


def classify(error: BaseException) -> Backoff:
    """Errors of the API server are tried again soon; anything else is a defect of ours and waits longer."""
    return classify_by_retry(error) if isinstance(error, ClusterError) else BUG
