"""Decide by owner references and uids which pods belong to a pipeline. Pure.

Anyone who can create pods in a namespace controls their labels. A pod belongs to a pipeline if its
controller is a ReplicaSet that a Deployment of the pipeline controls, or a Job of the pipeline.
Other pods with the pipeline's labels get no control key and are not counted, scaled, probed or
deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import (
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    JOBS,
    PODS,
    REPLICA_SETS,
    Resource,
)
from triton_pipelines.cluster.store import Key, Store
from triton_pipelines.controllers.pipeline.deployment_progress import is_preflight
from triton_pipelines.controllers.pipeline.owner_references import owned
from triton_pipelines.controllers.pipeline.snapshot import LABEL_TEMPLATE_HASH

# Names of objects (RFC 1123 subdomain). A pod's owner reference may hold any text.
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ReplicaSetOwner:
    """What the API server reported about one ReplicaSet."""

    deployment: str
    """Uid of the Deployment that controls it; empty if none does, or it does not exist."""
    template_hash: str
    """Its label pod-template-hash, which its pods have, too."""
    at: float
    """When it was read (Unix seconds)."""
    reread_seconds: float
    """How long afterwards it is read again if it is not one of the pipeline's."""
    deployments: frozenset[str] = frozenset()
    """Uids of the pipeline's Deployments at that time. A new one may adopt it at once."""


@dataclass(frozen=True, slots=True)
class OwnedPods:
    """The pods of one pipeline, sorted by name."""

    server: tuple[Object, ...]
    """Pods of its Deployment, which serve clients."""
    tuning: tuple[Object, ...]
    """Pods of a tuning run: of its canary Deployment and of its Job."""
    preflight: tuple[Object, ...]
    """Pods of the Job that checks a new revision."""


def owned_pods(store: Store, replica_sets: Mapping[str, ReplicaSetOwner], key: Key) -> OwnedPods:
    """Return the pods of a pipeline.

    Args:
        store: The operator's caches.
        replica_sets: By uid. Pods of a ReplicaSet that is not known yet are left out.
        key: The pipeline's key.
    """
    workloads = _workloads(store, key)
    server: list[Object] = []
    tuning: list[Object] = []
    preflight: list[Object] = []
    for pod in store.children(PODS, key):
        workload = workloads.get(_workload_uid(pod, replica_sets))
        if workload is not None:
            kind, name = workload["kind"], workload["metadata"]["name"]
            if (kind, name) == (DEPLOYMENTS.kind, key[1]):
                server.append(pod)
            else:
                (preflight if is_preflight(workload) else tuning).append(pod)
    return OwnedPods(tuple(server), tuple(tuning), tuple(preflight))


def unknown_replica_sets(
    store: Store, replica_sets: Mapping[str, ReplicaSetOwner], key: Key
) -> dict[str, str]:
    """Return uid → name of ReplicaSets that could make a pod one of the pipeline's.

    These are the controllers that pods name whose own controller is not known to be a Deployment of
    the pipeline. A Deployment names its ReplicaSets after itself; others are not worth a request.
    """
    deployments = own_deployments(store, key)
    found: dict[str, str] = {}
    for pod in store.children(PODS, key):
        controller = controller_of(pod, REPLICA_SETS)
        uid, name = str(controller.get("uid") or ""), str(controller.get("name") or "")
        known = replica_sets.get(uid)
        if not uid or (known is not None and known.deployment in deployments):
            continue
        is_named_so = any(name.startswith(f"{deployment}-") for deployment in deployments.values())
        if is_named_so and _NAME.fullmatch(name):
            found[uid] = name
    return found


def own_deployments(store: Store, key: Key) -> dict[str, str]:
    """Return uid → name of the Deployments that the pipeline owns."""
    return {
        uid: item["metadata"]["name"]
        for uid, item in _workloads(store, key).items()
        if item["kind"] == DEPLOYMENTS.kind
    }


def named_replica_sets(store: Store, key: Key) -> set[str]:
    """Return the uids of all ReplicaSets that pods with the pipeline's label name."""
    pods = store.children(PODS, key)
    return {str(controller_of(pod, REPLICA_SETS).get("uid") or "") for pod in pods}


def controller_of(item: Mapping[str, Any], resource: Resource) -> Mapping[str, Any]:
    """Return the reference to an object's controller; empty if it is not of this kind."""
    for owner in item["metadata"].get("ownerReferences") or ():
        if owner.get("controller") is True:
            kind = (str(owner.get("apiVersion") or "").partition("/")[0], owner.get("kind"))
            return owner if kind == (resource.group, resource.kind) else {}
    return {}


def _workloads(store: Store, key: Key) -> dict[str, Object]:
    """Return the Deployments and Jobs that the pipeline owns, by uid."""
    pipeline = store.get(INFERENCE_PIPELINES, *key) or {"metadata": {}}
    uid = str(pipeline["metadata"].get("uid") or "")
    return {
        str(item["metadata"]["uid"]): item
        for resource in (DEPLOYMENTS, JOBS)
        for item in store.children(resource, key)
        if uid and item["metadata"].get("uid") and owned(item, uid)
    }


def _workload_uid(pod: Object, replica_sets: Mapping[str, ReplicaSetOwner]) -> str:
    """Return the uid of the Deployment or Job behind a pod; empty if it is not known."""
    if job := controller_of(pod, JOBS):
        return str(job.get("uid") or "")
    known = replica_sets.get(str(controller_of(pod, REPLICA_SETS).get("uid") or ""))
    labels = pod["metadata"].get("labels") or {}
    # The ReplicaSet controller releases pods without this label at its next sync.
    if known is None or labels.get(LABEL_TEMPLATE_HASH) != known.template_hash:
        return ""
    return known.deployment
