"""The pod: an init container that lays out the repository, and Triton that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.server import ServerSpec
from triton_pipelines.api.source import SourceSpec
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.defaults import ENVIRONMENT_PARAMETER
from triton_pipelines.compile.graph.graph import Fetch, Graph, Implementation
from triton_pipelines.compile.graph.options import Options
from triton_pipelines.compile.graph.server_settings import (
    connection_age_milliseconds,
    cpu_range,
    drain_seconds,
    exit_timeout_seconds,
    feature_arguments,
    server_arguments,
    sizes,
)

from .passthrough import plain
from .pod_template import merged

UID = 1000  # of the stock Triton image's unprivileged user
GRACE_MARGIN_SECONDS = 10
# Triton listens only when its models are loaded. How long that may take is no setting: a rollout's
# deadline is judged by the operator, and a value of it in the probe would roll every pod when it
# changes.
STARTUP_SECONDS = 7200
STARTUP_PERIOD_SECONDS = 2
# The model's backends and ours write next to nothing there.
TMP_LIMIT = "4Gi"
KNOWN_BACKENDS = frozenset({"onnxruntime", "tensorrt", "pytorch", "python"})
GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"


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


def _volume(kind: str, item: Fetch) -> str:
    """Name of the volume that a source's credentials, CA or content come from: a DNS label."""
    return f"{kind}-{item.key.replace('.', '-')}"


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
    claims, mounted = _claims(pipeline, graph, options), set[str]()
    for item in graph.fetches:
        source = item.source
        scheme, name = _mounted(options, source)
        if source.secret_ref:
            mounts.append(
                {
                    "name": _volume("credentials", item),
                    "mountPath": f"{names.PATH_CREDENTIALS}/{item.key}",
                    "readOnly": True,
                }
            )
        if source.ca_ref:
            mounts.append(
                {
                    "name": _volume("ca", item),
                    "mountPath": f"{names.PATH_CA}/{item.key}",
                    "readOnly": True,
                }
            )
        if scheme == "configmap":
            mounts.append(
                {
                    "name": _volume("configmap", item),
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
        if _keeps_engines(graph):
            # Made by the loader, so that it is its user's: the kubelet would make it root's.
            cache.append(f"--folder={names.PATH_CACHE}/{_engines_folder(pipeline)}")
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


def _claims(pipeline: InferencePipeline, graph: Graph, options: Options) -> dict[str, str]:
    """Claim → name of its volume.

    A pod names a claim once (two volumes of one claim keep some kubelets waiting), the model cache
    first.
    """
    cache = pipeline.spec.server.model_cache
    claims = {} if cache is None else {cache.claim_name: names.VOLUME_CACHE}
    for item in graph.fetches:
        scheme, name = _mounted(options, item.source)
        if scheme == "pvc":
            claims.setdefault(name, f"claim-{len(claims) + (cache is None)}")
    return claims


def _keeps_engines(graph: Graph) -> bool:
    """Whether a step writes TensorRT engines."""
    return any(
        key == "trt_engine_cache_enable" and value == "1"
        for step in graph.models
        for key, value in step.accelerator or ()
    )


def _engines_folder(pipeline: InferencePipeline) -> str:
    """Below a shared volume: pipelines of a namespace may have models of the same name."""
    return f"{names.FOLDER_ENGINES}/{pipeline.name}"


def relevant_source_map(entries: Sequence[str], uris: Sequence[str]) -> list[str]:
    """The entries that touch one of these URIs.

    A mirror added for others rolls no pod of this pipeline.
    """
    return sorted({entry for uri in uris if (entry := _winner(entries, uri))})


def _winner(entries: Sequence[str], uri: str) -> str | None:
    """The entry that the loader applies to a URI: the longest prefix, of equal ones the last."""
    fitting = [
        entry.strip() for entry in entries if uri.startswith(entry.strip().partition("=")[0])
    ]
    return max(reversed(fitting), key=lambda entry: len(entry.partition("=")[0]), default=None)


def _mounted(options: Options, source: SourceSpec) -> tuple[str, str]:
    """Return the scheme and first name of the location from which a source is fetched.

    A source map may redirect a source to a claim.
    """
    prefix, _, target = (_winner(options.source_map, source.uri) or "").partition("=")
    scheme, _, rest = source.uri.partition("://")
    if target and not (scheme in ("hf", "s3") and target.startswith(("http://", "https://"))):
        scheme, _, rest = (target + source.uri[len(prefix) :]).partition("://")
    return scheme, rest.split("/", 1)[0]


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
            *_engine_mounts(pipeline, graph),
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


def _engine_mounts(pipeline: InferencePipeline, graph: Graph) -> list[dict[str, Any]]:
    """Where TensorRT keeps engines.

    On the shared volume, else in a folder of the pod that outlives its containers.
    """
    if not _keeps_engines(graph):
        return []
    if pipeline.spec.server.model_cache is None:
        return [{"name": names.VOLUME_ENGINES, "mountPath": names.PATH_ENGINES}]
    return [
        {
            "name": names.VOLUME_CACHE,
            "mountPath": names.PATH_ENGINES,
            "subPath": _engines_folder(pipeline),
        }
    ]


def _tmp(graph: Graph) -> dict[str, Any]:
    """Return the volume for temporary files.

    Its size is limited if only Triton, its backends and our own files write there, so that a leak
    stops the pod and not its node. It is unlimited if a packed environment is unpacked there or an
    engine stores compiled kernels, whose size is unknown. The model repository has no limit: models
    may be of any size, and the loader checks the free space before it fetches.
    """
    open_ended = any(
        step.implementation is Implementation.CODE
        or ENVIRONMENT_PARAMETER in step.parameters
        or step.backend not in KNOWN_BACKENDS
        for step in graph.models
    )
    return {} if open_ended else {"sizeLimit": TMP_LIMIT}


def _volumes(
    pipeline: InferencePipeline, graph: Graph, options: Options, revision: str
) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": names.VOLUME_DATA, "emptyDir": {}},
        {"name": names.VOLUME_TMP, "emptyDir": _tmp(graph)},
        {
            "name": names.VOLUME_SHM,
            "emptyDir": {"medium": "Memory", "sizeLimit": sizes(pipeline, graph).shared_memory},
        },
        {
            "name": names.VOLUME_REVISION,
            "configMap": {"name": names.revision_name(pipeline.name, revision)},
        },
        {
            "name": names.VOLUME_LIVE,
            "configMap": {"name": names.live_name(pipeline.name), "optional": True},
        },
    ]
    if _keeps_engines(graph) and pipeline.spec.server.model_cache is None:
        volumes.append({"name": names.VOLUME_ENGINES, "emptyDir": {}})
    for item in graph.fetches:
        source = item.source
        scheme, name = _mounted(options, source)
        if source.secret_ref:
            volumes.append(
                {
                    "name": _volume("credentials", item),
                    "secret": {"secretName": source.secret_ref.name},
                }
            )
        if source.ca_ref:
            entry = {"key": source.ca_ref.key, "path": "ca.crt"}
            volumes.append(
                {
                    "name": _volume("ca", item),
                    "configMap": {"name": source.ca_ref.name, "items": [entry]},
                }
            )
        if scheme == "configmap":
            volumes.append({"name": _volume("configmap", item), "configMap": {"name": name}})
    for claim, volume in _claims(pipeline, graph, options).items():
        # What the loader only reads is read-only as a whole; the cache is written to.
        read_only = {} if volume == names.VOLUME_CACHE else {"readOnly": True}
        volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim, **read_only}})
    return volumes


def _tolerations(server: ServerSpec) -> list[dict[str, Any]]:
    wanted = (
        [
            {"key": key, "operator": "Exists"}
            for key in sorted({GPU_RESOURCE, server.gpu.resource_name})
        ]
        if server.gpu.count
        else []
    )
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
