"""Explain why the API server rejects a resize, and decide when it is retried. Pure.

The clock is passed in. A 403 has many causes, which only the API server's messages distinguish
(Kubernetes 1.36: plugin/pkg/admission/podresize, resourcequota, limitranger;
endpoints/handlers/responsewriters). Only a node that is too small limits what a pod can have. What
may pass with time, or what an administrator can fix, is retried with exponential back-off.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.cluster.errors import ClusterError, Forbidden, NotFound

# Back-off after a first rejection, doubled with each further one, and its maximum.
BACKOFF: Final = dt.timedelta(seconds=30)
BACKOFF_MAX: Final = dt.timedelta(minutes=15)

_NODE_CAUSES: Final = frozenset({"NodeCapacity", "UnsupportedPlatform"})
_NODE: Final = re.compile(
    r"node didn't have enough allocatable|pod resize is only supported on"
    r"|which are not available on node"
)
_QUOTA: Final = re.compile(r"(exceeded|failed) quota: |status unknown for quota:")
# Message of a quota on a resource that a container does not set. Since Kubernetes 1.26 it has the
# names of the containers "limits.cpu for: load; limits.memory for: …".
_QUOTA_UNSET: Final = re.compile(r"failed quota: (?P<quota>[^:\s]+): must specify (?P<rest>.+)")
_FIELD: Final = re.compile(r"(?:limits|requests)\.[a-z-]+")
_CONTAINER: Final = re.compile(r"(?<= for: )[a-z0-9-]+|(?<=,)[a-z0-9-]+(?=[;,]|$)")
_QUOTA_ADVICE: Final[Mapping[str, str]] = {
    names.CONTAINER_LOADER: "set it in resources of init container load"
    " in spec.server.podTemplate.spec.initContainers",
    names.CONTAINER_SERVER: "set it in spec.server.resources",
}
_RIGHTS: Final = re.compile(r"\bcannot patch resource\b")
_RANGE: Final = re.compile(r"(maximum|minimum) cpu usage per |max limit to request ratio per ")


class RejectionCause(StrEnum):
    """What rejected a resize."""

    NODE = "Node"
    QUOTA = "Quota"
    RIGHTS = "Rights"
    RANGE = "LimitRange"
    ADMISSION = "Admission"
    INVALID = "Invalid"
    ABSENT = "Absent"


# Causes outside of the one pod: other pods are not resized meanwhile.
_AFFECTS_ALL_PODS: Final = frozenset(
    {RejectionCause.QUOTA, RejectionCause.RIGHTS, RejectionCause.ABSENT}
)
# For each cause, why the change is not possible, and what to do.
_EXPLANATIONS: Final[Mapping[RejectionCause, tuple[str, str]]] = {
    RejectionCause.NODE: (
        "its node has too little CPU or does not support in-place resizing",
        "lower instances.max, or use a larger Linux node",
    ),
    RejectionCause.QUOTA: (
        "a ResourceQuota of the namespace forbids the change",
        "raise the quota, or lower instances.max",
    ),
    RejectionCause.RIGHTS: (
        "the operator is not allowed to resize pods",
        "grant its role the patch verb on pods/resize (rbac.podResize in the chart)",
    ),
    RejectionCause.RANGE: (
        "a LimitRange of the namespace forbids the change",
        "adjust the LimitRange, or lower instances.max",
    ),
    RejectionCause.ADMISSION: (
        "an admission policy or the API server rejects the change",
        "adjust the policy, or omit spec.scaling.cpuResize",
    ),
    RejectionCause.INVALID: (
        "the API server rejects the change as invalid",
        "adjust the pod's resources, or omit spec.scaling.cpuResize",
    ),
    RejectionCause.ABSENT: (
        "this cluster cannot resize pods in place, which requires Kubernetes 1.33 or later",
        "upgrade the cluster, or omit spec.scaling.cpuResize",
    ),
}


@dataclass(frozen=True, slots=True)
class ResizeRejection:
    """A resize of one pod that the API server rejected."""

    pod: str
    cause: RejectionCause
    """What rejected it."""
    limit: int
    """The requested CPU limit (thousandths of a core)."""
    reason: str
    """The reason, as text."""
    until: dt.datetime
    """When it may be retried."""
    attempts: int = 1
    """How often in a row it was rejected."""

    @property
    def text(self) -> str:
        """For the status, without anything that changes from one try to the next."""
        return f"cpu: pod {self.pod} {self.reason}"

    @property
    def is_node_limit(self) -> bool:
        """Whether the pod can never have as much, so that later requests are bounded by this."""
        return self.cause is RejectionCause.NODE

    @property
    def affects_all_pods(self) -> bool:
        """Whether the pipeline's other pods would be rejected for the same reason."""
        return self.cause in _AFFECTS_ALL_PODS


def cause_of(error: ClusterError) -> RejectionCause:
    """Return what rejected a resize."""
    message = error.message
    if isinstance(error, NotFound):
        return RejectionCause.ABSENT
    if not isinstance(error, Forbidden):
        return RejectionCause.INVALID
    if _NODE_CAUSES & {cause.reason for cause in error.causes} or _NODE.search(message):
        return RejectionCause.NODE
    for pattern, cause in (
        (_QUOTA, RejectionCause.QUOTA),
        (_RIGHTS, RejectionCause.RIGHTS),
        (_RANGE, RejectionCause.RANGE),
    ):
        if pattern.search(message):
            return cause
    return RejectionCause.ADMISSION


def with_quota_advice(message: str) -> str:
    """Return the API server's message on a rejected pod, with advice on ResourceQuotas.

    The advice is added if a quota counts what a container does not set.
    """
    found = _QUOTA_UNSET.search(message)
    if found is None:
        return message
    fields, containers = (
        ", ".join(dict.fromkeys(_FIELD.findall(found["rest"]))),
        set(_CONTAINER.findall(found["rest"])),
    )
    advice = [
        text
        for container, text in _QUOTA_ADVICE.items()
        if container in containers or not containers
    ]
    return (
        f"{message}; ResourceQuota {found['quota']} counts {fields}:"
        f" {', or '.join([*advice, 'give the namespace a LimitRange with defaults'])}"
    )


def rejection_of(
    error: ClusterError, pod: str, limit: int, previous: ResizeRejection | None, now: dt.datetime
) -> ResizeRejection:
    """Return a rejected resize. ``previous``: the last one of the pod, if none succeeded since."""
    cause = cause_of(error)
    is_repeated = previous is not None and previous.cause is cause
    attempts = previous.attempts + 1 if previous is not None and is_repeated else 1
    delay = min(BACKOFF_MAX, BACKOFF * 2 ** min(attempts - 1, 16))
    why, remedy = _EXPLANATIONS[cause]
    reason = f"cannot get {limit}m of CPU, because {why} ({error.message}); {remedy}"
    return ResizeRejection(pod, cause, limit, reason, now + delay, attempts)


def rejections_of(
    rejections: Mapping[str, ResizeRejection], uids: Collection[str]
) -> dict[str, ResizeRejection]:
    """Return the rejections, by pod uid, of these pods."""
    return {uid: rejection for uid, rejection in rejections.items() if uid in uids}


def retry_delay(rejections: Mapping[str, ResizeRejection], now: dt.datetime) -> float | None:
    """Return the seconds until the next one may be retried; ``None`` without any."""
    return min(
        (
            (rejection.until - now).total_seconds()
            for rejection in rejections.values()
            if rejection.until > now
        ),
        default=None,
    )
