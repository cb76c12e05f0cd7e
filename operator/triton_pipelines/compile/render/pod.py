"""Render the pod: an init container that fills the model repository, and Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.server import ServerSpec
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.container_resources import cpu_range, sizes
from triton_pipelines.compile.graph.drain import (
    connection_age_milliseconds,
    drain_seconds,
    exit_timeout_seconds,
)
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.options import Options
from triton_pipelines.compile.graph.server_settings import feature_arguments, server_arguments

from .passthrough import plain
from .pod_scheduling import affinity, tolerations, topology_spread
from .pod_template import merged
from .pod_volumes import (
    claim_volumes,
    engine_mounts,
    engines_folder,
    image_mounts,
    keeps_engines,
    mounted_source,
    pod_volumes,
    relevant_source_map,
    volume_name,
)

UID = 1000  # of the stock Triton image's unprivileged user
GRACE_MARGIN_SECONDS = 10
# Triton listens only after its models are loaded. The time limit is not configurable: the operator
# checks a rollout's deadline itself, and a change of a deadline in the probe would roll all pods.
STARTUP_SECONDS = 7200
STARTUP_PERIOD_SECONDS = 2
# Variables of the Triton container that spec.server.env may replace.
DEFAULT_ENVIRONMENT = {
    names.ENV_BLAS_THREADS: "1",
    "HOME": "/tmp",  # noqa: S108
}


def server_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return Triton's container of a pod or pod template; an empty one without it."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    return next((item for item in containers if item.get("name") == names.CONTAINER_SERVER), {})


def template(
    pipeline: InferencePipeline, graph: Graph, options: Options, revision: str, server_image: str
) -> dict[str, Any]:
    """Return the pod template of a revision.

    Raises:
        RefusedError: ``server.podTemplate`` changes a field that only the operator may set, or the
            result is not a valid pod.
    """
    server = pipeline.spec.server
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": drain_seconds(pipeline)
        + exit_timeout_seconds(pipeline)
        + GRACE_MARGIN_SECONDS,
        "securityContext": _pod_security(server),
        "initContainers": [_loader(pipeline, graph, options)],
        "containers": [_triton(pipeline, graph, options, revision, server_image)],
        "volumes": pod_volumes(pipeline, graph, options, revision),
        "tolerations": tolerations(server),
        "topologySpreadConstraints": topology_spread(pipeline),
    }
    optional = {
        "nodeSelector": dict(server.node_selector),
        "affinity": affinity(server),
        "serviceAccountName": server.service_account_name,
        "runtimeClassName": server.runtime_class_name,
        "priorityClassName": server.priority_class_name,
        "imagePullSecrets": [{"name": item.name} for item in server.image_pull_secrets],
    }
    if server.gpu.claim_template is not None:
        optional["resourceClaims"] = [
            {"name": names.CLAIM_GPU, "resourceClaimTemplateName": server.gpu.claim_template}
        ]
    pod |= {key: value for key, value in optional.items() if value}
    whole = {
        "metadata": {"labels": {**names.labels(pipeline.name), names.LABEL_REVISION: revision}},
        "spec": pod,
    }
    return whole if server.pod_template is None else merged(whole, pipeline, options)


def _pod_security(server: ServerSpec) -> dict[str, Any]:
    security: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if server.model_cache is not None:
        # A new volume belongs to root; the owner of its files changes once, not at every start.
        security |= {"fsGroup": UID, "fsGroupChangePolicy": "OnRootMismatch"}
    return security


def _container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _loader(pipeline: InferencePipeline, graph: Graph, options: Options) -> dict[str, Any]:
    mapped = relevant_source_map(options.source_map, [item.source.uri for item in graph.fetches])
    cache = []
    if pipeline.spec.server.model_cache is not None:
        cache.append(f"--cache={names.PATH_CACHE}")
        if keeps_engines(graph):
            # The loader creates the folder and owns it; the kubelet would create it as root.
            cache.append(f"--folder={names.PATH_CACHE}/{engines_folder(pipeline)}")
    return {
        "name": names.CONTAINER_LOADER,
        "image": options.loader_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["tritonpipe"],
        "args": ["load", *cache, *(f"--source-map={entry}" for entry in mapped)],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a path of the pod
            {"name": "HF_HOME", "value": "/tmp/hf"},  # noqa: S108 - a path of the pod
        ],
        "volumeMounts": _loader_mounts(pipeline, graph, options),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": _container_security(),
        "terminationMessagePolicy": "File",
    }


def _loader_mounts(
    pipeline: InferencePipeline, graph: Graph, options: Options
) -> list[dict[str, Any]]:
    mounts = [
        {"name": names.VOLUME_DATA, "mountPath": names.PATH_ROOT},
        {"name": names.VOLUME_TMP, "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
        _read_only(names.VOLUME_REVISION, names.PATH_REVISION),
        _read_only(names.VOLUME_LIVE, names.PATH_LIVE),
    ]
    if pipeline.spec.server.model_cache is not None:
        mounts.append({"name": names.VOLUME_CACHE, "mountPath": names.PATH_CACHE})
    claims, mounted = claim_volumes(pipeline, graph, options), set[str]()
    for item in graph.fetches:
        source = item.source
        scheme, name = mounted_source(options, source)
        if source.secret_ref:
            folder = f"{names.PATH_CREDENTIALS}/{item.key}"
            mounts.append(_read_only(volume_name("credentials", item), folder))
        if source.ca_ref:
            mounts.append(_read_only(volume_name("ca", item), f"{names.PATH_CA}/{item.key}"))
        if scheme == "configmap":
            folder = f"{names.PATH_CONFIGMAPS}/{item.key}"
            mounts.append(_read_only(volume_name("configmap", item), folder))
        if scheme == "pvc" and name not in mounted:
            mounted.add(name)
            mounts.append(_read_only(claims[name], f"{names.PATH_CLAIMS}/{name}"))
    return mounts + image_mounts(graph, options)


def _read_only(volume: str, path: str) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, "readOnly": True}


def _triton(
    pipeline: InferencePipeline, graph: Graph, options: Options, revision: str, image: str
) -> dict[str, Any]:
    server = pipeline.spec.server
    return {
        "name": names.CONTAINER_SERVER,
        "image": image,
        "imagePullPolicy": server.image_pull_policy.value
        if server.image_pull_policy
        else options.image_pull_policy,
        "command": ["tritonserver"],
        "args": server_arguments(
            names.PATH_MODELS,
            graph.load,
            exit_timeout_seconds=exit_timeout_seconds(pipeline),
            connection_age_milliseconds=connection_age_milliseconds(pipeline),
            control_key=f"$({names.ENV_CONTROL_KEY})",
            auto_complete=graph.auto_complete,
            features=feature_arguments(pipeline, graph),
            extra=server.args,
            tls=server.tls.mode if server.tls is not None else None,
        ),
        "env": _triton_environment(pipeline, revision),
        "ports": [
            {"name": "http", "containerPort": names.PORT_HTTP, "protocol": "TCP"},
            {"name": "grpc", "containerPort": names.PORT_GRPC, "protocol": "TCP"},
            {"name": "metrics", "containerPort": names.PORT_METRICS, "protocol": "TCP"},
        ],
        "resources": _triton_resources(pipeline, graph),
        # Kubernetes' default, written out because resizing relies on it: a new CPU limit must not
        # restart the container.
        **(
            {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}
            if cpu_range(pipeline, graph)
            else {}
        ),
        "volumeMounts": [*_triton_mounts(pipeline, graph), *image_mounts(graph, options)],
        **_triton_probes(graph),
        # Triton resets new connections from the moment of SIGTERM, so it must not be sent before
        # all clients know that the pod is gone.
        "lifecycle": {"preStop": {"sleep": {"seconds": drain_seconds(pipeline)}}},
        "securityContext": _container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _triton_mounts(pipeline: InferencePipeline, graph: Graph) -> list[dict[str, Any]]:
    has_tls = pipeline.spec.server.tls is not None
    return [
        # Read-only, so that no bytecode cache makes the version folder look newer: Triton would
        # then reload the model when its count changes.
        _read_only(names.VOLUME_DATA, names.PATH_ROOT),
        {"name": names.VOLUME_SHM, "mountPath": "/dev/shm"},  # noqa: S108
        {"name": names.VOLUME_TMP, "mountPath": "/tmp"},  # noqa: S108
        *engine_mounts(pipeline, graph),
        *([_read_only(names.VOLUME_TLS, names.PATH_TLS)] if has_tls else []),
    ]


def _triton_resources(pipeline: InferencePipeline, graph: Graph) -> dict[str, Any]:
    server = pipeline.spec.server
    size = sizes(pipeline, graph)
    limits: dict[str, str] = {"cpu": size.cpu_limit, "memory": size.memory_limit}
    requests: dict[str, str] = {"cpu": size.cpu_request, "memory": size.memory_request}
    claimed = server.gpu.claim_template is not None
    if server.gpu.count and not claimed:
        limits[server.gpu.resource_name] = str(server.gpu.count)
        requests[server.gpu.resource_name] = str(server.gpu.count)
    return {"requests": requests, "limits": limits} | (
        {"claims": [{"name": names.CLAIM_GPU}]} if claimed else {}
    )


def _triton_environment(pipeline: InferencePipeline, revision: str) -> list[dict[str, Any]]:
    server = pipeline.spec.server
    environment: list[dict[str, Any]] = [
        # One thread per instance: tokenizer libraries would otherwise count the node's cores, not
        # the container's share.
        {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
        {"name": "RAYON_NUM_THREADS", "value": "1"},
        {
            "name": names.ENV_CONTROL_KEY,
            "valueFrom": {
                "secretKeyRef": {
                    "name": names.revision_name(pipeline.name, revision),
                    "key": names.KEY_CONTROL,
                }
            },
        },
    ]
    given = {variable.name for variable in server.env}
    environment += [
        {"name": name, "value": value}
        for name, value in DEFAULT_ENVIRONMENT.items()
        if name not in given
    ]
    return environment + [
        plain(variable.model_dump(by_alias=True, exclude_none=True)) for variable in server.env
    ]


def _triton_probes(graph: Graph) -> dict[str, Any]:
    return {
        # The server stays live while the ensemble is down, and ready while a process is dead;
        # only the ensemble's own readiness is reliable.
        "readinessProbe": {
            # Unquoted: names need no quoting in a path, and Triton does not decode it (measured,
            # 24.10: %2B for + is not found).
            "httpGet": {"path": f"/v2/models/{graph.model_name}/ready", "port": "http"},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "startupProbe": {
            "httpGet": {"path": "/v2/health/live", "port": "http"},
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": STARTUP_SECONDS // STARTUP_PERIOD_SECONDS,
        },
        "livenessProbe": {
            "httpGet": {"path": "/v2/health/live", "port": "http"},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }
