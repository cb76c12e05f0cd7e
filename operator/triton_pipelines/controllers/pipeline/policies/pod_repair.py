"""Recreate pods that are broken although Kubernetes sees nothing wrong with them. Pure.

Five faults are invisible to the kubelet's probes. A pod may have loaded other content than its
revision was first loaded from: pods start at the same time while an unpinned source changes. A
process of a Python model may have died: Triton keeps reporting the model as ready and does not
restart the process. The shared memory may be full, and stays full when the container restarts. A
model may hang in an inference that never ends. Or a device of the pod, such as its GPU, is lost.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.api.loadplan import ResolvedSource, diverged_sources, resolution
from triton_pipelines.controllers.pipeline.actions import Deletion
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.probe_record import (
    DEAD_PROBES,
    DEAD_PROBES_ALONE,
    HUNG_PROBES,
    HUNG_PROBES_ALONE,
    LOST_PROBES,
    LOST_PROBES_ALONE,
    Probe,
)
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Pod, Snapshot
from triton_pipelines.controllers.pipeline.state import PodRepairState
from triton_pipelines.controllers.pipeline.status_events import Event
from triton_pipelines.controllers.timestamps import rfc3339, timestamp

from .kept_revisions import KeptRevisions

# Least time between two such deletions: a new pod does not fix a fault that comes back at once. It
# doubles with each deletion, up to the maximum, until none was due for twice that time.
REPAIR_INTERVAL = dt.timedelta(minutes=10)
REPAIR_INTERVAL_MAX = dt.timedelta(hours=4)
# A pod is judged by a probe of at most this age, plus two periods of the probes: pods of a paused
# pipeline, for example, are not probed.
_PROBE_AGE = dt.timedelta(minutes=1)

_FULL = "its shared memory (/dev/shm) is full"

Resolved = Mapping[str, Mapping[str, ResolvedSource]]


@dataclass(frozen=True, slots=True)
class PodRepairs:
    """Pods to delete, events, state, and messages about steps with other content than recorded."""

    pods: tuple[Pod, ...]
    events: tuple[Event, ...]
    state: PodRepairState
    diverged: Mapping[str, str]


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Delete pods that loaded other content than recorded, or that their probes find broken."""
    period = draft.of(ReconciledSpec).pipeline.spec.health.period_seconds
    repairs = choose_repairs(
        snapshot,
        draft.of(KeptRevisions).sources,
        draft.state.pod_repair,
        now,
        _PROBE_AGE + 2 * dt.timedelta(seconds=period),
    )
    deleted = tuple(Deletion("Pod", pod.name, pod.uid) for pod in repairs.pods)
    return Outcome(repairs, (repairs.state,), delete=deleted, events=repairs.events)


def choose_repairs(
    snapshot: Snapshot,
    resolved: Resolved,
    state: PodRepairState,
    now: dt.datetime,
    probe_age_max: dt.timedelta,
) -> PodRepairs:
    """Return the pods to delete.

    Args:
        snapshot: What was observed.
        resolved: What each revision was first loaded from.
        state: When pods were last deleted because of their probes, and which have answered.
        now: The current time (UTC).
        probe_age_max: Age from which a probe says nothing about its pod any more.
    """
    changed = _diverged(snapshot.pods, resolved)
    to_delete = _to_reload(snapshot.pods, changed)
    events = [
        Event(
            True,
            "SourceChanged",
            "DeletePod",
            f"pod {pod.name} is deleted so that its replacement loads the recorded content:"
            f" {changed[pod.name][1]}",
        )
        for pod in to_delete
    ]
    probes = {
        uid: probe for uid, probe in snapshot.probes.items() if now - probe.at <= probe_age_max
    }
    state = replace(state, answered=_answered(snapshot, state.answered))
    is_due, count = _due(state, now)
    broken = _broken(snapshot.pods, probes, to_delete, state.answered) if is_due else None
    if broken is not None:
        pod, fault = broken
        to_delete.append(pod)
        state = replace(state, repaired=rfc3339(now), count=count)
        error = snapshot.probes[pod.uid].inference_error
        note = f"pod {pod.name} is deleted because {fault.cause}" + (f": {error}" if error else "")
        events.append(Event(True, fault.event, "DeletePod", note))
    return PodRepairs(tuple(to_delete), tuple(events), state, dict(changed.values()))


def _due(state: PodRepairState, now: dt.datetime) -> tuple[bool, int]:
    """Return whether a pod may be deleted, and how many in a row that would then be."""
    last = timestamp(state.repaired) if state.repaired else None
    # A time in the future comes from a clock that has been set back since.
    if last is None or now < last:
        return True, 1
    interval = min(REPAIR_INTERVAL * 2 ** min(max(state.count - 1, 0), 10), REPAIR_INTERVAL_MAX)
    since = now - last
    return since >= interval, state.count + 1 if since < 2 * interval else 1


def _answered(snapshot: Snapshot, recorded: Mapping[str, int]) -> dict[str, int]:
    """Return the pods that have answered a test inference, with the restarts of their container.

    Only for these pods does a missing answer mean that a model hangs: other pods may be slow or
    still warming up. The record outlasts a restart of the operator.
    """
    answered = {}
    for pod in snapshot.pods:
        probe = snapshot.probes.get(pod.uid)
        restarts = pod.server_restarts if probe is None else probe.server_restarts
        is_recorded = recorded.get(pod.uid) == restarts
        if probe is None:
            has_answered = is_recorded
        else:
            # A probe with an error may not know whether the ensemble is ready.
            may_serve = probe.ensemble_ready or probe.error != ""
            has_answered = probe.has_answered or (is_recorded and may_serve)
        if has_answered:
            answered[pod.uid] = restarts
    return answered


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


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault that a new pod repairs."""

    event: str
    """Reason of the event."""
    cause: str
    """Why the pod is deleted."""
    is_certain: bool
    """Whether enough probes met it, provided that another pod serves."""
    is_certain_alone: bool
    """The same if no other pod serves."""


def _broken(
    pods: Sequence[Pod],
    probes: Mapping[str, Probe],
    to_delete: Sequence[Pod],
    answered: Mapping[str, int],
) -> tuple[Pod, _Fault] | None:
    """Return the first pod that has to be recreated because of its probes."""
    for pod in pods:
        fault = _fault_of(pod, probes.get(pod.uid), has_answered=pod.uid in answered)
        if fault is None or pod.deleting or pod in to_delete:
            continue
        another_serves = any(
            # A pod that missed the last probes may have the same fault, and so may one that this
            # process has not probed yet.
            (probe := probes.get(other.uid)) is not None
            and probe.is_healthy
            and not (probe.misses or probe.is_reported)
            for other in pods
            if other.serving and other.uid != pod.uid and other not in to_delete
        )
        if fault.is_certain if another_serves else fault.is_certain_alone:
            return pod, fault
    return None


def _fault_of(pod: Pod, probe: Probe | None, *, has_answered: bool) -> _Fault | None:
    """Return the fault that the last probe met; ``None`` if a new pod would not repair it.

    Args:
        pod: The pod.
        probe: Its last probe.
        has_answered: Whether the pod has answered a test inference in time.
    """
    if probe is None:
        return None
    if not pod.ready:
        # A first start without room shows that the size is too small, which no new pod changes.
        is_full = probe.shared_memory_full and pod.server_restarts > 0
        return _Fault("SharedMemoryFull", _FULL, True, True) if is_full else None
    if not probe.inference_error:
        return None
    if has_answered and (devices := pod.unhealthy_devices):
        # While inferences succeed, the pod stays: there may be no other device for a new one.
        shown = ", ".join(devices)
        cause = (
            f"its device {shown} is unhealthy"
            if len(devices) == 1
            else f"its devices {shown} are unhealthy"
        )
        failed = max(probe.consecutive_wrong, probe.consecutive_dead, probe.consecutive_hung)
        return _Fault("DeviceUnhealthy", cause, failed >= LOST_PROBES, failed >= LOST_PROBES_ALONE)
    if probe.dead and probe.dead[-1] == probe.at:
        return _Fault(
            "BackendProcessDied",
            "a process of one of its models died",
            len(probe.dead) >= DEAD_PROBES,
            probe.consecutive_dead >= DEAD_PROBES_ALONE,
        )
    if probe.shared_memory_full:
        return _Fault(
            "SharedMemoryFull",
            _FULL,
            probe.consecutive_wrong >= DEAD_PROBES,
            probe.consecutive_wrong >= DEAD_PROBES_ALONE,
        )
    if has_answered and probe.consecutive_hung >= HUNG_PROBES:
        return _Fault(
            "ModelHung",
            "it does not complete any inferences",
            True,
            probe.consecutive_hung >= HUNG_PROBES_ALONE,
        )
    return None
