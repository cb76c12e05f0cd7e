"""Render a DaemonSet that pulls the images of a pipeline onto nodes before its pods start there."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline

# Fields of the pod that decide which nodes pull, with which credentials and with which rights.
_KEPT: Final = (
    "automountServiceAccountToken",
    "enableServiceLinks",
    "imagePullSecrets",
    "nodeSelector",
    "runtimeClassName",
    "securityContext",
    "serviceAccountName",
    "tolerations",
)
_RESOURCES: Final = {
    "requests": {"cpu": "1m", "memory": "16Mi"},
    "limits": {"memory": "64Mi"},
}
# Both images are based on distributions that have it. No shell is needed.
_COMMAND: Final = ("sleep", "infinity")
# With NVIDIA's runtime as the default of a node, the image would otherwise get all of its GPUs.
_NO_GPU: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def pre_pull_daemon_set(pipeline: InferencePipeline, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the DaemonSet for the pod template of a revision.

    Its containers keep running, because the kubelet may remove an image that no container uses.

    Args:
        pipeline: The pipeline.
        template: Pod template of the revision.
    """
    pod = template["spec"]
    # The operator must not take the object for its own, nor a Service its pods for servers.
    labels = {
        names.LABEL_NAME: names.pre_pull_name(pipeline.name),
        names.LABEL_COMPONENT: names.COMPONENT_PRE_PULL,
    }
    volumes = [item for item in pod["volumes"] if item.get("image")]
    spec = {
        **{key: pod[key] for key in _KEPT if key in pod},
        **_affinity(pod),
        "terminationGracePeriodSeconds": 1,
        "containers": [_container(item, volumes) for item in _own_containers(pod)],
        **({"volumes": volumes} if volumes else {}),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": names.pre_pull_name(pipeline.name),
            "namespace": pipeline.namespace,
            "labels": labels,
        },
        "spec": {
            "selector": {"matchLabels": labels},
            # A node that cannot pull must not delay the others.
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "100%"},
            },
            "template": {"metadata": {"labels": labels}, "spec": deepcopy(spec)},
        },
    }


def pre_pull_notes(pipeline: InferencePipeline, template: Mapping[str, Any]) -> list[str]:
    """Return what the DaemonSet does not do as the user may expect."""
    pod = template["spec"]
    notes = []
    required = _node_affinity(pod).get("requiredDuringSchedulingIgnoredDuringExecution")
    if pipeline.spec.server.gpu.count and not (pod.get("nodeSelector") or required):
        notes.append(
            "the DaemonSet requests no GPU, so it also pulls the images onto nodes without GPUs; "
            "set spec.server.nodeSelector to the label of your GPU nodes"
        )
    own = [item["name"] for item in _own_containers(pod)]
    others = sorted({item["image"] for item in _containers(pod) if item["name"] not in own})
    if others:
        # They need not contain the command that keeps running.
        notes.append(
            f"spec.server.podTemplate: the DaemonSet does not pull {', '.join(others)}; only the "
            "images of the loader, of Triton and of image volumes are pulled"
        )
    return notes


def _containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*pod["initContainers"], *pod["containers"]]


def _own_containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    own = (names.CONTAINER_LOADER, names.CONTAINER_SERVER)
    return [item for item in _containers(pod) if item["name"] in own]


def _container(item: Mapping[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    images = {volume["name"] for volume in volumes}
    mounts = [mount for mount in item["volumeMounts"] if mount["name"] in images]
    return {
        "name": item["name"],
        "image": item["image"],
        **{key: item[key] for key in ("imagePullPolicy", "securityContext") if key in item},
        "command": list(_COMMAND),
        "env": [dict(_NO_GPU)],
        "resources": deepcopy(_RESOURCES),
        **({"volumeMounts": mounts} if mounts else {}),
    }


def _node_affinity(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    return found


def _affinity(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node affinity alone: rules about other pods are about where servers may run."""
    found = _node_affinity(pod)
    return {"affinity": {"nodeAffinity": found}} if found else {}
