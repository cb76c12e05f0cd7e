"""The Kubernetes objects of a pipeline, as plain dictionaries ready for server-side apply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Switch
from triton_pipelines.api.rollout_strategy import RolloutStrategy
from triton_pipelines.api.server import DisruptionBudget
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.drain import sequence_idle_seconds

# Kubernetes' own default, and the most that it takes.
AFFINITY_SECONDS = 10800
AFFINITY_SECONDS_MAX = 86400
PLACEHOLDER_UID = "00000000-0000-0000-0000-000000000000"


def owner(pipeline: InferencePipeline) -> dict[str, Any]:
    """Return the owner reference by which Kubernetes deletes children with their pipeline."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": pipeline.name,
        "uid": pipeline.metadata.uid or PLACEHOLDER_UID,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def child(
    pipeline: InferencePipeline, api_version: str, kind: str, name: str, **body: Any
) -> dict[str, Any]:
    """Return an object with the labels of the pipeline and a reference to it as owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": pipeline.namespace,
            "labels": names.labels(pipeline.name),
            "ownerReferences": [owner(pipeline)],
        },
        **body,
    }


def revision_config_map(
    pipeline: InferencePipeline, revision: str, data: Mapping[str, str]
) -> dict[str, Any]:
    """Return the immutable ConfigMap of a revision.

    A pod that restarts during a rollout therefore gets the files of its own revision.
    """
    result = child(
        pipeline,
        "v1",
        "ConfigMap",
        names.revision_name(pipeline.name, revision),
        data=dict(data),
        immutable=True,
    )
    result["metadata"]["labels"][names.LABEL_REVISION] = revision
    return result


def live_config_map(pipeline: InferencePipeline, data: Mapping[str, str]) -> dict[str, Any]:
    """Return the live ConfigMap, which outlives revisions and is not part of their hash."""
    return child(pipeline, "v1", "ConfigMap", names.live_name(pipeline.name), data=dict(data))


def control_secret(pipeline: InferencePipeline, revision: str, key: str) -> dict[str, Any]:
    """Return the Secret with the control key of a revision."""
    result = child(
        pipeline,
        "v1",
        "Secret",
        names.revision_name(pipeline.name, revision),
        type="Opaque",
        stringData={names.KEY_CONTROL: key},
    )
    result["metadata"]["labels"][names.LABEL_REVISION] = revision
    return result


def service(pipeline: InferencePipeline) -> dict[str, Any]:
    """Return the Service of the pods: HTTP, gRPC and metrics on their usual ports.

    With ``server.tls`` it has no HTTP port, because clients need TLS. A client of a step with
    sequences stays on one pod, because only that pod has its sequence.
    """
    declared = pipeline.spec.server.service
    idle = sequence_idle_seconds(pipeline)
    sticky: dict[str, Any] = {"sessionAffinity": "None"}
    if idle is not None:
        # Both are always written: the API server rejects a timeout without an affinity.
        seconds = min(max(idle, AFFINITY_SECONDS), AFFINITY_SECONDS_MAX)
        sticky = {
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}},
        }
    result = child(
        pipeline,
        "v1",
        "Service",
        pipeline.name,
        spec={
            "type": declared.type.value,
            **sticky,
            "selector": names.selector(pipeline.name),
            "ports": [
                *_inference_ports(pipeline),
                _port("metrics", names.PORT_METRICS, "http"),
            ],
        },
    )
    if declared.annotations:
        result["metadata"]["annotations"] = dict(declared.annotations)
    return result


def headless_service(pipeline: InferencePipeline) -> dict[str, Any] | None:
    """Return the Service whose DNS name resolves to the addresses of the ready pods.

    ``None`` unless ``server.service.headless`` is enabled. It has no metrics port: a ServiceMonitor
    selects both Services by their labels and would scrape each pod twice.
    """
    if pipeline.spec.server.service.headless is Switch.DISABLED:
        return None
    return child(
        pipeline,
        "v1",
        "Service",
        names.headless_service_name(pipeline.name),
        spec={
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": names.selector(pipeline.name),
            "ports": _inference_ports(pipeline),
        },
    )


def _inference_ports(pipeline: InferencePipeline) -> list[dict[str, Any]]:
    """Return the ports that clients of inference use: with ``server.tls`` only gRPC."""
    if pipeline.spec.server.tls is not None:
        # https tells gateways to use TLS.
        return [_port("grpc", names.PORT_GRPC, "https")]
    # h2c is HTTP/2 in plaintext.
    return [
        _port("http", names.PORT_HTTP, "http"),
        _port("grpc", names.PORT_GRPC, "kubernetes.io/h2c"),
    ]


def _port(name: str, number: int, app_protocol: str) -> dict[str, Any]:
    return {
        "name": name,
        "port": number,
        "targetPort": name,
        "protocol": "TCP",
        "appProtocol": app_protocol,
    }


def disruption_budget(
    pipeline: InferencePipeline, replicas: int | None = None
) -> dict[str, Any] | None:
    """Return a disruption budget that allows at most one unavailable pod.

    ``None`` with fewer than two pods, for which it would only block drains. ``replicas`` is the
    desired number of pods, if the spec does not set it.
    """
    desired = pipeline.spec.replicas if replicas is None else replicas
    if pipeline.spec.server.disruption_budget is DisruptionBudget.DISABLED or desired < 2:
        return None
    return child(
        pipeline,
        "policy/v1",
        "PodDisruptionBudget",
        pipeline.name,
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(pipeline.name)},
        },
    )


def strategy(mode: RolloutStrategy) -> dict[str, Any]:
    """Return the Deployment's strategy for a rollout mode; Auto starts as Surge."""
    if mode is RolloutStrategy.RECREATE:
        # Server-side apply drops the rollingUpdate of an earlier mode, since the same manager wrote
        # it.
        return {"type": "Recreate"}
    surge, unavailable = (0, 1) if mode is RolloutStrategy.NO_SURGE else (1, 0)
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
    }


def deployment(
    pipeline: InferencePipeline,
    template: Mapping[str, Any],
    mode: RolloutStrategy,
    replicas: int | None,
    before: str = "",
) -> dict[str, Any]:
    """Return the Deployment with the template of one revision.

    ``replicas`` is ``None`` if another manager owns the number. ``before`` is the revision that
    served before, or "" if none is known.
    """
    spec: dict[str, Any] = {
        "selector": {"matchLabels": names.selector(pipeline.name)},
        "strategy": strategy(mode),
        # Set explicitly: only the resource's annotation may pause rollouts, and not a direct edit
        # of the Deployment.
        "paused": False,
        "progressDeadlineSeconds": pipeline.spec.rollout.progress_deadline_seconds,
        "revisionHistoryLimit": pipeline.spec.rollout.revision_history_limit,
        "template": json.loads(json.dumps(template)),
    }
    if replicas is not None:
        spec["replicas"] = replicas
    result = child(pipeline, "apps/v1", "Deployment", pipeline.name, spec=spec)
    if before:
        result["metadata"]["annotations"] = {names.ANNOTATION_BEFORE: before}
    return result
