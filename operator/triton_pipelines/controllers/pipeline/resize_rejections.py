"""Explain why the API server rejects a resize, and decide when it is retried. Pure.

The clock is passed in. A 403 has many causes, which only the API server's messages tell apart
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
REST: Final = dt.timedelta(seconds=30)
REST_MAX: Final = dt.timedelta(minutes=15)

_NODE_CAUSES: Final = frozenset({"NodeCapacity", "UnsupportedPlatform"})
_NODE: Final = re.compile(
    r"node didn't have enough allocatable|pod resize is only supported on"
    r"|which are not available on node"
)
_QUOTA: Final = re.compile(r"(exceeded|failed) quota: |status unknown for quota:")
# Message of a quota on a resource that a container does not set. Since Kubernetes 1.26 it has the
# names of the containers ("limits.cpu for: load; limits.memory for: …").
_UNSET: Final = re.compile(r"failed quota: (?P<quota>[^:\s]+): must specify (?P<rest>.+)")
_FIELD: Final = re.compile(r"(?:limits|requests)\.[a-z-]+")
_CONTAINER: Final = re.compile(r"(?<= for: )[a-z0-9-]+|(?<=,)[a-z0-9-]+(?=[;,]|$)")
_WAYS: Final[Mapping[str, str]] = {
    names.CONTAINER_LOADER: "write it in resources of init container load"
    " in spec.server.podTemplate.spec.initContainers",
    names.CONTAINER_SERVER: "write it in spec.server.resources",
}
_RIGHTS: Final = re.compile(r"\bcannot patch resource\b")
_RANGE: Final = re.compile(r"(maximum|minimum) cpu usage per |max limit to request ratio per ")


class Refused(StrEnum):
    """What rejected a resize."""

    NODE = "Node"
    QUOTA = "Quota"
    RIGHTS = "Rights"
    RANGE = "LimitRange"
    ADMISSION = "Admission"
    INVALID = "Invalid"
    ABSENT = "Absent"


# Causes outside of the one pod: other pods are not resized meanwhile.
_OF_ALL: Final = frozenset({Refused.QUOTA, Refused.RIGHTS, Refused.ABSENT})
_WORDS: Final[Mapping[Refused, str]] = {
    Refused.NODE: "its node cannot hold that",
    Refused.QUOTA: "a ResourceQuota of the namespace does not allow it;"
    " raise it, or lower instances.max",
    Refused.RIGHTS: "the operator has no right to it;"
    " give its role the verb patch on pods/resize (rbac.podResize of the chart)",
    Refused.RANGE: "a LimitRange of the namespace does not allow it;"
    " change that, or lower instances.max",
    Refused.ADMISSION: "an admission controller or policy refuses it",
    Refused.INVALID: "the API server holds it to be invalid",
    Refused.ABSENT: "this cluster cannot resize pods in place;"
    " that needs Kubernetes 1.33 or newer, else leave out scaling.cpuResize",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A resize of one pod that the API server rejected."""

    pod: str
    kind: Refused
    """What rejected it."""
    limit: int
    """The requested CPU limit (thousandths of a core)."""
    why: str
    """The reason, as text."""
    until: dt.datetime
    """When it may be retried."""
    tries: int = 1
    """How often in a row it was rejected."""

    @property
    def text(self) -> str:
        """For the status, without anything that changes from one try to the next."""
        return f"cpu: pod {self.pod} {self.why}"

    @property
    def binds(self) -> bool:
        """Whether the pod can never have as much, so that later requests are bounded by this."""
        return self.kind is Refused.NODE

    @property
    def of_all(self) -> bool:
        """Whether the pipeline's other pods would be rejected for the same reason."""
        return self.kind in _OF_ALL


def kind_of(error: ClusterError) -> Refused:
    """Return what rejected a resize."""
    said = error.message
    if isinstance(error, NotFound):
        return Refused.ABSENT
    if not isinstance(error, Forbidden):
        return Refused.INVALID
    if _NODE_CAUSES & {cause.reason for cause in error.causes} or _NODE.search(said):
        return Refused.NODE
    for pattern, kind in (
        (_QUOTA, Refused.QUOTA),
        (_RIGHTS, Refused.RIGHTS),
        (_RANGE, Refused.RANGE),
    ):
        if pattern.search(said):
            return kind
    return Refused.ADMISSION


def explained(said: str) -> str:
    """Return the API server's message on a rejected pod, with advice on ResourceQuotas.

    The advice is added if a quota counts what a container does not set.
    """
    found = _UNSET.search(said)
    if found is None:
        return said
    fields, containers = (
        ", ".join(dict.fromkeys(_FIELD.findall(found["rest"]))),
        set(_CONTAINER.findall(found["rest"])),
    )
    ways = [way for container, way in _WAYS.items() if container in containers or not containers]
    return (
        f"{said}; ResourceQuota {found['quota']} counts {fields}:"
        f" {', or '.join([*ways, 'give the namespace a LimitRange with defaults'])}"
    )


def refused(
    error: ClusterError, pod: str, limit: int, before: Refusal | None, now: dt.datetime
) -> Refusal:
    """Return a rejected resize. ``before``: the last one of the pod, if none succeeded since."""
    kind = kind_of(error)
    again = before is not None and before.kind is kind
    tries = before.tries + 1 if before is not None and again else 1
    rest = min(REST_MAX, REST * 2 ** min(tries - 1, 16))
    why = f"is not given {limit}m: {_WORDS[kind]}: {error.message}"
    return Refusal(pod, kind, limit, why, now + rest, tries)


def of_pods(known: Mapping[str, Refusal], there: Collection[str]) -> dict[str, Refusal]:
    """Return the rejections, by pod uid, of the pods (by uid) that are ``there``."""
    return {uid: refusal for uid, refusal in known.items() if uid in there}


def asked_again(refusals: Mapping[str, Refusal], now: dt.datetime) -> float | None:
    """Return the seconds until the next one may be retried; ``None`` without any."""
    return min(
        (
            (refusal.until - now).total_seconds()
            for refusal in refusals.values()
            if refusal.until > now
        ),
        default=None,
    )
