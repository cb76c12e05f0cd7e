"""Probe results before the first probe of this process: what the status reports. Pure.

A restarted operator has probed no pod yet, and its first probes may time out, as on an overloaded
machine. A pod that the status reports as healthy is allowed as many of those as one that responded
before, so that a restart alone changes nothing.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.api.conditions import ConditionType
from triton_pipelines.controllers.timestamps import moment

from .probe_record import ModelState, Probe
from .snapshot import Pod, Snapshot

_BEFORE_START: Final = dt.datetime.min.replace(tzinfo=dt.UTC)


def reported_probes(snapshot: Snapshot) -> dict[str, Probe]:
    """Return a healthy result for each pod of a revision that the status reports as ready.

    Args:
        snapshot: The pipeline as the operator observes it for the first time.

    Returns:
        The results by pod uid, without pods that were created after the status was written. Empty
        unless the status reports every present pod of the revision with all models ready.
    """
    status, steps = snapshot.status, snapshot.status.get("steps") or ()
    written = _written_at(snapshot)
    pods = [
        pod for pod in snapshot.pods if not pod.deleting and pod.revision == status.get("revision")
    ]
    is_reported = (
        steps
        and written is not None
        and all(step.get("readyPods") == step.get("pods") == len(pods) for step in steps)
    ) and any(
        item.get("type") == ConditionType.READY and item.get("status") == "True"
        for item in status.get("conditions") or ()
    )
    if not is_reported or written is None:
        return {}
    models = tuple(ModelState(str(step.get("modelName")), "READY") for step in steps)
    return {
        pod.uid: Probe(
            at=_BEFORE_START,
            ensemble_ready=True,
            models=models,
            inference_error="",
            server_restarts=pod.server_restarts,
            is_reported=True,
        )
        for pod in pods
        if pod.ready and _is_created_by(pod, written)
    }


def _is_created_by(pod: Pod, time: dt.datetime) -> bool:
    created = moment(pod.raw["metadata"].get("creationTimestamp") or "")
    return created is not None and created <= time


def _written_at(snapshot: Snapshot) -> dt.datetime | None:
    """Return when the operator last changed the status; ``None`` if it never did."""
    times = (
        moment(entry.get("time") or "")
        for entry in snapshot.pipeline["metadata"].get("managedFields") or ()
        if entry.get("manager") == names.MANAGER_STATUS
    )
    return max(filter(None, times), default=None)
