"""Carry out a change of a step's instance count.

Wait until the desired count is recorded, change the pods, and revert a growth that failed.
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
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.autoscaler.scaling_state import (
    with_blocked_steps,
    with_reverted_growth,
)
from triton_pipelines.controllers.scaling_limits import grows_under_load

INTENT_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class CountChanger:
    """Changes the count of a step in a pipeline's pods once the desired count is recorded."""

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
        step: Step,
        count: int,
        before: ScalingState,
        *,
        is_new: bool,
    ) -> None:
        """Wait until the desired count is recorded, then change the pods; on failure revert.

        Args:
            key: The pipeline's key.
            state: The pipeline.
            step: The step.
            count: The desired count.
            before: The control law's state before the decision.
            is_new: Whether the desired count changed; otherwise, pods diverged from it.
        """
        try:
            if not await self._is_recorded(state, step.name, count):
                self._give_up(key, state, step.name, before)
                return
            known = before.steps.get(step.name) if is_new else None
            previous = known.desired if known is not None else None
            await self._change_step(key, state, step, count, previous)
        except Exception as error:
            name = type(error).__name__
            reason = f"the change could not be carried out: {name}; see the operator's log"
            self._fail(state, step.name, reason)
            await self.log_failure(key, Reason.ACTUATION_FAILED.value, error)
        finally:
            self.enqueue(key)

    async def _is_recorded(self, state: PipelineScalingState, step: str, count: int) -> bool:
        """Wait for the live ConfigMap to have the count; return whether it got it in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.intent_seconds
        while loop.time() < end:
            if self.recorded_counts(state).get(step) == count:
                return True
            await asyncio.sleep(INTENT_POLL_SECONDS)
        return False

    def _give_up(
        self, key: Key, state: PipelineScalingState, step: str, before: ScalingState
    ) -> None:
        """Return to the state before the decision, which could not be recorded."""
        self._fail(
            state,
            step,
            "the desired instance counts could not be saved, so no pod was changed; "
            "the operator retries automatically",
        )
        state.scaling_state = with_blocked_steps(before, state.scaling_state or before, {step})
        has_others = bool(state.changing_steps - {step})
        state.output.intent = pod_sizes.intent_of(state.scaling_state) if has_others else None
        self.metrics.errors.labels(*key, "Intent").inc()

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
        if change.is_verified:
            # Otherwise, the time contains that until no request waited any more.
            was_waited_for = was_waited_for or state.last_waited.get(step.name, 0.0) >= began
            is_measured = not was_waited_for or (direction == "up" and grows_under_load(step))
            self._record(state, step.name, change, is_measured=is_measured)
            reason = "Proven" if change.seconds is not None else "Gone"
            self.metrics.observe_action(key, step.name, direction, reason, change.seconds)
            return
        if not change.reason:  # the change was stopped, and no pod failed
            self.metrics.observe_action(key, step.name, direction, "Stopped", None)
            return
        reason = f"{step.name} was not scaled from {old} to {count}: {change.reason}"
        self._fail(state, step.name, reason)
        self.metrics.observe_action(key, step.name, direction, "Failed", None)
        self.metrics.errors.labels(*key, Reason.ACTUATION_FAILED.value).inc()
        if previous is not None and count > previous and not change.reached_a_pod:
            self._revert(state, step.name, previous, change)

    def _record(
        self,
        state: PipelineScalingState,
        step: str,
        change: CountChangeResult,
        *,
        is_measured: bool,
    ) -> None:
        """Take the success of a change into the state, and its duration if it is meaningful."""
        if change.reached_a_pod:
            state.backoffs.pop(step, None)
        if is_measured and change.seconds:
            known = state.scaling_state or ScalingState()
            state.scaling_state = replace(known, actuation=change.seconds)

    def _revert(
        self, state: PipelineScalingState, step: str, previous: int, change: CountChangeResult
    ) -> None:
        """Return to the previous count, which new pods start with, after no pod grew."""
        state.scaling_state = with_reverted_growth(
            state.scaling_state or ScalingState(),
            step,
            previous,
            self.clock().timestamp(),
            change.reason,
        )
        state.output.intent = pod_sizes.intent_of(state.scaling_state)

    def _fail(self, state: PipelineScalingState, step: str, reason: str) -> None:
        state.fail(step, reason, self.clock().timestamp())
