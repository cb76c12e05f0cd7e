"""Placement of the pod: tolerations, spread and affinity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.server import ServerSpec
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .passthrough import plain

GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"


def tolerations(server: ServerSpec) -> list[dict[str, Any]]:
    """Return the tolerations of GPU nodes, if the pod uses GPUs, and those of the resource."""
    gpu_nodes = (
        [
            {"key": key, "operator": "Exists"}
            for key in sorted({GPU_RESOURCE, server.gpu.resource_name})
        ]
        if server.gpu.count
        else []
    )
    return [*gpu_nodes, *(plain(item) for item in server.tolerations)]


def topology_spread(pipeline: InferencePipeline) -> list[dict[str, Any]]:
    """Return the spread constraints of the resource, by default a soft spread over nodes."""
    given = pipeline.spec.server.topology_spread_constraints
    if given:
        return [plain(item) for item in given]
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": names.selector(pipeline.name)},
        }
    ]


def affinity(server: ServerSpec) -> Mapping[str, Any]:
    """Return the user's affinity with the GPU products added to all required node terms."""
    result: dict[str, Any] = plain(server.affinity or {})
    if not server.gpu.products:
        return result
    expression = {"key": GPU_PRODUCT_LABEL, "operator": "In", "values": sorted(server.gpu.products)}
    # "or": a key without a value is as good as none
    node = result["nodeAffinity"] = result.get("nodeAffinity") or {}
    required = node["requiredDuringSchedulingIgnoredDuringExecution"] = (
        node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    )
    required["nodeSelectorTerms"] = terms = required.get("nodeSelectorTerms") or [{}]
    for term in terms:  # terms are alternatives, expressions within one all hold
        term["matchExpressions"] = [*(term.get("matchExpressions") or []), expression]
    return result
