"""Read and write the live ConfigMap of a pipeline, which outlives pods and revisions. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.loadplan import ResolvedSource, ResolvedSources, resolution
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Key, Store

from .snapshot import Snapshot, parse_state
from .state import PipelineState, json_object

KEY_REPLICAS: Final = "replicas"
KEY_MILLIS: Final = "cpuMillis"


def stored_state(store: Store, key: Key) -> PipelineState:
    """Return the state that the live ConfigMap of a pipeline has in the caches."""
    live = store.get(CONFIG_MAPS, key[0], names.live_name(key[1])) or {}
    return parse_state((live.get("data") or {}).get(names.KEY_STATE))


def recorded(live: Mapping[str, str]) -> Mapping[str, int]:
    """Return the number of pods and the CPU limit from the data of the live ConfigMap.

    Values that cannot be read count as absent.
    """
    return positive_integers(live.get(names.KEY_PODS))


def positive_integers(text: str | None) -> dict[str, int]:
    """Return the positive integers of a JSON object, which anyone may have edited."""
    return {
        key: value
        for key, value in json_object(text).items()
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
    }


def resolved_sources(
    snapshot: Snapshot, kept: Sequence[str]
) -> dict[str, dict[str, ResolvedSource]]:
    """Return the sources that each kept revision was first loaded from.

    They come from the record, else from the report of its oldest pod.
    """
    recorded = json_object(snapshot.live_data().get(names.KEY_RESOLVED))
    result = {
        revision: found
        for revision in kept
        if revision in recorded and (found := _record(recorded[revision])) is not None
    }
    for pod in sorted(
        snapshot.pods, key=lambda item: item.raw["metadata"].get("creationTimestamp") or ""
    ):
        report = pod.load_report()
        # The first load of a revision decides what its unpinned sources are; later pods fetch
        # exactly those.
        if report is not None and report.ok and pod.revision in kept and pod.revision not in result:
            result[pod.revision] = resolution(report)
    return result


def _record(value: Any) -> dict[str, ResolvedSource] | None:
    """Return the record of one revision.

    ``None`` if a manual edit has made it unreadable, as in the loader.
    """
    try:
        return ResolvedSources.model_validate({"revision": value}).root["revision"]
    except ValueError:
        return None


def live_data(
    state: PipelineState,
    counts: Mapping[str, int],
    resolved: Mapping[str, Mapping[str, ResolvedSource]],
    snapshot: Snapshot,
) -> dict[str, str]:
    """Return counts, state of policies and scaling, and resolved sources, each as JSON by key."""
    data = {
        names.KEY_COUNTS: json.dumps(dict(sorted(counts.items()))),
        names.KEY_STATE: state.to_json(),
    }
    scaling_state_json = (
        snapshot.intent.scaling_state_json
        if snapshot.intent is not None
        else snapshot.live_data().get(names.KEY_SCALING)
    )
    if scaling_state_json:
        data[names.KEY_SCALING] = scaling_state_json
    if resolved:
        documents = {
            revision: {
                key: item.model_dump(by_alias=True, exclude_none=True)
                for key, item in sources.items()
            }
            for revision, sources in resolved.items()
        }
        data[names.KEY_RESOLVED] = json.dumps(documents, sort_keys=True)
    return data
