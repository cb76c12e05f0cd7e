"""Carry out a change of instance counts.

Wait until the desired counts are recorded, change the pods, and revert a growth that failed.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.api.conditions import Reason
from triton_pipelines.autoscaling.types import ScalingState
from triton_pipelines.cluster.store import Key
from triton_pipelines.compile.graph.graph import Step
from triton_pipelines.controllers.autoscaler import pod_sizes
from triton_pipelines.controllers.autoscaler.actuator import (
    CountChangeResult,
    Pace,
    PodResult,
    PodTarget,
    change_count,
)
from triton_pipelines.controllers.autoscaler.pipeline_state import INTENT, PipelineScalingState
from triton_pipelines.controllers.autoscaler.scaling_memory import with_reverted_growth
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.scaling_limits import grows_under_load

INTENT_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class CountChanger:
    """Changes the counts of a pipeline's pods once the desired counts are recorded."""

    recorded_counts: Callable[[PipelineScalingState], Mapping[str, int]]
    """Returns the counts in the live ConfigMap."""
    targets: Callable[[PipelineScalingState, str], Sequence[PodTarget]]
    """Returns the pods whose count of a step is known."""
    clock: Callable[[], dt.datetime]
    """Returns UTC now."""
    enqueue: Callable[[Key], None]
    """Makes a reconcile due."""
    metrics: ScalingMetrics
    """The autoscaler's own metrics."""
    log_failure: Callable[[Key, str, BaseException], Awaitable[None]]
    """Counts and logs an unexpected error."""
    pace: Pace
    """Times of the actuator."""
    intent_seconds: float
    """How long a change waits for its intent to be recorded."""

    async def run(
        self,
        key: Key,
        state: PipelineScalingState,
        desired: Mapping[str, int],
        changed: Mapping[str, int],
        before: ScalingState,
    ) -> None:
        """Wait until the intent is recorded, then change the pods; on failure revert."""
        try:
            if changed and not await self._is_recorded(state, desired):
                self._fail(
                    state,
                    INTENT,
                    "the desired instance counts could not be saved, so no pod was changed; "
                    "the operator retries automatically",
                )
                state.memory, state.output.intent = before, None
                self.metrics.errors.labels(*key, "Intent").inc()
                return
            if changed:
                state.backoffs.pop(INTENT, None)
            # At a time: an increase of Python code can last as long as an overload, and Triton
            # completes those of other models meanwhile (measured).
            await asyncio.gather(
                *(
                    self._change_or_fail(
                        key, state, step, desired[step.name], _previous(before, changed, step.name)
                    )
                    for step in state.steps
                    if step.name in desired
                )
            )
        except Exception as error:
            await self._fail_unexpectedly(key, state, INTENT, error)
        finally:
            self.enqueue(key)

    async def _is_recorded(self, state: PipelineScalingState, desired: Mapping[str, int]) -> bool:
        """Wait for the live ConfigMap to have the counts; return whether it got them in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.intent_seconds
        while loop.time() < end:
            recorded = self.recorded_counts(state)
            if all(recorded.get(step) == count for step, count in desired.items()):
                return True
            await asyncio.sleep(INTENT_POLL_SECONDS)
        return False

    async def _change_or_fail(
        self,
        key: Key,
        state: PipelineScalingState,
        step: Step,
        count: int,
        previous: int | None,
    ) -> None:
        """Change a step's count in the pods; an unexpected error is a failure of this step."""
        try:
            await self._change_step(key, state, step, count, previous)
        except Exception as error:
            await self._fail_unexpectedly(key, state, step.name, error)

    async def _change_step(
        self,
        key: Key,
        state: PipelineScalingState,
        step: Step,
        count: int,
        previous: int | None,
    ) -> None:
        """Change a step's count in the pods.

        Args:
            key: The pipeline's key.
            state: The pipeline.
            step: The step.
            count: The desired count.
            previous: The desired count before; ``None`` if it did not change and pods diverged.
        """
        targets = self.targets(state, step.name)
        others = sorted({target.count for target in targets} - {count})
        if not others:
            return
        public = state.graph.model_name
        began, was_waited_for = self.clock().timestamp(), step.name in state.waited_for

        def is_desired() -> bool:
            return state.is_active and self.recorded_counts(state).get(step.name) == count

        change = await change_count(
            step.model_name, public, count, targets, pace=self.pace, is_desired=is_desired
        )
        for name, result in change.pods.items():
            if result.result is not PodResult.GONE:
                state.set_count(name, step.name, result.count)
        old = others[0] if previous is None else previous
        direction = "up" if count > old else "down"
        memory = state.memory or ScalingState()
        if change.is_verified:
            if change.reached_a_pod:
                state.backoffs.pop(step.name, None)
            # Otherwise, the time contains that until no request waited any more.
            was_waited_for = was_waited_for or state.last_waited.get(step.name, 0.0) >= began
            is_measured = not was_waited_for or (direction == "up" and grows_under_load(step))
            seconds = change.seconds if is_measured else None
            state.memory = replace(memory, actuation=seconds or memory.actuation)
            reason = "Proven" if change.seconds is not None else "Gone"
            self.metrics.observe_action(key, step.name, direction, reason, change.seconds)
            return
        if not change.reason:  # the change was stopped, and no pod failed
            self.metrics.observe_action(key, step.name, direction, "Stopped", None)
            return
        self._fail(
            state,
            step.name,
            f"{step.name} was not scaled from {old} to {count}: {change.reason}",
        )
        self.metrics.observe_action(key, step.name, direction, "Failed", None)
        self.metrics.errors.labels(*key, Reason.ACTUATION_FAILED.value).inc()
        if previous is not None and count > previous and not change.reached_a_pod:
            self._revert(state, step.name, previous, change)

    def _revert(
        self, state: PipelineScalingState, step: str, previous: int, change: CountChangeResult
    ) -> None:
        """Return to the previous count, which new pods start with, after no pod grew."""
        state.memory = with_reverted_growth(
            state.memory or ScalingState(), step, previous, self.clock().timestamp(), change.reason
        )
        state.output.intent = pod_sizes.intent_of(state.memory)

    async def _fail_unexpectedly(
        self, key: Key, state: PipelineScalingState, subject: str, error: Exception
    ) -> None:
        name = type(error).__name__
        self._fail(
            state, subject, f"the change could not be carried out: {name}; see the operator's log"
        )
        await self.log_failure(key, Reason.ACTUATION_FAILED.value, error)

    def _fail(self, state: PipelineScalingState, subject: str, reason: str) -> None:
        state.fail(subject, reason, self.clock().timestamp())


def _previous(before: ScalingState, changed: Mapping[str, int], step: str) -> int | None:
    """Return the desired count of a changed step before the change."""
    known = before.steps.get(step) if step in changed else None
    return known.desired if known is not None else None
