"""The Deployment controller's rollout status, as in ``syncRolloutStatus`` (1.35).

This is a pure model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

CREATED, UPDATED, AVAILABLE, LATE = (
    "NewReplicaSetCreated",
    "ReplicaSetUpdated",
    "NewReplicaSetAvailable",
    "ProgressDeadlineExceeded",
)
_FIELDS = ("replicas", "updatedReplicas", "availableReplicas")


class Counted(NamedTuple):
    """Number of a Deployment's pods that are not terminating.

    It counts all, those of the current template, and how many of all are available.
    """

    all: int
    new: int
    available: int

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Counted:
        """As a status tells them."""
        return cls(*(int(status.get(field) or 0) for field in _FIELDS))

    def status(self) -> dict[str, int]:
        """As a status tells them."""
        return dict(zip(_FIELDS, self, strict=True))


def progressing(
    status: Mapping[str, Any], seen: Counted, wanted: int, *, fresh: bool, late: bool
) -> tuple[str, bool]:
    """The reason of the condition Progressing, and whether it counts as progress.

    Args:
        status: the Deployment's, as it stands.
        seen: the pods now.
        wanted: how many there are to be.
        fresh: whether the template has had no ReplicaSet before.
        late: whether the last progress is longer ago than the deadline.
    """
    before, reported = (
        Counted.of(status),
        next((str(item["reason"]) for item in status.get("conditions") or ()), ""),
    )
    if fresh:
        return CREATED, True
    if reported == AVAILABLE and seen.all == seen.new:
        return (
            AVAILABLE,
            False,
        )  # once complete it stays so, whatever becomes of its pods: no deadline holds for it
    if seen == Counted(wanted, wanted, wanted):
        return AVAILABLE, True
    if (
        seen.new > before.new
        or seen.all - seen.new < before.all - before.new
        or seen.available > before.available
    ):
        return UPDATED, True
    # A complete one whose template goes back to one that is known says so until pods have moved.
    return (LATE if late and reported != AVAILABLE else reported), False
