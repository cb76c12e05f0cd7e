"""Find out whether a new pod lacks room that an old one occupies. Pure; the clock is passed in."""

from __future__ import annotations

import datetime as dt
from typing import Final

from triton_pipelines.controllers.timestamps import timestamp

from .snapshot import Pod, Snapshot

# How long a new pod must be unschedulable before an old one is given up for it: longer than a
# node's device plugin or an autoscaler's taint needs to settle, short compared with loading a
# model.
UNSCHEDULABLE_GRACE: Final = dt.timedelta(seconds=10)
# Scheduler messages about what deleting an old pod can free: resources, host ports, a volume, or
# the place that spreading rules leave for one pod. It does not fix a node selector, a taint or a
# missing claim. The scheduler has no code for these reasons.
MADE_ROOM_FOR: Final = (
    "Insufficient ",
    "Too many pods",
    "anti-affinity",
    "topology spread",
    "free ports",
    "ReadWriteOncePod",
    "cannot allocate all claims",
)


def is_surging(snapshot: Snapshot) -> bool:
    """Return whether the Deployment starts new pods before it removes old ones."""
    strategy = ((snapshot.deployment or {}).get("spec") or {}).get("strategy") or {}
    rolling = strategy.get("rollingUpdate") or {}
    return strategy.get("type") != "Recreate" and rolling.get("maxSurge") != 0


def lacks_room(pod: Pod) -> bool:
    """Return whether no node has room for a pod, which the removal of another one can make."""
    condition = pod.condition("PodScheduled")
    return (
        not pod.deleting
        and condition.get("reason") == "Unschedulable"
        and condition.get("status") == "False"
        and any(word in str(condition.get("message", "")) for word in MADE_ROOM_FOR)
    )


def surge_ends_in(target: str, snapshot: Snapshot, now: dt.datetime) -> float | None:
    """Return the seconds until a surge to ``target`` is given up for lack of room.

    Zero or less: it is given up now. ``None`` while no pod lacks room that an old pod occupies.
    """
    if snapshot.deployed_revision() != target:
        return None
    for pod in snapshot.pods:
        if pod.revision != target or not lacks_room(pod):
            continue
        # An old pod runs another revision, or the same one from before a restart.
        if not any(
            (other.revision, other.template) != (target, pod.template)
            for other in snapshot.pods
            if not other.deleting
        ):
            continue
        since = timestamp(pod.condition("PodScheduled").get("lastTransitionTime")) or now
        return (since + UNSCHEDULABLE_GRACE - now).total_seconds()
    return None
