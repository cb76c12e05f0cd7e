"""Collect samples of all pipelines, once per metrics connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from triton_pipelines.autoscaling.metrics.connection_messages import unknown_connection
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)
from triton_pipelines.cluster.store import Key
from triton_pipelines.controllers.autoscaler import pipeline_state
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState
from triton_pipelines.controllers.scaling_limits import limits_of


class Collector(Protocol):
    """A source of samples: Prometheus, or the pods themselves."""

    async def collect(
        self, wanted: Mapping[Key, ExpectedPods]
    ) -> Mapping[Key, PipelineSample | MetricsFailure]:
        """Collect samples for all pipelines at once.

        A pipeline without a usable sample gets a failure, never a zero.
        """
        ...


async def collect_samples(
    states: Mapping[Key, PipelineScalingState],
    collectors: Mapping[str, Collector],
    on_failure: Callable[[BaseException], Awaitable[None]],
) -> dict[Key, PipelineSample | MetricsFailure]:
    """Return samples of all pipelines, collected once per connection.

    A collector that fails is a failure of its own pipelines only.

    Args:
        states: the pipelines.
        collectors: by name of the connection; the empty name reads the pods directly.
        on_failure: called with the error of a collector that failed.
    """
    groups: dict[str, dict[Key, ExpectedPods]] = {}
    found: dict[Key, PipelineSample | MetricsFailure] = {}
    connections = [name for name in collectors if name]
    for key, state in states.items():
        limits = limits_of(state.pipeline, state.graph, "")
        models = frozenset([*(step.model_name for step in limits.steps), *limits.gpu_steps])
        pods = {pod.name: pipeline_state.metrics_address(pod) for pod in state.pods}
        scaling = state.pipeline.spec.scaling
        name = scaling.prometheus_ref
        if connections and name not in connections:
            found[key] = unknown_connection(name, connections)
            continue
        groups.setdefault(name if connections else "", {})[key] = ExpectedPods(
            key[0], pods, models, float(scaling.windows.slow)
        )
    results = await asyncio.gather(
        *(collectors[name].collect(group) for name, group in groups.items()),
        return_exceptions=True,
    )
    for group, result in zip(groups.values(), results, strict=True):
        if isinstance(result, BaseException):
            await on_failure(result)
            failure = MetricsFailure(
                MetricsProblem.ERROR, "metrics could not be collected; see the operator's log"
            )
            result = dict.fromkeys(group, failure)
        found |= result
    return found
