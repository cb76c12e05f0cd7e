"""Read what the operator has stored of a pipeline from the caches."""

from __future__ import annotations

from collections.abc import Mapping

from triton_pipelines.api import names
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers.autoscaler import pipeline_state
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState
from triton_pipelines.controllers.pipeline.live_config_map import positive_integers
from triton_pipelines.controllers.pipeline.snapshot import Pod


def configs_of_pod(store: Store, state: PipelineScalingState, pod: Pod) -> Mapping[str, str] | None:
    """Return the configs of the pod's revision by step; ``None`` if they are not known.

    A ConfigMap is parsed once for all pods and ticks: in the caches, it is the same object until it
    changes.
    """
    name = names.revision_name(state.pipeline.name, pod.revision)
    record = store.get(CONFIG_MAPS, state.pipeline.namespace, name)
    known = state.configs.get(pod.revision)
    if known is None or known[0] is not record:
        present = {one.revision for one in state.all_pods}
        known = record, pipeline_state.configs_of(record)
        kept = {key: value for key, value in state.configs.items() if key in present}
        state.configs = {**kept, pod.revision: known}
    return known[1]


def live_data(store: Store, state: PipelineScalingState) -> Mapping[str, str]:
    """Return the data of the live ConfigMap; empty if there is none."""
    name = names.live_name(state.pipeline.name)
    found = store.get(CONFIG_MAPS, state.pipeline.namespace, name)
    return (found or {}).get("data") or {}


def recorded_counts(store: Store, state: PipelineScalingState) -> dict[str, int]:
    """Return the valid counts in the live ConfigMap, by step."""
    return positive_integers(live_data(store, state).get(names.KEY_COUNTS))
