"""Find out whether a new pod lacks room that an old one occupies. Pure; the clock is passed in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from triton_pipelines.compile.graph.quantities import millis
from triton_pipelines.controllers.timestamps import timestamp

from .pod_problems import requests_of
from .snapshot import Object, Pod, Snapshot

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


def _could_take(nodes: Sequence[Object] | None, name: str, pod: Pod) -> bool:
    """Return whether an otherwise empty node could take a pod; also if nothing is known of it."""
    node = next((one for one in nodes or () if one["metadata"]["name"] == name), None)
    if node is None:
        return True
    if (node.get("spec") or {}).get("unschedulable"):
        return False
    allocatable = node["status"]["allocatable"]
    try:
        return all(
            millis(quantity) <= millis(allocatable.get(resource, "0"))
            for resource, quantity in requests_of(pod).items()
        )
    except ValueError:
        return True


def leaving_until(snapshot: Snapshot) -> dt.datetime | None:
    """Return when the last of the pods that are being deleted has left its node at the latest.

    Until then it keeps its room. ``None`` if none is on a node. The API server sets a pod's
    deletion timestamp to the end of its grace period.
    """
    ends = (
        timestamp(pod.raw["metadata"].get("deletionTimestamp"))
        for pod in snapshot.pods
        if pod.deleting and (pod.raw.get("spec") or {}).get("nodeName")
    )
    return max(filter(None, ends), default=None)


def surge_ends_in(
    target: str, snapshot: Snapshot, left: dt.datetime | None, now: dt.datetime
) -> float | None:
    """Return the seconds until a surge to ``target`` is given up for lack of room.

    Args:
        target: The revision to run.
        snapshot: What is observed.
        left: When pods that were being deleted have left at the latest; the room that they leave
            is tried first. ``None`` if none were.
        now: The current time (UTC).

    Returns:
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
            and _could_take(snapshot.nodes, (other.raw.get("spec") or {}).get("nodeName", ""), pod)
            for other in snapshot.pods
            if not other.deleting
        ):
            continue
        since = timestamp(pod.condition("PodScheduled").get("lastTransitionTime")) or now
        begin = max(filter(None, (since, left, leaving_until(snapshot))))
        return (begin + UNSCHEDULABLE_GRACE - now).total_seconds()
    return None
