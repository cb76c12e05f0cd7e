"""Find out whether a decision would have the same inputs as the last one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, PipelineSample
from triton_pipelines.cluster.store import Key, Store
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState
from triton_pipelines.controllers.handover import Handover


@dataclass(frozen=True, slots=True, eq=False)
class DecisionInputs:
    """What a decision depends on besides the time."""

    at: float
    """Time of the decision, Unix seconds."""
    sample: PipelineSample | MetricsFailure
    """What the last collection of metrics brought."""
    others: tuple[Any, ...]
    """Everything else, for comparison."""

    @classmethod
    def of(
        cls,
        key: Key,
        state: PipelineScalingState,
        sample: PipelineSample | MetricsFailure,
        store: Store,
        handover: Handover,
        now: float,
    ) -> DecisionInputs:
        """Return the inputs of the next decision about a pipeline."""
        rejections = dict(handover.resize_rejections.get(key, {}))
        pods = tuple(pod.uid for pod in state.pods)
        others = store.state_of(key), state.counts(), pods, dict(state.backoffs), rejections
        return cls(now, sample, (id(state.graph), state.changing_steps, *others))

    def repeat(self, last: DecisionInputs | None) -> bool:
        """Return whether a decision can wait for the next sample, at most one scrape interval.

        It cannot during an outage of metrics or a change of counts, whose deadlines count.
        """
        return (
            last is not None
            and self.sample is last.sample
            and isinstance(self.sample, PipelineSample)
            and self.at - last.at < self.sample.interval
            and self.others == last.others
        )
