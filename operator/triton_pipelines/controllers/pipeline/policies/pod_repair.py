"""Recreate pods that are broken although Kubernetes sees nothing wrong with them. Pure.

Two faults are invisible to the kubelet's probes. A pod may have loaded other content than its
revision was first loaded from: pods start at the same time while an unpinned source changes. Or a
process of a Python model has died: Triton keeps reporting the model as ready and does not restart
the process.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.api.loadplan import ResolvedSource, diverged_sources, resolution
from triton_pipelines.controllers.pipeline.actions import Deletion
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.snapshot import (
    DEAD_PROBES,
    DEAD_PROBES_ALONE,
    Pod,
    Snapshot,
)
from triton_pipelines.controllers.pipeline.state import PodRepairState
from triton_pipelines.controllers.pipeline.status_events import Event
from triton_pipelines.controllers.timestamps import rfc3339, timestamp

from .kept_revisions import KeptRevisions

# Least time between two such deletions: a new pod does not fix a fault that comes back at once.
REPAIR_INTERVAL = dt.timedelta(minutes=10)

Resolved = Mapping[str, Mapping[str, ResolvedSource]]


@dataclass(frozen=True, slots=True)
class PodRepairs:
    """Pods to delete, events, state, and messages about steps with other content than recorded."""

    pods: tuple[Pod, ...]
    events: tuple[Event, ...]
    state: PodRepairState
    diverged: Mapping[str, str]


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Delete pods that loaded other content than recorded, or in which a process has died."""
    repairs = choose_repairs(snapshot, draft.of(KeptRevisions).sources, draft.state.pod_repair, now)
    deleted = tuple(Deletion("Pod", pod.name, pod.uid) for pod in repairs.pods)
    return Outcome(repairs, (repairs.state,), delete=deleted, events=repairs.events)


def choose_repairs(
    snapshot: Snapshot, resolved: Resolved, state: PodRepairState, now: dt.datetime
) -> PodRepairs:
    """Return the pods to delete. ``resolved``: what each revision was first loaded from."""
    changed = _diverged(snapshot.pods, resolved)
    to_delete = _to_reload(snapshot.pods, changed)
    events = [
        Event(
            True,
            "SourceChanged",
            "DeletePod",
            f"pod {pod.name} is deleted so that it loads the recorded content again:"
            f" {changed[pod.name][1]}",
        )
        for pod in to_delete
    ]
    last = timestamp(state.repaired) if state.repaired else None
    # A time in the future comes from a clock that has been set back since.
    is_recent = last is not None and dt.timedelta(0) <= now - last < REPAIR_INTERVAL
    if not is_recent:
        dead = next(
            (
                pod
                for pod in snapshot.pods
                if pod not in to_delete and _has_dead_process(pod, snapshot, to_delete)
            ),
            None,
        )
        if dead is not None:
            to_delete.append(dead)
            state = PodRepairState(rfc3339(now))
            error = snapshot.probes[dead.uid].inference_error
            events.append(
                Event(
                    True,
                    "BackendProcessDied",
                    "DeletePod",
                    f"pod {dead.name} is deleted because a process of one of its models died:"
                    f" {error}",
                )
            )
    return PodRepairs(tuple(to_delete), tuple(events), state, dict(changed.values()))


def _diverged(pods: Sequence[Pod], resolved: Resolved) -> dict[str, tuple[str, str]]:
    """Return pods with other content than recorded: step and message by pod name."""
    found = {}
    for pod in pods:
        report, recorded = pod.load_report(), resolved.get(pod.revision)
        if pod.deleting or report is None or not report.ok or recorded is None:
            continue
        if findings := diverged_sources(recorded, report):
            found[pod.name] = (
                findings[0].step or "",
                "; ".join(finding.message for finding in findings),
            )
    return found


def _to_reload(pods: Sequence[Pod], changed: Mapping[str, tuple[str, str]]) -> list[Pod]:
    """Return those of them to delete. The first record counts, but the last serving pod stays."""
    wrong = sorted((pod for pod in pods if pod.name in changed), key=_age)
    if any(pod.serving and pod.name not in changed for pod in pods):
        return wrong
    kept = next((pod for pod in wrong if pod.serving), None)
    report = kept.load_report() if kept is not None else None
    if report is None:
        return wrong
    # Only diverged pods serve: the oldest one stays, with those that loaded the same.
    return [
        pod
        for pod in wrong
        if not pod.serving
        or (
            (own_report := pod.load_report()) is not None
            and diverged_sources(resolution(report), own_report)
        )
    ]


def _age(pod: Pod) -> tuple[str, str]:
    return str(pod.raw["metadata"].get("creationTimestamp") or ""), pod.name


def _has_dead_process(pod: Pod, snapshot: Snapshot, to_delete: Sequence[Pod]) -> bool:
    """Return whether to recreate a ready pod because probes of it meet a dead process."""
    probe = snapshot.probes.get(pod.uid)
    if (
        probe is None
        or not pod.serving
        or not probe.inference_error
        or not probe.dead
        or probe.dead[-1] != probe.at
    ):
        return False
    others = (
        other
        for other in snapshot.pods
        if other.serving and other.uid != pod.uid and other not in to_delete
    )
    another_serves = any(
        (other_probe := snapshot.probes.get(other.uid)) is not None and other_probe.is_healthy
        for other in others
    )
    return (
        len(probe.dead) >= DEAD_PROBES
        if another_serves
        else probe.consecutive_dead >= DEAD_PROBES_ALONE
    )
