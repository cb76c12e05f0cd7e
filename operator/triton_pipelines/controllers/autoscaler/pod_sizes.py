"""Connect the autoscaler's state with the decision on pods and CPU. No I/O.

The decision itself is :mod:`triton_pipelines.autoscaling.pods_and_cpu`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.autoscaling.pod_count import is_shrinking
from triton_pipelines.autoscaling.pods_and_cpu import CPU, PODS, PodsObservation, adopt_recorded
from triton_pipelines.autoscaling.state_json import dumps
from triton_pipelines.autoscaling.types import CountChange, PipelineLimits, ScalingState
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState
from triton_pipelines.controllers.handover import ScalingIntent
from triton_pipelines.controllers.pipeline.live_config_map import KEY_MILLIS, KEY_REPLICAS, recorded
from triton_pipelines.controllers.pipeline.pod_resize import actual_limit
from triton_pipelines.controllers.pipeline.resize_rejections import ResizeRejection
from triton_pipelines.controllers.pipeline.scaling_observation import (
    bounds_of,
    observation_of,
    smallest_limit,
)
from triton_pipelines.controllers.pipeline.state import PipelineState
from triton_pipelines.controllers.scaling_limits import limits_of


@dataclass(frozen=True, slots=True)
class PodSizes:
    """Number and CPU of a pipeline's pods, for metrics."""

    limits: Mapping[str, int | None]
    """CPU limit in force (thousandths of a core) by pod name; ``None``: unknown."""
    desired_pods: int | None
    """Desired number of pods; ``None``: unknown."""
    desired_limit: int | None
    """Desired CPU limit of each pod (thousandths of a core); ``None``: not scaled."""


def current_limits(
    state: PipelineScalingState, scaling_state: ScalingState, *, direct: bool
) -> PipelineLimits:
    """Return what bounds the pods: the limits of the serving pod with the least CPU.

    Args:
        state: The pipeline.
        scaling_state: The control law's state.
        direct: Whether pods are read directly.
    """
    # Without a pod no other revision is known, and what is known of the last one stays.
    found = limits_of(
        state.pipeline,
        state.graph,
        state.revision or scaling_state.revision,
        smallest_limit(state.pods),
        direct=direct,
    )
    return replace(found, hold_counts_for_pods=is_shrinking(scaling_state.pods))


def with_owned_fields(
    state: PipelineScalingState,
    scaling_state: ScalingState,
    live: Mapping[str, str],
    deployment: Mapping[str, Any] | None,
) -> ScalingState:
    """Return the control law's state with the pods and the CPU that scaling owns now.

    Recorded values hold at the first decision of this process, remembered ones afterwards. In mode
    Advisory the Deployment's number holds.

    Args:
        state: The pipeline.
        scaling_state: The control law's state.
        live: Data of the live ConfigMap.
        deployment: The Deployment, if it exists.
    """
    found, bounds = recorded(live), bounds_of(state.pipeline, state.graph)
    replicas, millis = found.get(KEY_REPLICAS), found.get(KEY_MILLIS)
    if not state.is_active:
        replicas = int(((deployment or {}).get("spec") or {}).get("replicas") or 0) or None
        return adopt_recorded(scaling_state, bounds, replicas, millis)
    if state.scaling_state is None:
        # Without a record the next reconcile takes over what runs: what was remembered while
        # another manager owned the field is not desired.
        kept = replace(
            scaling_state,
            pods=scaling_state.pods if replicas else None,
            cpu=scaling_state.cpu if millis else None,
        )
        return adopt_recorded(kept, bounds, replicas, millis)
    return adopt_recorded(
        scaling_state,
        bounds,
        replicas if scaling_state.pods is None else None,
        millis if scaling_state.cpu is None else None,
    )


def observe_pods(
    state: PipelineScalingState,
    scaling_state: ScalingState,
    deployment: Mapping[str, Any] | None,
    rejections: Mapping[str, ResizeRejection],
    live: Mapping[str, str],
) -> PodsObservation:
    """Return the observed pods.

    Args:
        state: The pipeline.
        scaling_state: The control law's state.
        deployment: The Deployment, if it exists.
        rejections: CPU limits that the API server rejected, by pod uid.
        live: Data of the live ConfigMap.
    """
    desired = scaling_state.cpu.scale.desired if scaling_state.cpu is not None else None
    pipeline_state = PipelineState.parse(live.get(names.KEY_STATE))
    return observation_of(state.all_pods, deployment, desired, rejections, pipeline_state)


def pod_sizes(state: PipelineScalingState, deployment: Mapping[str, Any] | None) -> PodSizes:
    """Return number and CPU of the pods that are not being deleted."""
    scaling_state = state.scaling_state or ScalingState()
    desired_pods = (deployment or {}).get("spec", {}).get("replicas")
    if scaling_state.pods is not None:
        desired_pods = scaling_state.pods.scale.desired
    return PodSizes(
        {pod.name: actual_limit(pod) for pod in state.all_pods if not pod.deleting},
        desired_pods,
        scaling_state.cpu.scale.desired if scaling_state.cpu is not None else None,
    )


def intent_of(scaling_state: ScalingState) -> ScalingIntent:
    """Return what has to be recorded by the control law's state."""
    return ScalingIntent(
        {name: mine.desired for name, mine in scaling_state.steps.items()},
        dumps(scaling_state),
        pods=scaling_state.pods.scale.desired if scaling_state.pods is not None else None,
        cpu=scaling_state.cpu.scale.desired if scaling_state.cpu is not None else None,
    )


def needs_recording(
    scaling_state: ScalingState, live: Mapping[str, str], published: ScalingIntent | None
) -> bool:
    """Return whether the number of pods or their CPU is not recorded, and no intent asks for it.

    An intent that the pipeline controller cannot record, as with an invalid spec, stays until it
    can: publishing it again would not help.

    Args:
        scaling_state: The control law's state.
        live: Data of the live ConfigMap.
        published: The published intent.
    """
    found, desired = recorded(live), intent_of(scaling_state)
    if published is not None and (published.pods, published.cpu) == (desired.pods, desired.cpu):
        return False
    return any(
        value is not None and found.get(key) != value
        for key, value in ((KEY_REPLICAS, desired.pods), (KEY_MILLIS, desired.cpu))
    )


def new_actions(before: Sequence[CountChange], after: Sequence[CountChange]) -> list[CountChange]:
    """Return the changes of pods and CPU that the last decision added to the history."""
    return [item for item in after if item.step in (PODS, CPU) and item not in before]
