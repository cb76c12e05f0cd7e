"""Check sources before they are fetched: their URIs, and files that would overwrite others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.source import (
    IMAGE_PATTERN,
    MOUNTED_SCHEMES,
    OCI_REFERENCE_PATTERN,
    ModelSource,
    SourceSpec,
)

from .defaults import ENGINE_FILE
from .fetches import file_name_of, names_file
from .graph import Graph, Step

# Their web pages are not files; repositories are read with the scheme hf.
HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
# The renderer writes these files, so a source must not contain them.
RESERVED_FILES = ("model.py",)
# `tritonpipe init` and `tritonpipe import` write this for an unknown source: a claim in the
# pipeline's own namespace, so that applying the resource unchanged never reads other files.
PLACEHOLDER = "pvc://replace-me"


def check_sources(graph: Graph) -> Iterator[Finding]:
    """Yield invalid sources, and files that would overwrite what the renderer writes."""
    sources = {item.path: item.source for item in graph.fetches}
    for path, source in sources.items():
        yield from check_source(source, path)
    models = {item.path for item in graph.fetches if item.kind is FetchKind.MODEL}
    for path, source in sources.items():
        if (
            isinstance(source, ModelSource)
            and source.file_name is not None
            and path not in models
            and not names_file(source)
        ):
            yield Finding(
                f"{path}.fileName",
                "fileName selects a model file, but no model is loaded from this source; "
                "use path to select a file in the source",
                code=FindingCode.FIELD_COMBINATION,
            )
    for step in graph.models:
        yield from _file_conflicts(step)


def _file_conflicts(step: Step) -> Iterator[Finding]:
    """Yield files of a step's sources that take the place of another file."""
    has_code = step.code is not None or any(item.slot == "code" for item in step.fetches)
    targets: dict[str, str] = {}
    for item in step.fetches:
        name = item.target.rsplit("/", 1)[-1]
        taken_by = []
        if item.kind is FetchKind.FILE:
            if has_code and item.slot != "code" and name in RESERVED_FILES:
                taken_by.append(f"the file {name} would replace the file from python.code")
            if name == ENGINE_FILE and step.files:
                taken_by.append(
                    f"the file {name} would replace the file that is generated from vllm.engineArgs"
                )
            if item.target in targets:
                taken_by.append(f"{targets[item.target]} already writes {item.target}")
        for conflict in taken_by:
            yield Finding(
                item.path,
                f"{conflict}; give the file another name",
                code=FindingCode.FILE_CONFLICT,
            )
        targets.setdefault(item.target, item.path)


def check_source(source: SourceSpec, path: str) -> Iterator[Finding]:
    """Yield what makes a source impossible to fetch, or would expose a secret."""
    scheme, _, rest = source.uri.partition("://")
    if source.path is not None and not _is_normal(source.path):
        yield _invalid(
            f"{path}.path",
            f"{source.path!r} must be a path inside the source without '..', '.', '//' or"
            " backslashes, for example onnx/model.onnx",
        )
    if scheme in ("s3", "gs", "az", "oci", "image", "https") and _climbs(rest):
        yield _invalid(f"{path}.uri", "must not contain '..'; specify the resolved path")
    check = _SCHEME_CHECKS.get(scheme)
    if check is not None:
        yield from check(source, rest, path)
    if isinstance(source, ModelSource) and source.file_name is not None and names_file(source):
        yield Finding(
            f"{path}.fileName",
            "fileName selects a file in a directory, but the source is the file "
            f"{file_name_of(source)!r}; remove fileName, or end the directory's URI with '/'",
            code=FindingCode.FIELD_COMBINATION,
        )


def _invalid(path: str, message: str) -> Finding:
    return Finding(path, message, code=FindingCode.INVALID_SOURCE)


def _climbs(rest: str) -> bool:
    """Return whether the path of a URI contains ``..``, plain or escaped."""
    return ".." in unquote(rest.partition("?")[0]).replace("\\", "/").split("/")


def _check_web(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    address = rest.split("/", 1)[0]
    if "@" in address:
        yield Finding(
            f"{path}.uri",
            "the URI contains a username or password; store the credentials in a Secret, "
            "and name that Secret in secretRef",
            code=FindingCode.CREDENTIALS_IN_URI,
        )
    elif not address:
        yield _invalid(f"{path}.uri", "the URI has no host; use https://host/file")
    elif address in HUB_HOSTS and "/resolve/" not in rest:
        name = "/".join(rest.split("/")[1:3])
        yield _invalid(
            f"{path}.uri",
            "the URI is that of a web page of the Hugging Face Hub, not of a file; use "
            f"hf://{name} (and path to select a file)",
        )


def _check_hub(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    repository, _, revision = rest.partition("@")
    parts = [part for part in repository.split("/") if part]
    if not parts or ".." in parts:
        yield _invalid(f"{path}.uri", "the URI has no repository; use hf://org/name")
    if revision and source.revision is not None:
        yield _revision_twice(path, f"@{revision}", "revision")


def _check_bucket(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    if not rest.split("/", 1)[0]:
        scheme = source.uri.partition("://")[0]
        yield _invalid(f"{path}.uri", f"the URI has no bucket; use {scheme}://bucket/key")


def _check_registry(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    if source.revision is None:
        return
    in_uri = re.search(r"[:@].*$", rest.partition("/")[2])
    if in_uri is not None:
        yield _revision_twice(path, in_uri[0], "tag or digest")
    elif re.match(OCI_REFERENCE_PATTERN, source.revision) is None:
        yield _invalid(
            f"{path}.revision",
            f"{source.revision!r} is not a valid OCI tag or digest; use a tag such as v3, or"
            " sha256:DIGEST",
        )


def _check_image(source: SourceSpec, rest: str, path: str) -> Iterator[Finding]:
    if re.match(IMAGE_PATTERN, rest) is None:
        yield _invalid(
            f"{path}.uri",
            "must have the form image://REGISTRY/REPOSITORY@sha256:DIGEST (64 hex digits), with a"
            " lowercase repository; the digest ensures that all nodes mount the same files",
        )
    given = {
        "secretRef": (source.secret_ref, "name the Secret in spec.server.imagePullSecrets"),
        "caRef": (source.ca_ref, "configure the CA in the container runtime of the nodes"),
        "revision": (source.revision, "set the digest in uri"),
    }
    for name, (value, instead) in given.items():
        if value is not None:
            yield Finding(
                f"{path}.{name}",
                f"{name} is not allowed with image://, because the kubelet pulls the image; "
                f"{instead}, and remove {name}",
                code=FindingCode.FIELD_COMBINATION,
            )


def _revision_twice(path: str, in_uri: str, what: str) -> Finding:
    return Finding(
        f"{path}.revision",
        f"the URI already contains {in_uri}; specify the {what} only once, in the URI or "
        "in this field",
        code=FindingCode.FIELD_COMBINATION,
    )


_SCHEME_CHECKS: Mapping[str, Callable[[SourceSpec, str, str], Iterator[Finding]]] = {
    "https": _check_web,
    "hf": _check_hub,
    "s3": _check_bucket,
    "gs": _check_bucket,
    "oci": _check_registry,
    "image": _check_image,
}


def pinned(source: SourceSpec) -> bool:
    """Return whether the content of a source cannot change unnoticed.

    It cannot if it is mounted, or named by revision or digest.
    """
    scheme, _, rest = source.uri.partition("://")
    if scheme in MOUNTED_SCHEMES:
        return True
    return (
        source.revision is not None
        or source.sha256 is not None
        or (scheme == "hf" and "@" in rest)
        or (scheme == "oci" and "@sha256:" in rest)
    )


def _is_normal(path: str) -> bool:
    pure = PurePosixPath(path)
    return (
        str(pure) == path
        and path != "."
        and ".." not in pure.parts
        and not pure.is_absolute()
        and "\\" not in path
    )
