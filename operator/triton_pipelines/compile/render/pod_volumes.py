"""Volumes of the pod and their mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.source import IMAGE_SCHEME, SourceSpec, image_folder
from triton_pipelines.api.tls import Tls, TlsMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.container_resources import sizes
from triton_pipelines.compile.graph.defaults import ENVIRONMENT_PARAMETER
from triton_pipelines.compile.graph.graph import Fetch, Graph, Implementation
from triton_pipelines.compile.graph.options import Options

# Triton's backends and the operator's files write very little there.
TMP_LIMIT = "4Gi"
_IMAGE_PREFIX = "image-"
KNOWN_BACKENDS = frozenset(
    {"onnxruntime", "tensorrt", "pytorch", "python", names.NATIVE_TOKENIZER_BACKEND}
)


def volume_name(kind: str, item: Fetch) -> str:
    """Return the name, a DNS label, of the volume with a source's credentials, CA or content."""
    return f"{kind}-{item.key.replace('.', '-')}"


def claim_volumes(pipeline: InferencePipeline, graph: Graph, options: Options) -> dict[str, str]:
    """Return the name of the volume of each claim.

    Each claim has one volume, because two volumes of one claim keep some kubelets waiting. The
    model cache comes first.
    """
    cache = pipeline.spec.server.model_cache
    claims = {} if cache is None else {cache.claim_name: names.VOLUME_CACHE}
    for item in graph.fetches:
        scheme, name = mounted_source(options, item.source)
        if scheme == "pvc":
            claims.setdefault(name, f"claim-{len(claims) + (cache is None)}")
    return claims


def keeps_engines(graph: Graph) -> bool:
    """Return whether a step writes TensorRT engines."""
    return any(
        key == "trt_engine_cache_enable" and value == "1"
        for step in graph.models
        for key, value in step.accelerator or ()
    )


def engines_folder(pipeline: InferencePipeline) -> str:
    """Return the pipeline's folder on a shared volume.

    Pipelines of one namespace may have models of the same name.
    """
    return f"{names.FOLDER_ENGINES}/{pipeline.name}"


def relevant_source_map(entries: Sequence[str], uris: Sequence[str]) -> list[str]:
    """Return the entries that apply to one of these URIs.

    A mirror that is added for other sources must not roll the pods of this pipeline.
    """
    return sorted({entry for uri in uris if (entry := _winner(entries, uri))})


def _winner(entries: Sequence[str], uri: str) -> str | None:
    """Return the entry that the loader applies: the longest prefix, the last of equal ones."""
    fitting = [
        entry.strip() for entry in entries if uri.startswith(entry.strip().partition("=")[0])
    ]
    return max(reversed(fitting), key=lambda entry: len(entry.partition("=")[0]), default=None)


def mounted_source(options: Options, source: SourceSpec) -> tuple[str, str]:
    """Return the scheme and first name of the location from which a source is fetched.

    A source map may redirect a source to a claim.
    """
    scheme, rest = _mapped(options, source)
    return scheme, rest.split("/", 1)[0]


def image_volumes(graph: Graph, options: Options) -> list[dict[str, Any]]:
    """Return the volumes of images that are sources."""
    return [
        # The reference contains a digest, so an image on the node is the right one.
        {"name": volume, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
        for volume, reference in _images(graph, options).items()
    ]


def _images(graph: Graph, options: Options) -> dict[str, str]:
    """Return the image of each image volume, by the name of the volume.

    Sources with the same digest share a volume.
    """
    return {
        f"{_IMAGE_PREFIX}{folder}": rest
        for item in graph.fetches
        for scheme, rest in (_mapped(options, item.source),)
        if scheme == IMAGE_SCHEME and (folder := image_folder(rest)) is not None
    }


def image_mounts(graph: Graph, options: Options) -> list[dict[str, Any]]:
    """Return the mounts of the image volumes, which are the same in the loader and in Triton.

    The loader links the files of an image, and Triton follows the links.
    """
    return [
        {
            "name": volume,
            "mountPath": f"{names.PATH_IMAGES}/{volume.removeprefix(_IMAGE_PREFIX)}",
            "readOnly": True,
        }
        for volume in _images(graph, options)
    ]


def image_fields(graph: Graph, options: Options) -> list[str]:
    """Return the fields of the sources that are mounted as image volumes, each once."""
    fields = (
        item.path
        for item in graph.fetches
        if mounted_source(options, item.source)[0] == IMAGE_SCHEME
    )
    return list(dict.fromkeys(fields))


def _mapped(options: Options, source: SourceSpec) -> tuple[str, str]:
    """Return the scheme and the rest of the location from which a source is fetched."""
    prefix, _, target = (_winner(options.source_map, source.uri) or "").partition("=")
    scheme, _, rest = source.uri.partition("://")
    if target and not (scheme in ("hf", "s3") and target.startswith(("http://", "https://"))):
        scheme, _, rest = (target + source.uri[len(prefix) :]).partition("://")
    return scheme, rest


def engine_mounts(pipeline: InferencePipeline, graph: Graph) -> list[dict[str, Any]]:
    """Return the mounts of the folder in which TensorRT stores engines.

    It is on the shared volume, else in a folder of the pod that outlives its containers.
    """
    if not keeps_engines(graph):
        return []
    if pipeline.spec.server.model_cache is None:
        return [{"name": names.VOLUME_ENGINES, "mountPath": names.PATH_ENGINES}]
    return [
        {
            "name": names.VOLUME_CACHE,
            "mountPath": names.PATH_ENGINES,
            "subPath": engines_folder(pipeline),
        }
    ]


def _tmp(graph: Graph) -> dict[str, Any]:
    """Return the volume for temporary files.

    Its size is limited if only Triton, its backends and the operator's files write there, so that
    a leak stops the pod and not its node. It is unlimited if a packed environment is unpacked there
    or an engine stores compiled kernels, whose size is unknown. The model repository has no limit:
    models may be of any size, and the loader checks the free space before it fetches.
    """
    open_ended = any(
        step.implementation is Implementation.CODE
        or ENVIRONMENT_PARAMETER in step.parameters
        or step.backend not in KNOWN_BACKENDS
        for step in graph.models
    )
    return {} if open_ended else {"sizeLimit": TMP_LIMIT}


def _tls(tls: Tls) -> dict[str, Any]:
    """Return the volume of the TLS Secret, with nothing but what Triton reads."""
    keys = [names.KEY_CERTIFICATE, names.KEY_PRIVATE]
    if tls.mode is TlsMode.MUTUAL:
        keys.append(names.KEY_AUTHORITIES)
    items = [{"key": key, "path": key} for key in keys]
    return {"name": names.VOLUME_TLS, "secret": {"secretName": tls.secret_name, "items": items}}


def mounted_tls(template: Mapping[str, Any]) -> Tls | None:
    """Return ``server.tls`` of the spec that a pod template was rendered from.

    ``None`` without TLS.
    """
    volumes = (template.get("spec") or {}).get("volumes") or ()
    found = [item.get("secret") for item in volumes if item.get("name") == names.VOLUME_TLS]
    if not found or not found[0]:  # none, or edited by hand
        return None
    keys = {item.get("key") for item in found[0].get("items") or ()}
    mode = TlsMode.MUTUAL if names.KEY_AUTHORITIES in keys else TlsMode.SIMPLE
    return Tls.model_construct(secret_name=str(found[0].get("secretName") or ""), mode=mode)


def pod_volumes(
    pipeline: InferencePipeline, graph: Graph, options: Options, revision: str
) -> list[dict[str, Any]]:
    """Return the volumes of the pod: its own folders, ConfigMaps, Secrets and claims."""
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
    if keeps_engines(graph) and pipeline.spec.server.model_cache is None:
        volumes.append({"name": names.VOLUME_ENGINES, "emptyDir": {}})
    if (tls := pipeline.spec.server.tls) is not None:
        volumes.append(_tls(tls))
    for item in graph.fetches:
        source = item.source
        scheme, name = mounted_source(options, source)
        if source.secret_ref:
            volumes.append(
                {
                    "name": volume_name("credentials", item),
                    "secret": {"secretName": source.secret_ref.name},
                }
            )
        if source.ca_ref:
            entry = {"key": source.ca_ref.key, "path": "ca.crt"}
            volumes.append(
                {
                    "name": volume_name("ca", item),
                    "configMap": {"name": source.ca_ref.name, "items": [entry]},
                }
            )
        if scheme == "configmap":
            volumes.append({"name": volume_name("configmap", item), "configMap": {"name": name}})
    for claim, volume in claim_volumes(pipeline, graph, options).items():
        # The loader only reads these claims; it writes to the cache.
        read_only = {} if volume == names.VOLUME_CACHE else {"readOnly": True}
        volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim, **read_only}})
    return volumes + image_volumes(graph, options)
