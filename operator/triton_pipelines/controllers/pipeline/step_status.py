"""Compute the status fields that change without the spec: steps, instances and live scaling. Pure.

The clock is passed in.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api.base import Switch
from triton_pipelines.api.conditions import Condition, merge
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import truncate
from triton_pipelines.autoscaling.types import Verdict
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.controllers.scaling_conditions import CONDITION_TYPES as SCALING_CONDITIONS
from triton_pipelines.controllers.scaling_conditions import (
    OWNER_CONFLICTS,
    is_unchanged,
    scaling_conditions,
    scaling_status,
    step_verdicts,
    with_owner_conflicts,
)
from triton_pipelines.controllers.scaling_limits import scaled_steps
from triton_pipelines.controllers.timestamps import rfc3339

from .policies.cpu_resize import CpuResizeDecision
from .policies.replicas import Replicas
from .snapshot import Probe, Snapshot

REASON_MAX = 1024
# Fields of a step that only scaling reports.
_SCALED_FIELDS = ("instances", "podsWithDesiredInstances", "verdict", "verdictReason")


def blocked_status(
    status: Mapping[str, Any],
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    desired: str,
    counts: Mapping[str, int],
    diverged: Mapping[str, str],
    number: Replicas,
    now: dt.datetime,
    cpu: CpuResizeDecision,
) -> dict[str, Any]:
    """Return ``status`` with the steps and scaling of the last good revision, which is kept.

    Args:
        status: Status of a resource that cannot be acted on (:func:`~.status.stalled`).
        pipeline: The pipeline with its last good spec. This and the other arguments are those of
            :func:`~.status.compute`, of the last good spec.
        graph: Graph of that spec.
        snapshot: What is observed.
        desired: The desired revision.
        counts: Desired counts of steps.
        diverged: As in :func:`~.status.compute`.
        number: The number of pods and its owner.
        now: The current time.
        cpu: The decision on the CPU of the pods.
    """
    conditions = live_conditions(pipeline, graph, snapshot, number, cpu)
    merged = merge(
        snapshot.status.get("conditions") or (), conditions, snapshot.generation, rfc3339(now)
    )
    kept = kept_conditions(pipeline, graph, snapshot, {item.type.value for item in conditions})
    live = live_fields(pipeline, graph, snapshot, desired, counts, diverged)
    result = {**status, "conditions": [*status["conditions"], *merged, *kept], **live}
    return {key: value for key, value in result.items() if value not in ([], {}, "")}


def live_fields(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    desired: str,
    counts: Mapping[str, int],
    diverged: Mapping[str, str],
) -> dict[str, Any]:
    """Return the parts of the status that change without the spec."""
    steps = _steps(pipeline, graph, snapshot, desired, counts, diverged)
    status: dict[str, Any] = {"steps": steps, "scaling": _scaling(pipeline, snapshot)}
    if (tokenizer := graph.tokenizer) is not None:
        count = counts.get(tokenizer.name, tokenizer.instances.counts.initial)
        running = next(
            (item["instances"] for item in steps if item["name"] == tokenizer.name), count
        )
        status["tokenizer"] = {
            "instances": running,
            "desiredInstances": count,
            "summary": f"{count}/{tokenizer.instances.counts.max}",
        }
    return status


def live_conditions(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    number: Replicas,
    cpu: CpuResizeDecision,
) -> list[Condition]:
    """Return the conditions of live scaling, and of other managers that write its fields."""
    if pipeline.spec.suspend is Switch.ENABLED:
        return []
    conditions = scaling_conditions(
        snapshot.view,
        pipeline.spec.scaling.mode,
        bool(scaled_steps(graph)),
        snapshot.status,
        snapshot.state().scaling_report,
    )
    return with_owner_conflicts(
        conditions,
        number.conflict,
        cpu.conflict,
        sorted(rejection.text for rejection in cpu.rejections.values()),
    )


def _is_scaled(pipeline: InferencePipeline, graph: Graph) -> bool:
    """Return whether scaling reports anything on the pipeline, now or soon."""
    return (
        pipeline.spec.scaling.mode is not ScalingMode.DISABLED
        and pipeline.spec.suspend is Switch.DISABLED
        and bool(scaled_steps(graph))
    )


def kept_conditions(
    pipeline: InferencePipeline, graph: Graph, snapshot: Snapshot, decided: set[str]
) -> list[Mapping[str, Any]]:
    """Return scaling's previous conditions until it has observed the pipeline."""
    if snapshot.view is not None or not _is_scaled(pipeline, graph):
        return []
    known = [
        item
        for item in snapshot.status.get("conditions") or ()
        if item.get("type") in SCALING_CONDITIONS
    ]
    return [
        item
        for item in known
        if item["type"] not in decided and item.get("reason") not in OWNER_CONFLICTS
    ]


def _scaling(pipeline: InferencePipeline, snapshot: Snapshot) -> Mapping[str, Any]:
    """Return the status of scaling.

    After a start of the operator, the reported status holds until the first observation.
    """
    before: Mapping[str, Any] = snapshot.status.get("scaling") or {}
    if pipeline.spec.scaling.mode is ScalingMode.DISABLED:
        return {}
    return before if snapshot.view is None else scaling_status(snapshot.view, before)


def _steps(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    desired: str,
    counts: Mapping[str, int],
    diverged: Mapping[str, str],
) -> list[dict[str, Any]]:
    pods = [pod for pod in snapshot.pods if pod.revision == desired and not pod.deleting]
    probes = [snapshot.probes[pod.uid] for pod in pods if pod.uid in snapshot.probes]
    result = []
    verdicts = step_verdicts(snapshot.view)
    before = {item.get("name"): item for item in snapshot.status.get("steps") or ()}
    is_unobserved = snapshot.view is None and _is_scaled(pipeline, graph)
    is_same = snapshot.view is not None and is_unchanged(
        snapshot.view, snapshot.status, snapshot.state().scaling_report.topics
    )
    for step in graph.models:
        ready, reason = _model_state(step.model_name, probes)
        count = counts.get(step.name, step.instances.counts.initial)
        entry: dict[str, Any] = {
            "name": step.name,
            "modelName": step.model_name,
            "role": step.role.value,
            "readyPods": ready,
            "pods": len(pods),
            "instances": count,
            "desiredInstances": count,
        }
        reported = snapshot.view.counts.get(step.name, {}) if snapshot.view is not None else {}
        if reported:
            entry |= {
                "instances": min(reported.values()),
                "podsWithDesiredInstances": sum(seen == count for seen in reported.values()),
            }
        previous = before.get(step.name, {})
        if step.name in verdicts:
            entry |= _verdict_fields(*verdicts[step.name][:2], previous if is_same else {})
        elif is_unobserved:
            # After a start of the operator, the reported values hold until the first observation.
            entry |= {name: value for name, value in previous.items() if name in _SCALED_FIELDS}
        if step.name in diverged:
            reason = f"SourceChanged: {diverged[step.name]}"
        if reason:
            entry["reason"] = truncate(reason, REASON_MAX)
        result.append(entry)
    return result


def _verdict_fields(
    verdict: Verdict, explanation: str, unchanged: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a step's verdict.

    Args:
        verdict: The verdict on the step.
        explanation: Its reason.
        unchanged: The step in the present status, if only figures changed since.
    """
    reason = unchanged.get("verdictReason") or truncate(explanation, REASON_MAX)
    return {"verdict": verdict.value, "verdictReason": reason}


def _model_state(name: str, probes: Sequence[Probe]) -> tuple[int, str]:
    """Return the number of pods in which a model is ready, and why it is not in another."""
    # A model has a state for each of its versions.
    states = [[model for model in probe.models if model.name == name] for probe in probes]
    ready = sum(any(model.state == "READY" for model in versions) for versions in states)
    reasons = (
        model.reason
        for versions in states
        for model in versions
        if model.state != "READY" and model.reason not in ("", "unloaded")
    )
    return ready, next(reasons, "")
