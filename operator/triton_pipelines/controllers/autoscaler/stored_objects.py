"""Read what the operator has stored of a pipeline from the caches."""

from __future__ import annotations

from collections.abc import Mapping

from triton_pipelines.api import names
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.autoscaler import pipeline_state
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState
from triton_pipelines.controllers.pipeline.snapshot import Pod, json_object


def configs_of_pod(store: Store, state: PipelineScalingState, pod: Pod) -> Mapping[str, str] | None:
    """Return the configs of the pod's revision by step; ``None`` if they are not known."""
    name = names.revision_name(state.pipeline.name, pod.revision)
    return pipeline_state.configs_of(store.get(CONFIG_MAPS, state.pipeline.namespace, name))


def live_data(store: Store, state: PipelineScalingState) -> Mapping[str, str]:
    """Return the data of the live ConfigMap; empty if there is none."""
    name = names.live_name(state.pipeline.name)
    found = store.get(CONFIG_MAPS, state.pipeline.namespace, name)
    return (found or {}).get("data") or {}


def recorded_counts(store: Store, state: PipelineScalingState) -> dict[str, int]:
    """Return the valid counts in the live ConfigMap, by step."""
    data = live_data(store, state)
    return pipeline_state.valid_counts(json_object(data.get(names.KEY_COUNTS)))
