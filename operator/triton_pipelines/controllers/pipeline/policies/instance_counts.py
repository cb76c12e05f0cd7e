"""Decide the number of instances of each scaled step. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from triton_pipelines.api import names
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import json_object


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    """Desired instances of the scaled steps."""

    by_step: Mapping[str, int]


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Follow live scaling within the bounds of each step."""
    return Outcome(InstanceCounts(live_counts(draft.of(ReconciledSpec).graph, snapshot)))


def live_counts(graph: Graph, snapshot: Snapshot) -> dict[str, int]:
    """Return the desired count of every scaled step.

    It is what scaling wants, else the recorded count within its bounds, else the start value. If
    the record is gone (for example with a deleted ConfigMap) or cannot be read, it is what the pods
    run: a pod that starts must not have fewer.
    """
    found = json_object(snapshot.live_data().get(names.KEY_COUNTS))
    recorded = {
        step: count
        for step, count in found.items()
        if isinstance(count, int) and not isinstance(count, bool)
    }
    if not found or len(recorded) < len(found):
        recorded = _running(snapshot) | recorded
    if snapshot.intent is not None:
        recorded |= snapshot.intent.counts
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


def _running(snapshot: Snapshot) -> dict[str, int]:
    """Return, by step, the most instances that a pod runs or should run.

    They come from recent reports of pods and from the status.
    """
    if snapshot.deployment is None:
        return {}
    steps = snapshot.status.get("steps") or ()
    found = {
        str(item.get("name")): max(item.get("instances") or 0, item.get("desiredInstances") or 0)
        for item in steps
    }
    reported = snapshot.view.counts if snapshot.view is not None else {}
    found = {step: count for step, count in found.items() if count}
    return found | {step: max(pods.values()) for step, pods in reported.items() if pods}
