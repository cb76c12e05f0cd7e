"""Typed actions of a reconcile iteration on the cluster, and the order of applied objects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.compile.graph.quantities import cpu

from .snapshot import Object
from .status_events import Event


class ApplyStage(IntEnum):
    """Order in which objects are applied.

    An iteration may end after any of them, as when the operator is killed; the next one continues.
    """

    REVISION = 1
    """ConfigMap of a revision: the trace by which its Secret is found again and pruned."""
    SECRET = 2
    """Control keys. The live ConfigMap records which of them have been applied."""
    LIVE_CONFIG_MAP = 3
    """State of the policies, such as the result of a tuning run, whose objects are deleted next."""
    SERVICE = 4
    NETWORK_POLICY = 5
    DISRUPTION_BUDGET = 6
    DEPLOYMENT = 7
    """Last of the pipeline's objects, so that pods find everything that they mount."""
    PREFLIGHT = 8
    """After the status. If one of these is rejected, only the preflight ends."""
    TUNING_RUN = 9
    """After the status. If one of these is rejected, only the tuning run ends."""


@dataclass(frozen=True, slots=True)
class Apply:
    """An object that a policy wants."""

    stage: ApplyStage
    item: Object
    always: bool = False
    """Whether it is applied even without a difference, for example to own a field again."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """An object to delete."""

    kind: str
    name: str
    uid: str = ""
    """Precondition; empty only for Secrets, which are never read."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Another CPU limit and request for the server of one pod, in thousandths of a core."""

    pod: str
    uid: str
    limit: int
    request: int
    before: tuple[int, int]
    """Limit and request that the pod's spec has now."""

    @property
    def is_reduction(self) -> bool:
        """Whether CPU is only reduced."""
        return self.limit <= self.before[0] and self.request <= self.before[1]

    @property
    def patch(self) -> dict[str, Any]:
        """A strategic merge patch of the pod: a JSON merge patch would remove other resources."""
        resources = {"limits": {"cpu": cpu(self.limit)}, "requests": {"cpu": cpu(self.request)}}
        return {"spec": {"containers": [{"name": names.CONTAINER_SERVER, "resources": resources}]}}


@dataclass(frozen=True, slots=True)
class Plan:
    """What an iteration does.

    Carried out in this order: the first ``apply_before_clear`` objects of ``apply``, ``clear``, the
    rest of ``apply``, ``delete``, ``resize``, ``action_events``, ``status``, ``events``,
    ``preflight_objects``, ``tuning_objects``.
    """

    account: str = ""
    """Service account in whose name objects are written; empty: the operator's own."""
    apply: tuple[Object, ...] = ()
    """Objects of the pipeline, in the order of :class:`ApplyStage`."""
    delete: tuple[Deletion, ...] = ()
    status: dict[str, Any] | None = None
    """``None``: unchanged."""
    events: tuple[Event, ...] = ()
    """Events of the change of status."""
    requeue_after: float | None = None
    """Seconds until the next iteration; ``None``: the next resync."""
    action_events: tuple[Event, ...] = ()
    """Events of what the iteration did."""
    resize: Resize | None = None
    """At most one pod at a time."""
    tuning_objects: tuple[Object, ...] = ()
    """Objects of a tuning run, which harm nothing if they are rejected."""
    preflight_objects: tuple[Object, ...] = ()
    """Objects of a preflight, which harm nothing either."""
    clear: tuple[Deletion, ...] = ()
    """Objects of an ended tuning run: their room is needed even if other writes are rejected."""
    apply_before_clear: int = 0
    """How many objects of ``apply`` come before ``clear``: the last records the run's result."""

    @property
    def objects(self) -> tuple[Object, ...]:
        """All objects to apply."""
        return (*self.apply, *self.preflight_objects, *self.tuning_objects)

    @property
    def optional_objects(self) -> dict[ApplyStage, tuple[Object, ...]]:
        """Objects that harm nothing if they are rejected, in their order."""
        return {
            ApplyStage.PREFLIGHT: self.preflight_objects,
            ApplyStage.TUNING_RUN: self.tuning_objects,
        }

    @property
    def starts_rollout(self) -> bool:
        """Whether pods may be replaced, or a preflight of new ones starts."""
        return bool(self.preflight_objects) or any(
            item["kind"] == "Deployment" for item in self.apply
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written."""
        return (
            not self.apply
            and not self.tuning_objects
            and not self.preflight_objects
            and not self.clear
            and not self.delete
            and self.status is None
            and self.resize is None
        )


def soonest(*times: float | None) -> float | None:
    """Return the least of these times, in seconds; ``None`` without any."""
    return min((time for time in times if time is not None), default=None)
