"""Query the instance counts of the pods of a pipeline, and select the pods to change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
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
from triton_pipelines.pod_calls import NamespaceSlots, PendingCalls, PodSlots

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
# The same for pods that did not report counts, in addition.
UNANSWERED_AT_ONCE: Final = 32
UNANSWERED_AT_ONCE_PER_NAMESPACE: Final = 8
# Time limit (seconds) for the counts of all steps of a pod.
POD_SECONDS: Final = 4.0
# How long (seconds) a tick waits for counts. Those that take longer are used in a later tick.
PATIENCE_SECONDS: Final = 1.0


def count_slots() -> PodSlots:
    """Return the slots of all pipelines."""
    return PodSlots(
        NamespaceSlots(COUNTS_AT_ONCE, COUNTS_AT_ONCE_PER_NAMESPACE),
        NamespaceSlots(UNANSWERED_AT_ONCE, UNANSWERED_AT_ONCE_PER_NAMESPACE),
    )


def count_calls() -> PendingCalls[tuple[Key, str], None]:
    """Return the queries of all pods, by pipeline and uid; a tick waits only for a moment."""
    return PendingCalls(PATIENCE_SECONDS)


def due_queries(
    states: Mapping[Key, PipelineScalingState],
    control: Callable[[PipelineScalingState, Pod], PodControl],
    now: float,
    slots: PodSlots,
) -> dict[tuple[Key, str], Callable[[], Awaitable[None]]]:
    """Return queries of the pods whose counts are unknown or outdated, by pipeline and pod uid.

    Args:
        states: the pipelines; the queries record their results there.
        control: returns the control API of a pod.
        now: Unix seconds.
        slots: slots of all pipelines.
    """
    return {
        (key, pod.uid): partial(_query, state, pod, control, now, slots)
        for key, state in states.items()
        for pod in state.pods
        if _is_query_due(state, pod, now)
    }


async def _query(
    state: PipelineScalingState,
    pod: Pod,
    control: Callable[[PipelineScalingState, Pod], PodControl],
    now: float,
    slots: PodSlots,
) -> None:
    """Query a pod and record what it reports, unless a change of its counts was recorded since."""
    start, known = pipeline_state.server_start_id(pod), state.pod_counts.get(pod.uid)
    has_failed = pod.uid in state.unanswered
    async with slots.hold(state.pipeline.namespace, is_slow=has_failed):
        found = await _counts_of(state, control(state, pod))
    if state.pod_counts.get(pod.uid) is not known:
        return
    state.unanswered.pop(pod.uid, None)
    if found is not None:
        state.pod_counts[pod.uid] = PodCounts(now, start, found)
        return
    state.unanswered[pod.uid] = (start, now)
    if known is not None and known.start != start:
        del state.pod_counts[pod.uid]  # counts of an earlier start of its server


def _is_query_due(state: PipelineScalingState, pod: Pod, now: float) -> bool:
    start, known = pipeline_state.server_start_id(pod), state.pod_counts.get(pod.uid)
    if known is not None and known.start == start and 0 <= now - known.at < RECOUNT_SECONDS:
        return False
    failed_start, failed_at = state.unanswered.get(pod.uid, ("", 0.0))
    return failed_start != start or not 0 <= now - failed_at < UNANSWERED_SECONDS


async def _counts_of(state: PipelineScalingState, control: PodControl) -> dict[str, int] | None:
    try:
        async with asyncio.timeout(POD_SECONDS):
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
            targets.append(
                PodTarget(
                    pod.name,
                    control(pod),
                    config,
                    known.counts[step],
                    lambda: step in state.waited_for,
                    partial(_is_serving, state, pod.uid, pipeline_state.server_start_id(pod)),
                )
            )
    return targets


def _is_serving(state: PipelineScalingState, uid: str, start: str) -> bool:
    return any(
        pod.uid == uid and pipeline_state.server_start_id(pod) == start for pod in state.pods
    )
