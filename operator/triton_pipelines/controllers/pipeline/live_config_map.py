"""What the live ConfigMap of a pipeline holds: what outlives pods and revisions. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.loadplan import ResolvedSource, ResolvedSources, resolution
from triton_pipelines.compile.graph.graph import Graph

from .snapshot import Memory, Observed, json_object


def live_counts(graph: Graph, observed: Observed) -> dict[str, int]:
    """Desired count of every scaled step: what scaling wants, else the recorded one, within its bounds, else where it starts.

    Where the record is gone, as after somebody deleted the ConfigMap, or cannot be read, it is what the pods run: a pod that starts must not
    bring fewer.
    """
    found = json_object(observed.live_data().get(names.KEY_COUNTS))
    recorded = {
        step: count
        for step, count in found.items()
        if isinstance(count, int) and not isinstance(count, bool)
    }
    if not found or len(recorded) < len(found):
        recorded = _running(observed) | recorded
    if observed.intent is not None:
        recorded |= observed.intent.counts
    result = {}
    for step in graph.models:
        if step.instances.scaled:
            result[step.name] = max(
                step.instances.counts.min,
                min(
                    step.instances.counts.max,
                    recorded.get(step.name, step.instances.counts.initial),
                ),
            )
    return result


def _running(observed: Observed) -> dict[str, int]:
    """The most instances by step that a pod runs or was to run: as pods have reported them of late, and as the status tells of."""
    if observed.deployment is None:
        return {}
    told = observed.status.get("steps") or ()
    found = {
        str(item.get("name")): max(item.get("instances") or 0, item.get("desiredInstances") or 0)
        for item in told
    }
    reported = observed.view.counts if observed.view is not None else {}
    found = {step: count for step, count in found.items() if count}
    return found | {step: max(pods.values()) for step, pods in reported.items() if pods}


def resolved_sources(
    observed: Observed, kept: Sequence[str]
) -> dict[str, dict[str, ResolvedSource]]:
    """What each kept revision was first loaded from: as recorded, else as its oldest pod reports."""
    recorded = json_object(observed.live_data().get(names.KEY_RESOLVED))
    result = {
        revision: found
        for revision in kept
        if revision in recorded and (found := _record(recorded[revision])) is not None
    }
    for pod in sorted(
        observed.pods, key=lambda item: item.raw["metadata"].get("creationTimestamp") or ""
    ):
        report = pod.load_report()
        # The first load of a revision decides what its unpinned sources are; later pods fetch exactly that.
        if report is not None and report.ok and pod.revision in kept and pod.revision not in result:
            result[pod.revision] = resolution(report)
    return result


def _record(value: Any) -> dict[str, ResolvedSource] | None:
    """One revision's record; what somebody's edit has made unreadable counts as none, as in the loader."""
    try:
        return ResolvedSources.model_validate({"revision": value}).root["revision"]
    except ValueError:
        return None


def live_data(
    memory: Memory,
    counts: Mapping[str, int],
    resolved: Mapping[str, Mapping[str, ResolvedSource]],
    observed: Observed,
) -> dict[str, str]:
    """Counts, the controller's and scaling's memory, and resolved sources, each as JSON under its key."""
    data = {
        names.KEY_COUNTS: json.dumps(dict(sorted(counts.items()))),
        names.KEY_MEMORY: memory.to_json(),
    }
    remembered = (
        observed.intent.memory
        if observed.intent is not None
        else observed.live_data().get(names.KEY_SCALING)
    )
    if remembered:
        data[names.KEY_SCALING] = remembered
    if resolved:
        plain = {
            revision: {
                key: item.model_dump(by_alias=True, exclude_none=True)
                for key, item in sources.items()
            }
            for revision, sources in resolved.items()
        }
        data[names.KEY_RESOLVED] = json.dumps(plain, sort_keys=True)
    return data
