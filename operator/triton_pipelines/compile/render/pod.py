"""The pod: an init container that lays out the repository, and Triton that reads it."""

from __future__ import annotations

from typing import Any

from triton_pipelines.api import names
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
    keeps_engines,
    mounted_source,
    pod_volumes,
    relevant_source_map,
    volume_name,
)

UID = 1000  # of the stock Triton image's unprivileged user
GRACE_MARGIN_SECONDS = 10
# Triton listens only when its models are loaded. How long that may take is no setting: a rollout's
# deadline is judged by the operator, and a value of it in the probe would roll every pod when it
# changes.
STARTUP_SECONDS = 7200
STARTUP_PERIOD_SECONDS = 2


def template(
    pipeline: InferencePipeline, graph: Graph, options: Options, revision: str, server_image: str
) -> dict[str, Any]:
    """The pod template of a revision.

    Raises :class:`RefusedError` for what ``server.podTemplate`` may not say.
    """
    server = pipeline.spec.server
    security: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if server.model_cache is not None:
        # A fresh volume is root's; its files change hands once, not at every start.
        security |= {"fsGroup": UID, "fsGroupChangePolicy": "OnRootMismatch"}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": drain_seconds(pipeline)
        + exit_timeout_seconds(pipeline)
        + GRACE_MARGIN_SECONDS,
        "securityContext": security,
        "initContainers": [_loader(pipeline, graph, options, revision)],
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


def _hardened() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _loader(
    pipeline: InferencePipeline, graph: Graph, options: Options, revision: str
) -> dict[str, Any]:
    mounts = [
        {"name": names.VOLUME_DATA, "mountPath": names.PATH_ROOT},
        {"name": names.VOLUME_TMP, "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
        {"name": names.VOLUME_REVISION, "mountPath": names.PATH_REVISION, "readOnly": True},
        {"name": names.VOLUME_LIVE, "mountPath": names.PATH_LIVE, "readOnly": True},
    ]
    if pipeline.spec.server.model_cache is not None:
        mounts.append({"name": names.VOLUME_CACHE, "mountPath": names.PATH_CACHE})
    claims, mounted = claim_volumes(pipeline, graph, options), set[str]()
    for item in graph.fetches:
        source = item.source
        scheme, name = mounted_source(options, source)
        if source.secret_ref:
            mounts.append(
                {
                    "name": volume_name("credentials", item),
                    "mountPath": f"{names.PATH_CREDENTIALS}/{item.key}",
                    "readOnly": True,
                }
            )
        if source.ca_ref:
            mounts.append(
                {
                    "name": volume_name("ca", item),
                    "mountPath": f"{names.PATH_CA}/{item.key}",
                    "readOnly": True,
                }
            )
        if scheme == "configmap":
            mounts.append(
                {
                    "name": volume_name("configmap", item),
                    "mountPath": f"{names.PATH_CONFIGMAPS}/{item.key}",
                    "readOnly": True,
                }
            )
        if scheme == "pvc" and name not in mounted:
            mounted.add(name)
            mounts.append(
                {"name": claims[name], "mountPath": f"{names.PATH_CLAIMS}/{name}", "readOnly": True}
            )
    mapped = relevant_source_map(options.source_map, [item.source.uri for item in graph.fetches])
    cache = []
    if pipeline.spec.server.model_cache is not None:
        cache.append(f"--cache={names.PATH_CACHE}")
        if keeps_engines(graph):
            # Made by the loader, so that it is its user's: the kubelet would make it root's.
            cache.append(f"--folder={names.PATH_CACHE}/{engines_folder(pipeline)}")
    container: dict[str, Any] = {
        "name": names.CONTAINER_LOADER,
        "image": options.loader_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["tritonpipe"],
        "args": ["load", *cache, *(f"--source-map={entry}" for entry in mapped)],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_HOME", "value": "/tmp/hf"}],  # noqa: S108
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": _hardened(),
        "terminationMessagePolicy": "File",
    }
    return container


def _triton(
    pipeline: InferencePipeline, graph: Graph, options: Options, revision: str, image: str
) -> dict[str, Any]:
    server = pipeline.spec.server
    size = sizes(pipeline, graph)
    limits: dict[str, str] = {"cpu": size.cpu_limit, "memory": size.memory_limit}
    requests: dict[str, str] = {"cpu": size.cpu_request, "memory": size.memory_request}
    claimed = server.gpu.claim_template is not None
    if server.gpu.count and not claimed:
        limits[server.gpu.resource_name] = str(server.gpu.count)
        requests[server.gpu.resource_name] = str(server.gpu.count)
    environment: list[dict[str, Any]] = [
        {"name": names.ENV_SITE, "value": names.PATH_SITE},
        # One thread per instance: tokenizer libraries would else count the node's cores, not the
        # container's share.
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
    if not any(variable.name == "HOME" for variable in server.env):
        environment.append({"name": "HOME", "value": "/tmp"})  # noqa: S108
    environment += [
        plain(variable.model_dump(by_alias=True, exclude_none=True)) for variable in server.env
    ]
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
        ),
        "env": environment,
        "ports": [
            {"name": "http", "containerPort": names.PORT_HTTP, "protocol": "TCP"},
            {"name": "grpc", "containerPort": names.PORT_GRPC, "protocol": "TCP"},
            {"name": "metrics", "containerPort": names.PORT_METRICS, "protocol": "TCP"},
        ],
        "resources": {"requests": requests, "limits": limits}
        | ({"claims": [{"name": names.CLAIM_GPU}]} if claimed else {}),
        # Kubernetes' own default, written out where we rely on it: another CPU limit is no reason
        # for another start.
        **(
            {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}
            if cpu_range(pipeline, graph)
            else {}
        ),
        "volumeMounts": [
            # Read-only is what keeps count changes in place: no bytecode cache makes the version
            # folder look newer.
            {"name": names.VOLUME_DATA, "mountPath": names.PATH_ROOT, "readOnly": True},
            {"name": names.VOLUME_SHM, "mountPath": "/dev/shm"},  # noqa: S108
            {"name": names.VOLUME_TMP, "mountPath": "/tmp"},  # noqa: S108
            *engine_mounts(pipeline, graph),
        ],
        # The server stays live while the ensemble is down, and ready while a process is dead; only
        # the ensemble itself says the truth.
        "readinessProbe": {
            # As it stands: names need no quoting in a path, and Triton does not decode one
            # (measured, 24.10: %2B for + is not found).
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
        # Triton resets new connections from the moment of SIGTERM; until every client knows that
        # the pod is gone, it must not come.
        "lifecycle": {"preStop": {"sleep": {"seconds": drain_seconds(pipeline)}}},
        "securityContext": _hardened(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
