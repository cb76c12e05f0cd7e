"""Find out why a rollout cannot end well. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from triton_pipelines.api.conditions import Reason
from triton_pipelines.controllers.pipeline.deployment_progress import deadline_exceeded
from triton_pipelines.controllers.pipeline.pod_problems import Problem
from triton_pipelines.controllers.pipeline.probe_record import DEAD_PROBES_ALONE, Probe
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

# Consecutive probes of a new revision's pod with a wrong output, after which it counts as failed. A
# single one may be an accident of the probe.
WRONG_PROBES = 2


@dataclass(frozen=True, slots=True)
class RolloutFailure:
    """Why a rollout cannot end well."""

    reason: Reason
    message: str


SCALING_BLOCKED: Final = RolloutFailure(
    Reason.ROLLOUT_FAILED,
    "not all of its pods became ready, and live scaling needs the Deployment for the serving pods",
)


def failure_of(
    target: str,
    snapshot: Snapshot,
    problems: Sequence[Problem],
    old_removed: bool,
    *,
    counts_deadline: bool,
) -> RolloutFailure | None:
    """Return why the rollout of ``target`` cannot succeed; ``None`` if it still can.

    The reason is a final problem of one of its pods, or the Deployment's exceeded deadline. Once
    old pods have left and no new pod serves, a permanent failure of the loader is enough, because
    nothing serves until the rollback.
    """
    pods = {pod.name: pod for pod in snapshot.pods if pod.revision == target}
    is_down = old_removed and not any(pod.serving for pod in pods.values())
    for problem in problems:
        pod = pods.get(problem.pod)
        if pod is not None and (
            problem.is_final or (is_down and problem.is_permanent and not pod.deleting)
        ):
            return RolloutFailure(problem.reason, problem.message)
    exceeded = deadline_exceeded(target, snapshot, problems) if counts_deadline else None
    return RolloutFailure(*exceeded) if exceeded is not None else None


def failed_inference(
    target: str, snapshot: Snapshot, problems: Sequence[Problem]
) -> RolloutFailure | None:
    """Return why a pod of ``target`` that is ready does not serve; ``None`` without such a pod.

    The Deployment removes old pods for it nevertheless.
    """
    failing = {
        pod.name
        for pod in snapshot.pods
        if pod.revision == target
        and not pod.unhealthy_devices  # replaced, see pod_repair
        and _keeps_failing(snapshot.probes.get(pod.uid))
    }
    return next(
        (
            RolloutFailure(problem.reason, problem.message)
            for problem in problems
            if problem.pod in failing and problem.reason is Reason.INFERENCE_FAILED
        ),
        None,
    )


def _keeps_failing(probe: Probe | None) -> bool:
    """Return whether a pod keeps returning wrong outputs, not just once by accident.

    A dead process is repaired by a new pod (``policies/pod_repair.py``), unless it dies in that one
    as well: a process that is still found dead then cannot be repaired that way.
    """
    return probe is not None and (
        probe.consecutive_wrong >= WRONG_PROBES or probe.consecutive_dead > DEAD_PROBES_ALONE
    )
