"""Collect samples of all pipelines, once per metrics connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from triton_pipelines.autoscaling.metrics.connection_messages import (
    forbidden_connection,
    unknown_connection,
)
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
from triton_pipelines.pod_calls import PendingCalls

# How long (seconds) a tick waits for samples. A collector that reads pods waits for 1 s.
PATIENCE_SECONDS: Final = 1.5
_UNEXPECTED: Final = MetricsFailure(
    MetricsProblem.ERROR, "metrics could not be collected; see the operator's log"
)
_PENDING: Final = MetricsFailure(
    MetricsProblem.MISSING, "the metrics connection has not responded yet; wait for its response"
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

    def permits(self, namespace: str) -> bool:
        """Return whether pipelines of a namespace may use this source."""
        ...


@dataclass(slots=True)
class SampleCollection:
    """Collects samples through all connections; one instance per process.

    A tick does not wait for a connection that responds slowly: its pipelines have their last
    samples until it responds.
    """

    _calls: PendingCalls[str, Mapping[Key, PipelineSample | MetricsFailure]] = field(
        default_factory=lambda: PendingCalls(PATIENCE_SECONDS)
    )
    """By name of the connection."""
    _samples: dict[str, dict[Key, PipelineSample | MetricsFailure]] = field(default_factory=dict)
    """The last samples of each connection."""

    async def collect(
        self,
        states: Mapping[Key, PipelineScalingState],
        collectors: Mapping[str, Collector],
        on_failure: Callable[[Key, BaseException], Awaitable[None]],
    ) -> dict[Key, PipelineSample | MetricsFailure]:
        """Return samples of all pipelines, collected once per connection.

        A collector that fails is a failure of its own pipelines only. A collector without pipelines
        is called, too, and forgets those that it had.

        Args:
            states: the pipelines.
            collectors: by name of the connection; the empty name reads the pods directly.
            on_failure: called with the error of a pipeline, or of a collector (``NO_PIPELINE``).
        """
        groups: dict[str, dict[Key, ExpectedPods]] = {name: {} for name in collectors}
        found: dict[Key, PipelineSample | MetricsFailure] = {}
        has_connections = any(collectors)
        for key, state in states.items():
            name = state.pipeline.spec.scaling.prometheus_ref if has_connections else ""
            if (unusable := _unusable(name, key[0], collectors)) is not None:
                found[key] = unusable
                continue
            try:
                groups[name][key] = _expected_pods(key, state)
            except Exception as error:
                await on_failure(key, error)
                found[key] = _UNEXPECTED
        results = await self._calls.results(
            {name: partial(collectors[name].collect, group) for name, group in groups.items()}
        )
        for name, group in groups.items():
            samples = results.get(name, self._samples.get(name, {}))
            if isinstance(samples, BaseException):
                await on_failure(NO_PIPELINE, samples)
                samples = dict.fromkeys(group, _UNEXPECTED)
            self._samples[name] = {key: samples.get(key, _PENDING) for key in group}
            found |= self._samples[name]
        return found

    def cancel(self) -> None:
        """Cancel what is running."""
        self._calls.cancel()


def _unusable(
    name: str, namespace: str, collectors: Mapping[str, Collector]
) -> MetricsFailure | None:
    """Return why pipelines of a namespace cannot use a connection; ``None`` if they can.

    Connections of other namespaces are not listed.
    """
    collector = collectors.get(name)
    if collector is not None and collector.permits(namespace):
        return None
    permitted = [other for other, one in collectors.items() if other and one.permits(namespace)]
    if collector is None:
        return unknown_connection(name, permitted)
    return forbidden_connection(name, namespace, permitted)


def _expected_pods(key: Key, state: PipelineScalingState) -> ExpectedPods:
    limits = limits_of(state.pipeline, state.graph, "")
    models = frozenset([*(step.model_name for step in limits.steps), *limits.gpu_steps])
    pods = {pod.name: pipeline_state.metrics_address(pod) for pod in state.pods}
    return ExpectedPods(key[0], pods, models, float(state.pipeline.spec.scaling.windows.slow))
