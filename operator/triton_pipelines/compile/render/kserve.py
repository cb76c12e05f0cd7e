"""Express a rendered pipeline as an InferenceService of KServe."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .render import Revision

# KServe recognizes the container of the model server by this name.
SERVER_CONTAINER: Final = "kserve-container"
# The mode without Knative, which admits one port per container and no probes of its own.
DEPLOYMENT_MODE: Final = {"serving.kserve.io/deploymentMode": "RawDeployment"}
# Objects of a pipeline that its pods mount.
MOUNTED: Final = ("ConfigMap", "Secret")
# Selects pods by the labels of the operator, which these pods must not have.
SELECTING: Final = "topologySpreadConstraints"


def kserve_objects(
    pipeline: InferencePipeline, revision: Revision, objects: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what KServe needs to serve the same model repository without this operator.

    Args:
        pipeline: The resource.
        revision: Its rendered revision.
        objects: The objects that the operator would create for it.

    Returns:
        The ConfigMaps and the Secret that the pods mount, and an InferenceService whose predictor
        is the pod of the revision.
    """
    mounted = [_unowned(item) for item in objects if item["kind"] in MOUNTED]
    return [*mounted, inference_service(pipeline, revision)]


def inference_service(pipeline: InferencePipeline, revision: Revision) -> dict[str, Any]:
    """Return the InferenceService; its predictor is the pod of the revision."""
    pod = {
        key: value
        for key, value in copy.deepcopy(revision.template["spec"]).items()
        if key != SELECTING
    }
    for container in pod["containers"]:
        if container["name"] == names.CONTAINER_SERVER:
            container["name"] = SERVER_CONTAINER
    replicas = pipeline.spec.replicas
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": pipeline.name,
            "namespace": pipeline.namespace,
            "annotations": dict(DEPLOYMENT_MODE),
        },
        "spec": {"predictor": {"minReplicas": replicas, "maxReplicas": replicas, **pod}},
    }


def _unowned(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object without owner and labels, by which the operator would find and delete it."""
    metadata = {
        key: value
        for key, value in item["metadata"].items()
        if key not in ("ownerReferences", "labels")
    }
    return {**item, "metadata": metadata}
