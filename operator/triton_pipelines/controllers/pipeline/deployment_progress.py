"""Read the progress of a rollout from the Deployment and its pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api.conditions import Reason
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Key, Store

from .owner_references import owned
from .pod_problems import Problem
from .snapshot import Snapshot


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


def rolling_pipelines(store: Store) -> set[Key]:
    """Return the pipelines whose own Deployment is rolling out.

    Others' Deployments with a pipeline's labels must not take the places of pipelines.
    """
    rolling = set()
    for key in store.matching(DEPLOYMENTS, is_rolling_out):
        pipeline, item = store.get(INFERENCE_PIPELINES, *key), store.get(DEPLOYMENTS, *key)
        if pipeline is None or item is None:
            continue
        if owned(item, pipeline["metadata"].get("uid", "")):
            rolling.add(key)
    return rolling
