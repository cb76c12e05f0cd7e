"""Query the instance counts of the pods of a pipeline, and select the pods to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from triton_pipelines.cluster.store import Key
from triton_pipelines.controllers.autoscaler import pipeline_state
from triton_pipelines.controllers.autoscaler.actuator import (
    PodControl,
    PodGoneError,
    PodRejectedError,
    PodTarget,
    PodUnresponsiveError,
)
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState, PodCounts
from triton_pipelines.controllers.pipeline.snapshot import Pod
from triton_pipelines.pod_calls import NamespaceSlots, PendingCalls

# A pod's counts are queried again after this long (seconds), and whenever its server has restarted:
# nothing else should change them.
RECOUNT_SECONDS: Final = 30.0
# A pod that did not report counts is queried again after this long (seconds), so that many
# unreachable pods do not keep the operator busy.
UNANSWERED_SECONDS: Final = 10.0
# Maximum number of pods queried concurrently, over all pipelines and in one namespace. A response
# can take 1 MiB.
COUNTS_AT_ONCE: Final = 128
COUNTS_AT_ONCE_PER_NAMESPACE: Final = 32
# Time limit (seconds) for the counts of all steps of a pod.
POD_SECONDS: Final = 4.0
# How long (seconds) a tick waits for counts. Those that take longer are used in a later tick.
PATIENCE_SECONDS: Final = 1.0


def count_slots() -> NamespaceSlots:
    """Return the slots of all pipelines."""
    return NamespaceSlots(COUNTS_AT_ONCE, COUNTS_AT_ONCE_PER_NAMESPACE)


def count_calls() -> PendingCalls[Key, None]:
    """Return the queries of all pipelines; a tick waits for them only for a moment."""
    return PendingCalls(PATIENCE_SECONDS)


async def query_counts(
    state: PipelineScalingState,
    control: Callable[[Pod], PodControl],
    now: float,
    slots: NamespaceSlots,
) -> None:
    """Query the pods whose counts are unknown or outdated.

    Args:
        state: the pipeline.
        control: returns the control API of a pod.
        now: Unix seconds.
        slots: slots of all pipelines.
    """
    due = [pod for pod in state.pods if _is_query_due(state, pod, now)]
    counts = await asyncio.gather(*(_counts_of(state, control(pod), slots) for pod in due))
    for pod, found in zip(due, counts, strict=True):
        start = pipeline_state.server_start_id(pod)
        state.unanswered.pop(pod.uid, None)
        if found is not None:
            state.pod_counts[pod.uid] = PodCounts(now, start, found)
            continue
        state.unanswered[pod.uid] = (start, now)
        known = state.pod_counts.get(pod.uid)
        if known is not None and known.start != start:
            del state.pod_counts[pod.uid]  # counts of an earlier start of its server


def _is_query_due(state: PipelineScalingState, pod: Pod, now: float) -> bool:
    start, known = pipeline_state.server_start_id(pod), state.pod_counts.get(pod.uid)
    if known is not None and known.start == start and now - known.at < RECOUNT_SECONDS:
        return False
    failed_start, failed_at = state.unanswered.get(pod.uid, ("", 0.0))
    return failed_start != start or now - failed_at >= UNANSWERED_SECONDS


async def _counts_of(
    state: PipelineScalingState, control: PodControl, slots: NamespaceSlots
) -> Mapping[str, int] | None:
    try:
        async with slots.hold(state.pipeline.namespace), asyncio.timeout(POD_SECONDS):
            return {step.name: await control.count(step.model_name) for step in state.steps}
    except (PodGoneError, PodRejectedError, PodUnresponsiveError, TimeoutError):
        return None


def known_targets(
    state: PipelineScalingState,
    step: str,
    configs_of: Callable[[Pod], Mapping[str, str] | None],
    control: Callable[[Pod], PodControl],
) -> list[PodTarget]:
    """Return the pods whose count of the step and whose config are known.

    Args:
        state: the pipeline.
        step: name of the step.
        configs_of: returns the configs of a pod's revision by step.
        control: returns the control API of a pod.
    """
    targets = []
    for pod in state.pods:
        known, configs = state.pod_counts.get(pod.uid), configs_of(pod)
        if known is None or configs is None:
            continue
        if step in known.counts and step in configs:
            config = pipeline_state.config_with(configs[step])
            targets.append(PodTarget(pod.name, control(pod), config, known.counts[step]))
    return targets
