"""Composition root: build the operator's parts, connect them and start the background tasks.

Every part receives the same :class:`~triton_pipelines.controllers.handover.Handover`, which is
built first, publishes to it and reads from it::

    pipeline controller  -- effective specs, resize rejections -->  autoscaler, monitors
    autoscaler           -- intents, views ---------------------->  pipeline controller
    SLO latency monitor  -- latencies --------------------------->  pipeline controller
    monitoring objects   -- findings ---------------------------->  pipeline controller
"""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass
from functools import partial
from typing import Final

from triton_pipelines.app.control_key import derive
from triton_pipelines.app.services import Reconcile, Services
from triton_pipelines.autoscaling.metrics.collector import PrometheusCollector
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.latency_reader import LatencyReader
from triton_pipelines.compile.render.monitoring import MonitoringSettings
from triton_pipelines.controllers.autoscaler.controller import Autoscaler
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.current_specs import CurrentSpecs
from triton_pipelines.controllers.failure_log import FailureLog
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.monitoring_objects import REJECTED, MonitoringObjects
from triton_pipelines.controllers.pipeline.effective_spec import Resolver
from triton_pipelines.controllers.pipeline.pod_probes import Prober
from triton_pipelines.controllers.pipeline.prober import PodProber, probe_pod
from triton_pipelines.controllers.pipeline.reconciler import Reconciler
from triton_pipelines.controllers.pipeline_metrics import PipelineMetrics
from triton_pipelines.controllers.rejected_writes import RejectedWrites
from triton_pipelines.controllers.slo_latency import SloLatencyMonitor
from triton_pipelines.controllers.spec_metrics import SpecMetrics
from triton_pipelines.triton.probe_connections import ProbeConnections

# Deadline (seconds) of the test inference after a change of counts. A pod with a long queue is
# busy, and its test inference need not wait behind that queue.
VERIFY_INFERENCE_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class OperatorParts:
    """The parts of a running operator."""

    handover: Handover
    """What the parts publish for each other."""
    reconciler: Reconciler
    """Pipeline controller: the only writer of objects and status."""
    autoscaler: Autoscaler
    """Decides instance counts, pods and CPU; runs in the background."""
    direct_reader: DirectReader
    """Reads metrics from the pods; used if no Prometheus connection is configured."""
    prometheus_collectors: dict[str, PrometheusCollector]
    """Reads metrics from Prometheus, by name of the connection."""
    latency_monitor: SloLatencyMonitor
    """Measures latencies for the SLO guard; runs in the background."""
    monitoring_objects: MonitoringObjects
    """Applies PodMonitors and PrometheusRules; runs in the background."""
    probe_connections: ProbeConnections
    """Connections of the reconciler's probes."""


def build_parts(services: Services, prober: Prober | None = None) -> OperatorParts:
    """Build the operator's parts on its services; nothing runs yet.

    Args:
        services: What the parts share.
        prober: Probes one pod for the reconciler; tests without Triton replace it.
    """
    kept = PodProber()
    config, handover = services.config, Handover()
    direct_reader = DirectReader()
    prometheus_collectors = {
        name: PrometheusCollector(connection) for name, connection in config.connections.items()
    }
    autoscaler = Autoscaler(
        store=services.store,
        derive=partial(derive, services.control_key),
        prober=partial(probe_pod, deadline_s=VERIFY_INFERENCE_SECONDS),
        collectors={"": direct_reader, **prometheus_collectors},
        clock=_utc_now,
        enqueue=services.enqueue,
        metrics=ScalingMetrics(services.metrics.registry),
        handover=handover,
    )
    reconciler = Reconciler(
        client=services.client,
        store=services.store,
        options=config.render_options,
        derive=partial(derive, services.control_key),
        prober=prober or kept.probe_pod,
        release=kept.connections.close,
        clock=_utc_now,
        instance=config.instance,
        handover=handover,
        max_concurrent_rollouts=config.max_concurrent_rollouts,
        enqueue=services.enqueue,
    )
    latency_monitor, monitoring_objects = _build_monitors(services, handover, reconciler.resolver)
    return OperatorParts(
        handover,
        reconciler,
        autoscaler,
        direct_reader,
        prometheus_collectors,
        latency_monitor,
        monitoring_objects,
        kept.connections,
    )


def _build_monitors(
    services: Services, handover: Handover, resolver: Resolver
) -> tuple[SloLatencyMonitor, MonitoringObjects]:
    """Build what runs next to both controllers."""
    config = services.config
    specs = CurrentSpecs(handover, lambda document: resolver.read(document).pipeline)
    latency_monitor = SloLatencyMonitor(
        store=services.store,
        reader=LatencyReader(),
        clock=_utc_now,
        enqueue=services.enqueue,
        handover=handover,
        specs=specs,
        failures=FailureLog("measuring latency failed", services.metrics.monitor_errors),
    )
    monitoring_objects = MonitoringObjects(
        client=services.client,
        store=services.store,
        scopes=config.scopes,
        settings=MonitoringSettings(config.monitoring_labels, config.docs_url),
        automatic=frozenset(config.monitoring_auto),
        enqueue=services.enqueue,
        handover=handover,
        specs=specs,
        failures=FailureLog("monitoring objects failed", services.metrics.monitor_errors),
        options=config.render_options,
        writes=RejectedWrites(_utc_now, REJECTED),
    )
    return latency_monitor, monitoring_objects


def start(parts: OperatorParts, services: Services) -> Reconcile:
    """Start what runs in the background; return the function that reconciles one pipeline."""

    async def scale() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(parts.direct_reader)
            await stack.enter_async_context(parts.probe_connections)
            for collector in parts.prometheus_collectors.values():
                await stack.enter_async_context(collector)
            await parts.autoscaler.run()

    services.run_in_background("scaling", scale)
    services.run_in_background("latency", parts.latency_monitor.run)
    services.run_in_background("monitoring", parts.monitoring_objects.run)
    services.metrics.registry.register(SpecMetrics(parts.handover))
    services.metrics.registry.register(PipelineMetrics(services.store))
    return parts.reconciler.reconcile


def build_reconcile(services: Services) -> Reconcile:
    """Build the operator's parts and start them."""
    return start(build_parts(services), services)


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
