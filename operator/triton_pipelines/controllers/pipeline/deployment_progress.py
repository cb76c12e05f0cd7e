"""Read the progress of a rollout from the Deployment and its pods. Pure."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason, condition_of
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES, JOBS
from triton_pipelines.cluster.store import Key, Store, owner_key
from triton_pipelines.controllers.timestamps import moment, timestamp

from .owner_references import owned
from .pod_problems import Problem
from .snapshot import Snapshot
from .surge_room import leaving_until

# How long a preflight counts as a rollout. One that does not pass must not keep others waiting.
PREFLIGHT_TIME: Final = dt.timedelta(minutes=5)
# The same for a Deployment without progress, such as a paused one: the default progress deadline.
STALLED_TIME: Final = dt.timedelta(minutes=15)


def serves_whole(snapshot: Snapshot, revision: str, replicas: int) -> bool:
    """Return whether this revision alone serves the pipeline.

    A pod that fails a test inference, or whose probe got no response, does not count as serving.
    """
    serving = [pod for pod in snapshot.pods if pod.serving]
    failing = any(
        (probe := snapshot.probes.get(pod.uid)) and (probe.inference_error or probe.error)
        for pod in serving
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


def deadline_counts_in(target: str, snapshot: Snapshot, now: dt.datetime) -> float | None:
    """Return the seconds until the exceeded deadline of a Deployment counts; ``None`` if it does.

    The Deployment counts from the change of its template. But a new pod may first have to wait for
    room, such as that of an old pod that still completes its requests. Then its time begins when
    it gets a node.
    """
    if deadline_exceeded(target, snapshot, ()) is None:
        return None
    left = leaving_until(snapshot)
    if left is not None and left > now:
        return (left - now).total_seconds()
    spec = (snapshot.deployment or {}).get("spec") or {}
    seconds = int(spec.get("progressDeadlineSeconds") or 0)
    times = (
        moment(str(placed.get("lastTransitionTime") or ""))
        for pod in snapshot.pods
        if pod.revision == target
        and not pod.deleting
        and (placed := pod.condition("PodScheduled")).get("status") == "True"
    )
    latest = max(filter(None, times), default=None)
    remaining = (latest - now).total_seconds() + seconds if latest is not None else 0.0
    return remaining if remaining > 0 else None


def is_rolling_out(deployment: Mapping[str, Any]) -> bool:
    """Return whether a Deployment is still rolling out its latest template.

    This is so until its controller has seen the template and has either completed or given up on
    it.
    """
    reason = _progressing(deployment).get("reason")
    return not _is_observed(deployment) or reason not in (
        "NewReplicaSetAvailable",
        "ProgressDeadlineExceeded",
    )


def _is_observed(deployment: Mapping[str, Any]) -> bool:
    """Return whether the controller has seen the latest template."""
    status, metadata = deployment.get("status") or {}, deployment["metadata"]
    return int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0)


def _progressing(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    return condition_of(deployment.get("status"), "Progressing")


def _is_stalled(deployment: Mapping[str, Any], now: dt.datetime) -> bool:
    """Return whether a rollout has made no progress for :data:`STALLED_TIME`."""
    progress = moment(str(_progressing(deployment).get("lastUpdateTime") or ""))
    return _is_observed(deployment) and progress is not None and now - progress > STALLED_TIME


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


def may_roll(rolling: Set[Key], key: Key, limit: int) -> bool:
    """Return whether a pipeline may begin a rollout that its spec did not cause.

    Changes of specs roll out without a place, so a namespace could occupy all of them at any time.
    Whatever it does, it leaves one place to other namespaces.

    Args:
        rolling: pipelines that are rolling out.
        key: the pipeline.
        limit: number of places.
    """
    counts = Counter(namespace for namespace, name in rolling if (namespace, name) != key)
    own = counts.pop(key[0], 0)
    return own + sum(min(count, max(1, limit - 1)) for count in counts.values()) < limit


def rolling_pipelines(store: Store, now: dt.datetime) -> set[Key]:
    """Return the pipelines whose own Deployment is rolling out, or is about to after a preflight.

    Others' Deployments with a pipeline's labels must not take the places of pipelines. Nor must a
    rollout without progress, or a preflight that does not pass: these count for
    :data:`STALLED_TIME` and :data:`PREFLIGHT_TIME`.
    """
    rolling = set[Key]()
    for key in store.matching(DEPLOYMENTS, is_rolling_out):
        pipeline, item = store.get(INFERENCE_PIPELINES, *key), store.get(DEPLOYMENTS, *key)
        if pipeline is None or item is None or _is_stalled(item, now):
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
