"""Kinds of objects that the operator reads or writes, with their API paths.

There is no discovery: the operator must not touch any other kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from triton_pipelines.api import names


@dataclass(frozen=True, slots=True)
class Resource:
    """One served kind."""

    group: str
    """API group; "" for the core group."""
    version: str
    """API version in the group."""
    kind: str
    """Kind, such as ``Pod``."""
    plural: str
    """Name in URL paths, such as ``pods``."""
    namespaced: bool = True
    """Whether its objects have a namespace."""

    @property
    def api_version(self) -> str:
        """Return ``v1`` or ``apps/v1``: the value of ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the URL path of the collection, of one object, or of its subresource.

        Raises:
            ValueError: a namespace for a cluster-scoped kind, a namespaced object without a
                namespace, or a subresource without an object.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} are cluster-scoped: no namespace, got {namespace!r}")
        if name is not None and not name:
            raise ValueError(f"empty name of an object of {self.plural}")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} are namespaced: namespace of {name!r} is missing")
        if subresource and not name:
            raise ValueError(f"subresource {subresource!r} needs an object's name")
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


INFERENCE_PIPELINES: Final = Resource(names.GROUP, names.VERSION, names.KIND, names.PLURAL)
DEPLOYMENTS: Final = Resource("apps", "v1", "Deployment", "deployments")
REPLICA_SETS: Final = Resource("apps", "v1", "ReplicaSet", "replicasets")
PODS: Final = Resource("", "v1", "Pod", "pods")
SERVICES: Final = Resource("", "v1", "Service", "services")
CONFIG_MAPS: Final = Resource("", "v1", "ConfigMap", "configmaps")
SECRETS: Final = Resource("", "v1", "Secret", "secrets")
NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
POD_DISRUPTION_BUDGETS: Final = Resource(
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"
)
JOBS: Final = Resource("batch", "v1", "Job", "jobs")
# Kinds of the Prometheus operator, which may not be installed.
POD_MONITORS: Final = Resource("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors")
PROMETHEUS_RULES: Final = Resource(
    "monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"
)
NODES: Final = Resource("", "v1", "Node", "nodes", namespaced=False)
EVENTS: Final = Resource("events.k8s.io", "v1", "Event", "events")
LEASES: Final = Resource("coordination.k8s.io", "v1", "Lease", "leases")
SELF_SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io",
    "v1",
    "SelfSubjectAccessReview",
    "selfsubjectaccessreviews",
    namespaced=False,
)
TOKEN_REVIEWS: Final = Resource(
    "authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False
)
SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)

ALL: Final[tuple[Resource, ...]] = (
    INFERENCE_PIPELINES,
    DEPLOYMENTS,
    REPLICA_SETS,
    PODS,
    SERVICES,
    CONFIG_MAPS,
    SECRETS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    JOBS,
    POD_MONITORS,
    PROMETHEUS_RULES,
    NODES,
    EVENTS,
    LEASES,
    SELF_SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
)
# Child kinds that are watched. Secrets are not: the operator writes them and never reads one.
WATCHED_CHILDREN: Final[tuple[Resource, ...]] = (
    DEPLOYMENTS,
    PODS,
    CONFIG_MAPS,
    SERVICES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    JOBS,
)
_BY_GVK: Final[Mapping[tuple[str, str], Resource]] = {(r.api_version, r.kind): r for r in ALL}


def resource_of(obj: Mapping[str, Any]) -> Resource:
    """Return the resource of a raw object by its ``apiVersion`` and ``kind``.

    Raises:
        LookupError: the object is of a kind that the operator does not handle.
    """
    key = (str(obj.get("apiVersion", "")), str(obj.get("kind", "")))
    try:
        return _BY_GVK[key]
    except KeyError:
        raise LookupError(f"no known resource for apiVersion {key[0]!r}, kind {key[1]!r}") from None
