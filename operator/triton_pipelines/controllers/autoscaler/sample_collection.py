"""Collect samples of all pipelines, once per metrics connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

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
from triton_pipelines.controllers.failure_log import NO_PIPELINE
from triton_pipelines.controllers.scaling_limits import limits_of

_UNEXPECTED: Final = MetricsFailure(
    MetricsProblem.ERROR, "metrics could not be collected; see the operator's log"
)


class Collector(Protocol):
    """A source of samples: Prometheus, or the pods themselves."""

    async def collect(
        self, expected: Mapping[Key, ExpectedPods]
    ) -> Mapping[Key, PipelineSample | MetricsFailure]:
        """Collect samples for all pipelines at once.

        A pipeline without a usable sample gets a failure, never a zero.
        """
        ...


async def collect_samples(
    states: Mapping[Key, PipelineScalingState],
    collectors: Mapping[str, Collector],
    on_failure: Callable[[Key, BaseException], Awaitable[None]],
) -> dict[Key, PipelineSample | MetricsFailure]:
    """Return samples of all pipelines, collected once per connection.

    A collector that fails is a failure of its own pipelines only. A collector without pipelines is
    called, too, and forgets those that it had.

    Args:
        states: the pipelines.
        collectors: by name of the connection; the empty name reads the pods directly.
        on_failure: called with the error of a pipeline, or of a collector (``NO_PIPELINE``).
    """
    groups: dict[str, dict[Key, ExpectedPods]] = {name: {} for name in collectors}
    found: dict[Key, PipelineSample | MetricsFailure] = {}
    connections = [name for name in collectors if name]
    for key, state in states.items():
        name = state.pipeline.spec.scaling.prometheus_ref
        if connections and name not in connections:
            found[key] = unknown_connection(name, connections)
            continue
        try:
            groups[name if connections else ""][key] = _expected_pods(key, state)
        except Exception as error:
            await on_failure(key, error)
            found[key] = _UNEXPECTED
    results = await asyncio.gather(
        *(collectors[name].collect(group) for name, group in groups.items()),
        return_exceptions=True,
    )
    for group, result in zip(groups.values(), results, strict=True):
        if isinstance(result, BaseException):
            await on_failure(NO_PIPELINE, result)
            result = dict.fromkeys(group, _UNEXPECTED)
        found |= result
    return found


def _expected_pods(key: Key, state: PipelineScalingState) -> ExpectedPods:
    limits = limits_of(state.pipeline, state.graph, "")
    models = frozenset([*(step.model_name for step in limits.steps), *limits.gpu_steps])
    pods = {pod.name: pipeline_state.metrics_address(pod) for pod in state.pods}
    return ExpectedPods(key[0], pods, models, float(state.pipeline.spec.scaling.windows.slow))
