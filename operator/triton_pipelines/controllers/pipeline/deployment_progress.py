"""Read the progress of a rollout from the Deployment and its pods. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES, JOBS
from triton_pipelines.cluster.store import Key, Store, owner_key
from triton_pipelines.controllers.timestamps import timestamp

from .owner_references import owned
from .pod_problems import Problem
from .snapshot import Snapshot

# How long a preflight counts as a rollout. One that does not pass must not keep others waiting.
PREFLIGHT_TIME: Final = dt.timedelta(minutes=5)


def serves_whole(snapshot: Snapshot, revision: str, replicas: int) -> bool:
    """Return whether this revision alone serves the pipeline.

    A pod that fails a test inference does not count as serving.
    """
    serving = [pod for pod in snapshot.pods if pod.serving]
    failing = any(
        (probe := snapshot.probes.get(pod.uid)) and probe.inference_error for pod in serving
    )
    return (
        0 < replicas <= len(serving)
        and not failing
        and all(pod.revision == revision for pod in serving)
    )


def deadline_exceeded(
    target: str, snapshot: Snapshot, problems: Sequence[Problem]
) -> tuple[Reason, str] | None:
    """Return reason and message if the Deployment reports that ``target`` makes no progress."""
    condition = snapshot.deployment_condition("Progressing")
    status = (snapshot.deployment or {}).get("status") or {}
    metadata = (snapshot.deployment or {}).get("metadata") or {}
    current = int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0)
    if (
        snapshot.deployed_revision() != target
        or not current
        or condition.get("reason") != "ProgressDeadlineExceeded"
    ):
        return None
    why = (
        "; ".join(problem.message for problem in problems)
        or snapshot.pods_rejected
        or str(condition.get("message", ""))
    )
    seconds = ((snapshot.deployment or {}).get("spec") or {}).get("progressDeadlineSeconds")
    return Reason.ROLLOUT_FAILED, f"no progress within {seconds} s: {why}"


def is_rolling_out(deployment: Mapping[str, Any]) -> bool:
    """Return whether a Deployment is still rolling out its latest template.

    This is so until its controller has seen the template and has either completed or given up on
    it.
    """
    status = deployment.get("status") or {}
    if int(status.get("observedGeneration") or 0) < int(
        deployment["metadata"].get("generation") or 0
    ):
        return True
    progressing: Mapping[str, Any] = next(
        (item for item in status.get("conditions") or () if item.get("type") == "Progressing"), {}
    )
    return progressing.get("reason") not in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded")


def job_end(job: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the condition that reports the end of a Job, or an empty one."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    return next(
        (
            item
            for item in conditions
            if item.get("type") in ("Failed", "Complete") and item.get("status") == "True"
        ),
        {},
    )


def is_preflight(workload: Mapping[str, Any]) -> bool:
    """Return whether an object of a pipeline is the Job of a preflight."""
    labels = workload["metadata"].get("labels") or {}
    is_component = labels.get(names.LABEL_COMPONENT) == names.COMPONENT_PREFLIGHT
    return workload["kind"] == JOBS.kind and is_component


def rolling_pipelines(store: Store, now: dt.datetime) -> set[Key]:
    """Return the pipelines whose own Deployment is rolling out, or is about to after a preflight.

    Others' Deployments with a pipeline's labels must not take the places of pipelines. Nor must a
    preflight that does not pass: it counts for :data:`PREFLIGHT_TIME`.
    """
    rolling = set[Key]()
    for key in store.matching(DEPLOYMENTS, is_rolling_out):
        pipeline, item = store.get(INFERENCE_PIPELINES, *key), store.get(DEPLOYMENTS, *key)
        if pipeline is None or item is None:
            continue
        if owned(item, pipeline["metadata"].get("uid", "")):
            rolling.add(key)
    for item_key in store.matching(JOBS, is_preflight):
        job = store.get(JOBS, *item_key)
        if job is None:
            continue
        pipeline_key = owner_key(JOBS, job)
        if pipeline_key is None:
            continue
        pipeline = store.get(INFERENCE_PIPELINES, *pipeline_key)
        created = timestamp(job["metadata"].get("creationTimestamp"))
        if pipeline is None or created is None or now - created > PREFLIGHT_TIME:
            continue
        if owned(job, pipeline["metadata"].get("uid", "")):
            rolling.add(pipeline_key)
    return rolling
