"""Render the objects of a preflight: a Job that runs the loader of a revision without its server.

The pod has the revision's own loader, so that it checks what a serving pod's loader would check.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Switch
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .network_policies import egress_fields
from .objects import owner
from .pod_scheduling import GPU_PRODUCT_LABEL

# The kubelet restarts a failed loader with a growing delay of at most five minutes, as in a serving
# pod: a source may appear later. The operator deletes the Job, so its own limit must never end it.
BACKOFF_LIMIT: Final = 2**31 - 1
# Seconds after which Kubernetes deletes a finished Job that the operator has not deleted.
TTL_SECONDS: Final = 3600
_HOSTNAME: Final = "kubernetes.io/hostname"
# Fields of the template that concern the server, GPUs or the number of serving pods.
_SERVER_FIELDS: Final = (
    "containers",
    "initContainers",
    "priorityClassName",
    "resourceClaims",
    "resources",
    "terminationGracePeriodSeconds",
    "topologySpreadConstraints",
    "affinity",
)


def _labels(pipeline: InferencePipeline, revision: str) -> dict[str, str]:
    """Return the labels of the objects and the pod, which the Service does not select."""
    return {
        **names.labels(pipeline.name),
        names.LABEL_COMPONENT: names.COMPONENT_PREFLIGHT,
        names.LABEL_REVISION: revision,
    }


def _object(
    pipeline: InferencePipeline, revision: str, api_version: str, kind: str, spec: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": names.preflight_name(pipeline.name, revision),
            "namespace": pipeline.namespace,
            "labels": _labels(pipeline, revision),
            "ownerReferences": [owner(pipeline)],
        },
        "spec": dict(spec),
    }


def preflight_job(
    pipeline: InferencePipeline, revision: str, template: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the Job that runs the loader of a revision.

    It is a Job and not a bare pod because the operator may not create pods.

    Args:
        pipeline: The pipeline.
        revision: The revision to check.
        template: Pod template of that revision.
    """
    metadata = template.get("metadata") or {}
    spec = {
        "backoffLimit": BACKOFF_LIMIT,
        "ttlSecondsAfterFinished": TTL_SECONDS,
        "template": {
            "metadata": {
                **metadata,
                "labels": {**(metadata.get("labels") or {}), **_labels(pipeline, revision)},
            },
            "spec": _pod(pipeline, template["spec"]),
        },
    }
    return _object(pipeline, revision, "batch/v1", "Job", spec)


def _pod(pipeline: InferencePipeline, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod: the template's init containers up to the loader, and what they mount.

    It keeps identity, isolation, node selector and tolerations: on the node of the serving pods,
    the images and volumes are at hand. It drops the priority class, so that it preempts no pod.
    """
    copy = deepcopy(dict(template))
    before: list[dict[str, Any]] = []
    for container in copy["initContainers"]:
        before.append(container)
        if container["name"] == names.CONTAINER_LOADER:
            break
    mounted = {mount["name"] for item in before for mount in item.get("volumeMounts") or ()}
    pod = {key: value for key, value in copy.items() if key not in _SERVER_FIELDS}
    volumes = [item for item in copy.get("volumes") or () if item["name"] in mounted]
    return {
        **pod,
        "restartPolicy": "OnFailure",
        **({"initContainers": before[:-1]} if before[:-1] else {}),
        "containers": before[-1:],
        "volumes": volumes,
        "affinity": _affinity(
            pipeline,
            copy.get("affinity") or {},
            shares_claim=any("persistentVolumeClaim" in item for item in volumes),
        ),
    }


def _affinity(
    pipeline: InferencePipeline, declared: Mapping[str, Any], *, shares_claim: bool
) -> dict[str, Any]:
    """Return the template's node affinity without GPU products, and a preference for its pods.

    If the pod shares a claim with them, their node is required: a volume that is mounted on one
    node cannot be mounted on another one, where the pod would wait for it forever. Rules about
    other pods are dropped: they are about where serving pods may run.
    """
    term = {
        "topologyKey": _HOSTNAME,
        "labelSelector": {"matchLabels": names.selector(pipeline.name)},
    }
    serving: dict[str, Any] = (
        {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        if shares_claim
        else {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": term}
            ]
        }
    )
    result: dict[str, Any] = {"podAffinity": serving}
    node = dict(declared.get("nodeAffinity") or {})
    required = node.pop("requiredDuringSchedulingIgnoredDuringExecution", None) or {}
    terms = [_without_product(term) for term in required.get("nodeSelectorTerms") or ()]
    # Terms are alternatives. One that asked for nothing but a product now allows every node.
    if terms and all(terms):
        node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    return result | ({"nodeAffinity": node} if node else {})


def _without_product(term: Mapping[str, Any]) -> dict[str, Any]:
    expressions = [
        item for item in term.get("matchExpressions") or () if item.get("key") != GPU_PRODUCT_LABEL
    ]
    rest = {key: value for key, value in term.items() if key != "matchExpressions"}
    return rest | ({"matchExpressions": expressions} if expressions else {})


def preflight_policy(pipeline: InferencePipeline, revision: str) -> dict[str, Any] | None:
    """Return the network policy of the preflight's pod; ``None`` if the pipeline has none.

    Nothing may reach the pod. It may reach what the pipeline's pods may reach.
    """
    if pipeline.spec.server.network_policy.mode is Switch.DISABLED:
        return None
    egress = egress_fields(pipeline)
    labels = _labels(pipeline, revision)
    keys = (names.LABEL_PIPELINE, names.LABEL_COMPONENT, names.LABEL_REVISION)
    spec = {
        "podSelector": {"matchLabels": {key: labels[key] for key in keys}},
        "policyTypes": ["Ingress", "Egress"] if egress else ["Ingress"],
        "ingress": [],
        **egress,
    }
    return _object(pipeline, revision, "networking.k8s.io/v1", "NetworkPolicy", spec)
