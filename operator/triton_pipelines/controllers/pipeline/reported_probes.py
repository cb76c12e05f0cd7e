"""Probe results before the first probe of this process: what the status reports. Pure.

A restarted operator has probed no pod yet. It trusts the status of a healthy pod until the first
probe of that pod, so that not all pods are probed at once. A pod that does not respond to its first
probes is allowed as many of those as one that responded before.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.conditions import ConditionType, condition_of
from triton_pipelines.controllers.timestamps import moment

from .probe_record import ModelState, Probe
from .snapshot import Pod, Snapshot

FIRST_PROBE_SECONDS: Final = 30.0
"""Time after the first iteration in which healthy pods are probed for the first time."""


def first_probe_after(uid: str, period: float) -> float:
    """Return the seconds until the first probe of a pod that the status reports as healthy.

    The first probes of all pods are spread evenly, by the hash of their uids.

    Args:
        uid: The pod's uid.
        period: Seconds between two probes.
    """
    return min(period, FIRST_PROBE_SECONDS) * zlib.crc32(uid.encode()) / 2**32


def reported_probes(snapshot: Snapshot, now: dt.datetime) -> dict[str, Probe]:
    """Return a healthy result for each pod of a revision that the status reports as ready.

    It is the result that a probe of such a pod has, so that its first probe changes nothing.

    Args:
        snapshot: The pipeline as the operator observes it for the first time.
        now: The current time.

    Returns:
        The results by pod uid, without pods that were created, or whose server was restarted, after
        the status was written. Empty unless the status reports every present pod of the revision
        with all models ready.
    """
    status, steps = snapshot.status, snapshot.status.get("steps") or ()
    written = _written_at(snapshot)
    pods = [
        pod for pod in snapshot.pods if not pod.deleting and pod.revision == status.get("revision")
    ]
    state = snapshot.state()
    is_reported = (
        steps
        and written is not None
        and all(step.get("readyPods") == step.get("pods") == len(pods) for step in steps)
        and condition_of(status, ConditionType.READY).get("status") == "True"
    )
    if not is_reported or written is None:
        return {}
    return {
        pod.uid: Probe(
            at=now,
            ensemble_ready=True,
            models=_models(status),
            inference_error="",
            mismatch=next(iter(state.warnings.mismatches), ""),
            server_restarts=pod.server_restarts,
            has_answered=state.pod_repair.answered.get(pod.uid) == pod.server_restarts,
            is_reported=True,
        )
        for pod in pods
        if pod.ready and _is_started_by(pod, written)
    }


def _models(status: Mapping[str, Any]) -> tuple[ModelState, ...]:
    """Return the models of a ready pod: those of the steps, and the ensemble."""
    steps = [step.get("modelName") for step in status.get("steps") or ()]
    names_in_pod = {*steps, (status.get("ensemble") or {}).get("modelName")} - {None}
    return tuple(ModelState(name, "READY") for name in sorted(map(str, names_in_pod)))


def _is_started_by(pod: Pod, time: dt.datetime) -> bool:
    """Return whether the pod, and the server in it, were started by this time."""
    running = (pod.container(names.CONTAINER_SERVER).get("state") or {}).get("running") or {}
    created = moment(pod.raw["metadata"].get("creationTimestamp") or "")
    started = moment(running.get("startedAt") or "")
    return created is not None and max(created, started or created) <= time


def _written_at(snapshot: Snapshot) -> dt.datetime | None:
    """Return when the operator last changed the status; ``None`` if it never did."""
    times = (
        moment(entry.get("time") or "")
        for entry in snapshot.pipeline["metadata"].get("managedFields") or ()
        if entry.get("manager") == names.MANAGER_STATUS
    )
    return max(filter(None, times), default=None)
