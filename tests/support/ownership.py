"""Owner references as Kubernetes' controllers write them, for pods that are simulated."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object
from triton_pipelines.controllers.pipeline.pod_observer import REREAD_SECONDS
from triton_pipelines.controllers.pipeline.snapshot import LABEL_TEMPLATE_HASH
from triton_pipelines.controllers.pod_ownership import ReplicaSetOwner


def controlled_by(owner: Object) -> list[Object]:
    """Return the owner references of an object that another one controls."""
    metadata = owner["metadata"]
    reference = {"name": metadata["name"], "uid": metadata["uid"], "controller": True}
    return [{"apiVersion": owner["apiVersion"], "kind": owner["kind"], **reference}]


def template_hash(template: Object) -> str:
    """Return the hash of a pod template, as text that a label can hold."""
    text = json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:9]


def replica_set(deployment: Object, hashed: str) -> Object:
    """Return the ReplicaSet that a Deployment makes for a template, as the API server has it."""
    metadata = deployment["metadata"]
    labels = {**(metadata.get("labels") or {}), LABEL_TEMPLATE_HASH: hashed}
    made: dict[str, Any] = {
        "name": f"{metadata['name']}-{hashed}",
        "uid": f"uid-{metadata['name']}-{hashed}",
        "labels": labels,
        "ownerReferences": controlled_by(deployment),
    }
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": made}


def deployment(pipeline: Object, **metadata: Any) -> Object:
    """Return a Deployment of a pipeline, without a spec."""
    known = pipeline["metadata"]
    made = {
        "name": known["name"],
        "namespace": known["namespace"],
        "uid": f"uid-{known['name']}",
        "resourceVersion": "1",
        "labels": names.labels(known["name"]),
        "ownerReferences": controlled_by(pipeline),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": made | metadata}


def controlled_pod(pod: Object, owner: Object) -> Object:
    """Return a pod as if a ReplicaSet had created it."""
    metadata, owned = pod["metadata"], owner["metadata"]
    hashed = {LABEL_TEMPLATE_HASH: owned["labels"][LABEL_TEMPLATE_HASH]}
    labels = {**(metadata.get("labels") or {}), **hashed}
    references = controlled_by(owner)
    return {**pod, "metadata": {**metadata, "labels": labels, "ownerReferences": references}}


def read(*replica_sets: Object) -> dict[str, ReplicaSetOwner]:
    """Return what the operator knows of ReplicaSets once it has read them."""
    return {
        item["metadata"]["uid"]: ReplicaSetOwner(
            item["metadata"]["ownerReferences"][0]["uid"],
            item["metadata"]["labels"][LABEL_TEMPLATE_HASH],
            at=0.0,
            reread_seconds=REREAD_SECONDS,
        )
        for item in replica_sets
    }
