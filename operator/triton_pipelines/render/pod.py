"""The pod: an init container that lays out the repository, and Triton that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.server import Server
from triton_pipelines.api.source import Source
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.pipeline.graph import Fetch, Graph
from triton_pipelines.pipeline.options import Options
from triton_pipelines.pipeline.server import server_arguments, sizes

from .plain import plain

UID = 1000  # of the stock Triton image's unprivileged user
GRACE_MARGIN_SECONDS = 10
# Triton listens only when its models are loaded. How long that may take is no setting: a rollout's deadline is judged by the operator,
# and a value of it in the probe would roll every pod when it changes.
STARTUP_SECONDS = 7200
STARTUP_PERIOD_SECONDS = 2
GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"


def connection_age(drain_seconds: int) -> int:
    """Milliseconds after which a gRPC connection is told to move: a third of the drain, so that all move while a pod drains."""
    return max(1000, drain_seconds * 1000 // 3)


def template(pipeline: InferencePipeline, graph: Graph, options: Options, revision: str, server_image: str) -> dict[str, Any]:
    """The pod template of a revision."""
    spec, server = pipeline.spec, pipeline.spec.server
    # A preStop sleep and an exit timeout of 0 are refused by older servers and by Triton.
    drain = max(spec.rollout.drain_seconds, 1)
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 2 * drain + GRACE_MARGIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_loader(pipeline, graph, options, revision)],
        "containers": [_triton(pipeline, graph, options, revision, server_image)],
        "volumes": _volumes(pipeline, graph, options, revision),
        "tolerations": _tolerations(server),
        "topologySpreadConstraints": _spread(pipeline),
    }
    optional = {
        "nodeSelector": dict(server.node_selector),
        "affinity": affinity(server),
        "serviceAccountName": server.service_account_name,
        "runtimeClassName": server.runtime_class_name,
        "priorityClassName": server.priority_class_name,
        "imagePullSecrets": [{"name": item.name} for item in server.image_pull_secrets],
    }
    pod |= {key: value for key, value in optional.items() if value}
    return {
        "metadata": {"labels": {**names.labels(pipeline.name), names.LABEL_REVISION: revision}},
        "spec": pod,
    }


def _hardened() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def _volume(kind: str, item: Fetch) -> str:
    """Name of the volume that a source's credentials, CA or content come from: a DNS label."""
    return f"{kind}-{item.key.replace('.', '-')}"


def _loader(pipeline: InferencePipeline, graph: Graph, options: Options, revision: str) -> dict[str, Any]:
    mounts = [
        {"name": names.VOLUME_DATA, "mountPath": names.PATH_ROOT},
        {"name": names.VOLUME_TMP, "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
        {"name": names.VOLUME_REVISION, "mountPath": names.PATH_REVISION, "readOnly": True},
        {"name": names.VOLUME_LIVE, "mountPath": names.PATH_LIVE, "readOnly": True},
    ]
    claims: set[str] = set()
    for item in graph.fetches:
        source = item.source
        scheme, name = _mounted(options, source)
        if source.secret_ref:
            mounts.append({"name": _volume("credentials", item), "mountPath": f"{names.PATH_CREDENTIALS}/{item.key}", "readOnly": True})
        if source.ca_ref:
            mounts.append({"name": _volume("ca", item), "mountPath": f"{names.PATH_CA}/{item.key}", "readOnly": True})
        if scheme == "configmap":
            mounts.append({"name": _volume("configmap", item), "mountPath": f"{names.PATH_CONFIGMAPS}/{item.key}", "readOnly": True})
        if scheme == "pvc" and name not in claims:
            claims.add(name)
            mounts.append({"name": f"claim-{len(claims)}", "mountPath": f"{names.PATH_CLAIMS}/{name}", "readOnly": True})
    mapped = relevant_source_map(options.source_map, [item.source.uri for item in graph.fetches])
    container: dict[str, Any] = {
        "name": names.CONTAINER_LOADER,
        "image": options.loader_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["tritonpipe"],
        "args": ["load", *(f"--source-map={entry}" for entry in mapped)],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_HOME", "value": "/tmp/hf"}],  # noqa: S108
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": _hardened(),
        "terminationMessagePolicy": "File",
    }
    return container


def relevant_source_map(entries: Sequence[str], uris: Sequence[str]) -> list[str]:
    """The entries that touch one of these URIs: a mirror added for others rolls no pod of this pipeline."""
    return sorted({entry for uri in uris if (entry := _winner(entries, uri))})


def _winner(entries: Sequence[str], uri: str) -> str | None:
    """The entry that the loader applies to a URI: the longest prefix, of equal ones the last."""
    fitting = [entry.strip() for entry in entries if uri.startswith(entry.strip().partition("=")[0])]
    return max(reversed(fitting), key=lambda entry: len(entry.partition("=")[0]), default=None)


def _mounted(options: Options, source: Source) -> tuple[str, str]:
    """Scheme and first name of where a source is fetched from, which a source map may move onto a claim."""
    prefix, _, target = (_winner(options.source_map, source.uri) or "").partition("=")
    scheme, _, rest = source.uri.partition("://")
    if target and not (scheme in ("hf", "s3") and target.startswith(("http://", "https://"))):
        scheme, _, rest = (target + source.uri[len(prefix) :]).partition("://")
    return scheme, rest.split("/", 1)[0]


def _triton(pipeline: InferencePipeline, graph: Graph, options: Options, revision: str, image: str) -> dict[str, Any]:
    spec, server = pipeline.spec, pipeline.spec.server
    size = sizes(pipeline, graph)
    drain = max(spec.rollout.drain_seconds, 1)
    limits: dict[str, str] = {"cpu": size.cpu_limit, "memory": size.memory_limit}
    requests: dict[str, str] = {"cpu": size.cpu_request, "memory": size.memory_request}
    if server.gpu.count:
        limits[server.gpu.resource_name] = str(server.gpu.count)
        requests[server.gpu.resource_name] = str(server.gpu.count)
    environment: list[dict[str, Any]] = [
        {"name": names.ENV_SITE, "value": names.PATH_SITE},
        # One thread per instance: tokenizer libraries would else count the node's cores, not the container's share.
        {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
        {"name": "RAYON_NUM_THREADS", "value": "1"},
        {
            "name": names.ENV_CONTROL_KEY,
            "valueFrom": {"secretKeyRef": {"name": names.revision_name(pipeline.name, revision), "key": names.KEY_CONTROL}},
        },
    ]
    if not any(variable.name == "HOME" for variable in server.env):
        environment.append({"name": "HOME", "value": "/tmp"})  # noqa: S108
    environment += [plain(variable.model_dump(by_alias=True, exclude_none=True)) for variable in server.env]
    return {
        "name": names.CONTAINER_SERVER,
        "image": image,
        "imagePullPolicy": server.image_pull_policy.value if server.image_pull_policy else options.image_pull_policy,
        "command": ["tritonserver"],
        "args": server_arguments(
            names.PATH_MODELS,
            graph.load,
            exit_timeout_seconds=drain,
            connection_age_milliseconds=connection_age(drain),
            control_key=f"$({names.ENV_CONTROL_KEY})",
            extra=server.args,
        ),
        "env": environment,
        "ports": [
            {"name": "http", "containerPort": names.PORT_HTTP, "protocol": "TCP"},
            {"name": "grpc", "containerPort": names.PORT_GRPC, "protocol": "TCP"},
            {"name": "metrics", "containerPort": names.PORT_METRICS, "protocol": "TCP"},
        ],
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": [
            # Read-only is what keeps count changes in place: no bytecode cache makes the version folder look newer.
            {"name": names.VOLUME_DATA, "mountPath": names.PATH_ROOT, "readOnly": True},
            {"name": names.VOLUME_SHM, "mountPath": "/dev/shm"},  # noqa: S108
            {"name": names.VOLUME_TMP, "mountPath": "/tmp"},  # noqa: S108
        ],
        # The server stays live while the ensemble is down, and ready while a process is dead; only the ensemble itself says the truth.
        "readinessProbe": {
            # As it stands: names need no quoting in a path, and Triton does not decode one (measured, 24.10: %2B for + is not found).
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
        # Triton resets new connections from the moment of SIGTERM; until every client knows that the pod is gone, it must not come.
        "lifecycle": {"preStop": {"sleep": {"seconds": drain}}},
        "securityContext": _hardened(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _volumes(pipeline: InferencePipeline, graph: Graph, options: Options, revision: str) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": names.VOLUME_DATA, "emptyDir": {}},
        {"name": names.VOLUME_TMP, "emptyDir": {}},
        {"name": names.VOLUME_SHM, "emptyDir": {"medium": "Memory", "sizeLimit": sizes(pipeline, graph).shared_memory}},
        {"name": names.VOLUME_REVISION, "configMap": {"name": names.revision_name(pipeline.name, revision)}},
        {"name": names.VOLUME_LIVE, "configMap": {"name": names.live_name(pipeline.name), "optional": True}},
    ]
    claims: set[str] = set()
    for item in graph.fetches:
        source = item.source
        scheme, name = _mounted(options, source)
        if source.secret_ref:
            volumes.append({"name": _volume("credentials", item), "secret": {"secretName": source.secret_ref.name}})
        if source.ca_ref:
            entry = {"key": source.ca_ref.key, "path": "ca.crt"}
            volumes.append({"name": _volume("ca", item), "configMap": {"name": source.ca_ref.name, "items": [entry]}})
        if scheme == "configmap":
            volumes.append({"name": _volume("configmap", item), "configMap": {"name": name}})
        if scheme == "pvc" and name not in claims:
            claims.add(name)
            volumes.append({"name": f"claim-{len(claims)}", "persistentVolumeClaim": {"claimName": name, "readOnly": True}})
    return volumes


def _tolerations(server: Server) -> list[dict[str, Any]]:
    wanted = [{"key": key, "operator": "Exists"} for key in sorted({GPU_RESOURCE, server.gpu.resource_name})] if server.gpu.count else []
    return [*wanted, *(plain(item) for item in server.tolerations)]


def _spread(pipeline: InferencePipeline) -> list[dict[str, Any]]:
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


def affinity(server: Server) -> Mapping[str, Any]:
    """The user's affinity with the GPU products added to every alternative of its required node terms."""
    result: dict[str, Any] = plain(server.affinity or {})
    if not server.gpu.products:
        return result
    expression = {"key": GPU_PRODUCT_LABEL, "operator": "In", "values": sorted(server.gpu.products)}
    # "or": a key without a value is as good as none
    node = result["nodeAffinity"] = result.get("nodeAffinity") or {}
    required = node["requiredDuringSchedulingIgnoredDuringExecution"] = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    required["nodeSelectorTerms"] = terms = required.get("nodeSelectorTerms") or [{}]
    for term in terms:  # terms are alternatives, expressions within one all hold
        term["matchExpressions"] = [*(term.get("matchExpressions") or []), expression]
    return result
