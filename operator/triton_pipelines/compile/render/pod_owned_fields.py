"""Find what ``server.podTemplate`` may not change, because the operator owns it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.options import Options
from triton_pipelines.compile.graph.server_settings import refused_variable

from .pod_schema import as_mapping, mapping_items

PATH = "spec.server.podTemplate"
_OURS = "set by the operator; "
# Fields of the Triton container → the field of the resource that says it, "" where nothing does.
_SERVER_FIELDS = {
    "image": "spec.server.image",
    "imagePullPolicy": "spec.server.imagePullPolicy",
    "command": "",
    "args": "spec.server.args",
    "ports": "",
    "readinessProbe": "",
    "livenessProbe": "",
    "startupProbe": "",
    "lifecycle": "spec.rollout.drainSeconds",
    "restartPolicy": "",
    "restartPolicyRules": "",
    "terminationMessagePath": "",
    "terminationMessagePolicy": "",
}
# All that may be said of the loader: what it reads from (a proxy, a mounted certificate) and what
# it may use.
_LOADER_FIELDS = frozenset({"name", "env", "envFrom", "resources", "volumeMounts"})
_POD_FIELDS = {
    "automountServiceAccountToken": (
        "Triton does not receive a token; with --pod-template=allow, mount a token into "
        "your own container with a projected volume (serviceAccountToken)"
    ),
    "restartPolicy": "pods of a Deployment are always restarted; remove the field",
    "activeDeadlineSeconds": "pods of a Deployment cannot have a deadline; remove the field",
    "ephemeralContainers": (
        "a pod template cannot have ephemeral containers; use kubectl debug on a pod"
    ),
    "replicas": "not part of a pod; use spec.replicas",
    "strategy": "not part of a pod; use spec.rollout.strategy",
}
_RESOURCES = {"cpu": "spec.server.resources", "memory": "spec.server.resources"}
# Below these nothing else may be mounted into our containers: the repository must not change, nor
# what the loader reads.
_OWN_TREES = (
    names.PATH_ROOT,
    names.PATH_CONFIG,
    names.PATH_ENGINES,
    names.PATH_CACHE,
    "/dev/shm",  # noqa: S108 - a path of the pod
)
_OWN_MOUNTS = (*_OWN_TREES, "/tmp", "/")  # noqa: S108


# --- Parts that the operator owns -----------------------------------------------------------------


def owned_fields(
    given: Any, template: Mapping[str, Any], pipeline: InferencePipeline, options: Options
) -> Iterator[Finding]:
    """Yield the fields of ``server.podTemplate`` that only the operator may set.

    Args:
        given: The pod template of the resource.
        template: The pod template as the operator renders it.
        pipeline: The resource.
        options: The operator's options.
    """
    for key in as_mapping(given):
        if key in ("apiVersion", "kind"):
            yield Finding(
                f"{PATH}.{key}",
                "the field does not exist in a pod template; remove the field",
                code=FindingCode.UNKNOWN_FIELD,
            )
    yield from _metadata(as_mapping(given).get("metadata"), f"{PATH}.metadata", pipeline)
    spec, path = as_mapping(as_mapping(given).get("spec")), f"{PATH}.spec"
    ours = template["spec"]
    for part in ("metadata", "spec"):
        if part in as_mapping(given) and given[part] is None:
            yield Finding(
                f"{PATH}.{part}",
                f"{_OURS}null would remove the whole field",
                code=FindingCode.RESERVED,
            )
    for field, why in _POD_FIELDS.items():
        if field in spec:
            yield Finding(f"{path}.{field}", why, code=FindingCode.RESERVED)
    for field in ("containers", "initContainers", "volumes"):
        if field in spec and spec[field] is None:
            yield Finding(
                f"{path}.{field}",
                f"null would also remove the operator's {field}; list the {field} to remove",
                code=FindingCode.RESERVED,
            )
    yield from _grace(spec, ours, path)
    yield from _placement(spec, pipeline, path)
    yield from _containers(spec, pipeline, options, path)
    yield from _volumes(spec, {item["name"] for item in ours["volumes"]}, path)


def _metadata(given: Any, path: str, pipeline: InferencePipeline) -> Iterator[Finding]:
    own = {*names.labels(pipeline.name), names.LABEL_REVISION}
    for part, value in as_mapping(given).items():
        if part not in ("labels", "annotations"):
            yield Finding(
                f"{path}.{part}",
                "no effect on pods; use only labels and annotations",
                code=FindingCode.NO_EFFECT,
            )
        if value is None:
            yield Finding(
                f"{path}.{part}", f"{_OURS}null would remove every key", code=FindingCode.RESERVED
            )
        for key in as_mapping(value):
            if key in own or str(key).startswith(f"{names.GROUP}/"):
                yield Finding(
                    f"{path}.{part}[{key}]", f"{_OURS}remove this key", code=FindingCode.RESERVED
                )


def _grace(spec: Mapping[str, Any], ours: Mapping[str, Any], path: str) -> Iterator[Finding]:
    field = "terminationGracePeriodSeconds"
    given, needed = spec.get(field), ours[field]
    if field in spec and (given is None or (isinstance(given, int) and given < needed)):
        yield Finding(
            f"{path}.{field}",
            f"the grace period is shorter than the drain, which takes {needed} s; use at "
            f"least {needed}, or lower spec.rollout.drainSeconds",
            code=FindingCode.OUT_OF_RANGE,
        )


def _placement(
    spec: Mapping[str, Any], pipeline: InferencePipeline, path: str
) -> Iterator[Finding]:
    """Yield lists and parts that would replace those which the GPU needs."""
    gpu = pipeline.spec.server.gpu
    affinity = spec.get("affinity")
    if (
        gpu.products
        and "affinity" in spec
        and (affinity is None or "nodeAffinity" in as_mapping(affinity))
    ):
        yield Finding(
            f"{path}.affinity",
            "the patch would replace the affinity from server.gpu.products; use "
            "spec.server.affinity",
            code=FindingCode.RESERVED,
        )
    for field, instead in (
        ("tolerations", "server.tolerations"),
        ("resourceClaims", "server.gpu.claimTemplate"),
    ):
        if field in spec and spec[field] is None:
            yield Finding(
                f"{path}.{field}",
                f"null would remove settings that the GPU requires; use spec.{instead} instead",
                code=FindingCode.RESERVED,
            )
    claims = spec.get("resourceClaims")
    if (
        gpu.claim_template is not None
        and isinstance(claims, list)
        and names.CLAIM_GPU not in [as_mapping(claim).get("name") for claim in claims]
    ):
        yield Finding(
            f"{path}.resourceClaims",
            f"this list replaces that of the operator; add the claim {names.CLAIM_GPU} of "
            "server.gpu.claimTemplate",
            code=FindingCode.RESERVED,
        )


def _containers(
    spec: Mapping[str, Any],
    pipeline: InferencePipeline,
    options: Options,
    path: str,
) -> Iterator[Finding]:
    for part, own in (
        ("containers", names.CONTAINER_SERVER),
        ("initContainers", names.CONTAINER_LOADER),
    ):
        for where, item in mapping_items(spec.get(part), part):
            here = f"{path}.{where}"
            name = item.get("name")
            if name == own:
                yield from _own_container(item, pipeline, here, loader=part == "initContainers")
            elif not options.custom_code_allowed:
                yield Finding(
                    here,
                    "additional containers count as custom code, which this operator "
                    "forbids (--custom-code=forbid); remove these containers, or ask the "
                    "operator's administrator to allow custom code",
                    code=FindingCode.FORBIDDEN,
                )
            for mounted, mount in mapping_items(item.get("volumeMounts"), "volumeMounts"):
                if (
                    name != own
                    and mount.get("name") == names.VOLUME_DATA
                    and mount.get("readOnly") is not True
                ):
                    yield Finding(
                        f"{here}.{mounted}.readOnly",
                        "must be true, because Triton reloads its models when the model repository"
                        " changes",
                        code=FindingCode.RESERVED,
                    )


def _own_container(
    item: Mapping[str, Any],
    pipeline: InferencePipeline,
    path: str,
    *,
    loader: bool,
) -> Iterator[Finding]:
    server = pipeline.spec.server
    for field in item:
        if loader and field not in _LOADER_FIELDS:
            yield Finding(
                f"{path}.{field}",
                f"{_OURS}only {', '.join(sorted(_LOADER_FIELDS - {'name'}))} of its init container"
                " can be extended",
                code=FindingCode.RESERVED,
            )
        elif not loader and field in _SERVER_FIELDS:
            instead = _SERVER_FIELDS[field]
            yield Finding(
                f"{path}.{field}",
                _OURS + (f"use {instead} instead" if instead else "remove the field"),
                code=FindingCode.RESERVED,
            )
        elif field in ("env", "volumeMounts") and item[field] is None:
            yield Finding(
                f"{path}.{field}",
                (f"{_OURS}null would remove the whole field"),
                code=FindingCode.RESERVED,
            )
    for where, variable in mapping_items(item.get("env"), "env"):
        name, value = str(variable.get("name")), variable.get("value")
        own = loader and (name in ("HOME", "HF_HOME") or name.startswith("TRITONPIPE_"))
        if (
            why := f"{name} is {_OURS}remove {name}"
            if own
            else refused_variable(name, value if isinstance(value, str) else None, server)
        ):
            yield Finding(f"{path}.{where}", why, code=FindingCode.RESERVED)
    for where, mount in mapping_items(item.get("volumeMounts"), "volumeMounts"):
        target = str(mount.get("mountPath")).rstrip("/") or "/"
        if target in _OWN_MOUNTS or target.startswith(tuple(f"{tree}/" for tree in _OWN_TREES)):
            yield Finding(
                f"{path}.{where}", f"{_OURS}choose another mount path", code=FindingCode.RESERVED
            )
    if not loader:
        yield from _resources(item, pipeline, path)


def _resources(
    item: Mapping[str, Any], pipeline: InferencePipeline, path: str
) -> Iterator[Finding]:
    gpu = pipeline.spec.server.gpu
    owned = {
        **_RESOURCES,
        gpu.resource_name: "spec.server.gpu",
        "nvidia.com/gpu": "spec.server.gpu",
    }
    if "resources" in item and item["resources"] is None:
        yield Finding(
            f"{path}.resources",
            f"{_OURS}use spec.server.resources instead",
            code=FindingCode.RESERVED,
        )
    resources = as_mapping(item.get("resources"))
    for part in ("requests", "limits"):
        if part in resources and resources[part] is None:
            yield Finding(
                f"{path}.resources.{part}",
                f"{_OURS}use spec.server.resources instead",
                code=FindingCode.RESERVED,
            )
        for name in as_mapping(resources.get(part)):
            if name in owned:
                yield Finding(
                    f"{path}.resources.{part}[{name}]",
                    f"{_OURS}use {owned[name]} instead",
                    code=FindingCode.RESERVED,
                )
    claims = resources.get("claims")
    kept = isinstance(claims, list) and names.CLAIM_GPU in [
        as_mapping(claim).get("name") for claim in claims
    ]
    if gpu.claim_template is not None and "claims" in resources and not kept:
        yield Finding(
            f"{path}.resources.claims",
            f"this list replaces that of the operator; add the claim {names.CLAIM_GPU} of "
            "server.gpu.claimTemplate",
            code=FindingCode.RESERVED,
        )


def _volumes(spec: Mapping[str, Any], ours: set[str], path: str) -> Iterator[Finding]:
    """Check that of the operator's volumes only the size of a folder on disk is changed."""
    for where, item in mapping_items(spec.get("volumes"), "volumes"):
        name = item.get("name")
        if name not in ours:
            continue
        sized = set(item) == {"name", "emptyDir"} and set(as_mapping(item["emptyDir"])) == {
            "sizeLimit"
        }
        if name == names.VOLUME_SHM:
            yield Finding(
                f"{path}.{where}",
                f"{_OURS}use spec.server.sharedMemory instead",
                code=FindingCode.RESERVED,
            )
        elif not (sized and name in names.DISK_VOLUMES):
            yield Finding(
                f"{path}.{where}",
                f"{_OURS}choose another name"
                + (", or change only its emptyDir.sizeLimit" if name in names.DISK_VOLUMES else ""),
                code=FindingCode.RESERVED,
            )
