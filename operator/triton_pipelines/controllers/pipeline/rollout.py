"""Which revision the Deployment should run, and how it gets there. Pure; the clock is passed in.

A new revision takes over pod by pod through the Deployment. Where a second pod finds no room (one GPU), Auto reads the scheduler's
answer and takes an old pod away first. A revision that fails after old pods were taken away is taken back, and so is one that serves and
breaks the promised latency which the one before kept.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.server import RolloutStrategy
from triton_pipelines.controllers.timestamps import timestamp

from .pod_problems import Problem
from .pod_repair import DEAD_LOOKS_ALONE
from .slo_guard import Judgement, Watch, follow
from .snapshot import Memory, Observed, Probe
from .status_events import Event

# How long the scheduler must have said no before an old pod is given up for the new one: longer than a node's device plugin or an
# autoscaler's taint needs to settle, short beside a model's load.
UNSCHEDULABLE_GRACE = dt.timedelta(seconds=10)
# The scheduler's words for what an old pod's going can mend: it holds resources, host ports, a volume, or the place that rules of
# spreading leave for one pod. No pod's going mends a node selector, a taint or a missing claim.
MADE_ROOM_FOR = (
    "Insufficient ",
    "Too many pods",
    "anti-affinity",
    "topology spread",
    "free ports",
    "ReadWriteOncePod",
    "cannot allocate all claims",
)
# Looks in a row at a new revision's pod that got a wrong answer, after which it counts as failed. One may be an accident of the look.
WRONG_LOOKS = 2
# Kept of a failure's message; the live ConfigMap and each status carry it until the spec changes.
FAILURE_MAX = 1024


@dataclass(frozen=True, slots=True)
class Rollout:
    """The decision: the revision to run, the Deployment's mode, what to remember, and when to look again.

    ``gap``: that nothing serves until the new pod is ready, announced beforehand. ``recheck``: seconds until a decision by the
    clock may change, ``None`` without one; ``watching``: whether the new revision's latency is being watched; ``notes``: what came of it.
    ``failed``: why the wanted revision, which has not served the whole pipeline yet, cannot come to that ("": it can): whether it was taken
    back, or stays the one that is rolled out beside the old pods, which a surge leaves alone.
    """

    target: str
    mode: RolloutStrategy
    memory: Memory
    gap: str = ""
    recheck: float | None = None
    watching: bool = False
    notes: tuple[Event, ...] = ()
    failed: str = ""


def decide(
    wanted: str,
    strategy: RolloutStrategy,
    replicas: int,
    observed: Observed,
    memory: Memory,
    problems: Sequence[Problem],
    now: dt.datetime,
    limit: float | None = None,
    *,
    in_the_way: bool = False,
) -> Rollout:
    """Decide on the revision and the mode for a pipeline that wants ``wanted``. ``limit``: milliseconds of p99 that a revision may not break;
    ``in_the_way``: whether a revision that does not come keeps those that serve from being scaled."""
    outdated = memory.failed_revision != wanted or memory.failed_spec != observed.spec_hash
    if memory.failed_revision and (outdated or observed.revision_record(memory.restored) is None):
        memory = replace(
            memory,
            failed_revision="",
            failed_spec="",
            failed_reason="",
            failed_message="",
            restored="",
        )
    if observed.revision_record(memory.proven) is None:
        memory = replace(
            memory,
            proven=_serving_alone(observed, wanted, replicas) or _left_behind(observed, wanted),
        )
    target = target_of(memory, wanted)
    whole = target == wanted and serves_whole(observed, wanted, replicas)
    watched = Judgement(Watch())
    if target == wanted:
        watched = follow(
            Watch.parse(memory.watch),
            wanted,
            memory.proven,
            limit,
            whole if replicas else None,
            observed.latencies,
            now,
        )
    memory = replace(memory, watch=watched.watch.to_document())
    if whole:
        memory = replace(memory, proven=wanted)
        if all(pod.serving for pod in observed.pods if not pod.deleting):
            # The way that this rollout took is not the next one's: there may be room by then.
            memory = replace(memory, mode_revision="", mode="")
    mode, recheck = strategy, None
    if strategy is RolloutStrategy.AUTO:
        memory = memory if whole else _way_taken(target, observed, memory)
        mode, memory, recheck = _auto(target, observed, memory, now)
    if target != wanted and memory.failed_reason != Reason.SLO_VIOLATED:
        mode = _restoring(strategy)
    gap = _gap(target, mode, replicas, observed, coming=recheck is not None)
    failure = _failure(target, observed, problems)
    if in_the_way and failure is None:
        failure = (
            Reason.ROLLOUT_FAILED,
            "its pods did not all become ready, and live scaling needs the Deployment for those that serve",
        )
    # Where it is not known what served before, it may be this one.
    failed = (
        _failed(target, observed, problems, failure)
        if target == wanted and memory.proven not in ("", wanted)
        else ""
    )
    if (
        failure
        and target == wanted
        and (in_the_way or _old_gone(mode, observed, wanted))
        and _can_restore(memory, wanted, observed)
    ):
        reason, message = failure
        memory = replace(
            _taken_back(memory, wanted, observed.spec_hash, reason, message, memory.proven),
            watch={},
        )
        target, mode, gap = memory.proven, _restoring(strategy), ""
    elif watched.broken and observed.revision_record(watched.watch.predecessor) is not None:
        # Both serve, so the way back is that of any rollout. What is gone back to counts as the last one that is known to be good.
        back = watched.watch.predecessor
        memory = replace(
            _taken_back(
                memory, wanted, observed.spec_hash, Reason.SLO_VIOLATED, watched.broken, back
            ),
            proven=back,
            watch={},
            mode_revision="",
            mode="",
        )
        target, mode, gap = (
            back,
            strategy if strategy is not RolloutStrategy.AUTO else RolloutStrategy.SURGE,
            "",
        )
    notes = (Event(False, "SLOWatched", "Watch", watched.ended),) if watched.ended else ()
    return Rollout(
        target, mode, memory, gap, recheck, bool(memory.watch.get("since")), notes, failed
    )


def target_of(memory: Memory, wanted: str) -> str:
    """The revision to run where ``wanted`` is asked for: the one before, where that failed."""
    return memory.restored if memory.failed_revision == wanted and memory.restored else wanted


def _taken_back(
    memory: Memory, revision: str, spec: str, reason: Reason, message: str, restored: str
) -> Memory:
    return replace(
        memory,
        failed_revision=revision,
        failed_spec=spec,
        failed_reason=reason.value,
        failed_message=message[:FAILURE_MAX],
        restored=restored,
    )


def _can_restore(memory: Memory, wanted: str, observed: Observed) -> bool:
    return memory.proven not in ("", wanted) and observed.revision_record(memory.proven) is not None


def _restoring(strategy: RolloutStrategy) -> RolloutStrategy:
    """How a proven revision comes back: the failed pods serve nobody and hold the room that it needs."""
    return strategy if strategy is RolloutStrategy.RECREATE else RolloutStrategy.NO_SURGE


def serves_whole(observed: Observed, revision: str, replicas: int) -> bool:
    """Whether the pipeline is served by this revision alone. A pod that fails a real inference serves nobody."""
    serving = [pod for pod in observed.pods if pod.serving]
    failing = any(
        (probe := observed.probes.get(pod.uid)) and probe.inference_error for pod in serving
    )
    return (
        0 < replicas <= len(serving)
        and not failing
        and all(pod.revision == revision for pod in serving)
    )


def _serving_alone(observed: Observed, wanted: str, replicas: int) -> str:
    """The revision other than ``wanted`` that serves the whole pipeline; "" without one. Where the memory of it is lost, as with a deleted
    live ConfigMap, this is still what can be gone back to."""
    found = {pod.revision for pod in observed.pods if pod.serving} - {wanted}
    known = [
        one
        for one in found
        if observed.revision_record(one) is not None and serves_whole(observed, one, replicas)
    ]
    return known[0] if known else ""


def _left_behind(observed: Observed, wanted: str) -> str:
    """The revision that served before a rollout to ``wanted`` which has not come to its end, as the Deployment tells of it; "" without one.
    Where one pod fits, nothing serves in between that would tell."""
    found = observed.previous_revision()
    if (
        found == wanted
        or observed.deployed_revision() != wanted
        or observed.revision_record(found) is None
    ):
        return ""
    return (
        found
        if observed.deployment_condition("Progressing").get("reason") != "NewReplicaSetAvailable"
        else ""
    )


def _way_taken(target: str, observed: Observed, memory: Memory) -> Memory:
    """Memory of the way that Auto took, which the Deployment shows where the live ConfigMap is gone."""
    rolling = (((observed.deployment or {}).get("spec") or {}).get("strategy") or {}).get(
        "rollingUpdate"
    ) or {}
    if (
        observed.live_data()
        or observed.deployed_revision() != target
        or rolling.get("maxSurge") != 0
    ):
        return memory
    return replace(memory, mode_revision=target, mode=RolloutStrategy.NO_SURGE.value)


def _auto(
    target: str, observed: Observed, memory: Memory, now: dt.datetime
) -> tuple[RolloutStrategy, Memory, float | None]:
    if memory.mode_revision == target and memory.mode == RolloutStrategy.NO_SURGE:
        return RolloutStrategy.NO_SURGE, memory, None
    if observed.deployed_revision() != target:
        return RolloutStrategy.SURGE, memory, None
    for pod in observed.pods:
        condition = pod.condition("PodScheduled")
        if (
            pod.revision != target
            or pod.deleting
            or condition.get("reason") != "Unschedulable"
            or condition.get("status") != "False"
        ):
            continue
        if not any(word in str(condition.get("message", "")) for word in MADE_ROOM_FOR):
            continue
        # Of another revision, or of the same one before a restart.
        if not any(
            (other.revision, other.template) != (target, pod.template)
            for other in observed.pods
            if not other.deleting
        ):
            continue
        since = timestamp(condition.get("lastTransitionTime")) or now
        left = (since + UNSCHEDULABLE_GRACE - now).total_seconds()
        if left > 0:
            return RolloutStrategy.SURGE, memory, left
        return (
            RolloutStrategy.NO_SURGE,
            replace(memory, mode_revision=target, mode=RolloutStrategy.NO_SURGE.value),
            None,
        )
    return RolloutStrategy.SURGE, memory, None


def _gap(
    target: str, mode: RolloutStrategy, replicas: int, observed: Observed, coming: bool
) -> str:
    """Words for the time in which nothing serves, while it lasts or comes.

    ``coming``: a surge has found no room, and the old pod will be given up for it. Said in the passes before that one, since the pod
    leaves as soon as the Deployment is changed.
    """
    if (mode is RolloutStrategy.SURGE and not coming) or any(
        pod.serving and pod.revision == target for pod in observed.pods
    ):
        return ""
    if (
        not any(pod.revision != target for pod in observed.pods)
        and observed.deployed_revision() != target
    ):
        return ""
    if mode is not RolloutStrategy.RECREATE and replicas > 1:
        return ""
    why = "strategy Recreate" if mode is RolloutStrategy.RECREATE else "no room for a second pod"
    return f"{why}: the old pod goes first, and no pod serves until the new one is ready"


def _old_gone(mode: RolloutStrategy, observed: Observed, wanted: str) -> bool:
    """Whether the way taken has taken old pods away (a surge never does before the new pod is ready)."""
    return (
        mode in (RolloutStrategy.NO_SURGE, RolloutStrategy.RECREATE)
        and observed.deployed_revision() == wanted
    )


def _failure(
    target: str, observed: Observed, problems: Sequence[Problem]
) -> tuple[Reason, str] | None:
    """Why the rollout of ``target`` cannot end well: a final problem of one of its pods, or the Deployment's deadline."""
    pods = {pod.name for pod in observed.pods if pod.revision == target}
    for problem in problems:
        if problem.pod in pods and problem.final:
            return problem.reason, problem.message
    return deadline_exceeded(target, observed, problems)


def _failed(
    target: str, observed: Observed, problems: Sequence[Problem], failure: tuple[Reason, str] | None
) -> str:
    """Why a revision that is new cannot come to serve the whole pipeline, or must not: wrong answers of its first pod are not waited out while
    old pods leave for it."""
    if failure is not None:
        return failure[1]
    wrong = {
        pod.name
        for pod in observed.pods
        if pod.revision == target and _answers_wrong(observed.probes.get(pod.uid))
    }
    return next(
        (
            problem.message
            for problem in problems
            if problem.pod in wrong and problem.reason is Reason.INFERENCE_FAILED
        ),
        "",
    )


def _answers_wrong(probe: Probe | None) -> bool:
    """Whether a pod's answers are wrong, and not one of them by accident. A dead process is mended by a new pod (healing.py), as long as it does
    not die in that as well: what goes on being met then is not mended so."""
    return probe is not None and (
        probe.wrong_in_a_row >= WRONG_LOOKS or probe.dead_in_a_row > DEAD_LOOKS_ALONE
    )


def deadline_exceeded(
    target: str, observed: Observed, problems: Sequence[Problem]
) -> tuple[Reason, str] | None:
    """The Deployment's own verdict that ``target`` makes no progress."""
    condition = observed.deployment_condition("Progressing")
    status = (observed.deployment or {}).get("status") or {}
    metadata = (observed.deployment or {}).get("metadata") or {}
    current = int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0)
    if (
        observed.deployed_revision() != target
        or not current
        or condition.get("reason") != "ProgressDeadlineExceeded"
    ):
        return None
    why = (
        "; ".join(problem.message for problem in problems)
        or observed.pods_refused
        or str(condition.get("message", ""))
    )
    seconds = ((observed.deployment or {}).get("spec") or {}).get("progressDeadlineSeconds")
    return Reason.ROLLOUT_FAILED, f"no progress within {seconds} s: {why}"
